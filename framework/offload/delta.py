"""A Delta Lake table.

Each commit of a load has an application transaction for each partition that has progressed: the
name is `strandline/<topic id>/<partition>`, the version is the offset reached. The whole progress is
in the commit's custom metadata. The transactions stay when old entries of the table's log expire. They
also stay when the table is restored to an earlier version. So after the entries have expired, a record
of the last load that is still in the table must show that it was not undone.

delta-rs does not compare versions of application transactions, but it refuses a commit if another
one with the same name was made since the table was read.
"""

from __future__ import annotations

import functools
import json
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.clock import Clock
from strandline.changelog.errors import (
    InvalidConfig,
    InvalidRequest,
    MissingDependency,
    SchemaMismatch,
    StorageFailed,
)
from strandline.framework.offload.folder import Commit, TargetFolder
from strandline.framework.offload.periods import PERIOD_COLUMNS
from strandline.framework.offload.plan import ANOTHER_FOLDER, check_extends
from strandline.framework.offload.progress import KEY, PartitionProgress, Progress, from_json
from strandline.framework.offload.table_limits import check_parquet, check_times, first_line
from strandline.framework.offload.target import DataFile
from strandline.framework.table_types import check_distinct, spark_type

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

LOG = "_delta_log"
RESTORE = "RESTORE"


def check_installed() -> None:
    """Raise MissingDependency if deltalake is not installed."""
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise MissingDependency(
            'a load into Delta Lake needs deltalake: pip install "strandline[lake]"'
        ) from error


