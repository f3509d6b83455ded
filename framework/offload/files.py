"""The files of one partition: tables of records, written as Parquet into the target's staging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from strandline.changelog.errors import InvalidRecord
from strandline.changelog.local_file import Bytes
from strandline.changelog.storage import File
from strandline.framework.offload import periods
from strandline.framework.offload.folder import TargetFolder
from strandline.framework.offload.target import DataFile, PartitionBy

MAX_OPEN_FILES = 32
"""Maximum number of files that a task writes at a time, each of another day or hour."""
SINK_BYTES = 1 << 20
"""Bytes that are collected before they are written to a file."""
COMPRESSION = "zstd"
PLACES = ("_offset", "_timestamp", "offset", "timestamp")
"""Columns whose values hardly repeat, so that a dictionary would only cost time."""


class FileLimits(NamedTuple):
    """Size at which a file is closed."""

    max_bytes: int = 256 << 20
    max_rows: int = 10_000_000


class Rows(NamedTuple):
    """Records of one partition, in the order of their offsets, as rows of the target."""

    table: pa.Table
    offsets: np.ndarray[Any, np.dtype[np.int64]]
    timestamps: np.ndarray[Any, np.dtype[np.int64]]
    """Milliseconds since the epoch."""

    def taken(self, rows: pa.Array) -> Rows:
        """Return some of the rows, by index."""
        at = rows.to_numpy()
        return Rows(self.table.take(rows), self.offsets[at], self.timestamps[at])

    def slice(self, start: int, length: int) -> Rows:
        """Return consecutive rows, without copying."""
        end = start + length
        return Rows(
            self.table.slice(start, length), self.offsets[start:end], self.timestamps[start:end]
        )


@dataclass(frozen=True)
class FileNames:
    """Names of the files of one task, which no other task and no other run uses."""

    partition: int
    run: str
    """Random identifier of the run."""

    def name(self, number: int, first_offset: int) -> str:
        """Return the name of the task's n-th file.

        >>> FileNames(3, "0f3a").name(0, 120)
        'part-00003-000000000000000000120-0-0f3a.parquet'
        """
        return f"part-{self.partition:05d}-{first_offset:021d}-{number}-{self.run}.parquet"


class PartitionFiles:
    """Writes the rows of one partition to files. Close it, or abandon its files in staging."""

    def __init__(
        self, folder: TargetFolder, names: FileNames, schema: pa.Schema, limits: FileLimits
    ) -> None:
        self._folder = folder
        self._names = names
        self._schema = schema
        self._limits = limits
        self._by: PartitionBy = folder.claim.partition_by
        self._open: dict[int, _OpenFile] = {}
        """Open files by their period, the one written to most recently last."""
        self._closed: list[DataFile] = []
        self._count = 0

    def write(self, rows: Rows) -> None:
        """Write rows as row groups of the files of their periods."""
        for period, indices in periods.runs(rows.timestamps, self._by):
            self._write(period, rows if indices is None else rows.taken(indices))

    def _write(self, period: int, rows: Rows) -> None:
        start, count = 0, len(rows.offsets)
        while start < count:
            file = self._file(period, int(rows.offsets[start]))
            length = min(count - start, self._limits.max_rows - file.rows)
            file.write(rows.slice(start, length))
            start += length
            if file.rows >= self._limits.max_rows or file.bytes >= self._limits.max_bytes:
                self._close(period)

    def _file(self, period: int, first_offset: int) -> _OpenFile:
        file = self._open.pop(period, None)
        if file is None:
            if len(self._open) >= MAX_OPEN_FILES:
                self._close(next(iter(self._open)))
            file = self._new(period, first_offset)
        self._open[period] = file
        return file

    def _new(self, period: int, first_offset: int) -> _OpenFile:
        shown = periods.values(period, self._by, self._folder.claim.period_prefix)
        path = periods.folder(shown) + self._names.name(self._count, first_offset)
        self._count += 1
        return _OpenFile(self._folder.stage(path), path, self._schema, shown)

    def _close(self, period: int) -> None:
        self._closed.append(self._open[period].finish(self._names.partition))
        del self._open[period]  # only now, because a file that fails is to be abandoned

    def close(self) -> list[DataFile]:
        """Sync and close all files, and return them."""
        for period in list(self._open):
            self._close(period)
        return self._closed

    def abandon(self) -> None:
        """Close all files as they are."""
        for file in self._open.values():
            file.abandon()
        self._open.clear()


class _OpenFile:
    """A Parquet file being written."""

    def __init__(self, file: File, path: str, schema: pa.Schema, period: dict[str, str]) -> None:
        self._file = file
        self._path = path
        self._period = period
        self._handle = _Handle(file)
        python_file = pa.PythonFile(self._handle, mode="w")
        self._sink = pa.output_stream(python_file, buffer_size=SINK_BYTES)
        dictionary = [name for name in schema.names if name not in PLACES]
        self._writer = pq.ParquetWriter(
            self._sink, schema, compression=COMPRESSION, use_dictionary=dictionary
        )
        self.rows = 0
        self._offsets = _Extent()
        self._times = _Extent()

    @property
    def bytes(self) -> int:
        """Bytes written so far."""
        return int(self._sink.tell())

    def write(self, rows: Rows) -> None:
        try:
            self._writer.write_table(rows.table, row_group_size=len(rows.offsets))
        except pa.ArrowException as error:
            raise InvalidRecord(
                f"{self._path}: the records from offset {rows.offsets.min()} to {rows.offsets.max()} cannot be "
                f"written as Parquet ({error}). Nothing was added; copy the records that can be written to "
                "another topic, and load that"
            ) from error
        self.rows += len(rows.offsets)
        self._offsets.add(rows.offsets)
        self._times.add(rows.timestamps)

    def finish(self, partition: int) -> DataFile:
        """Write the footer, sync and close the file."""
        self._writer.close()
        self._sink.flush()
        self._file.sync()
        size = self._file.size()
        self.abandon()
        return DataFile(
            path=self._path,
            size=size,
            rows=self.rows,
            partition=partition,
            first_offset=self._offsets.least,
            last_offset=self._offsets.greatest,
            first_ms=self._times.least,
            last_ms=self._times.greatest,
            period=self._period,
        )

    def abandon(self) -> None:
        """Close the file as it is."""
        # Arrow writes what it has collected when the sink is destroyed, perhaps much later.
        self._handle.abandon()
        self._file.close()


class _Handle:
    """A file of the storage, as pyarrow writes to it."""

    closed = False

    def __init__(self, file: File) -> None:
        self._file = file
        self._abandoned = False

    def write(self, data: Bytes) -> int:
        if not self._abandoned:
            self._file.append(data)
        return len(data)

    def abandon(self) -> None:
        """Drop what is written from now on, because the file is closed."""
        self._abandoned = True

    def tell(self) -> int:
        return self._file.size()

    def flush(self) -> None:
        """Do nothing, because every write goes to the file at once."""

    def close(self) -> None:
        """Do nothing, because the file is closed by its owner."""


class _Extent:
    """The least and the greatest of the values that were added."""

    def __init__(self) -> None:
        self.least = 0
        self.greatest = -1

    def add(self, values: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        least, greatest = int(values.min()), int(values.max())
        if self.greatest < self.least:
            self.least, self.greatest = least, greatest
        self.least, self.greatest = min(self.least, least), max(self.greatest, greatest)
