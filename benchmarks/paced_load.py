"""Constant open-loop load by the project's own client, for a given number of requests.

    python benchmarks/paced_load.py URL --rate 100 --requests 2000 --tokens 16

It prints as JSON how many requests went well and how late each was sent, in seconds. A few more
requests than asked for are sent while the last ones end, as in every run.
"""

import argparse
import asyncio
import json

import numpy as np
from paced_server import MODEL, PROMPT_TOKENS

from fleetsieve_measure import arrivals
from fleetsieve_measure.client import Client
from fleetsieve_measure.lengths import Constant, Independent
from fleetsieve_measure.load import OpenLoop
from fleetsieve_measure.source import Source
from fleetsieve_measure.trial import Rules, Sample, run_trial


def main() -> None:
    """Load the server and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--rate", type=float, required=True, help="requests/s")
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True, help="output tokens per request")
    arguments = parser.parse_args()
    sample = asyncio.run(_load(arguments.url, arguments.rate, arguments.requests, arguments.tokens))
    # What the end of the run cut off was no request of the window.
    ended = [record for record in sample.records if record.ok]
    late = [record.sent - record.due for record in ended if record.sent is not None]
    print(json.dumps({"completed": len(ended), "late": late}))


async def _load(url: str, rate: float, requests: int, tokens: int) -> Sample:
    rng = np.random.default_rng(0)
    lengths = Independent(Constant(PROMPT_TOKENS), Constant(tokens))
    seconds = requests / rate
    rules = Rules(slo={}, warmup=0.0, seconds=seconds, longest=seconds, drain=60.0)
    async with Client(url) as client:
        return await run_trial(
            client,
            Source(MODEL, lengths, None, rng),
            OpenLoop(rate, lambda: arrivals.constant(rate)),
            rules,
        )


if __name__ == "__main__":
    main()
