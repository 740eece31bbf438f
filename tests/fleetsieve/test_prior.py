"""A predicted grid as a prior: what is read from it, and what it does to decisions."""

import copy
import math
from itertools import product

import numpy as np
import pytest

from fleetsieve.belief import Belief
from fleetsieve.cell import Cell
from fleetsieve.decide import decide, known
from fleetsieve.errors import InputError
from fleetsieve.fleet import Fleet
from fleetsieve.grid import Grid
from fleetsieve.guess import guess_of
from fleetsieve.inputs import Inputs
from fleetsieve.oracle import Oracle
from fleetsieve.predicted import predictions
from fleetsieve.problem import Problem
from fleetsieve.replay import replay
from fleetsieve.replay_run import Case, Replayer
from fleetsieve.sieve import Sieve
from fleetsieve.study import Study

# One shape for all: JAX compiles once per shape.
FLEET = {
    "fleet": {"gpus": 8},
    "configs": [{"name": f"tp{g}", "gpus": g, "features": {"tp": g}} for g in (1, 2, 4)],
    "workloads": [
        {"name": "chat", "demand": 6.0, "slo": {"e2e_p99": 10.0, "ttft_p99": 1.0}},
        {"name": "code", "demand": 3.0, "slo": {"e2e_p99": 20.0, "ttft_p99": 2.0}},
    ],
}
SLOS = {w["name"]: w["slo"] for w in FLEET["workloads"]}
SIZES, LEVELS = (1, 2, 4), (0.4, 0.8, 1.6, 3.2)
OUTPUTS = ("throughput", "e2e_p99", "ttft_p99")


def rows_of(seed=0, levels=LEVELS):
    """Rows by cell: throughput min(rate, mu), latency with a knee at mu, which grows with TP."""
    rng = np.random.default_rng(seed)
    rows = {}
    for (workload, mu_1, base), gpus in product((("chat", 1.6, 3), ("code", 0.8, 8)), SIZES):
        mu = mu_1 * gpus**0.9 * rng.uniform(0.8, 1.25)
        for rate in levels:
            rho = min(rate / mu, 0.995)
            e2e = base * gpus**-0.5 * (1 + 0.3 * rho / (1 - rho))
            row = {"workload": workload, "config": f"tp{gpus}", "gpus": gpus, "rate": rate}
            row |= {"throughput": min(rate, mu), "e2e_p99": e2e, "ttft_p99": 0.1 * e2e}
            rows[workload, f"tp{gpus}", rate] = row | {"gpu_seconds": 100 * gpus, "status": "ok"}
    return rows


def write(path, rows):
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    lines = [",".join(str(row.get(c, "")) for c in columns) for row in rows.values()]
    path.write_text("\n".join([",".join(columns), *lines]))
    return path


@pytest.fixture
def grid_of(tmp_path):
    return lambda rows: Grid.read(write(tmp_path / "p.csv", rows))


def problem():
    data = copy.deepcopy(FLEET)
    for workload in data["workloads"]:
        workload["loads"] = list(LEVELS)
    return Problem.build(Fleet.parse(data), None)


def read(grid):
    found = predictions(problem(), grid)
    assert found is not None
    return found


def in_model_scale(row):
    """Log throughput over the rate; k asinh(x / k) of x = log(metric / SLO), k = 0.5."""
    slo = SLOS[row["workload"]]
    far = [math.log(row[m] / slo[m]) for m in OUTPUTS[1:]]
    return [math.log(row["throughput"] / row["rate"]), *(0.5 * math.asinh(x / 0.5) for x in far)]


# What is read


def test_a_cell_of_the_prior_is_read_in_the_models_scale(grid_of):
    rows = rows_of()
    found = read(grid_of(rows))
    np.testing.assert_allclose(found, [in_model_scale(row) for row in rows.values()], atol=1e-9)


def test_between_levels_lies_the_line_in_log_log_and_outside_nothing(grid_of):
    rows = rows_of(levels=(0.5, 2.0))
    found = read(grid_of(rows)).reshape(2, 3, 4, 3)
    assert np.isnan(found[:, :, [0, 3]]).all(), "0.4 and 3.2 lie outside"
    low, high = rows["code", "tp2", 0.5], rows["code", "tp2", 2.0]
    share = math.log(0.8 / 0.5) / math.log(2.0 / 0.5)
    middle = {m: low[m] ** (1 - share) * high[m] ** share for m in OUTPUTS}
    expected = in_model_scale({"workload": "code", "rate": 0.8, **middle})
    np.testing.assert_allclose(found[1, 1, 1], expected)


