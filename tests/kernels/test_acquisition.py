"""Gap and expected gains against refits from scratch, loops and every allocation."""

# NumPy arrays stand in for JAX ones.
# pyright: reportArgumentType=false, reportCallIssue=false

import jax
import numpy as np
import pytest

from fleetsieve_kernels.acquisition import Candidates, Fleet, Gains, Needs, expected_gains, view
from fleetsieve_kernels.bounds import Known, Levels
from fleetsieve_kernels.hyper import constrain
from fleetsieve_kernels.posterior import condition, crossings, within
from fleetsieve_kernels.screening import own_gains

OBJECTIVES = ["max-min", "aggregate", "weighted"]
SHAPE, SIZES, GPUS, OUTPUTS = (2, 2, 3), (1, 2), 3, 2
CELLS = int(np.prod(SHAPE))
ABSENT, FAILED, MEASURED = 11, 5, (0, 3, 7)
Q = 0.8

pytestmark = pytest.mark.usefixtures("float64")


class Decision:
    """A small fleet with exact measurements, a failure and an absent level; its oracle in loops."""

    def __init__(self, reference, objective, seed, limited=False, measured_only=True):
        rng = np.random.default_rng([seed, limited])
        self.reference = reference
        self.theta = reference.draw_theta(rng, OUTPUTS, 2, 1)
        self.cells = reference.draw_cells(rng, SHAPE, 2, 1)
        self.hyper = reference.constrained(self.theta)
        self.joint = reference.prior(self.hyper, self.cells)
        self.inflation = rng.uniform(1, 1.5, (CELLS, OUTPUTS))
        seen = np.array(MEASURED)
        value = np.zeros((CELLS, OUTPUTS))
        value[seen] = np.stack([rng.normal(0.3, 0.3, 3), [-0.6, -0.4, -0.3]], axis=1)
        exact = np.zeros((CELLS, OUTPUTS), bool)
        exact[seen] = True
        self.known = Known(value, exact, exact[:, 0], np.arange(CELLS) == FAILED)
        exists = np.arange(CELLS) != ABSENT
        ceiling = np.where(np.arange(CELLS) % 2, 0.0, np.inf)
        self.levels = Levels(exists, np.ones((CELLS, 1), bool), rng.uniform(0.5, 2, CELLS), ceiling)
        low = np.array([1, 0]) if limited else np.zeros(2, int)
        high = np.array([2, 1]) if limited else np.full(2, GPUS)
        self.needs = Needs(np.array([9.0, 7.0]), np.array([1.0, 2.5]), low, high)
        self.fleet = Fleet(objective, SIZES, GPUS, SHAPE, measured_only, limited)
        self.data = reference.as_table(self.cells, seen, value[seen], 8)
        self.noise = np.where(np.arange(CELLS)[:, None] % 3 == 1, [0.05, 0.1], 0.0)
        self.nodes = rng.standard_normal((3, OUTPUTS))
        told = self.hyper, self.cells, Q, value, self.known, self.levels
        self.assumed = Q * reference.slack(self.hyper, self.cells), reference.ceiling(*told)

    def view(self, data=None, known=None):
        return view(
            *(self.theta, self.inflation, np.asarray(Q)),
            *(data or self.data, self.cells, known or self.known),
            *(self.levels, self.needs, self.fleet),
        )

    def gains(self, noise=None):
        """Gains of the cells that may tell something, 0 of the others."""
        posterior = condition(constrain(self.theta), self.data, self.cells)
        free = np.flatnonzero(self.levels.exists & ~self.known.broken & ~self.known.exact[:, 0])
        padded = np.pad(free, (0, CELLS - len(free)), mode="edge")
        found = expected_gains(
            *(self.theta, self.inflation, np.asarray(Q), posterior[:2]),
            Candidates(padded, crossings(posterior, padded)),
            *(self.noise if noise is None else noise, self.nodes, self.cells),
            *(self.known, self.levels, self.needs, self.fleet),
        )
        filled = np.zeros((2, CELLS), found.gap.dtype)
        filled[:, padded] = found
        return Gains(*filled)

    def measured_rows(self):
        index, outputs = np.array(MEASURED), np.arange(OUTPUTS)
        rows = np.repeat(index, OUTPUTS), np.tile(outputs, len(index))
        return (*rows, self.known.value[index].ravel(), np.zeros(rows[0].size))

    def refit(self, index=None, values=None):
        """Dense posterior of the measurements, and of one more if an index is given."""
        rows = self.measured_rows()
        if index is not None:
            extra = (np.full(OUTPUTS, index), np.arange(OUTPUTS), values, self.noise[index])
            rows = tuple(np.concatenate(both) for both in zip(rows, extra, strict=True))
        return self.reference.conditioned(self.joint, *rows)

    def capacities(self, posterior, known):
        mean, covariance = posterior
        sd = np.sqrt(np.maximum(np.einsum("ipip->ip", covariance), 0)) * self.inflation
        width = np.where(known.exact, 0, Q * sd)
        centre = np.where(known.exact, known.value, mean)
        return self.reference.intervals(
            *(centre - width, centre + width, known),
            *(self.levels, self.assumed, SHAPE, self.fleet.measured_only),
        )

    def values(self, kappas):
        """V^L and V^U over the same F."""
        needs, active = self.needs, kappas[1].max(axis=1) > 0
        return [
            self.reference.best_value(
                *(self.fleet.objective, kappa, active, needs.demand, needs.weight),
                *(SIZES, GPUS, needs.min_replicas, needs.max_replicas),
            )
            for kappa in kappas
        ]

    def distance(self, kappas, target):
        """GPUs that the workloads of F need for `target`, pessimistic less optimistic, per GPU."""
        fewest = [
            [
                self.reference.fewest_gpus(kappa[w], self.needs.demand[w], target, SIZES, GPUS)
                for kappa in kappas
            ]
            for w in range(SHAPE[0])
            if kappas[1][w].max() > 0
        ]
        return sum(lower - upper for lower, upper in fewest) / GPUS

    def brute_force_gains(self):
        kappas = self.capacities(self.refit(), self.known)
        lower, target = self.values(kappas)
        gap, target = target - lower, 0.98 * target  # the distance is taken a little below V^U
        distance = self.distance(kappas, target)
        mean, covariance = self.refit()
        found = np.zeros((2, CELLS))
        for index in sorted(set(range(CELLS)) - {ABSENT, FAILED, *MEASURED}):
            predictive = covariance[index, :, index] + np.diag(self.noise[index])
            here = np.arange(CELLS) == index
            for node in self.nodes:
                values = mean[index] + np.linalg.cholesky(predictive) @ node
                exact = self.known.exact | (here[:, None] & (self.noise[index] == 0))
                then = Known(
                    np.where(here[:, None], values, self.known.value),
                    exact,
                    self.known.measured | here,
                    self.known.broken,
                )
                kappas = self.capacities(self.refit(index, values), then)
                lower, upper = self.values(kappas)
                left = np.array([upper - lower, self.distance(kappas, target)])
                found[:, index] += (np.array([gap, distance]) - left) / len(self.nodes)
        return found


