"""The engines that servers can be launched with, or that are already up behind a URL."""

from fleetsieve_measure.engines.kind import EngineKind
from fleetsieve_measure.engines.launch import Launch
from fleetsieve_measure.engines.openai import OPENAI
from fleetsieve_measure.engines.sglang import SGLANG
from fleetsieve_measure.engines.simulated import SIMULATED
from fleetsieve_measure.engines.symptoms import Diagnosis
from fleetsieve_measure.engines.trtllm import TRTLLM
from fleetsieve_measure.engines.vllm import VLLM
from fleetsieve_measure.errors import InputError

__all__ = ["ENGINES", "Diagnosis", "EngineKind", "Launch", "engine_of"]

ENGINES: dict[str, EngineKind] = {
    engine.name: engine for engine in (VLLM, TRTLLM, SGLANG, OPENAI, SIMULATED)
}


def engine_of(launch: Launch) -> EngineKind:
    """The engine of `launch`.

    Raises:
        InputError: there is none of that kind.
    """
    if launch.kind not in ENGINES:
        raise InputError(f"engine kind is {launch.kind!r}; give one of {', '.join(ENGINES)}")
    return ENGINES[launch.kind]