class DeltaTarget:
    """A Delta Lake table in a folder. Implements Target."""

    def __init__(self, folder: TargetFolder, path: Path, partitions: int, clock: Clock) -> None:
        """Use the table at `path`, the absolute path of `folder`, for a topic's partitions."""
        self._folder = folder
        self._clock = clock
        self._path = str(path)
        self._partitions = partitions
        self._periods = PERIOD_COLUMNS[folder.claim.partition_by]
        self._columns: pa.Schema | None = None
        self._table = self._opened()

    def _opened(self) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            table = DeltaTable(self._path) if DeltaTable.is_deltatable(self._path) else None
        except DeltaError as error:
            raise _unreadable(self._path, error) from error
        if table is not None:
            _check_plain(table, self._path)
        return table

    # Progress -------------------------------------------------------------------------

    def progress(self) -> Progress | None:
        progress = self._progress()
        if self._folder.pending() is not None and self._table is not None:
            self._sync_log(self._table)  # the crash may have come before this
        self._folder.resolve(progress, self._has)
        return progress

    def _progress(self) -> Progress | None:
        if self._table is None:
            return None
        stored = self._stored(self._table)
        offsets = dict(self._offsets(self._table))
        if stored is None:
            return self._unnamed(self._table, offsets)
        if {number: at.offset for number, at in stored.partitions.items()} != offsets:
            raise InvalidConfig(
                f"the transactions of the table {self._path} are not those of its last commit by a load; its "
                f"log was changed by hand: {ANOTHER_FOLDER}"
            )
        return stored

    def _stored(self, table: DeltaTable) -> Progress | None:
        """Return the progress in the last commit that has one. Raise InvalidConfig."""
        for entry in _entries(table):
            if KEY in entry:
                return from_json(entry[KEY], f"{self._path}, version {entry['version']}")
            if entry.get("operation") == RESTORE:
                raise InvalidConfig(
                    f"the table {self._path} was restored to an earlier version, so that records which were "
                    f"loaded are not in it: {ANOTHER_FOLDER}"
                )
        return None

    def _offsets(self, table: DeltaTable) -> Iterator[tuple[int, int]]:
        """Yield each partition that was loaded, and the offset reached."""
        for partition in range(self._partitions):
            version = table.transaction_version(self._application(partition))
            if version is not None:
                yield partition, version

    def _unnamed(self, table: DeltaTable, offsets: dict[int, int]) -> Progress:
        """Return the progress of a table whose log entries have expired. Raise InvalidConfig."""
        claim = self._folder.claim
        if not offsets:
            raise InvalidConfig(
                f"the table {self._path} has no commit by a load of topic {claim.topic!r}; {ANOTHER_FOLDER}"
            )
        reached = {number: PartitionProgress(offset) for number, offset in offsets.items()}
        progress = Progress(topic=claim.topic, topic_id=claim.topic_id, partitions=reached)
        last = self._last(progress)
        if last is None or not self._has_record_of(last.files, table):
            raise InvalidConfig(
                f"the log entries of the last load into the table {self._path} have expired, and nothing shows "
                "that its records are still there: the table was restored to an earlier version, or they "
                f"were deleted. If it has the records before the offsets {progress.shown()}, apart from "
                "those that you have deleted, state that by a commit to the table with the custom metadata "
                f"{KEY}={progress.to_json()}; otherwise {ANOTHER_FOLDER}"
            )
        return progress

    def _last(self, progress: Progress) -> Commit | None:
        """Return the last commit that added files, which a crash may have left pending."""
        pending = self._folder.pending()
        if pending is not None and pending.files and progress.reaches(pending.progress):
            return pending
        return self._folder.last()

    def _has_record_of(self, files: Sequence[DataFile], table: DeltaTable) -> bool:
        """Return True if the table has any record that the files had when they were added."""
        from deltalake.exceptions import DeltaError

        if not files or self._has(files):
            return True
        try:
            return bool(table.to_pyarrow_dataset().head(1, filter=_records(files, table)).num_rows)
        except DeltaError:  # the table has a feature that the library cannot read
            return False
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self._path, error) from error

    def _application(self, partition: int) -> str:
        return f"strandline/{self._folder.claim.topic_id}/{partition}"

    # Columns --------------------------------------------------------------------------

    def columns(self, wanted: pa.Schema) -> pa.Schema:
        typed = [pa.field(field.name, spark_type(field.type, field.name)) for field in wanted]
        check_parquet(typed)
        check_distinct(wanted.names, "Delta Lake", "load the topic as Parquet")
        known = pa.schema([_in_delta(field) for field in typed])
        if self._table is not None:
            self._check_unchanged(self._table, known)
        self._columns = known
        return known

    def _check_unchanged(self, table: DeltaTable, columns: pa.Schema) -> None:
        """Raise if another program has given the table columns, folders or rules of its own.

        delta-rs compares none of them with the files that are added. Readers take the values of a
        column in names of folders from there, so such a column would be null in files without.
        """
        _check_plain(table, self._path)
        check_extends(self._whole(columns), _arrow(table.schema()))
        if (found := table.metadata().partition_columns) != [*self._periods]:
            raise InvalidConfig(
                f"the table {self._path} is partitioned by {_listed(found)}, and this load divides it by "
                f"{_listed(self._periods)}: another program has partitioned it; partition it as before, or "
                f"{ANOTHER_FOLDER}"
            )

    def _whole(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns of the table: those of its files, and those in names of folders."""
        return pa.schema([*columns, *(pa.field(*column) for column in self._periods.items())])

    # Commits --------------------------------------------------------------------------

    def commit(self, files: Sequence[DataFile], progress: Progress) -> None:
        from deltalake.exceptions import CommitFailedError, DeltaError

        assert self._columns is not None
        if self._periods:
            check_times(files, self._columns.names[2], "a Delta Lake table divided by time")
        if self._table is not None:  # as another program may have left it after the last round
            self._check_unchanged(self._table, self._columns)
        pending = Commit(progress=progress, files=list(files))
        self._folder.publish(pending)
        try:
            table = self._commit(files, progress)
        except CommitFailedError as error:
            if self._has(files):
                raise StorageFailed(
                    f"the files are in the table {self._path}, but its commit failed later: "
                    f"{first_line(error)}; the next run goes on after them"
                ) from error
            self._folder.withdraw(pending)
            raise InvalidRequest(
                f"another program has changed the table {self._path} meanwhile ({first_line(error)}); "
                "nothing was added to it: run this again"
            ) from error
        except (DeltaError, OSError) as error:
            raise StorageFailed(f"cannot commit to {self._path}: {first_line(error)}") from error
        self._sync_log(table)
        self._folder.settle_pending()

    def _commit(self, files: Sequence[DataFile], progress: Progress) -> DeltaTable:
        from deltalake import CommitProperties, DeltaTable, Schema, Transaction
        from deltalake.transaction import create_table_with_add_actions

        assert self._columns is not None
        reached = [
            Transaction(self._application(number), at.offset)
            for number, at in progress.partitions.items()
        ]
        properties = CommitProperties({KEY: progress.to_json()}, app_transactions=reached)
        schema = Schema.from_arrow(self._whole(self._columns))
        actions = [self._action(file) for file in files]
        if self._table is None:
            create_table_with_add_actions(
                *(self._path, schema, actions),
                partition_by=list(self._periods),
                commit_properties=properties,
            )
            self._table = DeltaTable(self._path)
            return self._table
        self._extend(self._table, schema)
        self._table.create_write_transaction(
            [*actions],
            "append",
            schema,
            partition_by=list(self._periods),
            commit_properties=properties,
        )
        self._table.update_incremental()
        return self._table

    def _has(self, files: Sequence[DataFile]) -> bool:
        """Return True if the table has any of the files.

        The answer does not depend on what the library said of their commit.
        """
        from deltalake import DeltaTable

        added = {file.path.rpartition("/")[2] for file in files}
        if not added or not DeltaTable.is_deltatable(self._path):
            return False
        uris = DeltaTable(self._path).file_uris()
        return not added.isdisjoint(uri.rpartition("/")[2] for uri in uris)

    def _extend(self, table: DeltaTable, schema: Any) -> None:
        """Add the columns that the table lacks, in a commit of its own that changes no row."""
        have = {field.name for field in table.schema().fields}
        if added := [field for field in schema.fields if field.name not in have]:
            table.alter.add_columns(added)
            table.update_incremental()

    def _sync_log(self, table: DeltaTable) -> None:
        """Make the last entry of the table's log durable, which delta-rs does not."""
        storage = self._folder.storage
        with closing(storage.open(f"{LOG}/{table.version():020d}.json", writable=True)) as entry:
            entry.sync()
        storage.sync_dir(LOG)
        storage.sync_dir("")

    def _action(self, file: DataFile) -> AddAction:
        from deltalake.transaction import AddAction

        return AddAction(
            path=file.path,
            size=file.size,
            partition_values=dict(file.period),
            modification_time=self._clock.now_ms(),
            data_change=True,
            # Bounds of some columns only would be worse than none: delta-rs compares the others with
            # null, so that its readers find no row by them.
            stats=json.dumps({"numRecords": file.rows}),
        )


def _check_plain(table: DeltaTable, path: str) -> None:
    """Raise InvalidConfig for rules that other programs gave a table, and that a load does not check.

    delta-rs checks them for rows that it writes itself, not for files that are added.
    """
    found = [
        name
        for name, value in table.metadata().configuration.items()
        if name.startswith("delta.constraints.")
        or (name == "delta.columnMapping.mode" and value != "none")
    ]
    for field in table.schema().fields:
        found += [f"{field.name}: {name}" for name in field.metadata if name.startswith("delta.")]
    if found:
        raise InvalidConfig(
            f"the table {path} has rules of another program that a load does not check ({', '.join(found)}); "
            f"remove them, or {ANOTHER_FOLDER}"
        )


def _entries(table: DeltaTable) -> Iterator[dict[str, Any]]:
    """Yield the entries of the table's log, the newest first.

    The last one is usually a load's, so the others are read only if it is not.
    """
    before = math.inf
    for limit in (1, None):
        for entry in table.history(limit):
            if entry["version"] < before:
                before = entry["version"]
                yield entry


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(columns) or "no column"


def _unreadable(path: str, error: Exception) -> StorageFailed:
    return StorageFailed(
        f"the table {path} cannot be read: {first_line(error)}; if its log or a file of it is damaged, "
        f"put it back from a backup, or {ANOTHER_FOLDER}"
    )


def _records(files: Sequence[DataFile], table: DeltaTable) -> pc.Expression:
    """Return the condition of a record to be one that the files of one commit have."""
    typed = any(field.name == "_offset" for field in table.schema().fields)
    partition, offset = (
        pc.field(f"_{name}" if typed else name) for name in ("partition", "offset")
    )
    bounds: dict[int, tuple[int, int]] = {}
    # The offsets of a partition in one commit are consecutive, so two bounds are enough for its files.
    for file in files:
        first, last = bounds.get(file.partition, (file.first_offset, file.last_offset))
        bounds[file.partition] = min(first, file.first_offset), max(last, file.last_offset)
    return functools.reduce(
        operator.or_,
        (
            (partition == number) & (offset >= first) & (offset <= last)
            for number, (first, last) in bounds.items()
        ),
    )


def _in_delta(field: pa.Field) -> pa.Field:
    """Return a column in the type that Delta Lake gives back. Raise SchemaMismatch."""
    from deltalake import Schema

    try:
        return _arrow(Schema.from_arrow(pa.schema([field]))).field(0)
    except Exception as error:
        raise SchemaMismatch(
            f"column {field.name!r} is {field.type}, which Delta Lake does not have; leave it out, or load it "
            "as Parquet"
        ) from error


def _arrow(schema: Any) -> pa.Schema:
    return pa.schema(schema.to_arrow())
