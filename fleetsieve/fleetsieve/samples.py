"""Requests of measured cells as Parquet files beside a study, one file per run."""

import os
import re
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fleetsieve.cell import Cell
from fleetsieve.errors import InputError
from fleetsieve_measure.record import Record
from fleetsieve_measure.trial import Sample

_TIME, _COUNT = pa.float64(), pa.int64()
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("measured", pa.bool_()),
        ("due", _TIME),
        ("sent", _TIME),
        ("first", _TIME),
        ("last", _TIME),
        ("end", _TIME),
        ("prompt_tokens", _COUNT),
        ("prompt_reported", _COUNT),
        ("output_tokens", _COUNT),
        ("tokens", _COUNT),
        ("token_source", pa.string()),
        ("ok", pa.bool_()),
        ("status", _COUNT),
        ("error", pa.string()),
        ("reads", _COUNT),
        ("token_times", pa.list_(_TIME)),
        ("token_counts", pa.list_(_COUNT)),
    ]
)


class SampleFolder:
    """The folder `<study>.samples`; times in a file are seconds from the start of its run."""

    def __init__(self, study: Path) -> None:
        self.path = study.with_name(f"{study.name.removesuffix('.db')}.samples")

    def file(self, cell: Cell, run: int = 0) -> Path:
        """Of a run of `cell`; names that a file system would confuse differ in their last part."""
        name = f"{cell.workload}-{cell.config}-{cell.load:g}"
        slug = re.sub(r"[^\w.-]+", "_", name)[:80]
        code = zlib.crc32(repr(cell).encode())
        again = f"-{run}" if run else ""
        return self.path / f"{slug}-{code:08x}{again}.parquet"

    def write(self, cell: Cell, sample: Sample, run: int = 0) -> str:
        """Write all requests of a run and say to which file; it is there whole or not at all.

        Raises:
            InputError: the disk is full, or the folder cannot be written.
        """
        measured = set(map(id, sample.measured))
        rows = [_row(record, id(record) in measured, sample.start) for record in sample.records]
        metadata = {"workload": cell.workload, "config": cell.config, "load": repr(cell.load)}
        schema = SCHEMA.with_metadata({**metadata, "load_kind": cell.kind})
        path = self.file(cell, run)
        part = path.with_suffix(".part")
        try:
            self.path.mkdir(exist_ok=True)
            with part.open("wb") as file:
                pq.write_table(pa.Table.from_pylist(rows, schema), file, compression="zstd")
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise InputError(
                f"{path} cannot be written: {error.strerror}; make room there, and resume"
            ) from None
        return path.name


def _row(record: Record, measured: bool, start: float) -> dict[str, object]:
    def since(time: float | None) -> float | None:
        return None if time is None else time - start

    return {
        "id": record.id,
        "measured": measured,
        "due": since(record.due),
        "sent": since(record.sent),
        "first": since(record.first),
        "last": since(record.last),
        "end": since(record.end),
        "prompt_tokens": record.prompt_tokens,
        "prompt_reported": record.prompt_reported,
        "output_tokens": record.output_tokens,
        "tokens": record.tokens,
        "token_source": record.source,
        "ok": record.ok,
        "status": record.status,
        "error": record.error,
        "reads": record.reads,
        "token_times": [time - start for time in record.times],
        "token_counts": list(record.counts),
    }
