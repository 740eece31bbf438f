"""Posterior of all outputs over all cells, and its closed-form update by a further cell."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fleetsieve_kernels.covariance import Cells, covariances, jitter, variances
from fleetsieve_kernels.dense import forward, over, small_cholesky, small_forward
from fleetsieve_kernels.hyper import Hyper, mixing_matrix


class Noise(NamedTuple):
    """Of complete observations, each the centre of some runs of its cell.

    What differs from run to run is mixed into the outputs as the latents are, so that the latents
    still separate; of the errors that runs state for their outputs, what they have in common as
    errors of latents is left out for that.
    """

    stated: Float[Array, "n P"]  # variance of the values by the stated errors
    share: Float[Array, "n P"]  # variance of the centre over that of one run; 0 where exact
    spare: Float[Array, " n"]  # runs - 1
    scatter: Float[Array, "n P P"]  # sum of outer squares of the runs' deviations from their mean


class Table(NamedTuple):
    """Complete observations: every output of each measured cell, exact without `noise`.

    The latents then separate, R problems of n rows instead of one of n·P.
    """

    cells: Cells  # n
    values: Float[Array, "n P"]  # 0 in padding
    mask: Bool[Array, " n"]
    noise: Noise | None = None


class Rows(NamedTuple):
    """Observations of single outputs: some may be missing, each has its own noise."""

    cells: Cells  # m
    output: Int[Array, " m"]
    value: Float[Array, " m"]  # 0 in padding
    noise: Float[Array, " m"]  # variance, without that from run to run
    mask: Bool[Array, " m"]
    share: Float[Array, " m"] | None = None  # as in `Noise`; None: nothing varies by the run


class Posterior(NamedTuple):
    """Joint Gaussian over the outputs of N cells."""

    mean: Float[Array, "N P"]
    covariance: Float[Array, "N P N P"]

    @property
    def variance(self) -> Float[Array, "N P"]:
        """Marginal variances, never negative."""
        cells, outputs = self.mean.shape
        flat = jnp.reshape(self.covariance, (cells * outputs, cells * outputs))
        return jnp.reshape(jnp.maximum(jnp.diagonal(flat), 0), (cells, outputs))


def latents_of(hyper: Hyper, table: Table) -> Float[Array, "R n"]:
    """Latent values u = A⁻¹ y of complete observations."""
    return jnp.where(table.mask, unmixing(hyper) @ table.values.T, 0)


def gram_of_table(hyper: Hyper, table: Table) -> Float[Array, "R n n"]:
    """Covariance of each latent as measured, noise included; identity in padding."""
    prior = covariances(hyper, table.cells, table.cells)
    if table.noise is not None:
        prior = prior + jax.vmap(jnp.diag)(latent_noise(hyper, table.noise))
    return _masked(prior, table.mask)


def latent_noise(hyper: Hyper, noise: Noise) -> Float[Array, "R n"]:
    """Variance of the noise of each latent."""
    return unmixing(hyper) ** 2 @ noise.stated.T + noise.share.T * hyper["run"][:, None] ** 2


def unmixing(hyper: Hyper) -> Float[Array, "R P"]:
    """A⁻¹ of u = A⁻¹ y."""
    weights = jnp.tril(hyper["mixing"], -1)
    return jnp.eye(weights.shape[0], dtype=weights.dtype) - weights


def run_variance(hyper: Hyper) -> Float[Array, " P"]:
    """By how much outputs vary from run to run."""
    return mixing_matrix(hyper) ** 2 @ hyper["run"] ** 2


def gram_of_rows(hyper: Hyper, rows: Rows) -> Float[Array, "m m"]:
    """Prior covariance of the observed outputs, noise included; identity in padding."""
    loading = mixing_matrix(hyper)[rows.output]
    gram = jnp.einsum("ar,br,rab->ab", loading, loading, covariances(hyper, rows.cells, rows.cells))
    return _masked(gram + jnp.diag(row_noise(hyper, rows)), rows.mask)


def row_noise(hyper: Hyper, rows: Rows) -> Float[Array, " m"]:
    """Variance of each row's noise."""
    if rows.share is None:
        return rows.noise
    return rows.noise + rows.share * run_variance(hyper)[rows.output]


@jax.jit
def condition(hyper: Hyper, data: Table | Rows, cells: Cells) -> Posterior:
    """Posterior of all outputs at `cells` given the data (Rasmussen & Williams, eq. 2.22-2.24)."""
    if isinstance(data, Table):
        return _condition_table(hyper, data, cells)
    return _condition_rows(hyper, data, cells)