@pytest.mark.parametrize(
    ("objective", "limited"), [*((name, False) for name in OBJECTIVES), ("max-min", True)]
)
def test_the_gap_is_that_of_all_allocations_under_textbook_bounds(reference, objective, limited):
    open_gaps = 0
    for seed in range(4):
        decision = Decision(reference, objective, seed, limited)
        seen = decision.view()
        kappas = decision.capacities(decision.refit(), decision.known)
        lower, upper = decision.values(kappas)
        np.testing.assert_allclose([seen.kappa_lower, seen.kappa_upper], kappas, rtol=1e-6)
        assert seen.value_lower == pytest.approx(lower, abs=1e-6)
        assert seen.value_upper == pytest.approx(upper, abs=1e-6)
        assert seen.gap == pytest.approx(upper - lower, abs=1e-6)
        open_gaps += bool(seen.gap > 0.01)
    assert open_gaps


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_expected_gains_are_those_of_refits_with_every_outcome(reference, objective):
    for seed in (0, 2):
        decision = Decision(reference, objective, seed)
        found, oracle = decision.gains(), decision.brute_force_gains()
        np.testing.assert_allclose(found.gap, oracle[0], atol=1e-6)
        np.testing.assert_allclose(found.distance, oracle[1], atol=1e-6)
        assert np.ptp(oracle[0]) > 0.01
        assert np.ptp(oracle[1]) > 0.01


def test_expected_gains_count_bounds_alone_where_the_fleet_allows_it(reference):
    decision = Decision(reference, "max-min", 1, measured_only=False)
    found, oracle = decision.gains(), decision.brute_force_gains()
    np.testing.assert_allclose(found.gap, oracle[0], atol=1e-6)
    np.testing.assert_allclose(found.distance, oracle[1], atol=1e-6)


def test_measured_failed_and_absent_cells_promise_nothing(reference):
    decision = Decision(reference, "aggregate", 0)
    for gain in decision.gains():
        assert not np.asarray(gain)[[*MEASURED, FAILED, ABSENT]].any()
        assert np.asarray(gain).any()


def test_known_values_are_seen_with_width_zero_and_others_with_their_inflated_sd(reference):
    decision = Decision(reference, "max-min", 0)
    seen, (mean, covariance) = decision.view(), decision.refit()
    sd = np.sqrt(np.maximum(np.einsum("ipip->ip", covariance), 0)) * decision.inflation
    open_cells = ~decision.known.measured
    np.testing.assert_allclose(seen.mean[open_cells], mean[open_cells], atol=1e-6)
    np.testing.assert_allclose(seen.sd[open_cells], sd[open_cells], rtol=1e-5)
    np.testing.assert_array_equal(
        seen.mean[~open_cells], decision.known.value[decision.known.measured]
    )
    assert not np.asarray(seen.sd)[~open_cells].any()


