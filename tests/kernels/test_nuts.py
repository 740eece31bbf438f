"""Draws of the hyperparameters against importance sampling in plain NumPy."""

# NumPy arrays stand in for JAX ones.
# pyright: reportArgumentType=false, reportCallIssue=false

import jax
import numpy as np
import pytest

from fleetsieve_kernels.nuts import sample

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture
def tiny(reference):
    """Five cells of one latent, far apart in level and slope: some priors are moved by them."""
    rng = np.random.default_rng(3)
    theta = reference.draw_theta(rng, 1, 1, 0, 0.0)
    cells = reference.draw_cells(rng, (2, 1, 4), 1, 0)
    index, values = np.array([0, 1, 3, 4, 6]), np.array([-2.0, -1.2, 0.9, 1.5, 2.8])
    data = reference.as_table(cells, index, values[:, None], 8)
    return theta, data, (cells, index, np.zeros(5, int), values, np.zeros(5))


def drawn(theta, data, seed=0, draws=300):
    size = sum(leaf.size for leaf in theta.values())
    starts = np.random.default_rng(seed).standard_normal((3, size))
    return sample(theta, data, starts, jax.random.key(seed), warmup=60, draws=draws)


def weighted(reference, theta, observed, count):
    """Draws from the prior, and their weights: the likelihood."""
    rng = np.random.default_rng(5)
    points = [reference.draw_theta(rng, 1, 1, 0, 1.0) for _ in range(count)]
    log_prior = [
        sum(
            np.sum((leaf - reference.priors[n][0]) ** 2) / (2 * reference.priors[n][1] ** 2)
            for n, leaf in point.items()
        )
        for point in points
    ]
    scores = [reference.negative_log_posterior(point, *observed) for point in points]
    log_weight = np.array(log_prior) - np.array(scores)
    weight = np.exp(log_weight - log_weight.max())
    stacked = {name: np.array([point[name].ravel() for point in points]) for name in theta}
    return stacked, weight / weight.sum()


def test_moments_of_the_draws_are_those_of_importance_sampling(reference, tiny):
    theta, data, observed = tiny
    found = drawn(theta, data)
    points, weight = weighted(reference, theta, observed, 6000)
    assert 1 / np.sum(weight**2) > 400  # else the oracle says little
    moved = 0.0
    for name, leaf in found.draws.items():
        flat = np.asarray(leaf).reshape(900, -1)
        mean = weight @ points[name]
        sd = np.sqrt(weight @ (points[name] - mean) ** 2)
        np.testing.assert_allclose(flat.mean(axis=0), mean, atol=0.2 * sd.max())
        np.testing.assert_allclose(flat.std(axis=0), sd, rtol=0.2)
        location, scale = reference.priors[name]
        moved = max(moved, np.max(np.abs(mean - location) / scale))
    assert moved > 0.5  # the prior alone would not pass


def test_the_same_key_and_data_give_the_same_draws_and_other_keys_others(tiny):
    theta, data, _ = tiny
    once, again, other = (drawn(theta, data, seed) for seed in (0, 0, 1))
    for name, leaf in once.draws.items():
        np.testing.assert_array_equal(leaf, again.draws[name])
        assert np.abs(leaf - other.draws[name]).max() > 0.01


def test_the_same_bucket_does_not_trace_the_sampler_again(reference, tiny):
    theta, _, (cells, index, _, values, _) = tiny
    counts = []
    for count in (3, 4, 5):
        data = reference.as_table(cells, index[:count], values[:count, None], 8)
        drawn(theta, data, draws=5)
        counts.append(reference.traces(sample))
    assert len(set(counts)) == 1