@jax.jit
def marginals(
    hyper: Hyper, data: Table | Rows, cells: Cells
) -> tuple[Float[Array, "N P"], Float[Array, "N P"]]:
    """Mean and variance of `condition` alone, without the joint covariance."""
    loading = mixing_matrix(hyper)
    if isinstance(data, Table):
        mean, root = _latent_solve(hyper, data, cells)
        spread = variances(hyper, cells) - jnp.sum(root**2, axis=1)
        return (loading @ mean).T, jnp.maximum((loading**2 @ spread).T, 0)
    cross, factor = _row_cross(hyper, data, cells), jnp.linalg.cholesky(gram_of_rows(hyper, data))
    root = forward(factor, cross)
    white = forward(factor, jnp.where(data.mask, data.value, 0))
    prior = (loading**2 @ variances(hyper, cells)).T
    spread = prior - jnp.reshape(jnp.sum(root**2, axis=0), prior.shape)
    return jnp.reshape(root.T @ white, prior.shape), jnp.maximum(spread, 0)


def observe(
    posterior: Posterior, index: Int[Array, ""], noise: Float[Array, " P"]
) -> tuple[Float[Array, "N P P"], Float[Array, "N P"]]:
    """What observing all outputs of one more cell does, before their values are known.

    Returns `(gain, variance)`: with z standard normal in P dimensions, the predictive draw
    z shifts the mean by `gain @ z` (the gain is C L⁻ᵀ, L L' the predictive covariance of the cell
    with its noise) and leaves `variance`, whatever the values are.
    """
    gain, _ = _gain(posterior, index, noise)
    return gain, jnp.maximum(posterior.variance - jnp.sum(gain**2, axis=-1), 0)


@jax.jit
def update(
    posterior: Posterior,
    index: Int[Array, ""],
    values: Float[Array, " P"],
    noise: Float[Array, " P"],
) -> Posterior:
    """The posterior after all outputs of cell `index` were observed: low rank, closed form."""
    gain, factor = _gain(posterior, index, noise)
    white = small_forward(factor, values - posterior.mean[index])
    shrink = jnp.einsum("ipk,jqk->ipjq", gain, gain)
    return Posterior(posterior.mean + gain @ white, posterior.covariance - shrink)


def _gain(posterior: Posterior, index: Array, noise: Array) -> tuple[Array, Array]:
    """C L⁻ᵀ and L, L L' the predictive covariance of a cell's outputs."""
    cross = posterior.covariance[:, :, index, :]
    own = cross[index] + jnp.diag(noise)
    # An unknown cell keeps at least its own jitter; less is rounding, at a cell that is known.
    factor = small_cholesky(own, jitter(own.dtype))
    flat = jnp.reshape(cross, (-1, cross.shape[-1]))
    return jnp.reshape(small_forward(factor, flat.T).T, cross.shape), factor


def _condition_table(hyper: Hyper, table: Table, cells: Cells) -> Posterior:
    mean, root = _latent_solve(hyper, table, cells)
    latent = covariances(hyper, cells, cells) - jnp.einsum("rna,rnb->rab", root, root)
    loading = mixing_matrix(hyper)
    joint = jnp.einsum("pr,qr,rab->apbq", loading, loading, latent)
    return Posterior((loading @ mean).T, joint)


def _latent_solve(
    hyper: Hyper, table: Table, cells: Cells
) -> tuple[Float[Array, "R N"], Float[Array, "R n N"]]:
    """Posterior means of the latents, and the roots that explain variance: k - root' root."""
    cross = jnp.where(table.mask[:, None], covariances(hyper, table.cells, cells), 0)

    def solve(gram: Array, cross: Array, value: Array) -> tuple[Array, Array]:
        factor = jnp.linalg.cholesky(gram)
        root = forward(factor, cross)
        return root.T @ forward(factor, value), root

    return over(solve, gram_of_table(hyper, table), cross, latents_of(hyper, table))


def _condition_rows(hyper: Hyper, rows: Rows, cells: Cells) -> Posterior:
    factor = jnp.linalg.cholesky(gram_of_rows(hyper, rows))
    root = forward(factor, _row_cross(hyper, rows, cells))
    white = forward(factor, jnp.where(rows.mask, rows.value, 0))
    loading = mixing_matrix(hyper)
    prior = jnp.einsum("pr,qr,rab->apbq", loading, loading, covariances(hyper, cells, cells))
    shape = prior.shape[:2]
    return Posterior(
        jnp.reshape(root.T @ white, shape), prior - jnp.reshape(root.T @ root, prior.shape)
    )


def _row_cross(hyper: Hyper, rows: Rows, cells: Cells) -> Float[Array, "m NP"]:
    loading = mixing_matrix(hyper)
    latent = covariances(hyper, rows.cells, cells)
    cross = jnp.einsum("mr,pr,rmn->mnp", loading[rows.output], loading, latent)
    return jnp.reshape(jnp.where(rows.mask[:, None, None], cross, 0), (cross.shape[0], -1))


def _masked(gram: Array, mask: Bool[Array, " n"]) -> Array:
    return jnp.where(mask[:, None] & mask[None, :], gram, jnp.eye(len(mask), dtype=gram.dtype))
