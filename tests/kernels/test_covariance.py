"""The prior covariance against its formula, pair by pair."""

# NumPy arrays stand in for JAX ones.
# pyright: reportArgumentType=false, reportCallIssue=false

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.handlers import seed

from fleetsieve_kernels import covariance
from fleetsieve_kernels.covariance import Cells, covariances, variances, white_variance
from fleetsieve_kernels.hyper import constrain, mixing_matrix, prior_median, sample_prior, shapes

SIZES = [(1, 1, 0), (4, 3, 2)]

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(params=SIZES, ids=str)
def case(request, reference):
    rng = np.random.default_rng(request.param)
    hyper = reference.constrained(reference.draw_theta(rng, *request.param))
    return hyper, reference.draw_cells(rng, (2, 2, 3), *request.param[1:])


def test_covariance_between_two_sets_of_cells_follows_the_formula(case, reference):
    hyper, cells = case
    a, b = (cells._make(field[index] for field in cells) for index in ([*range(7)], [11, 3, 3, 5]))
    found = jax.jit(covariances)(hyper, a, b)
    oracle = [reference.latent(hyper, r, a, b) for r in range(len(hyper["white"]))]
    np.testing.assert_allclose(found, oracle, rtol=1e-11)


def test_variances_are_the_diagonal_of_the_formula(case, reference):
    hyper, cells = case
    latents = range(len(hyper["white"]))
    oracle = [np.diagonal(reference.latent(hyper, r, cells, cells)) for r in latents]
    np.testing.assert_allclose(jax.jit(variances)(hyper, cells), oracle, rtol=1e-11)


def test_the_white_part_belongs_to_the_cell_and_not_to_its_place():
    names = ("amplitude", "coupling", "white", "early", "offset", "slope")
    hyper = {name: jnp.ones(1) for name in names}
    hyper |= {"lengthscale": jnp.ones((1, 1)), "mixing": jnp.zeros((1, 1))}
    none = np.zeros((1, 0))
    place = np.zeros(1, int), np.zeros((1, 1)), none.astype(int), none, np.zeros(1)
    here, twin = Cells(np.array([3]), *place), Cells(np.array([4]), *place)
    covary = jax.jit(covariances)
    own = covary(hyper, here, here) - covary(hyper, here, twin)
    np.testing.assert_allclose(own, white_variance(hyper)[:, None, None], rtol=1e-12)
    np.testing.assert_allclose(own, 1.0, rtol=1e-7)


def test_covariances_factorise_even_without_a_white_part(case):
    hyper, cells = case
    bare = {**hyper, "white": np.zeros_like(hyper["white"])}
    everything = jax.jit(covariances)(bare, cells, cells)
    assert np.isfinite(np.linalg.cholesky(everything)).all()


def test_the_gradient_is_finite_at_equal_places(case):
    hyper, cells = case
    slopes = jax.jit(jax.grad(lambda h: jnp.sum(covariances(h, cells, cells))))(hyper)
    assert all(np.isfinite(leaf).all() for leaf in slopes.values())


def test_the_mixing_matrix_inverts_one_minus_the_lower_triangle(case, reference):
    hyper, _ = case
    np.testing.assert_allclose(mixing_matrix(hyper), reference.mixing(hyper), atol=1e-12)


def test_the_median_of_the_prior_has_a_white_part_of_two_percent(reference):
    median = prior_median(2, 3, 1)
    for name, leaf in median.items():
        np.testing.assert_allclose(leaf, reference.priors[name][0])
    # METHOD 2: a white part of median about 2 % of the signal variance.
    np.testing.assert_allclose(constrain(median)["white"], 0.02)


def test_prior_draws_have_the_declared_shapes_and_signs():
    drawn = jax.jit(lambda: seed(sample_prior, jax.random.key(0))(2, 3, 1))()
    assert {name: leaf.shape for name, leaf in drawn.items()} == shapes(2, 3, 1)
    assert all((leaf > 0).all() for name, leaf in drawn.items() if name != "mixing")
    assert drawn["lengthscale"].shape == (2, 3)
    assert shapes(2, 3, 0).keys() == drawn.keys() - {"mismatch"}


def test_mixed_precisions_are_refused(case):
    hyper, cells = case
    rounded = cells._replace(features=np.float32(cells.features))
    with pytest.raises(TypeError, match=r"float32.*float64"):
        covariances(hyper, rounded, rounded)


def test_jitter_follows_the_dtype():
    assert covariance.jitter(jnp.float64) < covariance.jitter(jnp.float32)
