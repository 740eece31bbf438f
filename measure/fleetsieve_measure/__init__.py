"""Drivers that measure: engines, load, clocks, samples and the simulated engine.

The package needs neither JAX nor `fleetsieve`, so that it installs and runs on a GPU node inside
an engine's own environment. A benchmark's outcome is data: `Measured`, or `Failed` where the
config ran out of memory, never became healthy, timed out or broke. Units are seconds, requests/s
and GPU-seconds.
"""

from fleetsieve_measure.results import Failed, FailureKind, Measured, Outcome

__all__ = ["Failed", "FailureKind", "Measured", "Outcome"]
