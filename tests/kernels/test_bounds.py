"""Simultaneous bounds and capacity intervals against simulation and METHOD 3's rules in loops."""

# NumPy arrays stand in for JAX ones.
# pyright: reportArgumentType=false, reportCallIssue=false

import jax
import numpy as np
import pytest
from scipy import stats

from fleetsieve_kernels.bounds import (
    Assumed,
    Bounds,
    Known,
    Levels,
    assumed,
    bound,
    capacity_intervals,
    drawn_capacities,
    quantile,
    white_slack,
)

# Columns are independent: one call decides 300 random ones.
SHAPE, METRICS = (30, 10, 5), 2
CELLS = int(np.prod(SHAPE))

UNBOUNDED = np.full(CELLS, np.inf)

decide = jax.jit(capacity_intervals, static_argnames=("shape", "measured_only"))

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_quantile_is_exact_for_one_value_and_for_independent_ones(confidence):
    assert quantile(confidence, 1) == pytest.approx(stats.norm.ppf((1 + confidence) / 2))
    for count in (2, 17, 400):
        inside = stats.norm.cdf(quantile(confidence, count)) * 2 - 1
        assert inside**count == pytest.approx(confidence, abs=1e-9)


def test_quantile_without_any_uncertain_value_is_that_of_one():
    assert quantile(0.95, 0) == quantile(0.95, 1)


@pytest.mark.parametrize("common", [0.0, 0.5, 0.95])
def test_correlated_values_stay_within_the_quantile_as_often_as_stated(common):
    rng = np.random.default_rng(0)
    shared = rng.standard_normal((20000, 1)) * np.array([1.0, -1.0] * 10)
    values = np.sqrt(common) * shared + np.sqrt(1 - common) * rng.standard_normal((20000, 20))
    covered = np.mean(np.abs(values).max(axis=1) <= quantile(0.9, 20))
    error = 3 * np.sqrt(0.9 * 0.1 / 20000)
    assert covered > 0.9 - error
    assert common > 0 or covered < 0.9 + error


def test_white_slack_is_the_width_of_a_difference_of_two_white_parts(reference):
    rng = np.random.default_rng(1)
    hyper = reference.constrained(reference.draw_theta(rng, 3, 2, 1))
    cells = reference.draw_cells(rng, (1, 1, 2), 2, 1)
    drawn = rng.standard_normal((200_000, 2, 3))
    own = drawn[:, 0] * np.sqrt(reference.own_variances(hyper, cells)[:, 0])
    white = drawn[:, 1] * np.sqrt(reference.white_variances(hyper))
    spread = np.std((own - white) @ reference.mixing(hyper).T, axis=0)
    found = white_slack(hyper, np.asarray(2.5), cells)
    np.testing.assert_allclose(found[0], 2.5 * spread[1:], rtol=0.01)


@pytest.mark.parametrize("highest", [-0.4, 0.7])
def test_a_server_completes_no_more_than_it_is_sent_or_than_any_was_seen_to(reference, highest):
    """But for a cell's own part; where the load is a concurrency, nothing is taken for granted."""
    rng = np.random.default_rng(2)
    hyper = reference.constrained(reference.draw_theta(rng, 2, 2, 1))
    cells = reference.draw_cells(rng, (1, 2, 2), 2, 1)
    levels = Levels(np.ones(4, bool), np.ones((4, 1), bool), np.ones(4), np.repeat([0, np.inf], 2))
    mean = np.array([[highest, 0.0], [9.0, 0.0], [-0.7, 0.0], [9.0, 0.0]])
    measured = np.array([True, False, True, False])
    known = Known(mean, measured[:, None] & np.ones((4, 2), bool), measured, np.zeros(4, bool))
    found = assumed(hyper, np.asarray(2.0), cells, mean, known, levels)
    drawn = rng.standard_normal((200_000, 4, 2))
    own = drawn * np.sqrt(reference.own_variances(hyper, cells).T)
    spread = np.std(own @ reference.mixing(hyper)[0], axis=0)
    expected = max(0.0, highest) + 2.0 * spread
    np.testing.assert_allclose(found.ceiling[:2], expected[:2], rtol=0.01)
    assert np.isinf(found.ceiling[2:]).all()


