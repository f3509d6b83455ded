"""The interface of a target, and the values that it is given: files, and what they belong to.

    offload.parquet    a folder of Parquet files with a manifest of each commit
    offload.delta      a Delta Lake table
    offload.iceberg    an Apache Iceberg table

All of them are Parquet files that `offload.files` writes. A target decides their columns, and adds
them to the table in one commit, together with the progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec
import pyarrow as pa

from strandline.framework.offload.progress import Progress

PartitionBy = Literal["none", "day", "hour"]
"""Division of the files by the time of their records."""


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of records of one partition."""

    path: str
    """Path in the target's folder, with the folders of its day and hour."""
    size: int
    """Size in bytes."""
    rows: int
    partition: int
    first_offset: int
    last_offset: int
    first_ms: int
    """Least timestamp of the records, in milliseconds since the epoch."""
    last_ms: int
    """Greatest timestamp."""
    period: dict[str, str] = {}
    """Values of the columns that are in the names of folders, as in `utc_day=2026-11-25`."""


class Target(Protocol):
    """A place for the records of one topic. Only one process uses it at a time."""

    def progress(self) -> Progress | None:
        """Return the progress of the last commit; None before the first.

        Raises:
            InvalidConfig: The place has something else, or its history was changed.
            CorruptLog: The progress cannot be read.
        """
        ...

    def columns(self, wanted: pa.Schema) -> pa.Schema:
        """Return the columns of the files to be written: `wanted`, in the types that it has.

        Nothing is changed. Raises SchemaMismatch if they do not extend those of the last commit, or
        the place has no type for a column.
        """
        ...

    def commit(self, files: Sequence[DataFile], progress: Progress) -> None:
        """Add files and store the progress, in one step that happens completely or not at all.

        The files have the columns that `columns` has returned, and are in the folder's staging.

        Raises:
            InvalidRequest: Another program has changed the place meanwhile; nothing was changed.
            StorageFailed: The file system refused an operation.
        """
        ...
