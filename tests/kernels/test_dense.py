"""Small factorisations against NumPy, and no batch of LAPACK calls in any public function.

A batch of LAPACK calls can hang jaxlib on CPUs: see `dense`.
"""

# NumPy arrays stand in for JAX ones.
# pyright: reportArgumentType=false, reportCallIssue=false

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fleetsieve_kernels.acquisition import Candidates, Fleet, Needs, expected_gains, view
from fleetsieve_kernels.bounds import Known, Levels
from fleetsieve_kernels.dense import (
    forward,
    inverse_factor,
    over,
    small_cholesky,
    small_forward,
)
from fleetsieve_kernels.fit import fit, inflation, laplace_draws
from fleetsieve_kernels.hyper import constrain
from fleetsieve_kernels.nuts import sample
from fleetsieve_kernels.posterior import condition, crossings, joint, marginals, within
from fleetsieve_kernels.regret import regrets
from fleetsieve_kernels.screening import own_gains

SHAPE, LATENTS = (2, 2, 3), 2

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("size", [1, 2, 5])
def test_small_factors_and_solutions_are_those_of_numpy(size):
    rng = np.random.default_rng(size)
    root = rng.normal(size=(size, size))
    matrix = root @ root.T + 0.1 * np.eye(size)
    factor = np.linalg.cholesky(matrix)
    np.testing.assert_allclose(jax.jit(small_cholesky)(matrix), factor, rtol=1e-10, atol=1e-12)
    for right in (rng.normal(size=size), rng.normal(size=(size, 3))):
        oracle = np.linalg.solve(factor, right)
        np.testing.assert_allclose(jax.jit(small_forward)(factor, right), oracle, rtol=1e-9)
        np.testing.assert_allclose(forward(factor, right), oracle, rtol=1e-9)


@pytest.mark.parametrize("size", [1, 8, 32, 33, 70, 192])
def test_a_triangle_is_inverted_by_halves_as_by_numpy(size):
    root = np.random.default_rng(size).normal(size=(size, size))
    factor = np.linalg.cholesky(root @ root.T + size * np.eye(size))
    inverse = jax.jit(inverse_factor)(factor)
    np.testing.assert_allclose(inverse, np.linalg.inv(factor), rtol=1e-9, atol=1e-12)


def test_over_walks_the_leading_axis_of_all_arrays():
    left, right = np.arange(6.0).reshape(3, 2), np.arange(3.0)
    total, product = over(lambda a, b: (a + b, jnp.sum(a) * b), left, right)
    np.testing.assert_array_equal(total, left + right[:, None])
    np.testing.assert_array_equal(product, left.sum(axis=1) * right)


def lapack_calls(lowered):
    """Name and operand shapes of every LAPACK call of a program for CPUs."""
    call = re.compile(r"custom_call @(lapack_\w+)\(.*\} : \(([^)]*)\) ->")
    shape = re.compile(r"tensor<((?:\d+x)*)[a-z]")
    return [
        (name, [tuple(int(n) for n in s.split("x") if n) for s in shape.findall(operands)])
        for name, operands in call.findall(lowered.as_text())
    ]


def batched(calls):
    return [call for call in calls if any(np.prod(s[:-2], initial=1) > 1 for s in call[1])]


def lower(function, *arguments, **static):
    return function.trace(*arguments, **static).lower(lowering_platforms=("cpu",))


def test_the_guard_catches_a_batch_of_factorisations_and_of_solutions():
    def solve(matrix):
        factor = jnp.linalg.cholesky(matrix)
        return jnp.linalg.eigh(matrix), forward(factor, matrix)

    one = lapack_calls(lower(jax.jit(solve), np.eye(3)))
    many = lapack_calls(lower(jax.jit(jax.vmap(solve)), np.ones((4, 3, 3))))
    assert len(one) == len(many) == 3
    assert not batched(one)
    assert batched(many) == many
    walked = lapack_calls(lower(jax.jit(lambda m: over(solve, m)), np.ones((4, 3, 3))))
    assert len(walked) == 3
    assert not batched(walked)


