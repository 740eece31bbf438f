"""A replica in steady state, from a roofline and a queue: a fast stand-in for a benchmark.

Continuous batching with B sequences makes a step of a + b·B seconds; a request takes a prefill of
p seconds and O steps. Arrays broadcast over workloads, configs and load levels.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

# p99 of an exponential wait over its mean; z of p99.
_TAIL, _Z99 = 4.6, 2.33


@dataclass(frozen=True)
class Service:
    """What serving one request takes, by workload and config.

    Attributes:
        step, per_sequence: seconds of a step, and more of it for each sequence in the batch.
        prefill: seconds of the median prompt.
        output: tokens of the median reply.
        spread_in, spread_out: standard deviation of the log of prompts and replies.
        places: sequences that fit in a batch; 0 where the model does not fit in memory.
        run: seconds of a benchmark, in which a backlog grows.
    """

    step: Float[np.ndarray, "W C 1"]
    per_sequence: Float[np.ndarray, "W C 1"]
    prefill: Float[np.ndarray, "W C 1"]
    output: Float[np.ndarray, "W 1 1"]
    spread_in: Float[np.ndarray, "W 1 1"]
    spread_out: Float[np.ndarray, "W 1 1"]
    places: Float[np.ndarray, "W C 1"]
    run: float

    @property
    def mean_prefill(self) -> Float[np.ndarray, "W C 1"]:
        """Seconds."""
        return self.prefill * np.exp(self.spread_in**2 / 2)

    @property
    def mean_output(self) -> Float[np.ndarray, "W 1 1"]:
        """Tokens."""
        return self.output * np.exp(self.spread_out**2 / 2)

    @property
    def saturation(self) -> Float[np.ndarray, "W C 1"]:
        """Requests/s with a full batch; 0 where nothing fits."""
        return self.throughput(np.maximum(self.places, 1e-9)) * (self.places > 0)

    def throughput(self, batch: np.ndarray) -> np.ndarray:
        """Requests/s when `batch` sequences are always there."""
        decode = self.mean_output * (self.step + self.per_sequence * batch)
        return batch / (decode + batch * self.mean_prefill)


class Steady(NamedTuple):
    """Requests/s and p99 latencies in seconds."""

    throughput: np.ndarray
    ttft: np.ndarray
    tpot: np.ndarray
    e2e: np.ndarray


def open_loop(service: Service, rate: Float[np.ndarray, "W C L"]) -> Steady:
    """Poisson arrivals of `rate` requests/s: queueing by Sakasegawa (1977), then a backlog."""
    most = np.maximum(service.saturation, 1e-9)
    load = rate / most
    free = 1 - rate * (service.mean_output * service.per_sequence + service.mean_prefill)
    batch = rate * service.mean_output * service.step / np.maximum(free, 1e-9)
    batch = np.where((free > 0) & (load < 1), np.minimum(batch, service.places), service.places)
    stay = batch / np.minimum(rate, most)
    below = np.minimum(load, 0.999)
    servers = np.maximum(service.places, 1)
    queue = below ** (np.sqrt(2 * (servers + 1)) - 1) / (servers * (1 - below)) * stay
    backlog = 0.99 * service.run * (1 - 1 / np.maximum(load, 1))
    wait = np.where(load < 1, np.minimum(_TAIL * queue, 0.2 * service.run), 0.0) + backlog
    return _latencies(service, np.minimum(rate, most), batch, wait, np.minimum(load, 1))


def closed_loop(service: Service, users: Float[np.ndarray, "W C L"]) -> Steady:
    """`users` requests always in flight; those beyond a full batch wait for a place."""
    batch = np.minimum(users, np.maximum(service.places, 1e-9))
    rate = service.throughput(batch)
    busy = rate / np.maximum(service.saturation, 1e-9)
    return _latencies(service, rate, batch, (users - batch) / rate, np.minimum(busy, 1))


def _latencies(
    service: Service, rate: np.ndarray, batch: np.ndarray, wait: np.ndarray, busy: np.ndarray
) -> Steady:
    prefills = np.minimum(rate * service.mean_prefill, 0.95)
    mean = (service.step + service.per_sequence * batch) / (1 - prefills)
    tail_in, tail_out = (np.exp(_Z99 * s) for s in (service.spread_in, service.spread_out))
    behind = _TAIL * prefills * service.mean_prefill / (2 * (1 - prefills))
    ttft = service.prefill * tail_in + behind + mean + wait
    tpot = mean * (1 + 0.4 * prefills + 0.1 * busy)
    return Steady(rate, ttft, tpot, ttft + mean * service.output * tail_out)