def random_columns(seed, exact=0.0):
    """Bounds with ties at the SLO, levels left-packed, some measured, failed or unlimited."""
    rng = np.random.default_rng([2, seed])
    rising = np.tile(np.arange(SHAPE[2]) - rng.integers(0, 6), SHAPE[0] * SHAPE[1])
    centre = 0.4 * rising[:, None] + rng.normal(size=(CELLS, 1 + METRICS)) - 0.5
    width = np.where(rng.uniform(size=centre.shape) < exact, 0, rng.exponential(0.6, centre.shape))
    lower, upper = np.round(centre - width, 1), np.round(centre + width, 1)
    exists = np.arange(SHAPE[2]) < rng.choice([0, 2, 4, 5, 5, 5], (*SHAPE[:2], 1))
    per_workload = rng.uniform(size=(SHAPE[0], 1, 1, METRICS)) < 0.8
    limited = np.broadcast_to(per_workload, (*SHAPE, METRICS)).reshape(CELLS, METRICS)
    scale = rng.uniform(0.5, 3, CELLS)
    levels = Levels(exists.ravel(), limited, scale, UNBOUNDED)
    measured = (rng.uniform(size=CELLS) < 0.4) & levels.exists
    broken = (rng.uniform(size=CELLS) < 0.06) & levels.exists
    known = Known(np.zeros_like(lower), np.zeros(lower.shape, bool), measured, broken)
    rest = Assumed(rng.uniform(0.0, 0.6, (CELLS, METRICS)), rng.uniform(-0.5, 2.0, CELLS))
    return Bounds(lower, upper), known, levels, rest


def capacities(bounds, known, levels, rest, measured_only=True):
    found = decide(bounds, known, levels, rest, shape=SHAPE, measured_only=measured_only)
    return [np.asarray(kappa) for kappa in found]


@pytest.mark.parametrize("measured_only", [True, False], ids=["measured", "any"])
@pytest.mark.parametrize("seed", range(4))
def test_capacity_intervals_follow_the_rules_level_by_level(reference, seed, measured_only):
    bounds, known, levels, rest = random_columns(seed)
    found = capacities(bounds, known, levels, rest, measured_only)
    oracle = reference.intervals(*bounds, known, levels, rest, SHAPE, measured_only)
    np.testing.assert_allclose(found, oracle, rtol=1e-12)
    assert 0 < np.mean(oracle[0] > 0) < np.mean(oracle[1] > 0) < 1


@pytest.mark.parametrize("seed", range(4))
def test_the_lower_capacity_never_exceeds_the_upper(seed):
    """Also where a measured level above would ease one that surely breaks by its own bound."""
    bounds, known, levels, rest = random_columns(seed)
    for measured_only in (True, False):
        lower, upper = capacities(bounds, known, levels, rest, measured_only)
        assert (lower <= upper).all()


def test_the_lower_capacity_counts_no_level_that_was_not_measured():
    bounds, known, levels, rest = random_columns(5)
    counted, _ = capacities(bounds, known, levels, rest)
    throughput = np.exp(np.minimum(bounds.lower[:, 0], rest.ceiling)) * levels.scale
    allowed = np.where(known.measured & levels.exists & ~known.broken, throughput, 0).reshape(SHAPE)
    assert all(
        kappa == 0 or np.isclose(allowed[at], kappa).any() for at, kappa in np.ndenumerate(counted)
    )
    nothing = known._replace(measured=np.zeros(CELLS, bool))
    assert not capacities(bounds, nothing, levels, rest)[0].any()


@pytest.mark.parametrize("seed", range(4))
def test_wider_bounds_widen_capacities_but_where_they_ease_a_level_that_broke(seed):
    """It surely broke by its bound alone, and a measured level above it holds."""
    bounds, known, levels, rest = random_columns(seed)
    more = np.random.default_rng(seed).exponential(0.3, bounds.lower.shape)
    more[known.measured] = 0
    wide = Bounds(bounds.lower - more, bounds.upper + more)
    narrow, wider = (capacities(each, known, levels, rest) for each in (bounds, wide))
    breaks = ((bounds.lower[:, 1:] > 0) & levels.limited).any(axis=1) & ~known.measured
    holds = known.measured & ~((bounds.upper[:, 1:] > 0) & levels.limited).any(axis=1)
    breaks, holds = breaks.reshape(SHAPE), holds.reshape(SHAPE)
    eased = np.zeros(SHAPE[:2], bool)
    for low in range(SHAPE[2]):
        for high in range(low + 1, SHAPE[2]):
            eased |= breaks[..., low] & holds[..., high]
    assert (wider[1] >= narrow[1] - 1e-12).all()
    assert (wider[0] <= narrow[0] + 1e-12)[~eased].all()
    assert 0 < eased.sum() < eased.size
    assert (wider[0] > narrow[0] + 1e-12).any(), "the exception is needed"


