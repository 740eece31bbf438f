"""What to launch: an engine, its model, arguments and environment, and where."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One server to launch, or to use where `url` names one that is up.

    Attributes:
        kind: a key of `ENGINES`.
        model: a model's name, or the absolute path of its folder.
        args: the engine's own flags, such as {"max-model-len": 16384, "enforce-eager": True}.
        env: environment variables on top of what the engine gets anyway.
        command: takes the place of the engine's executable, such as ("/opt/vllm/bin/vllm",).
        gpus: places among the GPUs that this process may use, counted from 0.
        folder: where the server runs, and keeps its log and its caches.
        port: on 127.0.0.1; 0 takes a free one.
        url: an OpenAI-compatible server that somebody else runs.
        api_key_env: the environment variable that holds the API key, which is sent with requests.
    """

    kind: str
    model: str = ""
    args: Mapping[str, object] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    folder: Path = Path()
    port: int = 0
    url: str = ""
    api_key_env: str = ""
