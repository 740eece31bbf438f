"""`python -m fleetsieve` is the command `fleetsieve`: a process of its own, from start to end."""

import signal
import sys

# As `cli.UNCERTIFIED`: an interrupt may come before that is imported.
INTERRUPTED = 3


def main() -> int:
    """Run the command of `sys.argv` and return its exit code, even if its imports are cut short."""
    try:
        from fleetsieve.cli import main as command

        return command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    finally:
        # What is left is the interpreter's end, where JAX would show an interrupt as a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
