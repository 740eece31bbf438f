"""Noise from run to run: likelihood and posterior of repeated cells against every single run."""

# NumPy arrays stand in for JAX ones.
# pyright: reportArgumentType=false, reportCallIssue=false

import jax.numpy as jnp
import numpy as np
import pytest

from fleetsieve_kernels.bounds import Doubt, halfwidth
from fleetsieve_kernels.covariance import Cells
from fleetsieve_kernels.fit import marginal_nll, objective
from fleetsieve_kernels.posterior import Noise, Table, condition, joint

pytestmark = pytest.mark.usefixtures("float64")

LATENTS, RUNS = 2, np.array([1, 3, 2, 1])


@pytest.fixture
def drawn(reference):
    """Cells, hyperparameters, and runs whose noise is mixed as the latents are; stated is none."""
    rng = np.random.default_rng(3)
    theta = reference.draw_theta(rng, LATENTS, 2, 0)
    cells = reference.draw_cells(rng, (1, 2, 4), 2, 0)
    hyper = reference.constrained(theta) | {"run": np.array([0.1, 0.3])}
    at = np.repeat([0, 2, 3, 6], RUNS)
    noise = rng.normal(size=(len(at), LATENTS)) * hyper["run"] @ reference.mixing(hyper).T
    values = rng.normal(size=(8, LATENTS))[at] + noise
    return cells, hyper, at, values


def table_of(cells, at, values, size=8):
    """The table of the means of the runs of each cell, padded."""
    index = np.unique(at)
    runs = [values[at == cell] for cell in index]
    count = np.array([len(r) for r in runs])
    centre = np.zeros((size, LATENTS))
    centre[: len(index)] = [r.mean(axis=0) for r in runs]
    share, spare, scatter = np.ones((size, LATENTS)), np.zeros(size), np.zeros((size, 2, 2))
    share[: len(index)], spare[: len(index)] = (1 / count)[:, None], count - 1
    scatter[: len(index)] = [(r - r.mean(axis=0)).T @ (r - r.mean(axis=0)) for r in runs]
    padded = np.pad(index, (0, size - len(index)))
    noise = Noise(np.zeros((size, LATENTS)), share, spare, scatter)
    return Table(Cells(*(f[padded] for f in cells)), centre, np.arange(size) < len(index), noise)


def dense(reference, cells, hyper, at):
    """Covariance of every output of every run."""
    prior = reference.prior(hyper, cells)[at][:, :, at]
    mixing = reference.mixing(hyper)
    own = mixing @ np.diag(hyper["run"] ** 2) @ mixing.T
    return prior + np.einsum("ij,pq->ipjq", np.eye(len(at)), own)


def test_the_likelihood_of_repeats_is_that_of_all_runs_up_to_a_constant(reference, drawn):
    cells, hyper, at, values = drawn
    found, oracle = [], []
    for run in ([0.1, 0.3], [0.02, 0.5], [1.0, 0.05]):
        point = hyper | {"run": np.array(run)}
        found.append(float(marginal_nll(point, table_of(cells, at, values))))
        gram = dense(reference, cells, point, at).reshape(2 * [values.size])
        flat = values.ravel()
        oracle.append(flat @ np.linalg.solve(gram, flat) / 2 + np.linalg.slogdet(gram)[1] / 2)
    np.testing.assert_allclose(np.diff(found), np.diff(oracle), rtol=1e-6)


def test_the_posterior_of_repeated_cells_is_that_of_all_runs(reference, drawn):
    cells, hyper, at, values = drawn
    found = condition(hyper, table_of(cells, at, values), Cells(*map(jnp.asarray, cells)))
    gram = dense(reference, cells, hyper, at).reshape(2 * [values.size])
    prior = reference.prior(hyper, cells)
    cross = prior[:, :, at].reshape(8 * LATENTS, values.size)
    mean = cross @ np.linalg.solve(gram, values.ravel())
    np.testing.assert_allclose(found.mean, mean.reshape(8, LATENTS), rtol=1e-5, atol=1e-7)
    left = prior.reshape(16, 16) - cross @ np.linalg.solve(gram, cross.T)
    np.testing.assert_allclose(joint(found).reshape(16, 16), left, rtol=1e-4, atol=1e-6)


def test_the_prior_of_the_noise_is_log_normal_with_median_a_twentieth(reference, drawn):
    cells, _, at, values = drawn
    theta = reference.draw_theta(np.random.default_rng(0), LATENTS, 2, 0)
    data = table_of(cells, at, values)
    ends = [theta | {"run": np.log([run, 0.05])} for run in (0.05, 0.05 * np.e)]
    score = [float(objective(point, data)) for point in ends]
    fits = [float(marginal_nll(reference.constrained(point), data)) for point in ends]
    # One standard deviation of the log from the median.
    assert (score[1] - score[0]) - (fits[1] - fits[0]) == pytest.approx(0.5)


def test_bounds_widen_only_as_far_as_a_value_rests_on_its_own_noise():
    reach = np.array([1.0, 1.0, 1.0, 0.5])
    doubt = Doubt(np.array([0.04, np.inf, 0.04, 0.04]), np.full(4, 3.0), reach)
    sd = np.array([0.2, 0.2, 0.1, 0.2])
    found = halfwidth(jnp.asarray(2.0), jnp.asarray(sd), doubt)
    # Wholly its own: twice as wide. Of others: as it is. Its variance a quarter of the noise's.
    # Half of q asked for.
    np.testing.assert_allclose(found, [0.8, 0.4, 0.2 * np.sqrt(1.75), 0.4])
