"""Model shapes: what of a model decides how long a step takes and how much memory it needs."""

from dataclasses import dataclass, replace

from fleetsieve_measure.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A dense decoder with grouped-query attention.

    Attributes:
        heads: query heads; `kv_heads` of them have keys and values of their own.
        context: the longest sequence that the model was trained for, in tokens.
        weight_bytes, kv_bytes: bytes per weight and per element of the KV cache.
    """

    parameters: float
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    weight_bytes: int = 2
    kv_bytes: int = 2


# Shapes from each model's config.json on Hugging Face, parameters from its model card.
MODELS = {
    "qwen3-8b": ModelShape(
        parameters=8.19e9,
        layers=36,
        hidden_size=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        context=40960,
    ),
    "qwen3-32b": ModelShape(
        parameters=32.76e9,
        layers=64,
        hidden_size=5120,
        heads=64,
        kv_heads=8,
        head_dim=128,
        context=40960,
    ),
    "llama-3.1-8b": ModelShape(
        parameters=8.03e9,
        layers=32,
        hidden_size=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        context=131072,
    ),
    "llama-3.1-70b": ModelShape(
        parameters=70.55e9,
        layers=80,
        hidden_size=8192,
        heads=64,
        kv_heads=8,
        head_dim=128,
        context=131072,
    ),
}


def model_shape(
    name: str, *, quantization: str | None = None, kv_cache_dtype: str = "auto"
) -> ModelShape:
    """The shape of the model that is called `name`, here or on Hugging Face.

    Owner, upper case and the endings -Instruct and -FP8 do not matter, but that -FP8 means 8-bit
    weights, as `quantization="fp8"` does. `kv_cache_dtype="fp8"` means an 8-bit KV cache.

    Raises:
        InputError: an unknown model or number format.
    """
    short = name.rsplit("/", 1)[-1].lower()
    fp8 = short.endswith("-fp8") or quantization == "fp8"
    shape = MODELS.get(short.removesuffix("-fp8").removesuffix("-instruct"))
    if shape is None:
        raise InputError(f"model {name!r} is not simulated; known are {', '.join(MODELS)}")
    if quantization not in (None, "fp8"):
        raise InputError(f"quantization {quantization!r} is not simulated; leave it out or use fp8")
    if kv_cache_dtype not in ("auto", "fp8"):
        raise InputError(f"kv-cache-dtype {kv_cache_dtype!r} is not simulated; use auto or fp8")
    return replace(
        shape, weight_bytes=1 if fp8 else 2, kv_bytes=1 if kv_cache_dtype == "fp8" else 2
    )
