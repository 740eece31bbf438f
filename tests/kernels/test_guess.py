"""A prior mean that comes as a guess, against the textbook formula over all outputs of cells."""

# NumPy arrays stand in for JAX ones.
# pyright: reportArgumentType=false, reportCallIssue=false

import jax
import numpy as np
import pytest

from fleetsieve_kernels.covariance import variances
from fleetsieve_kernels.fit import objective
from fleetsieve_kernels.hyper import shapes
from fleetsieve_kernels.posterior import condition, marginals
from fleetsieve_kernels.posterior import joint as joint_of

# Latents, numeric features, categorical features.
SIZE = (2, 2, 1)

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture
def case(reference):
    """Hyperparameters, cells with a guess, their prior covariance, and a generator."""
    rng = np.random.default_rng(5)
    theta = reference.draw_theta(rng, *SIZE, guesses=SIZE[0])
    cells = reference.draw_cells(rng, (2, 2, 3), *SIZE[1:], guesses=SIZE[0])
    return theta, cells, reference.prior(reference.constrained(theta), cells), rng


def observations(reference, cells, rng, route):
    """Data for the kernels, and its (cell, output, value, noise)."""
    index = np.array([7, 0, 4, 10, 2])
    values = rng.normal(size=(len(index), SIZE[0]))
    cell, output = np.repeat(index, SIZE[0]), np.tile(np.arange(SIZE[0]), len(index))
    if route == "table":
        observed = cell, output, values.ravel(), np.zeros(values.size)
        return reference.as_table(cells, index, values, 8), observed
    noise = rng.uniform(0.01, 0.5, len(cell) - 3)
    observed = cell[3:], output[3:], values.ravel()[3:], noise
    return reference.as_rows(cells, *observed, 16), observed


@pytest.mark.parametrize("route", ["table", "rows"])
def test_what_was_measured_corrects_the_guess_as_the_textbook_does(case, reference, route):
    theta, cells, joint, rng = case
    hyper = reference.constrained(theta)
    data, (cell, output, value, noise) = observations(reference, cells, rng, route)
    surprise = value - cells.guess[cell, output]
    deviation, covariance = reference.conditioned(joint, cell, output, surprise, noise)
    found = condition(hyper, data, cells)
    np.testing.assert_allclose(found.mean, cells.guess + deviation, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(joint_of(found), covariance, rtol=1e-6, atol=1e-7)
    mean, variance = marginals(hyper, data, cells)
    np.testing.assert_allclose(mean, found.mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(variance, np.einsum("ipip->ip", covariance), rtol=1e-6, atol=1e-7)


def test_without_data_the_guess_is_the_mean_and_its_factor_is_open(case, reference):
    theta, cells, joint, _ = case
    hyper, nothing = reference.constrained(theta), np.zeros(0, int)
    table = reference.as_table(cells, nothing, np.zeros((0, SIZE[0])), 8)
    mean, variance = marginals(hyper, table, cells)
    np.testing.assert_allclose(mean, cells.guess)
    np.testing.assert_allclose(variance, np.einsum("ipip->ip", joint))
    bare = cells._replace(guess=np.zeros_like(cells.guess))
    wider = np.asarray(variances(hyper, cells) - variances(hyper, bare))
    np.testing.assert_allclose(wider, (hyper["rescale"] * cells.guess).T ** 2, atol=1e-12)


@pytest.mark.parametrize("route", ["table", "rows"])
def test_the_objective_is_the_negative_log_posterior_around_the_guess(case, reference, route):
    theta, cells, _, rng = case
    data, observed = observations(reference, cells, rng, route)
    points = [reference.draw_theta(rng, *SIZE, guesses=SIZE[0]) for _ in range(3)]
    score = jax.jit(objective)
    found = [score(point, data) - score(theta, data) for point in points]
    score = reference.negative_log_posterior
    oracle = [score(point, cells, *observed) - score(theta, cells, *observed) for point in points]
    np.testing.assert_allclose(found, oracle, rtol=1e-7, atol=1e-7)


def test_a_factor_is_learned_with_a_guess_only():
    assert "rescale" not in shapes(3, 2, 1)
    assert shapes(3, 2, 1, guesses=3)["rescale"] == (3,)
