"""Hyperparameters: objective, gradients, descent and the Laplace term against plain NumPy."""

# NumPy arrays stand in for JAX ones.
# pyright: reportArgumentType=false, reportCallIssue=false

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fleetsieve_kernels.fit import fit, inflation, laplace_draws, objective
from fleetsieve_kernels.gaussian import gaussian_nll

pytestmark = pytest.mark.usefixtures("float64")


def draw(reference, latents, features, categories, route, shape=(2, 2, 2)):
    """Hyperparameters, cells, padded data drawn from the model, and its entries for the oracle."""
    rng = np.random.default_rng([latents, features, categories])
    theta = reference.draw_theta(rng, latents, features, categories)
    cells = reference.draw_cells(rng, shape, features, categories)
    flat = reference.prior(reference.constrained(theta), cells).reshape(
        2 * [len(cells.ids) * latents]
    )
    drawn = rng.multivariate_normal(np.zeros(len(flat)), flat, method="eigh").reshape(-1, latents)
    index = rng.permutation(len(cells.ids))[: max(3, len(cells.ids) // 2)]
    cell, output = np.repeat(index, latents), np.tile(np.arange(latents), len(index))
    noise = np.zeros(len(cell))
    if route == "table":
        data = reference.as_table(cells, index, drawn[index], 8)
    else:
        cell, output, noise = cell[1:], output[1:], rng.uniform(0, 0.2, len(cell) - 1)
        data = reference.as_rows(cells, cell, output, drawn[cell, output], noise, 16)
    return theta, cells, data, (cells, cell, output, drawn[cell, output], noise)


@pytest.mark.parametrize(("route", "size"), [("table", (3, 2, 1)), ("rows", (2, 1, 0))])
def test_objective_is_the_negative_log_posterior_up_to_a_constant(reference, route, size):
    theta, _, data, observed = draw(reference, *size, route)
    rng = np.random.default_rng(0)
    points = [reference.draw_theta(rng, *size) for _ in range(3)]
    score = jax.jit(objective)
    found = [score(point, data) - score(theta, data) for point in points]
    score = reference.negative_log_posterior
    oracle = [score(point, *observed) - score(theta, *observed) for point in points]
    np.testing.assert_allclose(found, oracle, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("route", ["table", "rows"])
def test_the_gradient_of_the_objective_is_that_of_finite_differences(reference, route):
    theta, _, data, observed = draw(reference, 2, 2, 1, route)
    slopes = jax.jit(jax.grad(objective))(theta, data)
    for name, leaf in theta.items():
        for at in np.ndindex(leaf.shape):
            step = np.zeros(leaf.shape)
            step[at] = 1e-4
            ends = [
                reference.negative_log_posterior({**theta, name: leaf + s}, *observed)
                for s in (step, -step)
            ]
            oracle = (ends[0] - ends[1]) / 2e-4
            assert slopes[name][at] == pytest.approx(oracle, rel=1e-4, abs=1e-5)


def covariance_and_residual():
    rng = np.random.default_rng(1)
    root = rng.normal(size=(6, 6))
    return root @ root.T + 0.5 * np.eye(6), rng.normal(size=6)


def plain_nll(covariance, residual):
    quadratic = residual @ jnp.linalg.solve(covariance, residual)
    return 0.5 * quadratic + 0.5 * jnp.linalg.slogdet(covariance)[1]


def test_gaussian_nll_has_the_value_and_both_derivatives_of_the_plain_formula():
    covariance, residual = covariance_and_residual()
    direction = np.random.default_rng(2).normal(size=(6, 6))

    def along(nll):
        def line(t):
            bent = covariance + (t + t**2) * (direction + direction.T) / 10
            return nll(bent, residual * (1 + t) ** 2)

        return jax.jit(
            lambda t: (line(t), jax.grad(line)(t), jax.jvp(jax.grad(line), (t,), (1.0,))[1])
        )

    np.testing.assert_allclose(along(gaussian_nll)(0.1), along(plain_nll)(0.1), rtol=1e-9)


def test_gaussian_nll_ignores_rows_of_padding():
    covariance, residual = covariance_and_residual()
    padded = np.eye(9)
    padded[:6, :6] = covariance
    found = gaussian_nll(padded, np.pad(residual, (0, 3)))
    assert found == pytest.approx(float(plain_nll(covariance, residual)))


def plain(theta):
    return {name: np.asarray(leaf) for name, leaf in theta.items()}


def stacked(points):
    return {name: np.stack([point[name] for point in points]) for name in points[0]}


def test_fit_ends_no_worse_than_its_best_start_and_reports_every_start(reference):
    _, _, data, observed = draw(reference, 1, 1, 0, "table")
    rng = np.random.default_rng(3)
    starts = [reference.draw_theta(rng, 1, 1, 0, spread) for spread in (0.0, 0.5, 1.0)]
    theta, losses = fit(stacked(starts), data)
    score = reference.negative_log_posterior
    ended = score(plain(theta), *observed)
    assert ended < min(score(start, *observed) for start in starts)
    assert losses.shape == (3,)
    assert float(np.min(losses)) == pytest.approx(float(objective(theta, data)))
    # Once more from where it ended, where the least is to be won.
    again, _ = fit(stacked(3 * [plain(theta)]), data)
    assert score(plain(again), *observed) <= ended + 1e-6


def test_a_start_without_a_finite_objective_does_not_win(reference):
    theta, _, data, _ = draw(reference, 1, 1, 0, "table")
    broken = {name: np.full_like(leaf, np.nan) for name, leaf in theta.items()}
    found, losses = fit(stacked([broken, theta, broken]), data)
    np.testing.assert_array_equal(np.isinf(losses), [True, False, True])
    assert all(np.isfinite(leaf).all() for leaf in found.values())


def test_fit_recovers_the_lengthscale_and_amplitude_that_drew_many_points(reference):
    rng = np.random.default_rng(4)
    theta = reference.draw_theta(rng, 1, 1, 0, 0.0)
    truth = {"lengthscale": 1.0, "amplitude": 1.0}  # the priors' medians are 3 and 0.3
    theta |= {"lengthscale": np.log([[1.0]]), "amplitude": np.log([1.0])}
    cells = reference.draw_cells(rng, (2, 1, 24), 1, 0)
    gram = reference.prior(reference.constrained(theta), cells)[:, 0, :, 0]
    values = rng.multivariate_normal(np.zeros(48), gram, method="cholesky")[:, None]
    start = reference.draw_theta(rng, 1, 1, 0, 0.0)
    found, _ = fit(stacked([start]), reference.as_table(cells, np.arange(48), values, 48))
    for name, value in truth.items():
        assert value / 1.6 < np.exp(found[name]).item() < value * 1.6


def widened(theta, data, cells, nodes):
    return inflation(theta, laplace_draws(theta, data, nodes), data, cells)


def test_the_same_bucket_does_not_trace_fit_or_inflation_again(reference):
    theta, cells, _, _ = draw(reference, 1, 1, 0, "table")
    values, nodes, traces = np.linspace(-1, 1, 8)[:, None], np.ones((16, 8)), []
    for count in range(3, 7):
        data = reference.as_table(cells, np.arange(count), values[:count], 8)
        fit(stacked(3 * [theta]), data)
        widened(theta, data, cells, nodes)
        traces.append(reference.traces(fit, laplace_draws, inflation))
    assert len(set(traces)) == 1


def brute_force_inflation(reference, theta, cells, observed, nodes):
    """The definition in `inflation` over Laplace draws, by second differences in NumPy."""
    names = sorted(theta)
    centre = np.concatenate([theta[name].ravel() for name in names])
    scale = np.concatenate([np.full(theta[name].size, reference.priors[name][1]) for name in names])

    def unravel(vector):
        parts = np.split(vector, np.cumsum([theta[name].size for name in names])[:-1])
        return {n: part.reshape(theta[n].shape) for n, part in zip(names, parts, strict=True)}

    def scored(vector):
        return reference.negative_log_posterior(unravel(vector), *observed)

    def moments(vector):
        joint = reference.prior(reference.constrained(unravel(vector)), cells)
        mean, covariance = reference.conditioned(joint, *observed[1:])
        return mean, np.einsum("ipip->ip", covariance)

    size, step = len(centre), 1e-3
    units = step * np.eye(size) * scale
    curved = np.zeros((size, size))
    for i, j in zip(*np.triu_indices(size), strict=True):
        corners = [(1, 1), (-1, -1), (1, -1), (-1, 1)]
        a, b, c, d = (scored(centre + s * units[i] + t * units[j]) for s, t in corners)
        curved[i, j] = curved[j, i] = (a + b - c - d) / (4 * step**2)
    values, vectors = np.linalg.eigh(curved)  # in units of the priors' sd, at least 1
    root = scale[:, None] * vectors / np.sqrt(np.maximum(values, 1))
    at, variance = moments(centre)
    draws = [moments(centre + root @ node) for node in nodes]
    total = np.mean([v + (m - at) ** 2 for m, v in draws], axis=0)
    return np.sqrt(np.maximum((total + 1e-8) / (variance + 1e-8), 1))


@pytest.mark.parametrize(
    ("latents", "route", "bent"),
    [(1, "table", False), (1, "table", True), (2, "table", False), (2, "rows", False)],
)
def test_inflation_follows_its_definition(reference, latents, route, bent):
    theta, cells, data, observed = draw(reference, latents, 1, 0, route)
    if bent:  # where the data know less of a direction than the prior: an eigenvalue of 0.65
        theta = reference.draw_theta(np.random.default_rng(4), latents, 1, 0, 0.7)
    size = sum(leaf.size for leaf in theta.values())
    # On both sides along every axis: no choice of sign or order of the eigenvectors matters.
    nodes = np.concatenate([np.eye(size), -np.eye(size)]) * np.sqrt(size)
    found = widened(theta, data, cells, nodes)
    oracle = brute_force_inflation(reference, theta, cells, observed, nodes)
    np.testing.assert_allclose(found, oracle, rtol=0.02)
    assert (np.asarray(found) >= 1).all()
    assert np.max(oracle) > 1.05


def test_inflation_leaves_known_cells_as_they_are(reference):
    theta, cells, data, observed = draw(reference, 1, 1, 0, "table")
    nodes = np.random.default_rng(5).standard_normal((16, 8))
    found = np.asarray(widened(theta, data, cells, nodes))
    np.testing.assert_allclose(found[observed[1]], 1.0, atol=0.05)
    assert (found >= 1).all()


def test_single_precision_agrees_roughly_and_stays_single(reference):
    theta, cells, data, _ = draw(reference, 1, 1, 0, "table")
    # On both sides along every axis: no choice of sign of the eigenvectors matters.
    nodes = np.concatenate([np.eye(8), -np.eye(8)]) * np.sqrt(8)
    precise, _ = fit(stacked(3 * [theta]), data)
    wide = widened(precise, data, cells, nodes)
    with jax.enable_x64(False):
        rough, losses = fit(stacked(3 * [theta]), data)
        rough_wide = widened(rough, data, cells, nodes)
    assert {leaf.dtype for leaf in (*rough.values(), losses, rough_wide)} == {np.dtype("float32")}
    for name, leaf in precise.items():
        np.testing.assert_allclose(rough[name], leaf, atol=0.1)
    np.testing.assert_allclose(rough_wide, wide, atol=0.2)
