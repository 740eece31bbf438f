"""Makes a tiny Llama with random weights: `python tiny_model.py FOLDER`.

For real engines on a CPU. It runs inside an engine's own environment, so that it needs tokenizers,
safetensors and NumPy, and nothing of this project.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from numpy.typing import NDArray

# An engine's environment has these two; the project's has not.
from safetensors.numpy import save_file  # pyright: ignore[reportMissingImports]
from tokenizers import ByteLevelBPETokenizer  # pyright: ignore[reportMissingImports]

VOCABULARY = 3584
HIDDEN, HEADS, KV_HEADS, INNER, LAYERS, CONTEXT = 128, 4, 2, 512, 2, 2048
SPECIAL = ("<s>", "</s>", "<pad>")
BEGIN, END, PAD = range(len(SPECIAL))
CHAT = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HIDDEN // HEADS,
    "max_position_embeddings": CONTEXT,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": BEGIN,
    "eos_token_id": END,
    "pad_token_id": PAD,
}
TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": SPECIAL[BEGIN],
    "eos_token": SPECIAL[END],
    "pad_token": SPECIAL[PAD],
    "model_max_length": CONTEXT,
    "clean_up_tokenization_spaces": False,
    "chat_template": CHAT,
}


def make(folder: Path, seed: int = 0) -> Path:
    """Write the model to `folder`: config, tokenizer and weights, about 1.4 million parameters.

    The weights follow from `seed`; the vocabulary follows from the text that this Python brings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        topics.values(), VOCABULARY, special_tokens=list(SPECIAL), show_progress=False
    )
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise SystemExit(
            f"the vocabulary has {tokenizer.get_vocab_size()} tokens, not {VOCABULARY}"
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, body in (
        ("config", CONFIG),
        ("tokenizer_config", TOKENIZER),
        ("generation_config", {"bos_token_id": BEGIN, "eos_token_id": END}),
    ):
        (folder / f"{name}.json").write_text(json.dumps(body, indent=1))
    weights = dict(_weights(np.random.default_rng(seed)))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _weights(rng: np.random.Generator) -> Iterator[tuple[str, NDArray[np.float32]]]:
    def matrix(outputs: int, inputs: int) -> NDArray[np.float32]:
        return rng.standard_normal((outputs, inputs), np.float32) / np.float32(inputs**0.5)

    ones = np.ones(HIDDEN, np.float32)
    shared = HIDDEN * KV_HEADS // HEADS
    yield "model.embed_tokens.weight", matrix(VOCABULARY, HIDDEN)
    yield "model.norm.weight", ones
    head = matrix(VOCABULARY, HIDDEN)
    # The largest of so many random logits is never 0, so that greedy decoding does not end early.
    head[: len(SPECIAL)] = 0
    yield "lm_head.weight", head
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", ones.copy()
        yield f"{at}.post_attention_layernorm.weight", ones.copy()
        yield f"{at}.self_attn.q_proj.weight", matrix(HIDDEN, HIDDEN)
        yield f"{at}.self_attn.k_proj.weight", matrix(shared, HIDDEN)
        yield f"{at}.self_attn.v_proj.weight", matrix(shared, HIDDEN)
        yield f"{at}.self_attn.o_proj.weight", matrix(HIDDEN, HIDDEN)
        yield f"{at}.mlp.gate_proj.weight", matrix(INNER, HIDDEN)
        yield f"{at}.mlp.up_proj.weight", matrix(INNER, HIDDEN)
        yield f"{at}.mlp.down_proj.weight", matrix(HIDDEN, INNER)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python tiny_model.py FOLDER")
    make(Path(sys.argv[1]))
