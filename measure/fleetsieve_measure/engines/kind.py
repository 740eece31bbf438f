"""An engine as data: how it is launched, asked and understood."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleetsieve_measure.engines.arguments import flags
from fleetsieve_measure.engines.devices import device_names
from fleetsieve_measure.engines.launch import Launch
from fleetsieve_measure.engines.symptoms import COMMON, Diagnosis, Symptom, diagnose
from fleetsieve_measure.errors import InputError


@dataclass(frozen=True, kw_only=True)
class EngineKind:
    """One engine.

    Attributes:
        name: its key in `ENGINES`.
        executable: what starts it; empty for a server that somebody else runs.
        entry: arguments between the executable and the model.
        model_flag: stands before the model; empty where the model is positional.
        address: flags before the port.
        separator, repeats: how its flags are spelled; see `flags`.
        on_gpus: it runs on real GPUs, so that devices are assigned and their memory is watched.
        races: servers that start at the same time may disturb each other.
        caches: environment variables that name a folder, each with the folder's name; a compile
            cache that two servers share gets clobbered.
        variables: further environment variables.
        cache_reset: POSTed to, it empties the prefix cache.
        counters: metrics of its `/metrics` page that tell what load did to it, by what they are
            called here.
        kv_cache: matches the log line with the size of the KV cache in tokens.
        symptoms: what its log says about failures beyond what engines have in common.
    """

    name: str
    executable: tuple[str, ...] = ()
    entry: tuple[str, ...] = ()
    model_flag: str = ""
    address: tuple[str, ...] = ("--host", "127.0.0.1", "--port")
    separator: str = "-"
    repeats: bool = False
    on_gpus: bool = True
    races: bool = True
    caches: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    cache_reset: str | None = None
    counters: Mapping[str, str] = field(default_factory=dict)
    kv_cache: re.Pattern[str] | None = None
    symptoms: tuple[Symptom, ...] = ()

    @property
    def launched(self) -> bool:
        """Whether a server is a process of ours, not one that is already up."""
        return bool(self.executable)

    def command(self, launch: Launch) -> list[str]:
        """The command line that launches it; empty for a server that somebody else runs.

        Raises:
            InputError: the launch lacks what the engine needs, or sets what the launcher sets.
        """
        if not self.launched:
            self._check_url(launch)
            return []
        if launch.url:
            raise InputError(
                f"engine {self.name} is launched, so that url has no use; leave it out"
            )
        if not launch.model:
            raise InputError(f"engine {self.name} has no model; name one in model")
        model = [self.model_flag, launch.model] if self.model_flag else [launch.model]
        return [
            *(launch.command or self.executable),
            *self.entry,
            *model,
            *self.address,
            str(launch.port),
            *flags(launch.args, separator=self.separator, repeats=self.repeats),
        ]

    def environment(self, launch: Launch, outer: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Environment variables that the server gets on top of `outer`.

        Raises:
            InputError: fewer GPUs are visible than `launch` uses, or its env moves them.
        """
        if self.on_gpus and "CUDA_VISIBLE_DEVICES" in launch.env:
            raise InputError("env: CUDA_VISIBLE_DEVICES is set by the launcher; leave it out")
        devices = self.devices(launch, outer)
        # In the order of the bus a number means the same GPU here as for the driver.
        placed = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(devices)}
        return {
            "PYTHONUNBUFFERED": "1",
            **self.variables,
            **{name: str(launch.folder / "cache" / part) for name, part in self.caches.items()},
            **(placed if devices else {}),
            **launch.env,
        }

    def devices(self, launch: Launch, outer: Mapping[str, str] = os.environ) -> tuple[str, ...]:
        """The GPUs of `launch` as CUDA names them; none for an engine that uses none."""
        return device_names(launch.gpus, outer) if self.on_gpus else ()

    def kv_cache_tokens(self, lines: Sequence[str]) -> int | None:
        """The size of the KV cache that the log states last: some engines try a small one first."""
        if self.kv_cache is None:
            return None
        sizes = [found[1] for line in lines if (found := self.kv_cache.search(line))]
        return int(sizes[-1].replace(",", "")) if sizes else None

    def diagnose(self, lines: Sequence[str]) -> Diagnosis | None:
        """Why the server failed, where its log says so in words that are known."""
        return diagnose(lines, (*self.symptoms, *COMMON))

    def _check_url(self, launch: Launch) -> None:
        if not launch.url.startswith(("http://", "https://")):
            raise InputError(
                f"engine {self.name}: url is {launch.url!r}; give one that starts with http:// "
                "or https://"
            )
        for name in ("args", "env", "command"):
            if getattr(launch, name):
                raise InputError(
                    f"engine {self.name} is already up, so that {name} has no use; leave it out"
                )