def test_a_failed_row_is_no_knowledge_and_its_gap_is_filled(grid_of):
    rows = rows_of()
    for key, row in rows.items():
        if key[1] == "tp4":
            row |= dict.fromkeys(OUTPUTS, "") | {"status": "oom"}
    found = read(grid_of(rows)).reshape(2, 3, 4, 3)
    assert np.isnan(found[:, 2]).all()
    assert not np.isnan(found[:, :2]).any()
    guess = guess_at(found.reshape(-1, 3))
    assert np.isfinite(guess).all()
    assert (guess[:, 2, 3, 1] > guess[:, 2, 0, 1]).all(), "latency of the gap grows with load"


def guess_at(predicted):
    """The guess as W, C, L, P."""
    whole = problem()
    places = Belief(whole, confidence=0.95)._evidence.places[:4]
    return guess_of(whole, predicted, places).reshape(*whole.exists.shape, -1)


def test_the_guess_is_the_prediction_but_for_its_level(grid_of):
    found = read(grid_of(rows_of()))
    guess = guess_at(found).reshape(found.shape)
    np.testing.assert_allclose(guess, found - found.mean(axis=0), atol=1e-9)


def test_latencies_of_the_guess_never_fall_with_the_load(grid_of):
    rng = np.random.default_rng(0)
    rows = rows_of()
    for row in rows.values():
        row |= {m: row[m] * math.exp(rng.normal()) for m in OUTPUTS}
    guess = guess_at(read(grid_of(rows)))
    assert (np.diff(guess[..., 1:], axis=2) >= -1e-12).all()
    assert (np.diff(guess[..., 0], axis=2) < 0).any(), "throughput is left as it is"


def test_another_statistic_of_a_latency_stands_in(grid_of):
    rows = rows_of()
    names = {"e2e_p99": "e2e_mean"}
    renamed = {k: {names.get(n, n): v for n, v in r.items()} for k, r in rows.items()}
    found = read(grid_of(renamed))
    np.testing.assert_allclose(found, read(grid_of(rows)))


def test_without_any_prediction_of_an_output_its_prior_mean_stays_zero(grid_of):
    rows = {k: {n: v for n, v in r.items() if n != "ttft_p99"} for k, r in rows_of().items()}
    guess = guess_at(read(grid_of(rows)))
    assert (guess[..., 2] == 0).all()
    assert np.ptp(guess[..., 1]) > 0


def test_without_a_prior_there_is_no_guess():
    assert predictions(problem(), None) is None
    assert guess_at(None).size == 0


# What is refused


def fleet(tmp_path, **keys):
    (tmp_path / "f").mkdir(exist_ok=True)
    return Fleet.parse(FLEET | keys, base=tmp_path / "f", source=str(tmp_path / "f" / "f.yaml"))


def test_the_priors_path_is_relative_to_the_fleet_file(tmp_path, grid_of):
    grid = grid_of(rows_of())
    with pytest.raises(InputError, match=r"gone\.csv"):
        Sieve(fleet(tmp_path, prior="gone.csv"), grid=grid)
    found = fleet(tmp_path, prior="here.csv")
    write(tmp_path / "f" / "here.csv", rows_of())
    assert Sieve(found, grid=grid).problem.n_cells == 24


