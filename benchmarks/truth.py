"""What the client reports of the simulated engine beside what the engine knows.

    python benchmarks/truth.py

The engine runs behind HTTP in its own process and keeps when it wrote each token. Latencies count
from when a request was due on both sides.
"""

import argparse
import asyncio
import tempfile
from functools import partial
from pathlib import Path

import aiohttp
import numpy as np

from fleetsieve_measure.arrivals import poisson
from fleetsieve_measure.client import Client
from fleetsieve_measure.engines import Launch
from fleetsieve_measure.lengths import Independent, Lognormal
from fleetsieve_measure.load import OpenLoop
from fleetsieve_measure.metrics import statistic
from fleetsieve_measure.server import Server
from fleetsieve_measure.source import Source
from fleetsieve_measure.trial import Rules, run_trial

LENGTHS = Independent(Lognormal(200, 0.5, 2000), Lognormal(40, 0.5, 200))


async def compare(rate: float, seconds: float, args: dict) -> None:
    """Run one load and print both sides."""
    with tempfile.TemporaryDirectory() as folder:
        launch = Launch(kind="simulated", model="llama-3.1-8b", args=args, folder=Path(folder))
        async with Server(launch) as server, Client(server.url) as client:
            rng = np.random.default_rng(0)
            source = Source(server.model, LENGTHS, None, rng)
            load = OpenLoop(rate, partial(poisson, rate, np.random.default_rng(1)))
            # No SLO, so that nothing ends early but a growing backlog, and not even that here.
            rules = Rules({}, 2.0, seconds, seconds, 600.0)
            sample = await run_trial(client, source, load, rules)
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{server.url}/truth") as page,
            ):
                known = await page.json()
    good = [record for record in sample.measured if record.ok]
    print(
        f"\n{rate:g} requests/s, {args}: {len(good)} of {len(sample.measured)} requests"
        f"{', ended early: ' + sample.early if sample.early else ''}"
    )
    print(f"{'':12}{'reported ms':>12}{'truth ms':>10}{'differ ms':>11}{'differ':>9}")
    for metric in ("ttft", "tpot", "e2e"):
        true = np.sort([_true(metric, known[r.id], r.due) for r in good if r.tokens != 1])
        for percent in (50, 99):
            found = statistic(f"{metric}_p{percent}", [r for r in good if r.tokens != 1])
            assert found is not None
            exact = float(true[int(np.ceil(percent / 100 * len(true))) - 1])
            by = found.value - exact
            print(
                f"{metric}_p{percent:<7}{1000 * found.value:12.2f}{1000 * exact:10.2f}"
                f"{1000 * by:11.2f}{100 * by / exact:8.2f} %"
            )


def _true(metric: str, known: dict, due: float) -> float:
    if metric == "tpot":
        return (known["last_token"] - known["first_token"]) / (known["output_tokens"] - 1)
    return known["first_token" if metric == "ttft" else "last_token"] - due


def main() -> None:
    """Moderate load, then twice what the engine can serve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    seconds = parser.parse_args().seconds
    asyncio.run(compare(10.0, seconds, {"gpu": "h100"}))
    # Two sequences at a time, some 0.3 s each: about 6 requests/s.
    asyncio.run(compare(12.0, seconds, {"gpu": "h100", "max-num-seqs": 2}))


if __name__ == "__main__":
    main()
