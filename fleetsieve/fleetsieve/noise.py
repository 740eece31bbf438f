"""How noisy cells are: the variance of further runs, and how much further their noise reaches.

`between` is the variance of each output from run to run, [P], or 0.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from fleetsieve.evidence import given
from fleetsieve.observations import Observations
from fleetsieve.tails import excess
from fleetsieve_kernels.bounds import Doubt

# At face value a measured cell is within so many sd of what it showed.
_FACE = 1.0
Between = Float[np.ndarray, " P"] | float


def next_noise(observed: Observations, between: Between) -> Float[np.ndarray, "N P"]:
    """Variance of one more run of each cell: as stated there, else as is typical."""
    stated, varying = next_noises(observed, between)
    return stated + varying


def next_noises(
    observed: Observations, between: Between
) -> tuple[Float[np.ndarray, "N P"], Float[np.ndarray, "N P"]]:
    """The parts of `next_noise`: what a run states, and what differs from run to run."""
    if not observed.noisy:
        return np.zeros_like(observed.value), np.zeros_like(observed.value)
    share = observed.share
    single = np.where(share > 0, observed.noise / np.where(share > 0, share, 1.0), np.nan)
    typical = np.array(
        [np.median(row[~np.isnan(row)]) if (row == row).any() else 0.0 for row in single.T]
    )
    stated = np.where(np.isnan(single), typical, single)
    noisy = np.broadcast_to(typical > 0, stated.shape)
    return np.where(noisy, stated, 0.0), np.where(noisy, between, 0.0)


def doubt(
    observed: Observations, between: Between, q: float, left: Int[np.ndarray, " N"] | None = None
) -> Doubt | None:
    """The doubt of cells as they are; None where nothing is noisy. `left` as in `Belief.assess`."""
    shape = observed.value.shape
    if left is None and not observed.noisy:
        return None
    noise = observed.noise + observed.share * between
    wider = excess(q, observed.runs.max(initial=0))[observed.runs]
    own = np.where(noise > 0, noise, np.inf)
    reach = np.ones(shape) if left is None else _at_face(observed.measured, left, q, shape)
    return Doubt(given(own), given(wider), given(reach))


def doubts(
    observed: Observations, between: Between, q: float, left: Int[np.ndarray, " N"] | None
) -> tuple[Doubt, Doubt] | None:
    """The doubt of cells as they are, and after one more run of each."""
    now = doubt(observed, between, q, left)
    if now is None:
        return None
    run = next_noise(observed, between)
    with np.errstate(divide="ignore"):
        together = 1 / (1 / np.asarray(now.noise) + 1 / run)
    noise = np.where(run > 0, together, np.inf)
    wider = excess(q, observed.runs.max(initial=0) + 1)[observed.runs + 1]
    reach = now.reach
    if left is not None:
        reach = given(_at_face(np.ones_like(observed.measured), left - 1, q, run.shape))
    return now, Doubt(given(noise), given(wider), reach)


def _at_face(
    measured: Bool[np.ndarray, " N"], left: Int[np.ndarray, " N"], q: float, shape: tuple[int, ...]
) -> Float[np.ndarray, "N P"]:
    """The share of q by which cells at face value may differ from what they showed."""
    reach = np.where(measured, np.where(left > 0, _FACE / q, 0.0), 1.0)
    reach = np.repeat(reach[:, None], shape[1], axis=1)
    reach[measured, 0] = 0.0
    return reach
