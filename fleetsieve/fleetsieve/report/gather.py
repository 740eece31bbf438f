"""From a study file to the findings that its report shows."""

from pathlib import Path

from fleetsieve.decide import completed
from fleetsieve.inputs import Inputs
from fleetsieve.report.benchmarks import benchmarks
from fleetsieve.report.columns import columns
from fleetsieve.report.environment import environment
from fleetsieve.report.findings import Findings
from fleetsieve.report.history import history
from fleetsieve.sieve import Sieve
from fleetsieve.study import Study


def gather(path: Path, grid: Path | None = None) -> Findings:
    """What the study at `path` says now; `grid` takes the place of the grid that it replays.

    Raises:
        InputError: the study or its grid cannot be read.
    """
    with Study.open_read_only(path) as study:
        inputs = Inputs.of_study(study, grid).checked()
        events, recorded = study.events(), study.standings()
        sieve = Sieve(inputs.fleet, grid=inputs.grid, seed=study.seed, events=events)
        decision = completed(sieve.decision(), inputs, events, sieve.problem)
        told = benchmarks(events, inputs.fleet, sieve.problem.cells())
        costs = [one.gpu_seconds for one in told if one.asked]
        return Findings(
            title=path.name.removesuffix(".db").removesuffix(".study"),
            decision=decision.to_dict(),
            gpus_per_node=inputs.fleet.hardware.gpus_per_node,
            kinds=inputs.units,
            cells=sieve.problem.n_cells,
            exhaustive=inputs.exhaustive,
            columns=columns(sieve.search, decision, told),
            benchmarks=told,
            pending=[proposal.cell for proposal in sieve.pending],
            history=history(recorded, sieve, costs),
            environment=environment(study, inputs, events),
            known=bool(costs) or inputs.fleet.prior is not None,
        )