def prefix_capacity(value, known, levels):
    """κ of a truth: the best throughput before the first level that breaks (METHOD 1)."""
    best = np.zeros(SHAPE[:2])
    columns = np.arange(CELLS).reshape(SHAPE)
    for at in np.ndindex(SHAPE[:2]):
        for cell in columns[at]:
            over = value[cell, 1:][levels.limited[cell]] > 0
            if not levels.exists[cell] or known.broken[cell] or over.any():
                break
            best[at] = max(best[at], np.exp(value[cell, 0]) * levels.scale[cell])
    return best


def a_truth(seed, slack=np.inf):
    """Columns, and a truth within their bounds, the metrics of a level at most `slack` above those
    of any higher one."""
    rng = np.random.default_rng([3, seed])
    _, known, levels, _ = random_columns(seed)
    truth = rng.normal(size=(*SHAPE, 1 + METRICS)) - 0.5
    if np.isfinite(slack):
        rising = np.sort(truth[..., 1:], axis=2)
        truth[..., 1:] = rising + rng.uniform(-slack / 2, slack / 2, rising.shape)
    truth = truth.reshape(CELLS, -1)
    width = rng.exponential(0.4, (2, *truth.shape))
    width[:, rng.uniform(size=CELLS) < 0.2] = 0
    return truth, Bounds(truth - width[0], truth + width[1]), known, levels


@pytest.mark.parametrize("measured_only", [True, False], ids=["measured", "any"])
@pytest.mark.parametrize("seed", range(3))
def test_bounds_that_hold_give_capacities_that_hold_on_surfaces_rising_but_for_the_slack(
    seed, measured_only
):
    truth, bounds, known, levels = a_truth(seed, slack=0.3)
    ceiling = truth[:, 0] + np.random.default_rng([5, seed]).exponential(0.2, CELLS)
    lower, upper = capacities(
        bounds, known, levels, Assumed(np.full(METRICS, 0.3), ceiling), measured_only
    )
    kappa = prefix_capacity(truth, known, levels)
    assert (lower <= kappa * (1 + 1e-12)).all()
    assert (kappa <= upper * (1 + 1e-12)).all()
    assert (lower > 0).any()


@pytest.mark.parametrize("seed", range(3))
def test_bounds_that_hold_give_capacities_that_hold_on_any_surface_without_easing(seed):
    truth, bounds, known, levels = a_truth(seed)
    lower, upper = capacities(bounds, known, levels, Assumed(np.full(METRICS, np.inf), UNBOUNDED))
    kappa = prefix_capacity(truth, known, levels)
    assert (lower <= kappa * (1 + 1e-12)).all()
    assert (kappa <= upper * (1 + 1e-12)).all()


def test_measuring_everything_exactly_gives_the_capacity_of_the_feasible_prefix():
    truth, _, known, levels = a_truth(7)
    full = Known(truth, np.ones(truth.shape, bool), levels.exists, known.broken)
    bounds = bound(truth + 1.0, np.full(truth.shape, 0.5), full)
    lower, upper = capacities(bounds, full, levels, Assumed(np.full(METRICS, 0.4), UNBOUNDED))
    np.testing.assert_allclose(lower, prefix_capacity(truth, known, levels), rtol=1e-12)
    np.testing.assert_array_equal(lower, upper)


def test_a_measured_violation_wins_over_a_feasible_level_above():
    lower = np.array([[0.0, -1.0], [0.0, 0.1], [0.0, -2.0]])
    levels = Levels(
        np.ones(3, bool), np.ones((3, 1), bool), np.array([1.0, 2.0, 4.0]), UNBOUNDED[:3]
    )
    known = Known(lower, np.ones((3, 2), bool), np.ones(3, bool), np.zeros(3, bool))
    found = decide(
        Bounds(lower, lower),
        known,
        levels,
        Assumed(np.full(1, 0.5), UNBOUNDED[:3]),
        shape=(1, 1, 3),
    )
    np.testing.assert_allclose(found, np.ones((2, 1, 1)))