@pytest.fixture
def programs(reference):
    """Every public jitted function that may factorise, lowered on a small problem."""
    rng = np.random.default_rng(0)
    theta = reference.draw_theta(rng, LATENTS, 2, 1)
    cells = reference.draw_cells(rng, SHAPE, 2, 1)
    count = len(cells.ids)
    table = reference.as_table(cells, np.arange(3), np.ones((3, LATENTS)), 8)
    cell, output = np.arange(5), np.arange(5) % 2
    rows = reference.as_rows(cells, cell, output, np.ones(5), np.full(5, 0.1), 8)
    flags = np.zeros(count, bool)
    known = Known(np.zeros((count, 2)), np.zeros((count, 2), bool), flags, flags)
    levels = Levels(~flags, np.ones((count, 1), bool), np.ones(count), np.zeros(count))
    needs = Needs(np.ones(2), np.ones(2), np.zeros(2, int), np.full(2, 4))
    fleet = Fleet("max-min", (1, 2), 4, SHAPE)
    wide, q = np.ones((count, LATENTS)), np.asarray(2.0)
    hyper = {name: np.asarray(leaf) for name, leaf in constrain(theta).items()}
    starts = {name: np.stack([leaf, leaf, leaf]) for name, leaf in theta.items()}
    nodes = np.ones((4, sum(leaf.size for leaf in theta.values())))
    posteriors = [condition(hyper, data, cells) for data in (table, rows)]
    one, at = np.array([1]), np.arange(count).reshape(-1, SHAPE[2])
    cross, facts = crossings(posteriors[0], one), (cells, known, levels, needs, fleet)

    def both(function, *before_and_after):
        before, after = before_and_after
        return [lower(function, *before, data, *after) for data in (table, rows)]

    return {
        "fit": both(fit, (starts,), ()),
        "laplace_draws": both(laplace_draws, (theta,), (nodes,)),
        "inflation": both(inflation, (theta, starts), (cells,)),
        "sample": [
            lower(sample, theta, data, nodes, jax.random.key(0), warmup=2, draws=3)
            for data in (table, rows)
        ],
        "regrets": both(
            regrets,
            (theta,),
            (
                *(cells, known, levels, needs, np.ones(SHAPE[:2], int)),
                *(np.ones((5, count * LATENTS)), np.ones((5, count, 1)), fleet),
            ),
        ),
        "condition": both(condition, (hyper,), (cells,)),
        "marginals": both(marginals, (hyper,), (cells,)),
        "view": both(view, (theta, wide, q), (cells, known, levels, needs, fleet)),
        "joint": [lower(joint, posterior) for posterior in posteriors],
        "crossings": [lower(crossings, posterior, one) for posterior in posteriors],
        "within": [lower(within, posterior, at) for posterior in posteriors],
        "expected_gains": [
            lower(
                expected_gains,
                *(theta, wide, q, (0 * wide, wide), Candidates(one, cross)),
                *(0 * wide, np.ones((4, LATENTS)), *facts),
            )
        ],
        "own_gains": [
            lower(
                own_gains,
                *(theta, wide, q, (0 * wide, wide), within(posteriors[0], at)),
                *(0 * wide, np.ones((4, LATENTS)), *facts),
            )
        ],
    }


def test_no_public_function_hands_lapack_a_batch(programs):
    for name, lowered in programs.items():
        for program in lowered:
            assert not batched(lapack_calls(program)), name


def test_functions_that_factorise_large_matrices_are_seen_by_the_guard(programs):
    large = ("fit", "laplace_draws", "inflation", "sample", "condition", "marginals", "view")
    for name in (*large, "regrets"):
        for program in programs[name]:
            assert lapack_calls(program), name
    for name in ("joint", "crossings", "within", "expected_gains", "own_gains"):
        assert not any(lapack_calls(program) for program in programs[name]), name
