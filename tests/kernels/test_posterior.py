"""The posterior against the dense textbook formula over all (cell, output) pairs."""

# NumPy arrays stand in for JAX ones.
# pyright: reportArgumentType=false, reportCallIssue=false

import inspect

import jax
import numpy as np
import pytest

from fleetsieve_kernels.posterior import condition, crossings, joint, marginals, observe, reveal

# Latents, numeric features, categorical features.
SIZES = [(1, 1, 0), (2, 2, 1), (3, 3, 2), (4, 1, 2)]
SHAPE = (2, 2, 3)

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(params=SIZES, ids=str)
def case(request, reference):
    return draw(reference, *request.param)


@pytest.fixture
def small(reference):
    return draw(reference, 2, 2, 1)


def draw(reference, latents, features, categories):
    rng = np.random.default_rng([latents, features, categories])
    hyper = reference.constrained(reference.draw_theta(rng, latents, features, categories))
    cells = reference.draw_cells(rng, SHAPE, features, categories)
    return hyper, cells, reference.prior(hyper, cells), rng


def pairs(index, outputs):
    """Every output of every cell of `index`."""
    return np.repeat(index, outputs), np.tile(np.arange(outputs), len(index))


def some_rows(rng, cells, outputs):
    """Cells with missing outputs, one repeated, with different noise, some of it none."""
    cell, output = pairs(np.arange(len(cells.ids)), outputs)
    kept = rng.permutation(len(cell))[: max(5, len(cell) // 3)]
    kept = np.append(kept, kept[0])
    noise = rng.uniform(0.001, 0.5, len(kept)) * (rng.uniform(size=len(kept)) < 0.8)
    noise[[0, -1]] = 0.01, 0.3
    return cell[kept], output[kept], rng.normal(size=len(kept)), noise


def close(found, oracle, rtol=1e-6, atol=1e-7):
    np.testing.assert_allclose(found, oracle, rtol=rtol, atol=atol)


def revealing(posterior, index):
    """What `reveal` needs to know of the posterior."""
    cross = crossings(posterior, np.array([index]))[0]
    return posterior.mean, posterior.variance, cross, index


def matches(posterior, oracle):
    close(posterior.mean, oracle[0])
    close(posterior.variance, np.einsum("ipip->ip", oracle[1]))
    close(joint(posterior), oracle[1])


def test_complete_exact_observations_condition_as_the_textbook_does(case, reference):
    hyper, cells, joint, rng = case
    index, outputs = np.array([7, 0, 4, 10, 2]), joint.shape[1]
    values = rng.normal(size=(5, outputs))
    table = reference.as_table(cells, index, values, 8)
    oracle = reference.conditioned(
        joint, *pairs(index, outputs), values.ravel(), np.zeros(values.size)
    )
    matches(condition(hyper, table, cells), oracle)
    rows = reference.as_rows(
        cells, *pairs(index, outputs), values.ravel(), np.zeros(values.size), 32
    )
    matches(condition(hyper, rows, cells), oracle)


def test_missing_noisy_and_repeated_outputs_condition_as_the_textbook_does(case, reference):
    hyper, cells, joint, rng = case
    observed = some_rows(rng, cells, joint.shape[1])
    rows = reference.as_rows(cells, *observed, 32)
    matches(condition(hyper, rows, cells), reference.conditioned(joint, *observed))


@pytest.mark.parametrize("route", ["table", "rows"])
def test_marginals_are_the_diagonal_of_the_textbook_posterior(small, reference, route):
    hyper, cells, joint, rng = small
    index = np.array([1, 8, 5])
    values = rng.normal(size=(3, 2))
    observed = (*pairs(index, 2), values.ravel(), np.zeros(6))
    data = reference.as_table(cells, index, values, 8)
    if route == "rows":
        observed = some_rows(rng, cells, 2)
        data = reference.as_rows(cells, *observed, 32)
    mean, variance = marginals(hyper, data, cells)
    centre, covariance = reference.conditioned(joint, *observed)
    close(mean, centre)
    close(variance, np.einsum("ipip->ip", covariance))
    close(variance, condition(hyper, data, cells).variance)


def test_no_observation_leaves_the_prior(small, reference):
    hyper, cells, joint, _ = small
    nothing = np.zeros(0, int)
    table = reference.as_table(cells, nothing, np.zeros((0, 2)), 8)
    matches(condition(hyper, table, cells), (np.zeros(joint.shape[:2]), joint))
    rows = reference.as_rows(cells, nothing, nothing, np.zeros(0), np.zeros(0), 8)
    matches(condition(hyper, rows, cells), (np.zeros(joint.shape[:2]), joint))


def test_an_exact_observation_is_reproduced_with_variance_near_zero(small, reference):
    hyper, cells, _, rng = small
    values = rng.normal(size=(2, 2))
    table = reference.as_table(cells, np.array([3, 9]), values, 8)
    mean, variance = marginals(hyper, table, cells)
    close(mean[np.array([3, 9])], values, atol=1e-6)
    assert (variance[np.array([3, 9])] < 1e-9).all()
    assert (variance >= 0).all()


@pytest.fixture(params=[np.zeros(2), np.array([0.2, 0.0]), np.array([0.05, 0.4])], ids=str)
def fantasy(request, reference, small):
    """A posterior, a further cell with its noise, and how the textbook conditions on both."""
    hyper, cells, joint, rng = small
    seen, index, noise = some_rows(rng, cells, 2), 6, request.param
    rows = reference.as_rows(cells, *seen, 32)

    def again(values):
        cell, output, value, error = (
            np.concatenate(both)
            for both in zip(seen, (*pairs(np.array([index]), 2), values, noise), strict=True)
        )
        return reference.conditioned(joint, cell, output, value, error)

    before = reference.conditioned(joint, *seen)
    return condition(hyper, rows, cells), index, noise, before, again


def test_what_an_outcome_leaves_equals_conditioning_again(fantasy):
    posterior, index, noise, _, again = fantasy
    values = np.array([0.4, -1.1])
    mean, variance = jax.jit(reveal)(*revealing(posterior, index), values, noise)
    centre, left = again(values)
    close(mean, centre)
    close(variance, np.einsum("ipip->ip", left))


def test_what_observing_does_equals_conditioning_on_the_drawn_outcome(fantasy):
    posterior, index, noise, (mean, covariance), again = fantasy
    gain, variance = jax.jit(observe)(*revealing(posterior, index)[1:], noise)
    root = np.linalg.cholesky(covariance[index, :, index] + np.diag(noise))
    for node in np.array([[0.0, 0.0], [1.0, 0.0], [-0.6, 1.7]]):
        centre, left = again(mean[index] + root @ node)
        close(mean + gain @ node, centre)
        close(variance, np.einsum("ipip->ip", left))


@pytest.mark.parametrize("route", ["table", "rows"])
def test_marginals_of_many_cells_are_those_of_blocks_of_them(small, reference, route, monkeypatch):
    hyper, cells, _, rng = small
    index, values = np.array([1, 5, 8]), rng.normal(size=(3, 2))
    data = reference.as_table(cells, index, values, 8)
    if route == "rows":
        data = reference.as_rows(cells, *pairs(index, 2), values.ravel(), np.full(6, 0.05), 16)
    whole = condition(hyper, data, cells)
    monkeypatch.setattr("fleetsieve_kernels.posterior._BLOCK", 5)
    mean, variance = inspect.unwrap(marginals)(hyper, data, cells)
    close(mean, whole.mean)
    close(variance, whole.variance)


def test_observing_a_known_cell_again_changes_nothing(small, reference):
    hyper, cells, _, rng = small
    table = reference.as_table(cells, np.array([4, 6]), rng.normal(size=(2, 2)), 8)
    posterior = condition(hyper, table, cells)
    mean, variance = reveal(*revealing(posterior, 6), table.values[1], np.zeros(2))
    close(mean, posterior.mean, atol=1e-5)
    close(variance, posterior.variance, atol=1e-5)


@pytest.mark.parametrize("route", ["table", "rows"])
def test_growing_data_traces_once_per_bucket(small, reference, route):
    hyper, cells, _, rng = small
    values, traces = rng.normal(size=(12, 2)), []
    for count in range(3, 9):
        index = np.arange(count)
        data = reference.as_table(cells, index, values[:count], 8)
        if route == "rows":
            cell, output = pairs(index, 2)
            data = reference.as_rows(
                cells, cell, output, values[:count].ravel(), 0.1 + 0 * cell, 16
            )
        condition(hyper, data, cells)
        marginals(hyper, data, cells)
        traces.append(reference.traces(condition, marginals))
    assert len(set(traces)) == 1


@pytest.mark.parametrize("route", ["table", "rows"])
def test_single_precision_agrees_roughly_and_stays_single(small, reference, route):
    hyper, cells, _, rng = small
    index, values = np.array([1, 5, 8]), rng.normal(size=(3, 2))
    data = reference.as_table(cells, index, values, 8)
    if route == "rows":
        data = reference.as_rows(cells, *pairs(index, 2), values.ravel(), np.full(6, 0.05), 16)
    precise = condition(hyper, data, cells)
    with jax.enable_x64(False):
        rough = condition(hyper, data, cells)
        rough_marginals = marginals(hyper, data, cells)
        then = reveal(*revealing(rough, 0), np.zeros(2), np.full(2, 0.1))
        rough_joint = joint(rough)
    found = (*rough[:2], rough_joint, *rough_marginals, *then)
    assert {leaf.dtype for leaf in found} == {np.dtype("float32")}
    close(rough.mean, precise.mean, atol=0.02)
    close(rough_joint, joint(precise), atol=0.02)
    close(rough_marginals[1], precise.variance, atol=0.02)
    after = reveal(*revealing(precise, 0), np.zeros(2), np.full(2, 0.1))
    close(then[0], after[0], atol=0.02)