def test_a_feasible_level_eases_the_one_below_it_up_to_the_slack():
    centre = np.array([[0.0, -0.2], [0.0, -0.3]])
    levels = Levels(np.ones(2, bool), np.ones((2, 1), bool), np.array([1.0, 2.0]), UNBOUNDED[:2])
    exact = np.array([[False] * 2, [True] * 2])
    known = Known(np.where(exact, centre, 0), exact, exact[:, 0], np.zeros(2, bool))
    bounds = bound(centre, np.full((2, 2), 1.0), known)
    for slack, counted in ((0.25, 2.0), (0.35, 0.0)):
        lower, _ = decide(
            bounds, known, levels, Assumed(np.full(1, slack), UNBOUNDED[:2]), shape=(1, 1, 2)
        )
        assert lower == counted


def test_leading_axes_of_the_bounds_are_decided_one_by_one():
    (low, high), known, levels, rest = random_columns(8)
    batch = Bounds(np.stack([low, low - 0.3]), np.stack([high, high + 0.2]))
    together = capacities(batch, known, levels, rest)
    for i in range(2):
        alone = capacities(Bounds(batch.lower[i], batch.upper[i]), known, levels, rest)
        np.testing.assert_allclose([kappa[i] for kappa in together], alone, rtol=1e-12)


def test_bounds_are_symmetric_but_of_no_width_where_a_value_is_known():
    exact = np.array([[True, False], [False, False]])
    value = np.array([[0.7, 0.0], [0.0, 0.0]])
    known = Known(value, exact, exact[:, 0], np.zeros(2, bool))
    lower, upper = bound(np.full((2, 2), 5.0), np.full((2, 2), 2.0), known)
    np.testing.assert_array_equal(lower, [[0.7, 3.0], [3.0, 3.0]])
    np.testing.assert_array_equal(upper, [[0.7, 7.0], [7.0, 7.0]])


def test_a_model_that_broke_down_bounds_nothing():
    exact = np.array([[True, True], [False, False], [False, False]])
    value = np.where(exact, [0.2, -0.5], 0.0)
    known = Known(value, exact, np.ones(3, bool), np.zeros(3, bool))
    levels = Levels(np.ones(3, bool), np.ones((3, 1), bool), np.ones(3), UNBOUNDED[:3])
    mean, width = np.full((3, 2), -1.0), np.full((3, 2), 0.1)
    mean[1], width[2] = np.nan, np.nan
    bounds = bound(mean, width, known)
    lower, upper = decide(
        bounds, known, levels, Assumed(np.full(1, 0.5), UNBOUNDED[:3]), shape=(1, 1, 3)
    )
    assert float(lower.item()) == pytest.approx(np.exp(0.2))
    assert np.exp(20) < float(upper.item()) < np.inf


def test_single_precision_stays_single():
    bounds, known, levels, rest = random_columns(9)
    with jax.enable_x64(False):
        found = decide(Bounds(*(np.float32(b) for b in bounds)), known, levels, rest, shape=SHAPE)
    assert {kappa.dtype for kappa in found} == {np.dtype("float32")}
    for rough, precise in zip(found, capacities(bounds, known, levels, rest), strict=True):
        np.testing.assert_allclose(rough, precise, rtol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_a_drawn_capacity_is_the_best_throughput_below_the_first_level_that_breaks(seed):
    bounds, known, levels, _ = random_columns(seed)
    values = bounds.lower
    slack = np.random.default_rng([3, seed]).normal(0, 0.4, (CELLS, METRICS))
    found = np.asarray(drawn_capacities(values, known, levels, slack, SHAPE)).ravel()
    eased = 0
    for column, at in enumerate(np.arange(CELLS).reshape(-1, SHAPE[2])):

        def holds(k, at=at):
            met = all(values[at[k], 1 + m] <= 0 for m in np.flatnonzero(levels.limited[at[k]]))
            return met and levels.exists[at[k]] and not known.broken[at[k]]

        def passes(k, at=at, holds=holds):
            if holds(k) or known.measured[at[k]] or not levels.exists[at[k]]:
                return holds(k)
            above = [j for j in range(k + 1, SHAPE[2]) if known.measured[at[j]] and holds(j)]
            return not known.broken[at[k]] and all(
                values[at[k], 1 + m] <= 0
                or any(values[at[j], 1 + m] + slack[at[k], m] <= 0 for j in above)
                for m in np.flatnonzero(levels.limited[at[k]])
            )

        best = 0.0
        for k in range(SHAPE[2]):
            if not passes(k):
                break
            eased += not holds(k)
            best = max(best, np.exp(values[at[k], 0]) * levels.scale[at[k]])
        assert found[column] == pytest.approx(best)
    assert eased > 0
