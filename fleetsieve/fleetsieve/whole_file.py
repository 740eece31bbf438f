"""Files that are written as a whole, or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside `path`, of the same suffix, that takes its place in the end.

    A reader never sees half of it; where something goes wrong the old one stays.
    """
    handle, name = tempfile.mkstemp(
        dir=path.absolute().parent, prefix=f".{path.name}.", suffix=path.suffix
    )
    os.close(handle)
    try:
        yield Path(name)
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)  # what a plain open would have given
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
