"""The study file: the journal of a run in SQLite, from which the run resumes."""

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

from fleetsieve.errors import InputError
from fleetsieve.events import Event
from fleetsieve.fleet import Config, Fleet
from fleetsieve.journal import event_of, row_of
from fleetsieve.standing import Standing, question
from fleetsieve.version import installed
from fleetsieve.workload import Workload

SCHEMA = 1
_TABLES = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE journal
    (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, ticket INTEGER, cell TEXT, payload TEXT NOT NULL)
    """,
)
# Beside what a study consists of; studies of earlier versions have none.
_STANDINGS = """CREATE TABLE IF NOT EXISTS standings
    (question TEXT, measurements INTEGER, gpu_seconds REAL, lower REAL, upper REAL,
    PRIMARY KEY (question, measurements)) WITHOUT ROWID
    """
_OTHER_FILE = "name another file, or a study that `fleetsieve run` wrote"
# Where a grid lies or a server listens says nothing about what is measured.
_PLACES = {"url"}
_LONGEST = 160
_MAGIC = b"SQLite format 3\0"
Definitions = dict[str, dict[str, Any]]


class Study:
    """A study file, open for one writer or for any number of readers; a context manager.

    `fleet` is the fleet of the last writer, `seed` that of the first.
    """

    def __init__(self, path: Path, database: sqlite3.Connection, lock: int | None) -> None:
        self.path = path
        self._database = database
        self._lock = lock
        self._question: str | None = None
        self._wrote = False

    @classmethod
    def open(
        cls, path: str | Path, fleet: Fleet, seed: int | None = None, grid: Path | None = None
    ) -> "Study":
        """Create the study of `fleet`, or resume it; `seed` defaults to the stored one, or 0.

        `grid` is remembered: the grid file that stands for the fleet's engine.

        Raises:
            InputError: the file is no study, is damaged, belongs to another version, is being
                written by another process, or a config, a workload's requests or the seed differ
                from what it says.
        """
        path = Path(path)
        lock = _lock(path)
        try:
            study = cls(path, _connect(path, read_only=False), lock)
        except BaseException:
            _unlock(path, lock)
            raise
        try:
            with _readable(path):
                study._begin(fleet, seed, grid)
        except BaseException:
            study.close()
            raise
        return study

    @classmethod
    def open_read_only(cls, path: str | Path) -> "Study":
        """Open a study to read it, also while another process writes it.

        Raises:
            InputError: there is no file, or it is no study, damaged or of another version.
        """
        path = Path(path)
        if not path.is_file():
            found = "is no file" if path.exists() else "does not exist"
            raise InputError(f"{path} {found}; name a study that `fleetsieve run` wrote")
        study = cls(path, _connect(path, read_only=True), None)
        try:
            with _readable(path):
                if study._is_empty():
                    raise InputError(f"{path} is empty; {_OTHER_FILE}")
                study._check_file()
        except BaseException:
            study.close()
            raise
        return study

    @property
    def seed(self) -> int:
        """The seed of the run."""
        with _readable(self.path):
            return int(self._meta("seed"))

    @property
    def version(self) -> str:
        """The version of fleetsieve that wrote it last."""
        with _readable(self.path):
            return self._meta("version")

    @property
    def fleet(self) -> Fleet:
        """The fleet of the last writer."""
        with _readable(self.path):
            base = Path(self._meta("base", ""))
            known = base.is_absolute() and base.is_dir()
            return Fleet.parse(
                json.loads(self._meta("fleet")),
                base=base if known else self.path.parent,
                source=str(self.path),
            )

    @property
    def grid(self) -> Path | None:
        """The grid file that stood for the fleet's engine in the last run, if one did."""
        with _readable(self.path):
            path = self._meta("grid", "")
            return Path(path) if path else None

    def check(self, fleet: Fleet) -> None:
        """Whether what was measured still describes `fleet`.

        Raises:
            InputError: a config or a workload's requests or arrivals mean something else now.
        """
        stored = self._definitions()
        for table, current in _definitions(fleet).items():
            for name, new in current.items():
                old = stored.get(table, {}).get(name, new)
                changed = [key for key in new if new[key] != old.get(key)]
                if changed:
                    raise InputError(
                        f"{fleet.source}: {table.removesuffix('s')} {name!r} has other "
                        f"{' and '.join(changed)} than in {self.path}, where it was measured; "
                        "give it a new name, or start a new study"
                    )

    def events(self) -> list[Event]:
        """The journal, oldest first.

        Raises:
            InputError: the file is damaged.
        """
        with _readable(self.path):
            rows = self._database.execute(
                "SELECT kind, ticket, cell, payload FROM journal ORDER BY seq"
            ).fetchall()
            return [event_of(*row) for row in rows]

    def append(self, event: Event) -> None:
        """Write an event; once this returns, it survives the end of the process.

        Raises:
            InputError: the disk is full, or the file cannot be written any more.
        """
        statement = "INSERT INTO journal (kind, ticket, cell, payload) VALUES (?, ?, ?, ?)"
        self._insert(statement, row_of(event))

    @property
    def stamp(self) -> tuple[int, str]:
        """Differs once an event or another fleet has been written."""
        with _readable(self.path):
            row = self._database.execute("SELECT coalesce(max(seq), 0) FROM journal").fetchone()
            return int(row[0]), self._meta("fleet")

    def standings(self) -> list[Standing]:
        """Where runs about the fleet as it is now stood, by measurements.

        Raises:
            InputError: the file is damaged.
        """
        with _readable(self.path):
            if "standings" not in self._tables():
                return []
            rows = self._database.execute(
                "SELECT measurements, gpu_seconds, lower, upper FROM standings "
                "WHERE question = ? ORDER BY measurements",
                (question(self.fleet),),
            )
            return [Standing(int(row[0]), *map(float, row[1:])) for row in rows]

    def stand(self, standing: Standing) -> None:
        """Remember where a run about the study's fleet stands.

        Raises:
            InputError: the disk is full, or the file cannot be written any more.
        """
        if self._question is None:
            self._question = question(self.fleet)
        row = (self._question, *vars(standing).values())
        self._insert("INSERT OR REPLACE INTO standings VALUES (?, ?, ?, ?, ?)", row)

    def _insert(self, statement: str, row: Sequence[Any]) -> None:
        try:
            with self._transaction():
                self._database.execute(statement, row)
        except sqlite3.OperationalError as error:
            raise _cannot_be_written(self.path, error) from None

    def close(self) -> None:
        """Close the file and let another writer in."""
        if self._wrote:
            # SQLite does so by itself unless somebody reads just now, as `watch` does; then what
            # was written last would stay beside the file, and be missing in a copy of it.
            with suppress(sqlite3.Error):
                self._database.execute("PRAGMA wal_checkpoint")
        self._database.close()
        if self._lock is not None:
            _unlock(self.path, self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _begin(self, fleet: Fleet, seed: int | None, grid: Path | None) -> None:
        fresh = self._is_empty()
        if not fresh:
            self._check_file()
        # Only now: a file that turned out to be something else stays as it was.
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        if fresh:
            self._create(fleet, 0 if seed is None else seed, grid)
            return
        if seed is not None and seed != self.seed:
            raise InputError(
                f"{self.path} was begun with seed {self.seed}, not {seed}; leave the seed out, or "
                "start a new study"
            )
        self.check(fleet)
        self._store(fleet, grid)

    def _create(self, fleet: Fleet, seed: int, grid: Path | None) -> None:
        with self._transaction():
            for statement in (*_TABLES, _STANDINGS):
                self._database.execute(statement)
            values = {"schema": str(SCHEMA), "seed": str(seed), "definitions": "{}"}
            for item in values.items():
                self._database.execute("INSERT INTO meta VALUES (?, ?)", item)
            self._write_fleet(fleet, grid)

    def _store(self, fleet: Fleet, grid: Path | None) -> None:
        with self._transaction():
            self._database.execute(_STANDINGS)
            self._write_fleet(fleet, grid)

    def _write_fleet(self, fleet: Fleet, grid: Path | None) -> None:
        """Definitions are never forgotten: the journal may hold cells of what was removed."""
        stored = self._definitions()
        merged = {t: {**stored.get(t, {}), **d} for t, d in _definitions(fleet).items()}
        values = {
            "fleet": json.dumps(fleet.mapping()),
            "definitions": json.dumps(merged),
            "version": installed(),
            # Studies of earlier versions have neither.
            "base": str(fleet.resolve("").absolute()),
            "grid": "" if grid is None else str(grid.absolute()),
        }
        for item in values.items():
            self._database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", item)

    def _definitions(self) -> Definitions:
        """What the cells that were measured rest on; nothing while there is none."""
        (told,) = self._database.execute(
            "SELECT count(*) FROM journal WHERE kind = 'told'"
        ).fetchone()
        return json.loads(self._meta("definitions")) if told else {}

    def _is_empty(self) -> bool:
        return not self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]

    def _check_file(self) -> None:
        if not {"meta", "journal"} <= self._tables():
            raise InputError(f"{self.path} is no study but another database; {_OTHER_FILE}")
        (state,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise sqlite3.DatabaseError(state)
        schema = self._meta("schema")
        if schema != str(SCHEMA):
            raise InputError(
                f"{self.path} has the study format {schema}, and this version reads {SCHEMA}; use "
                f"the version of fleetsieve that wrote it ({self._meta('version')})"
            )

    def _tables(self) -> set[str]:
        return {name for (name,) in self._database.execute("SELECT name FROM sqlite_master")}

    def _meta(self, key: str, default: str | None = None) -> str:
        row = self._database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        if row is not None:
            return row[0]
        if default is None:
            raise sqlite3.DatabaseError(f"it has no {key}")
        return default

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing; without this the module's own rules would commit each statement."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")
        self._wrote = True


def is_database(path: Path) -> bool:
    """Whether there is a file that begins as those of SQLite do, such as a study."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except (OSError, ValueError):
        return False


def _definitions(fleet: Fleet) -> dict[Literal["configs", "workloads"], Definitions]:
    """What a measured cell rests on, by name: if it changes, the cell measured something else."""
    return {
        "configs": {config.name: _of_config(fleet, config) for config in fleet.configs},
        "workloads": {workload.name: _of_workload(workload) for workload in fleet.workloads},
    }


def _of_config(fleet: Fleet, config: Config) -> dict[str, Any]:
    engine = fleet.engine_of(config.name)
    plain = engine.model_dump(mode="json", exclude=_PLACES) if engine else {"kind": None}
    if plain["kind"] == "grid":
        plain.pop("path")
    own = config.model_dump(mode="json", include={"gpus", "features", "args"})
    return {**own, "engine": plain}


def _of_workload(workload: Workload) -> dict[str, Any]:
    return workload.model_dump(mode="json", include={"requests", "arrivals"})


def _companion(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _lock(path: Path) -> int:
    """Hold the companion file that keeps a second writer out until this process ends.

    Not the database itself: SQLite's own locks on it would be lost when any handle is closed.
    """
    while True:
        try:
            lock = os.open(_companion(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except (OSError, ValueError) as error:
            raise _cannot_be_opened(path, error) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), _companion(path).stat()):
                return lock
        except FileNotFoundError:
            pass
        except OSError:
            os.close(lock)
            raise InputError(
                f"{path} is being written by another process; wait until it ends, or name another "
                "study"
            ) from None
        os.close(lock)  # the writer before removed the file after it was opened here: once more


def _unlock(path: Path, lock: int) -> None:
    """Remove the companion while it is held, so that nobody holds a removed one for long."""
    _companion(path).unlink(missing_ok=True)
    os.close(lock)


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    address = f"file:{quote(str(path.absolute()))}"
    if not read_only:
        mode = "rwc"
    elif path.with_name(f"{path.name}-wal").exists() or os.access(path.absolute().parent, os.W_OK):
        mode = "ro"
    else:
        # No writer, and no place for the shared memory that a reader of a WAL file creates.
        mode = "ro&immutable=1"
    try:
        # isolation_level None: transactions begin where this module says so.
        return sqlite3.connect(f"{address}?mode={mode}", uri=True, isolation_level=None)
    except sqlite3.Error as error:
        raise _cannot_be_opened(path, error) from None


def _cannot_be_opened(path: Path, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) else error
    return InputError(f"{path} cannot be opened: {reason}; name a file in a writable folder")


def _cannot_be_written(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} cannot be written: {error}; make room there, and resume")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What SQLite and the decoding of rows say of a damaged file, as one sentence."""
    try:
        yield
    except InputError:
        raise
    except (sqlite3.Error, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            raise _cannot_be_written(path, error) from None
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        # SQLite repeats the whole text that is no UTF-8.
        raise InputError(
            f"{path} is no readable study: {reason[:_LONGEST]}; {_OTHER_FILE}"
        ) from None
