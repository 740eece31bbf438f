"""Negative log density of a Gaussian, with a derivative that needs one factorisation."""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float


@jax.custom_jvp
def gaussian_nll(covariance: Float[Array, "n n"], residual: Float[Array, " n"]) -> Float[Array, ""]:
    """-log N(residual; 0, covariance), without the constant n/2 log 2π.

    Rows of padding carry a unit diagonal and residual 0 and so add nothing.
    """
    factor = jnp.linalg.cholesky(covariance)
    white = solve_triangular(factor, residual, lower=True)
    return 0.5 * white @ white + jnp.sum(jnp.log(jnp.diagonal(factor)))


@gaussian_nll.defjvp
def _gaussian_nll_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """d = tr(½ (K⁻¹ - αα') dK) + α' dr with α = K⁻¹ r: cheaper than through the factorisation."""
    covariance, residual = primals
    factor = jnp.linalg.cholesky(covariance)
    inverse = cho_solve((factor, True), jnp.eye(len(residual), dtype=residual.dtype))
    alpha = inverse @ residual
    value = 0.5 * residual @ alpha + jnp.sum(jnp.log(jnp.diagonal(factor)))
    slope = 0.5 * (inverse - jnp.outer(alpha, alpha))
    return value, jnp.sum(slope * tangents[0]) + alpha @ tangents[1]
