"""The hyperparameters' posterior by NUTS: where it lies, draws of it, and whether to trust them."""

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import split_gelman_rubin

from fleetsieve_kernels.hyper import Hyper
from fleetsieve_kernels.nuts import Chains, sample
from fleetsieve_kernels.posterior import Rows, Table

_CHAINS, _WARMUP, _DRAWS, _THINNING = 4, 32, 64, 4
# Chains that differ by more than this, or diverge more often, have not found the posterior.
_SETTLED, _FEW = 1.1, 0.02


def chains(theta: Hyper, data: Table | Rows) -> Chains:
    """Chains from around `theta`, the maximum of the posterior; the same data, the same chains."""
    size = sum(leaf.size for leaf in theta.values())
    starts = jax.device_put(np.random.default_rng(0).standard_normal((_CHAINS, size)))
    return sample(theta, data, starts, jax.random.key(0), _WARMUP, _DRAWS)


def centre(found: Chains) -> Hyper:
    """Mean of every unconstrained hyperparameter."""
    return {name: jnp.mean(leaf, axis=(0, 1)) for name, leaf in found.draws.items()}


def thinned(found: Chains) -> Hyper:
    """Every fourth draw of all chains, along one axis."""
    kept = {name: leaf[:, ::_THINNING] for name, leaf in found.draws.items()}
    return {name: jnp.reshape(leaf, (-1, *leaf.shape[2:])) for name, leaf in kept.items()}


def warning_of(found: Chains) -> str | None:
    """A sentence if the chains are not to be trusted."""
    apart, diverged = _worst_r_hat(found.draws), int(np.sum(found.diverged))
    if apart <= _SETTLED and diverged <= _FEW * found.diverged.size:
        return None
    return (
        f"the chains of the hyperparameters have not settled (R-hat {apart:.2f}, {diverged} of "
        f"{found.diverged.size} draws diverged); bounds may be too narrow, `inference: map` does "
        "without chains"
    )


def _worst_r_hat(draws: Hyper) -> float:
    """The largest split R-hat; infinite where a chain never moved."""
    with np.errstate(divide="ignore", invalid="ignore"):
        each = [split_gelman_rubin(np.asarray(leaf)) for leaf in draws.values()]
    return max(float(np.nan_to_num(r_hat, nan=np.inf).max()) for r_hat in each)
