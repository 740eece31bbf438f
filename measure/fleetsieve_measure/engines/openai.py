"""An OpenAI-compatible server that is already up: nothing is launched or stopped."""

from fleetsieve_measure.engines.kind import EngineKind

OPENAI = EngineKind(name="openai", on_gpus=False, races=False)