def test_a_fleet_measured_in_full_has_no_gap(reference):
    decision = Decision(reference, "max-min", 0)
    rng = np.random.default_rng(0)
    value = rng.normal(-0.4, 0.4, (CELLS, OUTPUTS))
    known = Known(value, np.ones_like(value, bool), decision.levels.exists, decision.known.broken)
    data = reference.as_table(decision.cells, np.arange(8), value[:8], 8)
    seen = decision.view(data, known)
    assert seen.gap == 0
    assert seen.value_lower > 0


def test_a_fleet_that_no_config_can_serve_is_worth_nothing(reference):
    decision = Decision(reference, "max-min", 0)
    seen = decision.view(known=decision.known._replace(broken=np.ones(CELLS, bool)))
    assert seen.value_lower == seen.value_upper == 0
    assert not np.asarray(seen.kappa_upper).any()


def test_growing_data_traces_view_and_gains_once_per_bucket(reference):
    decision = Decision(reference, "max-min", 0)
    traces = []
    for count in range(3, 9):
        index = np.arange(count)
        exact = np.arange(CELLS)[:, None] <= np.full(OUTPUTS, count - 1)
        value = np.where(exact, -0.3, 0.0)
        decision.known = Known(value, exact, exact[:, 0], decision.known.broken)
        decision.data = reference.as_table(decision.cells, index, value[index], 8)
        decision.view()
        decision.gains()
        traces.append(reference.traces(view, expected_gains))
    assert len(set(traces)) == 1


def test_single_precision_agrees_roughly_and_stays_single(reference):
    decision = Decision(reference, "max-min", 0)
    precise, gains = decision.view(), decision.gains()
    with jax.enable_x64(False):
        rough, rough_gains = decision.view(), decision.gains()
    assert {leaf.dtype for leaf in (*rough, *rough_gains)} == {np.dtype("float32")}
    assert rough.gap == pytest.approx(float(precise.gap), abs=0.02)
    np.testing.assert_allclose(rough.sd, precise.sd, atol=0.02)
    np.testing.assert_allclose(rough_gains.gap, gains.gap, atol=0.02)


COLUMNS = np.arange(CELLS).reshape(-1, SHAPE[2])


def found_by_own(decision):
    posterior = condition(constrain(decision.theta), decision.data, decision.cells)
    return own_gains(
        *(decision.theta, decision.inflation, np.asarray(Q), posterior[:2]),
        *(within(posterior, COLUMNS), decision.noise, decision.nodes, decision.cells),
        *(decision.known, decision.levels, decision.needs, decision.fleet),
    )


def own_by_refits(decision, index):
    """Distance and range of capacity per GPU, once `index` is told: its own column alone moves."""
    w, c, _ = np.unravel_index(index, SHAPE)
    before = decision.capacities(decision.refit(), decision.known)
    target = 0.98 * decision.values(before)[1]
    best = (before[1][w] / np.array(SIZES)).max()
    mean, covariance = decision.refit()
    predictive = covariance[index, :, index] + np.diag(decision.noise[index])
    here = np.arange(CELLS) == index
    distance, span = decision.distance(before, target), before[1][w, c] - before[0][w, c]
    for node in decision.nodes:
        values = mean[index] + np.linalg.cholesky(predictive) @ node
        then = Known(
            np.where(here[:, None], values, decision.known.value),
            decision.known.exact | (here[:, None] & (decision.noise[index] == 0)),
            decision.known.measured | here,
            decision.known.broken,
        )
        after = decision.capacities(decision.refit(index, values), then)
        mixed = before.copy()
        mixed[:, w, c] = after[:, w, c]
        distance -= decision.distance(mixed, target) / len(decision.nodes)
        span -= (after[1][w, c] - after[0][w, c]) / len(decision.nodes)
    return distance, span / SIZES[c] / best if best > 0 else 0.0


@pytest.mark.parametrize("objective", ["max-min", "aggregate"])
def test_own_gains_are_those_of_refits_that_move_one_column(reference, objective):
    moved = 0
    for seed in range(4):
        decision = Decision(reference, objective, seed)
        found = found_by_own(decision)
        for index in sorted(set(range(CELLS)) - {ABSENT, FAILED, *MEASURED}):
            distance, span = own_by_refits(decision, index)
            assert found.distance[index] == pytest.approx(distance, abs=1e-6)
            assert found.span[index] == pytest.approx(span, abs=1e-6)
            moved += abs(distance) > 1e-3 or abs(span) > 1e-3
    assert moved
