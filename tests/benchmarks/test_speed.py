"""What the benchmark of speed compares with is right, and a slow peer does not stop it."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cost_model import Sizes
from knowledge_gradient import Surface, knowledge_gradient, normal_nodes
from sized_fleet import shape_of, sized_fleet
from speed import Case, tables
from speed_peers import HIGHS, highs_allocation
from stopwatch import Timings, Worker

from fleetsieve.errors import InputError
from fleetsieve.oracle import Oracle
from fleetsieve.problem import Problem
from fleetsieve_kernels.covariance import Cells, latent_covariance

ACTIONS = """
import sys, threading
sys.path.insert(0, {folder!r})
from stopwatch import serve
serve({{
    "one": lambda: lambda: 1.0,
    "endless": lambda: threading.Event().wait,
    "large": lambda: lambda: float(len(bytearray(4 << 30))),
}})
"""


def test_the_closed_form_is_the_mean_of_the_best_after_each_fantasy_is_observed() -> None:
    rng = np.random.default_rng(0)
    points, rows = rng.normal(size=(20, 3)), np.array([2, 7, 11, 19])
    surface = Surface(points, np.array([0.7, 1.0, 1.5]), rows, rng.normal(size=4))
    nodes = normal_nodes(5)

    def mean_after(at: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Rasmussen & Williams, eq. 2.23."""
        gram = surface.kernel(points[at], points[at]) + surface.noise * np.eye(len(at))
        return surface.kernel(points, points[at]) @ np.linalg.solve(gram, values)

    prior = surface.kernel(points, points)
    gram = prior[np.ix_(rows, rows)] + surface.noise * np.eye(4)
    variance = np.diag(prior - prior[:, rows] @ np.linalg.inv(gram) @ prior[rows])
    now = mean_after(rows, surface.values)
    expected = [
        np.mean([
            mean_after(
                np.append(rows, i),
                np.append(surface.values, now[i] + z * np.sqrt(variance[i] + surface.noise)),
            ).max()
            for z in nodes
        ])
        for i in range(20)
    ]  # fmt: skip
    np.testing.assert_allclose(knowledge_gradient(surface, nodes), expected, rtol=1e-10)
    # Nothing is lost in expectation by knowing more (but for the few nodes, which are symmetric).
    assert (np.array(expected) >= now.max() - 1e-9).all()


@pytest.mark.parametrize("cells", [128, 1000])
def test_a_sized_fleet_has_its_cells_and_the_capacities_that_its_grid_says(cells: int) -> None:
    sized = sized_fleet(cells, 16, metrics=2)
    problem = Problem.build(sized.fleet, sized.grid)
    assert problem.n_cells == cells
    oracle = Oracle.of(problem, problem.truth(sized.grid))
    np.testing.assert_allclose(sized.kappa, oracle.kappa)
    assert 0.1 < oracle.best.value < 1
    # Something breaks and something holds in most columns, so that there is something to learn.
    held = oracle.holds.mean()
    assert 0.2 < held < 0.9
    assert sized.axes.shape[0] == sized.points.shape[0] == cells
    order = [tuple(axes) for axes in sized.axes]
    assert len(set(order)) == cells


def test_cells_that_no_fleet_has_are_refused() -> None:
    with pytest.raises(InputError, match="cells is 129"):
        shape_of(129)


def test_the_integer_program_allocates_as_well_as_the_engine() -> None:
    sized = sized_fleet(128, 16)
    problem = Problem.build(sized.fleet, sized.grid)
    case = {"kappa": sized.kappa, "demand": problem.demand, "sizes": problem.sizes}
    value = highs_allocation(case | {"gpus": np.array(16)})[HIGHS]()()
    assert value == pytest.approx(Oracle.of(problem, problem.truth(sized.grid)).best.value)


def test_an_interpreter_that_is_not_there_is_named() -> None:
    with Worker(["/no/python", "peers.py"], memory=2 << 30, patience=1.0) as worker:
        assert worker.absent == ["/no/python cannot run peers.py: ended with 127"]
        assert not worker.timings


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit memory")
def test_what_takes_too_long_or_too_much_ends_alone(tmp_path, request) -> None:
    script = tmp_path / "actions.py"
    script.write_text(ACTIONS.format(folder=str(request.config.rootpath / "benchmarks")))
    command = [sys.executable, str(script)]
    with Worker(command, memory=2 << 30, patience=1.0) as worker:
        assert list(worker.timings) == ["one", "endless", "large"]
        for name in ("one", "endless", "large", "one", "endless"):
            worker.time(name)
    one, endless, large = worker.timings.values()
    assert len(one.seconds) == 2
    assert one.number == 1.0
    assert endless.error == "more than 1 s"
    assert large.error == "MemoryError"


def test_a_prior_covariance_takes_about_as_many_operations_as_the_compiler_counts() -> None:
    sizes = Sizes(4096, outputs=1, rows=64, workloads=4, configs=8, levels=128, features=3)
    names = ("amplitude", "offset", "slope", "coupling", "white", "early")
    hyper = {name: jnp.array(0.5) for name in names} | {"lengthscale": jnp.ones(3)}

    def cells(count: int) -> Cells:
        ids, numbers = jnp.arange(count), jnp.ones((count, 3))
        return Cells(ids, ids, numbers, ids[:, None][:, :0], numbers[:, :0], numbers[:, 0])

    compiled = jax.jit(latent_covariance).lower(hyper, cells(64), cells(4096)).compile()
    counted = compiled.cost_analysis() or {}
    # Half of the transcendental operations are roots, ten operations, half exponentials, twenty.
    each = (counted["flops"] + 15 * counted["transcendentals"]) / (64 * 4096)
    assert sizes.pair == pytest.approx(each, rel=0.25)


def test_tables_tell_medians_compilation_and_what_failed_apart() -> None:
    timings = {
        "ask": Timings([9.0, 1.0, 3.0, 2.0]),
        "decide": Timings(error="more than 60 s"),
        "KG in closed form, torch": Timings([0.5, 0.004]),
        "256 values": Timings([1.0, 0.002]),
        "allocation, HiGHS": Timings([0.02, 0.01]),
    }
    lines = list(tables([Case(1000, 64, timings, 3 << 30, ["a remark"])], {"ask": [0.5]}))
    assert "| median of later calls | 1,000 cells, 64 GPUs |" in lines
    assert "| ask | 2 s |" in lines
    assert "| decide | more than 60 s |" in lines
    assert "| peak memory of the engine | 3.00 GiB |" in lines
    assert "| ask | 7 s |" in lines
    assert "| ask : KG in closed form | 500 |" in lines
    assert "| HiGHS : one of many values | 1.28e+03 |" in lines
    assert "| ask : its floor here | 4 |" in lines
    assert lines[-1] == "1,000 cells, 64 GPUs: a remark"
