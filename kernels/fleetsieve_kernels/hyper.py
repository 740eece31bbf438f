"""Hyperparameters of the latent processes: their priors as a NumPyro model, and transforms.

Every hyperparameter is normal on an unconstrained scale (log, logit or its own), so the maximum of
the posterior there is also the best penalised fit, and a Laplace term is natural.
"""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions.transforms import ExpTransform, IdentityTransform, SigmoidTransform

# Name: (scale, location, standard deviation), in units of the outputs and octaves of load or GPUs.
_PRIORS = {
    "amplitude": (ExpTransform(), math.log(0.4), 0.5),  # sd of the smooth part
    "lengthscale": (ExpTransform(), math.log(2.0), 0.5),  # per numeric feature
    "mismatch": (ExpTransform(), math.log(0.5), 0.7),  # loss of log correlation per category
    "coupling": (SigmoidTransform(), 0.0, 1.2),  # correlation of two workloads' smooth parts
    "white": (ExpTransform(), math.log(0.02), 1.0),  # variance of a cell's own part / smooth part's
    "early": (ExpTransform(), math.log(0.05), 1.0),  # sd of a cell's own part at the lowest load
    "offset": (ExpTransform(), 0.0, 0.7),  # sd between workloads of the level
    "slope": (ExpTransform(), math.log(0.15), 0.7),  # sd between workloads of the trend's slopes
    "mixing": (IdentityTransform(), 0.0, 1.0),  # weights of earlier outputs in a later one
    "run": (ExpTransform(), math.log(0.05), 1.0),  # sd from run to run
    "rescale": (ExpTransform(), math.log(0.3), 0.7),  # sd of the factor on a guess, around 1
}

Hyper = Mapping[str, Array]
"""One array per name: amplitude, coupling, white, early, offset, slope [R]; lengthscale [R, D];
mismatch [R, E]; mixing [R, R], of which only the strictly lower triangle counts; run [R], only
where runs of one cell differ; rescale [R], only with a guess."""


def shapes(
    latents: int, features: int, categories: int, noisy: bool = False, guesses: int = 0
) -> dict[str, tuple[int, ...]]:
    """Shape of every hyperparameter: no "mismatch" without categories, "run" with noise only.

    `guesses` is how many outputs a guess is given for, all or 0; without, there is no "rescale".
    """
    own = {"lengthscale": (features,), "mismatch": (categories,), "mixing": (latents,)}
    every = {name: (latents, *own.get(name, ())) for name in _PRIORS} | {"rescale": (guesses,)}
    return {n: shape for n, shape in every.items() if 0 not in shape and (noisy or n != "run")}


def sample_prior(
    latents: int, features: int, categories: int, noisy: bool = False, guesses: int = 0
) -> Hyper:
    """The NumPyro model of the hyperparameters (METHOD 2)."""
    drawn = {}
    for name, shape in shapes(latents, features, categories, noisy, guesses).items():
        transform, location, scale = _PRIORS[name]
        normal = dist.Normal(jnp.full(shape, location), scale)
        prior = dist.TransformedDistribution(normal, transform)
        drawn[name] = numpyro.sample(name, prior.to_event(len(shape)))
    return drawn


@jax.jit
def constrain(theta: Hyper) -> Hyper:
    """Hyperparameters from their unconstrained values."""
    return {name: _PRIORS[name][0](value) for name, value in theta.items()}


def prior_median(
    latents: int, features: int, categories: int, noisy: bool = False, guesses: int = 0
) -> dict[str, np.ndarray]:
    """Unconstrained values at the median of the prior."""
    return {
        name: np.full(shape, _PRIORS[name][1])
        for name, shape in shapes(latents, features, categories, noisy, guesses).items()
    }


def prior_scale(theta: Hyper) -> dict[str, Array]:
    """Standard deviation of the prior on the unconstrained scale, in the shape of `theta`."""
    return {name: jnp.full_like(value, _PRIORS[name][2]) for name, value in theta.items()}


def mixing_matrix(hyper: Hyper) -> Float[Array, "R R"]:
    """A of y = A u, outputs in terms of latents: y = B y + u, so A = 1/(1 - B), unit triangular."""
    weights = jnp.tril(hyper["mixing"], -1)
    total = power = jnp.eye(weights.shape[0], dtype=weights.dtype)
    for _ in range(weights.shape[0] - 1):  # B is nilpotent, so the series of 1/(1 - B) ends
        power = power @ weights
        total = total + power
    return total
