"""`python -m fleetsieve` is the command `fleetsieve`: a process of its own, from start to end."""

import signal
import sys

# As `cli.UNCERTIFIED`: an interrupt may come before that is imported.
INTERRUPTED = 3
# So soon an interrupt that got lost comes again, in seconds.
_AGAIN = 0.01


def main() -> int:
    """Run the command of `sys.argv` and return its exit code, even if its imports are cut short."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    sys.unraisablehook = _not_lost
    try:
        from fleetsieve.cli import main as command

        return command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    finally:
        # What is left is the interpreter's end, where JAX would show an interrupt as a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _not_lost(error: "sys.UnraisableHookArgs") -> None:
    """Interrupt again when it hit a callback, as JAX has some: nothing leaves a callback."""
    if issubclass(error.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)
    else:
        sys.__unraisablehook__(error)


if __name__ == "__main__":
    sys.exit(main())