NONE = r"p\.csv predicts no cell"
WRONG = {
    "another workload": ({"workload": "other"}, NONE),
    "another kind of load": ({"rate": "", "concurrency": 8}, NONE),
    "nothing that ran": (
        dict.fromkeys(OUTPUTS, "") | {"status": "oom"},
        r"p\.csv predicts no cell",
    ),
    "other GPUs": ({"gpus": 8, "config": "tp4"}, "config 'tp4' has gpus 8, and the fleet 4"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_prior_that_cannot_answer_is_refused_by_every_way_in(tmp_path, case):
    change, words = WRONG[case]
    grid = Grid.read(write(tmp_path / "g.csv", rows_of()))
    write(tmp_path / "p.csv", {key: row | change for key, row in rows_of().items()})
    found = fleet(tmp_path, prior="../p.csv")
    with pytest.raises(InputError, match=words):
        Sieve(found, grid=grid)
    with pytest.raises(InputError, match=words):
        Inputs(found, grid, False).checked()
    with pytest.raises(InputError, match=words):
        replay(found, grid, ["bisect"], 1, workers=1)


def test_a_note_says_what_the_prior_leaves_open(tmp_path):
    grid = Grid.read(write(tmp_path / "g.csv", rows_of()))
    some = {k: r for k, r in rows_of().items() if k[0] == "chat"}
    without = {k: {n: v for n, v in r.items() if n != "ttft_p99"} for k, r in some.items()}
    write(tmp_path / "p.csv", without)
    (note,) = Inputs(fleet(tmp_path, prior="../p.csv"), grid, False).notes()
    assert note.endswith("p.csv: no prediction of 12 of 24 cells, nor of ttft_p99 of any cell")


# What it does


def run(seed, grid_of, prior=None):
    """A run of the sieve on rows of `seed`, with rows of a prior."""
    truth_rows = rows_of(seed)
    grid = grid_of(truth_rows)
    whole = Problem.build(Fleet.parse(FLEET), grid)
    truth = whole.truth(grid)
    predicted = predictions(whole, None if prior is None else grid_of(prior))
    belief = Belief(whole, confidence=0.95, predicted=predicted)
    return Replayer(Case(belief, truth, Oracle.of(whole, truth), 0.02)).run("sieve", 0, 0)


def test_a_prior_that_is_the_truth_saves_cells(grid_of):
    plain = [run(seed, grid_of) for seed in range(2)]
    told = [run(seed, grid_of, rows_of(seed)) for seed in range(2)]
    assert all(run.valid for run in (*plain, *told))
    assert sum(run.measurements for run in told) < sum(run.measurements for run in plain)


def shuffled(seed):
    """Every outcome in another cell."""
    rows = rows_of(seed)
    order = np.random.default_rng(seed).permutation(len(rows))
    outcomes = [{m: row[m] for m in OUTPUTS} for row in rows.values()]
    return {k: r | outcomes[i] for (k, r), i in zip(rows.items(), order, strict=True)}


def off_by_a_factor(seed):
    """One config predicted 4.6 times too slow, another too fast."""
    rows = rows_of(seed)
    factors = dict(
        zip(np.random.default_rng(seed).permutation(SIZES), (4.6, 1 / 4.6, 1), strict=True)
    )
    for row in rows.values():
        factor = factors[row["gpus"]]
        row |= {m: row[m] * (1 / factor if m == "throughput" else factor) for m in OUTPUTS}
    return rows


@pytest.mark.parametrize("spoilt", [shuffled, off_by_a_factor])
def test_a_wrong_prior_leads_to_the_oracles_decision_all_the_same(grid_of, spoilt):
    for seed in range(2):
        found = run(seed, grid_of, spoilt(seed))
        assert found.certified
        assert found.regret <= 0.02 + 1e-9


def test_a_resumed_study_goes_on_as_the_unbroken_one_and_may_change_its_prior(tmp_path):
    grid = Grid.read(write(tmp_path / "g.csv", rows_of()))
    write(tmp_path / "p.csv", off_by_a_factor(0))
    write(tmp_path / "other.csv", rows_of(1))
    guided = fleet(tmp_path, prior="../p.csv")
    with Study.open(tmp_path / "s.db", guided) as study:
        sieve = Sieve(guided, grid=grid, on_event=study.append)
        for _ in range(4):
            (proposal,) = sieve.ask()
            sieve.tell(proposal.ticket, grid.cells[proposal.cell].outcome)
        following = sieve.ask()
    for name in ("../p.csv", "../other.csv"):
        changed = fleet(tmp_path, prior=name)
        with Study.open(tmp_path / "s.db", changed) as study:
            events = study.events()[: 2 * 4]
        resumed = Sieve(changed, grid=grid, events=events)
        assert resumed.measurements == 4
        asked = resumed.ask()
        if name == "../p.csv":
            assert asked == following
    inputs = Inputs(guided, grid, False).checked()
    assert decide(inputs, *known(inputs, tmp_path / "s.db")).measurements == 4
    assert isinstance(following[0].cell, Cell)
