"""What others take for the same decision: a worker for `speed.py`, where they are installed.

    PEER_PYTHON benchmarks/speed_peers.py CASE.npz

The interpreter needs NumPy, and torch, botorch, optuna and scipy for the peers; those that lack
something are named and left out. Nothing here knows FleetSieve.
"""

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from stopwatch import Action, serve

# Candidates are taken in blocks of which a matrix over all cells has this many numbers, which a
# core's cache holds.
_BLOCK = 1 << 16
# BoTorch evaluates this many candidates, no more of them at once than make so many pairs of cells.
SOME, _PAIRS = 16, 4000
CLOSED, BOTORCH = "KG in closed form, torch", f"KG of {SOME} cells, BoTorch fantasize"
OPTUNA_GP, OPTUNA_TPE = "ask and tell, Optuna GP", "ask and tell, Optuna TPE"
HIGHS = "allocation, HiGHS"
Case = Mapping[str, np.ndarray]


def torch_closed_form(case: Case) -> dict[str, Action]:
    """The knowledge gradient of every cell as `knowledge_gradient` has it, in torch, float64."""
    import torch

    def prepare() -> Callable[[], float]:
        return lambda: float(closed_form(torch, case)[some(len(case["points"]))].mean())

    return {CLOSED: prepare}


def closed_form(torch: Any, case: Case) -> Any:
    """Expected highest mean after each cell: a tensor of N values."""
    points = torch.from_numpy(case["points"] / case["lengthscale"])
    values, nodes = torch.from_numpy(case["values"]), case["nodes"].tolist()
    variance, noise = float(case["variance"]), float(case["noise"])

    def kernel(a: Any, b: Any) -> Any:
        distance = 5**0.5 * torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
        return variance * (1 + distance + distance**2 / 3) * torch.exp(-distance)

    seen = points[torch.from_numpy(case["rows"])]
    gram = kernel(seen, seen) + noise * torch.eye(len(seen), dtype=points.dtype)
    factor = torch.linalg.cholesky(gram)
    root = torch.linalg.solve_triangular(factor, kernel(seen, points), upper=False)
    mean = root.T @ torch.linalg.solve_triangular(factor, values[:, None], upper=False)[:, 0]
    own = variance - (root**2).sum(dim=0)
    found = []
    for block in torch.arange(len(points)).split(max(_BLOCK // len(points), 1)):
        gain = kernel(points[block], points) - root[:, block].T @ root
        gain /= torch.sqrt(own[block] + noise)[:, None]
        best = [torch.add(mean, gain, alpha=node).amax(dim=1) for node in nodes]
        found.append(torch.stack(best).mean(dim=0))
    return torch.cat(found)


def botorch_fantasies(case: Case) -> dict[str, Action]:
    """The same of some cells through BoTorch: the highest mean of each fantasy's model.

    Means of all cells as a batch of single points, which spares BoTorch their joint covariance.
    """
    import gpytorch
    import torch
    from botorch.models import SingleTaskGP
    from botorch.sampling import SobolQMCNormalSampler

    points, rows = torch.from_numpy(case["points"]), torch.from_numpy(case["rows"])
    nodes = torch.from_numpy(case["nodes"])
    matern = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=points.shape[1])
    kernel = gpytorch.kernels.ScaleKernel(matern).double()
    matern.lengthscale = torch.from_numpy(case["lengthscale"])
    kernel.outputscale = float(case["variance"])
    values = torch.from_numpy(case["values"])[:, None]
    noise = torch.full_like(values, float(case["noise"]))
    blocks = torch.from_numpy(some(len(points))).split(max(_PAIRS // len(points), 1))

    def highest(model: Any, block: Any) -> Any:
        sampler = SobolQMCNormalSampler(torch.Size([len(nodes)]))
        sampler.register_buffer("base_samples", nodes[:, None, None])
        then = model.fantasize(points[block][:, None, :], sampler)
        with gpytorch.settings.skip_posterior_variances():
            mean = then.posterior(points[:, None, None, None, :]).mean
        return mean[..., 0, 0].amax(dim=0).mean(dim=0)

    @torch.no_grad()
    def gradient() -> float:
        mean = gpytorch.means.ZeroMean()
        parts = {"covar_module": kernel, "mean_module": mean, "outcome_transform": None}
        model = SingleTaskGP(points[rows], values, noise, **parts).eval()
        return float(torch.cat([highest(model, block) for block in blocks]).mean())

    return {BOTORCH: lambda: gradient}


def some(cells: int) -> np.ndarray:
    """The cells on which ways of computing the knowledge gradient are compared."""
    return np.linspace(0, cells - 1, SOME).astype(int)


def optuna_samplers(case: Case) -> dict[str, Action]:
    """One ask and its tell, the samplers' own fit included, after the same observations."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    axes, rows = case["axes"], case["rows"]
    space: dict[str, Any] = {
        f"axis{i}": optuna.distributions.IntDistribution(0, int(axis.max()))
        if ordered
        else optuna.distributions.CategoricalDistribution(np.unique(axis).tolist())
        for i, (axis, ordered) in enumerate(zip(axes.T, case["ordered"], strict=True))
    }

    def sampled(sampler: Callable[[], Any]) -> Action:
        def prepare() -> Callable[[], None]:
            study = optuna.create_study(direction="maximize", sampler=sampler())
            for row, value in zip(rows, case["values"], strict=True):
                places = dict(zip(space, axes[row].tolist(), strict=True))
                study.add_trial(
                    optuna.trial.create_trial(
                        params=places, distributions=space, value=float(value)
                    )
                )

            def once() -> None:
                study.tell(study.ask(space), float(case["values"].mean()))

            return once

        return prepare

    return {
        OPTUNA_TPE: sampled(lambda: optuna.samplers.TPESampler(seed=0)),
        OPTUNA_GP: sampled(lambda: optuna.samplers.GPSampler(seed=0, deterministic_objective=True)),
    }


def highs_allocation(case: Case) -> dict[str, Action]:
    """The max-min allocation as an integer program: replicas n, and t ≤ 1 to be raised.

    `t demand_w <= sum_c n_wc kappa_wc` for every workload, and all replicas within the GPUs. This
    is how Melange allocates, with its cost for our value.
    """
    from scipy.optimize import LinearConstraint, milp

    kappa, demand, sizes, gpus = (case[name] for name in ("kappa", "demand", "sizes", "gpus"))
    workloads, configs = kappa.shape
    served = np.zeros((workloads, workloads * configs + 1))
    for w in range(workloads):
        served[w, w * configs : (w + 1) * configs] = kappa[w] / demand[w]
    served[:, -1] = -1
    fulfillment = np.append(np.zeros(workloads * configs), 1)
    taken = np.append(np.tile(sizes, workloads), 0)

    def prepare() -> Callable[[], float]:
        return lambda: (
            -milp(
                -fulfillment,
                integrality=1 - fulfillment,
                constraints=[
                    LinearConstraint(served, lb=0),
                    LinearConstraint(taken[None, :], ub=int(gpus)),
                    LinearConstraint(fulfillment[None, :], ub=1),
                ],
                options={"mip_rel_gap": 0.0},
            ).fun
        )

    return {HIGHS: prepare}


PEERS = {
    "torch": torch_closed_form,
    "BoTorch": botorch_fantasies,
    "Optuna": optuna_samplers,
    "HiGHS through SciPy": highs_allocation,
}


def main() -> None:
    case = dict(np.load(sys.argv[1]))
    actions: dict[str, Action] = {}
    absent = []
    for name, peer in PEERS.items():
        try:
            actions |= peer(case)
        except ImportError as problem:
            absent.append(f"{name} is absent: {problem}")
    serve(actions, absent)


if __name__ == "__main__":
    main()
