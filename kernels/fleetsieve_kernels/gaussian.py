"""Negative log density of a Gaussian, with derivatives that need one factorisation."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fleetsieve_kernels.dense import forward, inverse_factor


@jax.custom_jvp
def gaussian_nll(covariance: Float[Array, "n n"], residual: Float[Array, " n"]) -> Float[Array, ""]:
    """-log N(residual; 0, covariance), without the constant n/2 log 2π.

    Rows of padding carry a unit diagonal and residual 0 and so add nothing.
    """
    factor = jnp.linalg.cholesky(covariance)
    white = forward(factor, residual)
    return 0.5 * white @ white + jnp.sum(jnp.log(jnp.diagonal(factor)))


@gaussian_nll.defjvp
def _gaussian_nll_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """d = tr(½ (K⁻¹ - αα') dK) + α' dr with α = K⁻¹ r: cheaper than through the factorisation."""
    covariance, residual = primals
    inverse, half_log_det = _inverted(covariance)
    alpha = inverse @ residual
    slope = 0.5 * (inverse - jnp.outer(alpha, alpha))
    value = 0.5 * residual @ alpha + half_log_det
    return value, jnp.sum(slope * tangents[0]) + alpha @ tangents[1]


@jax.custom_jvp
def _inverted(covariance: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
    """K⁻¹ and ½ log |K|."""
    factor = jnp.linalg.cholesky(covariance)
    root = inverse_factor(factor)
    return root.T @ root, jnp.sum(jnp.log(jnp.diagonal(factor)))


@_inverted.defjvp
def _inverted_jvp(
    primals: tuple[Array], tangents: tuple[Array]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """-K⁻¹ dK K⁻¹ and ½ tr(K⁻¹ dK): of the second derivative, two products for each direction."""
    (moved,) = tangents
    found = _inverted(*primals)
    inverse = found[0]
    return found, (-inverse @ moved @ inverse, 0.5 * jnp.sum(inverse * moved))
