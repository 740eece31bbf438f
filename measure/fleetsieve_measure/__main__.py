"""The command line of this package alone, for a node without the decision engine."""

import argparse
import json
import sys
from collections.abc import Sequence

from fleetsieve_measure.api_key import API_KEYS
from fleetsieve_measure.errors import InputError
from fleetsieve_measure.probe import run

OK, WRONG_INPUT, NOT_OK = 0, 2, 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m fleetsieve_measure", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser(
        "probe",
        help="send one streamed request and print what the client saw",
        epilog=f"The API key is read from {' or '.join(API_KEYS)}.",
    )
    one.add_argument("url", metavar="URL", help="http://HOST:PORT")
    one.add_argument("--model", help="by default the first that the server lists")
    one.add_argument("--chat", action="store_true", help="use the chat dialect")
    one.add_argument("--max-tokens", type=int, default=16, metavar="N")
    one.add_argument("--json", choices=["-"], default="-", help="print JSON on stdout, always so")
    given = parser.parse_args(argv)
    if given.max_tokens < 1:
        parser.error(f"--max-tokens is {given.max_tokens}; give at least 1")
    try:
        seen = run(given.url, model=given.model, chat=given.chat, max_tokens=given.max_tokens)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG_INPUT
    except KeyboardInterrupt:
        return NOT_OK
    print(json.dumps(seen))
    return OK if seen["ok"] else NOT_OK


if __name__ == "__main__":
    sys.exit(main())
