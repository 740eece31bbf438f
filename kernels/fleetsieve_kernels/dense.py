"""Dense linear algebra that is safe inside a compiled program on CPUs.

jaxlib hands a batch of LAPACK calls to the thread pool that also runs the program, and waits: with
as many such calls at once as there are threads, the program waits for itself and hangs (seen on two
cores). A single matrix is done in place. So nothing here is batched: axes over latents, starts
and draws are walked with `over`, and small matrices never reach LAPACK.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

_Result = TypeVar("_Result")

# Triangles of up to so many rows are inverted by LAPACK.
_LEAF = 32


def over(function: Callable[..., _Result], *arrays: Any) -> _Result:
    """`function` along the leading axis of all arrays, one after the other."""
    return jax.lax.map(lambda each: function(*each), arrays)


def forward(factor: Float[Array, "n n"], right: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
    """L⁻¹ b of a lower triangular L."""
    return solve_triangular(factor, right, lower=True)


def inverse_factor(factor: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """L⁻¹ of a lower triangular L, by halves: products of blocks are faster than solutions."""
    size = factor.shape[0]
    if size <= _LEAF:
        return forward(factor, jnp.eye(size, dtype=factor.dtype))
    half = size // 2
    first, last = inverse_factor(factor[:half, :half]), inverse_factor(factor[half:, half:])
    below = -last @ (factor[half:, :half] @ first)
    return jnp.block([[first, jnp.zeros_like(below.T)], [below, last]])


def small_cholesky(matrix: Float[Array, "p p"], least: float = 0.0) -> Float[Array, "p p"]:
    """Lower Cholesky factor of a matrix of a few rows, written out column by column.

    Pivots are raised to `least`: rounding may leave less, or a negative one, where nothing is open.
    """
    rows = jnp.arange(matrix.shape[-1])
    factor = jnp.zeros_like(matrix)
    for k in range(matrix.shape[-1]):
        column = matrix[:, k] - factor @ factor[k]
        root = jnp.sqrt(jnp.maximum(column[k], least))
        column = jnp.where(rows == k, root, jnp.where(rows > k, column / root, 0))
        factor = factor.at[:, k].set(column)
    return factor


def small_forward(factor: Float[Array, "p p"], right: Float[Array, "p *k"]) -> Float[Array, "p *k"]:
    """L⁻¹ b for a lower triangular L of a few rows."""
    solved: list[Array] = []
    for k in range(factor.shape[-1]):
        known = sum((factor[k, j] * solved[j] for j in range(k)), jnp.zeros_like(right[k]))
        solved.append((right[k] - known) / factor[k, k])
    return jnp.stack(solved)
