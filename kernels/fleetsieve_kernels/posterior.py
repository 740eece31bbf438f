"""Posterior of all outputs over all cells, and what observing a further cell does to it."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fleetsieve_kernels.covariance import Cells, covariances, expected, jitter, variances
from fleetsieve_kernels.dense import inverse_factor, over, small_cholesky, small_forward
from fleetsieve_kernels.hyper import Hyper, mixing_matrix

# Cells whose marginals are worked out together.
_BLOCK = 512


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
    """Joint Gaussian over the outputs of N cells.

    Covariances are worked out where they are needed, from what the observations explain: one of
    the two roots, the other is None.
    """

    mean: Float[Array, "N P"]
    variance: Float[Array, "N P"]  # marginal, never negative
    hyper: Hyper
    cells: Cells
    latent_root: Float[Array, "R n N"] | None  # of complete observations: k - root' root
    output_root: Float[Array, "m N P"] | None  # of single ones: likewise, over all outputs


def latents_of(hyper: Hyper, table: Table) -> Float[Array, "R n"]:
    """Latent values u = A⁻¹ (y - m) of complete observations."""
    surprise = table.values - expected(table.cells, table.values.shape[1])
    return jnp.where(table.mask, unmixing(hyper) @ surprise.T, 0)


def surprise_of_rows(hyper: Hyper, rows: Rows) -> Float[Array, " m"]:
    """Observed values less their prior mean, y - m."""
    mean = expected(rows.cells, hyper["mixing"].shape[0])
    guessed = jnp.take_along_axis(mean, rows.output[:, None], axis=1)[:, 0]
    return jnp.where(rows.mask, rows.value - guessed, 0)


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
    return _at(hyper, data, _solved(hyper, data), cells)


@jax.jit
def marginals(
    hyper: Hyper, data: Table | Rows, cells: Cells
) -> tuple[Float[Array, "N P"], Float[Array, "N P"]]:
    """Mean and variance of `condition` alone; of many cells block by block, which fit a cache."""
    solved, count = _solved(hyper, data), cells.ids.shape[0]
    blocks = -(-count // _BLOCK)

    def block(cells: Cells) -> tuple[Array, Array]:
        found = _at(hyper, data, solved, cells)
        return found.mean, found.variance

    if count <= _BLOCK:
        return block(cells)

    def cut(part: Array) -> Array:
        padding = [(0, blocks * _BLOCK - count), *[(0, 0)] * (part.ndim - 1)]
        return jnp.reshape(jnp.pad(part, padding), (blocks, _BLOCK, *part.shape[1:]))

    found = jax.lax.map(block, jax.tree.map(cut, cells))
    mean, variance = (jnp.reshape(part, (-1, part.shape[-1]))[:count] for part in found)
    return mean, variance


@jax.jit
def within(posterior: Posterior, at: Int[Array, "S L"]) -> Float[Array, "S L P L P"]:
    """Covariances of all outputs within each of S groups of cells."""
    return jax.vmap(partial(_among, posterior))(at)


def _among(posterior: Posterior, at: Int[Array, " L"]) -> Float[Array, "L P L P"]:
    hyper = posterior.hyper
    cells = jax.tree.map(lambda part: part[at], posterior.cells)
    prior, loading = covariances(hyper, cells, cells), mixing_matrix(hyper)
    if posterior.latent_root is not None:
        root = posterior.latent_root[:, :, at]
        prior = prior - jnp.einsum("rna,rnb->rab", root, root)
    mixed = jnp.einsum("pr,qr,rab->apbq", loading, loading, prior)
    if posterior.output_root is not None:
        root = posterior.output_root[:, at]
        mixed = mixed - jnp.einsum("map,mbq->apbq", root, root)
    return mixed


@jax.jit
def joint(posterior: Posterior) -> Float[Array, "N P N P"]:
    """All covariances at once, for few cells."""
    return jnp.moveaxis(crossings(posterior, jnp.arange(posterior.mean.shape[0])), 0, 2)


def covariance_with(posterior: Posterior, index: Int[Array, ""]) -> Float[Array, "N P P"]:
    """Of every output of every cell with every output of the cell `index`."""
    hyper, cells = posterior.hyper, posterior.cells
    here = jax.tree.map(lambda part: part[index][None], cells)
    prior, loading = covariances(hyper, cells, here)[..., 0], mixing_matrix(hyper)
    if posterior.latent_root is not None:
        root = posterior.latent_root
        prior = prior - jnp.einsum("rn,rna->ra", root[:, :, index], root)
    mixed = jnp.einsum("pr,qr,ra->apq", loading, loading, prior)
    if posterior.output_root is not None:
        root = posterior.output_root
        mixed = mixed - jnp.einsum("mq,map->apq", root[:, index], root)
    return mixed


@jax.jit
def crossings(posterior: Posterior, index: Int[Array, " B"]) -> Float[Array, "B N P P"]:
    """`covariance_with` for several cells."""
    return jax.vmap(partial(covariance_with, posterior))(index)


def observe(
    variance: Float[Array, "N P"],
    cross: Float[Array, "N P P"],
    index: Int[Array, ""],
    noise: Float[Array, " P"],
) -> tuple[Float[Array, "N P P"], Float[Array, "N P"]]:
    """What observing all outputs of one more cell does, before their values are known.

    `cross` is the covariance with that cell. Returns `(gain, variance)`: with z standard normal in
    P dimensions, the predictive draw z shifts the mean by `gain @ z` (the gain is C L⁻ᵀ, L L' the
    predictive covariance of the cell with its noise) and leaves `variance`, whatever the values.
    """
    gain, _ = _gain(cross, index, noise)
    return gain, jnp.maximum(variance - jnp.sum(gain**2, axis=-1), 0)


def reveal(
    mean: Float[Array, "N P"],
    variance: Float[Array, "N P"],
    cross: Float[Array, "N P P"],
    index: Int[Array, ""],
    values: Float[Array, " P"],
    noise: Float[Array, " P"],
) -> tuple[Float[Array, "N P"], Float[Array, "N P"]]:
    """Mean and marginal variance once all outputs of cell `index` were observed."""
    gain, factor = _gain(cross, index, noise)
    white = small_forward(factor, values - mean[index])
    return mean + gain @ white, jnp.maximum(variance - jnp.sum(gain**2, axis=-1), 0)


def _gain(cross: Array, index: Array, noise: Array) -> tuple[Array, Array]:
    """C L⁻ᵀ and L, L L' the predictive covariance of a cell's outputs."""
    own = cross[index] + jnp.diag(noise)
    # An unknown cell keeps at least its own jitter; less is rounding, at a cell that is known.
    factor = small_cholesky(own, jitter(own.dtype))
    flat = jnp.reshape(cross, (-1, cross.shape[-1]))
    return jnp.reshape(small_forward(factor, flat.T).T, cross.shape), factor


def _solved(hyper: Hyper, data: Table | Rows) -> tuple[Array, Array]:
    """L⁻¹ and L⁻¹ (y - m), L L' the covariance of the data; of every latent for whole cells.

    The inverse of the small factor turns the solutions for all cells into one product.
    """

    def solve(gram: Array, value: Array) -> tuple[Array, Array]:
        factor = jnp.linalg.cholesky(gram)
        inverse = inverse_factor(factor)
        return inverse, inverse @ value

    if isinstance(data, Table):
        return over(solve, gram_of_table(hyper, data), latents_of(hyper, data))
    return solve(gram_of_rows(hyper, data), surprise_of_rows(hyper, data))


def _at(hyper: Hyper, data: Table | Rows, solved: tuple[Array, Array], cells: Cells) -> Posterior:
    inverse, white = solved
    loading, prior = mixing_matrix(hyper), variances(hyper, cells)
    if isinstance(data, Table):
        cross = jnp.where(data.mask[:, None], covariances(hyper, data.cells, cells), 0)
        root = jnp.einsum("rmn,rna->rma", inverse, cross)
        mean = (loading @ jnp.einsum("rma,rm->ra", root, white)).T
        variance = (loading**2 @ (prior - jnp.sum(root**2, axis=1))).T
        found = mean, variance, root, None
    else:
        prior = (loading**2 @ prior).T
        root = jnp.reshape(inverse @ _row_cross(hyper, data, cells), (-1, *prior.shape))
        mean = jnp.einsum("map,m->ap", root, white)
        found = mean, prior - jnp.sum(root**2, axis=0), None, root
    mean, variance, *roots = found
    return Posterior(_around(cells, mean), jnp.maximum(variance, 0), hyper, cells, *roots)


def _row_cross(hyper: Hyper, rows: Rows, cells: Cells) -> Float[Array, "m NP"]:
    loading = mixing_matrix(hyper)
    latent = covariances(hyper, rows.cells, cells)
    cross = jnp.einsum("mr,pr,rmn->mnp", loading[rows.output], loading, latent)
    return jnp.reshape(jnp.where(rows.mask[:, None, None], cross, 0), (cross.shape[0], -1))


def _around(cells: Cells, deviation: Float[Array, "N P"]) -> Float[Array, "N P"]:
    return expected(cells, deviation.shape[1]) + deviation


def _masked(gram: Array, mask: Bool[Array, " n"]) -> Array:
    return jnp.where(mask[:, None] & mask[None, :], gram, jnp.eye(len(mask), dtype=gram.dtype))
