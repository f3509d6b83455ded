"""An Apache Iceberg table.

The progress is in the summary of each snapshot that a load has made, so that it goes back with the
table when that is rolled back. It is in a property of the table as well, with the identifier of the
snapshot, for when all snapshots that have it were expired (`offload.iceberg_lineage`).
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import (
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    MissingDependency,
    SchemaMismatch,
    StorageFailed,
    StrandlineError,
)
from strandline.framework.offload.folder import Commit, TargetFolder
from strandline.framework.offload.iceberg_lineage import SNAPSHOT, last_progress
from strandline.framework.offload.periods import PERIOD_COLUMNS
from strandline.framework.offload.plan import ANOTHER_FOLDER, check_extends
from strandline.framework.offload.progress import KEY, Progress
from strandline.framework.offload.rows import ICEBERG_PARTITION, PARTITION
from strandline.framework.offload.table_limits import check_parquet, check_times, first_line
from strandline.framework.offload.target import DataFile, PartitionBy
from strandline.framework.table_types import spark_type

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

INSTALL = 'pip install "strandline[lake]"'
OWNER = "strandline.topic_id"
"""Property of a table: the topic that is loaded into it."""
MAX_BEHIND_MS = 60_000
"""Milliseconds by which a snapshot may be before the last one, as readers of Iceberg allow."""
RETRIES = "commit.retry.num-retries"
METADATA_COLUMNS = frozenset(
    {
        *("_file", "_pos", "_deleted", "_spec_id", "_partition"),
        *("_row_id", "_last_updated_sequence_number"),  # since version 3 of the format
    }
)
"""Columns that readers add to each table (Iceberg's class MetadataColumns). Spark and Trino refuse to
read a column of a table that has one of these names."""
_SAME_PERIODS: dict[PartitionBy, tuple[str, ...]] = {
    "none": (),
    "day": ("year", "month", "day"),
    "hour": ("year", "month", "day", "hour"),
}
"""Transforms of a record's time that have one value in each file of a load."""


def check_installed() -> None:
    """Raise MissingDependency if PyIceberg is not installed."""
    try:
        import pyiceberg.catalog  # noqa: F401
    except ImportError as error:
        raise MissingDependency(f"a load into Iceberg needs pyiceberg: {INSTALL}") from error


@contextmanager
def opened_catalog(path: Path, options: Mapping[str, str]) -> Iterator[Catalog]:
    """Yield the catalog that the options name: by default a SQLite file in the folder `path`.

    Raises:
        MissingDependency: A package that the catalog needs is not installed.
        InvalidConfig: There is no such catalog.
        StorageFailed: The file of the catalog in the folder cannot be opened.
    """
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NotInstalledError

    own = {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}"}
    try:
        catalog = load_catalog("strandline", **(options or own))
    except NotInstalledError as error:
        raise MissingDependency(f"{error}: {INSTALL}") from error
    except Exception as error:
        failure = getattr(error, "orig", None)
        if not options and isinstance(failure, sqlite3.Error):
            raise StorageFailed(
                f"cannot open the Iceberg catalog {path}/catalog.db: {failure}; make room on its disk if it is "
                "full, and run this again"
            ) from error
        # The message names the options only, because their values may be secrets.
        raise InvalidConfig(
            f"the Iceberg catalog cannot be opened with {', '.join(options) or own['uri']}: "
            f"{type(error).__name__}; see PyIceberg's configuration for its properties"
        ) from error
    with closing(catalog):
        yield catalog


class IcebergTarget:
    """An Iceberg table whose files are in a folder. Implements Target."""

    def __init__(self, folder: TargetFolder, path: Path, catalog: Catalog, time: str) -> None:
        """Use the table that the folder is claimed for.

        Args:
            folder: The folder.
            path: Its absolute path.
            catalog: Catalog of the table.
            time: Name of the column with the records' times.
        """
        self._folder = folder
        self._path = path
        self._catalog = catalog
        self._name = tuple(folder.claim.table.split("."))
        self._time = time
        self._columns: pa.Schema | None = None
        self._table = self._loaded()

    def _loaded(self) -> Table | None:
        from pyiceberg.exceptions import ValidationError

        name = self._folder.claim.table
        try:
            exists = self._catalog.table_exists(self._name)
            return self._catalog.load_table(self._name) if exists else None
        except FileNotFoundError as error:
            if f"{self._path}/" not in str(error):
                raise self._moved(
                    f"has its metadata in another folder ({first_line(error)})"
                ) from error
            raise _unreadable(f"table {name}", error) from error
        except (OSError, ValueError, ValidationError) as error:
            raise _unreadable(f"table {name}", error) from error

    def _moved(self, where: str) -> InvalidConfig:
        """Return the error of a table that belongs to another folder than this one."""
        return InvalidConfig(
            f"table {self._folder.claim.table} of the folder {self._path} {where}: an Iceberg table cannot be "
            "copied or moved as a folder, because its metadata names files by absolute paths. Load into the "
            f"original folder (move it back, if it was moved), or {ANOTHER_FOLDER}"
        )

    # Progress -------------------------------------------------------------------------

    def progress(self) -> Progress | None:
        progress = None if self._table is None else self._progress(self._table)
        if self._table is None:
            self._check_catalog()
        self._folder.resolve(progress, self._has)
        return progress

    def _check_catalog(self) -> None:
        """Raise InvalidConfig if the files of the pending commit may be in another catalog's table."""
        pending = self._folder.pending()
        if pending is not None and pending.catalog not in ("", self._catalog_digest):
            raise InvalidConfig(
                f"a run into {self._path} was interrupted, and its files may be in table "
                f"{self._folder.claim.table} of another catalog than the one given now; name the catalog of "
                f"that run (--catalog-option, catalog=), or {ANOTHER_FOLDER}"
            )

    def _progress(self, table: Table) -> Progress | None:
        """Return the progress of the last load among the current snapshot and those before it."""
        where = f"table {self._folder.claim.table}"
        if table.properties.get(OWNER) != self._folder.claim.topic_id:
            raise InvalidConfig(
                f"{where} exists, and was not made by a load of topic {self._folder.claim.topic!r}; name another "
                "one (--table), or another folder"
            )
        if not _is_folder(table.location(), self._path):
            raise self._moved(f"is at {table.location()}")
        try:
            return last_progress(table, where)
        except (OSError, ValueError) as error:
            raise _unreadable(f"earlier metadata of {where}", error) from error

    # Columns --------------------------------------------------------------------------

    def columns(self, wanted: pa.Schema) -> pa.Schema:
        typed = pa.schema([_in_iceberg(field) for field in self._named(wanted)])
        check_parquet(typed)
        known = self._staged(typed)
        if self._table is not None:
            added = check_extends(known, _arrow(self._table.schema()))
            _check_partitions(self._table, added, self._folder.claim.table)
            self._check_spec(self._table)
        self._columns = known
        return known

    def _named(self, wanted: pa.Schema) -> pa.Schema:
        """Return the columns under their names in the table. Raise SchemaMismatch.

        A table of an earlier version has the partition under another name, unless it was renamed.
        """
        there = [] if self._table is None else [field.name for field in self._table.schema().fields]
        taken: list[str] = []
        at = wanted.get_field_index(PARTITION)
        if at >= 0 and PARTITION not in there:
            taken += [name for name in wanted.names if name.lower() == ICEBERG_PARTITION]
            wanted = wanted.set(at, wanted.field(at).with_name(ICEBERG_PARTITION))
        taken += sorted(METADATA_COLUMNS.intersection(wanted.names).difference(there))
        if taken:
            raise SchemaMismatch(
                f"topic {self._folder.claim.topic!r} has the column {taken[0]!r}, which a load or a reader of "
                "Iceberg adds to the table; leave the column out, or load it as Parquet or Delta Lake"
            )
        return wanted

    def _check_spec(self, table: Table) -> None:
        """Raise InvalidConfig for a partition of another program that a file may have two values of.

        PyIceberg derives the partitions of a file that is added from its statistics. So it accepts
        those that are the same in every row, and fails for others when the files are written.
        """
        schema, period = table.schema(), self._folder.claim.partition_by
        for field in table.spec().fields:
            source, transform = schema.find_column_name(field.source_id), str(field.transform)
            same = ("void", *_SAME_PERIODS[period]) if source == self._time else ("void",)
            if transform in same or (source, transform) == (schema.column_names[0], "identity"):
                continue
            raise InvalidConfig(
                f"table {self._folder.claim.table} has the partition {field.name!r}, {transform}({source}), "
                "of another program, and a file of this load may have several of its values; remove "
                f"that partition, or {ANOTHER_FOLDER}"
            )

    def _staged(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns as Iceberg gives them back. Raise SchemaMismatch."""
        try:
            made = self._catalog.create_table_transaction(self._name, columns, self._location)
            return _arrow(made.table_metadata.schema())
        except Exception as error:
            raise SchemaMismatch(
                f"topic {self._folder.claim.topic!r}: {error}; leave the column out, or load it as Parquet"
            ) from error

    # Commits --------------------------------------------------------------------------

    def commit(self, files: Sequence[DataFile], progress: Progress) -> None:
        from pyiceberg.exceptions import CommitFailedException

        check_times(files, self._time, "Iceberg")
        self._check_clock()
        pending = Commit(progress=progress, files=list(files), catalog=self._catalog_digest)
        self._folder.publish(pending)
        try:
            self._table = self._commit(self._table or self._created(), files, progress)
        except CommitFailedException as error:
            if self._has(files):
                raise StorageFailed(
                    f"the files are in table {self._folder.claim.table}, but its commit failed later: "
                    f"{error}; the next run goes on after them"
                ) from error
            self._folder.withdraw(pending)
            raise InvalidRequest(
                f"another program has changed table {self._folder.claim.table} meanwhile ({error}); nothing was "
                "added to it: run this again"
            ) from error
        except StrandlineError:
            raise
        except OverflowError as error:  # in the statistics of the files, before the commit
            self._folder.withdraw(pending)
            raise InvalidRecord(
                f"a time or a date in the records to be added to {self._folder.claim.table} is not in the years 1 "
                f"to 9999, which are all that PyIceberg has ({error}); nothing was added. Load the topic as "
                "Parquet or Delta Lake"
            ) from error
        except Exception as error:
            raise StorageFailed(
                f"cannot commit to table {self._folder.claim.table}: {error}; the next run finds out whether "
                "the commit was made"
            ) from error
        self._folder.settle_pending()

    def _check_clock(self) -> None:
        """Refuse a commit that other readers of Iceberg would not accept, before it is made.

        They compare the times of a table's snapshots, and refuse the table if one is more than a
        minute before the last.
        """
        if self._table is None:
            return
        behind_ms = self._table.metadata.last_updated_ms - SystemClock().now_ms()
        if behind_ms > MAX_BEHIND_MS:
            raise InvalidRequest(
                f"the clock of this machine is {behind_ms // 1000:,} s before the last commit of table "
                f"{self._folder.claim.table}, and readers refuse a table whose commits go back in time; "
                "nothing was added. Set the clock, or wait, and run this again"
            )

    def _created(self) -> Table:
        """Create the table, empty, with its hidden partition."""
        from pyiceberg.transforms import DayTransform, HourTransform, Transform

        assert self._columns is not None
        claim = self._folder.claim
        self._catalog.create_namespace_if_not_exists(self._name[:-1])
        table = self._catalog.create_table_transaction(
            self._name, self._columns, self._location, properties={OWNER: claim.topic_id}
        )
        if claim.partition_by != "none":
            transform: Transform[Any, Any] = (
                DayTransform() if claim.partition_by == "day" else HourTransform()
            )
            # A load adds no column of this name to Iceberg, and refuses topics that have one.
            name = [*PERIOD_COLUMNS[claim.partition_by]][-1]
            with table.update_spec() as spec:
                spec.add_field(self._time, transform, name)
        return table.commit_transaction()

    def _commit(self, table: Table, files: Sequence[DataFile], progress: Progress) -> Table:
        assert self._columns is not None
        stored = {KEY: progress.to_json()}
        # A commit that is tried again on top of another load's would add the same records twice.
        table.metadata.properties[RETRIES] = "0"
        with table.transaction() as transaction:
            if check_extends(self._columns, _arrow(table.schema())):
                with transaction.update_schema() as schema:
                    schema.union_by_name(self._columns)
            paths = [f"{self._location}/{file.path}" for file in files]
            transaction.add_files(paths, snapshot_properties=stored, check_duplicate_files=False)
            made = transaction.table_metadata.current_snapshot_id
            transaction.set_properties(stored | {SNAPSHOT: str(made)})
        return table

    def _has(self, files: Sequence[DataFile]) -> bool:
        """Return True if a snapshot of the table, current or not, has any of the files.

        A table that was rolled back can return to the snapshots after that.
        """
        added = {file.path.rpartition("/")[2] for file in files}
        table = self._loaded() if added else None
        if table is None:
            return False
        try:
            return not added.isdisjoint(_files_of_snapshots(table))
        except (OSError, ValueError) as error:
            name = self._folder.claim.table
            raise _unreadable(f"a snapshot of table {name}", error) from error

    @property
    def _catalog_digest(self) -> str:
        """Digest of the catalog's address, which may have a password.

        That of a catalog in the folder is the same wherever the folder is.
        """
        properties = self._catalog.properties
        address = [properties.get(name, "") for name in ("type", "uri", "warehouse")]
        named = "\n".join(address).replace(str(self._path), "")
        return hashlib.sha256(named.encode()).hexdigest()[:16]

    @property
    def _location(self) -> str:
        """URL of the folder, not percent-encoded, because PyIceberg takes URLs as they are."""
        return f"file://{self._path}"


def _is_folder(location: str, path: Path) -> bool:
    """Return True if a table's location is the folder `path`, or no local folder.

    >>> _is_folder("file:///lake/a", Path("/lake/a")), _is_folder("/lake/a", Path("/lake/b"))
    (True, False)
    """
    scheme, found, rest = location.partition(":")
    if found and scheme != "file" and "/" not in scheme:
        return True  # the catalog has chosen a place for the metadata, for example in s3://
    local = Path("/" + (rest if found and scheme == "file" else location).strip("/"))
    with suppress(OSError):
        return local == path or local.samefile(path)
    return False


def _check_partitions(table: Table, added: Sequence[pa.Field], name: str) -> None:
    """Raise SchemaMismatch for a column to be added that has the name of a hidden partition."""
    partitions = {field.name for spec in table.specs().values() for field in spec.fields}
    if taken := sorted(partitions & {field.name for field in added}):
        raise SchemaMismatch(
            f"table {name} has a hidden partition called {taken[0]!r}, and Iceberg adds no column "
            f"of that name, also if the partition is renamed; {ANOTHER_FOLDER}"
        )


def _unreadable(what: str, error: Exception) -> StorageFailed:
    return StorageFailed(
        f"{what} cannot be read: {first_line(error)}; if its metadata is damaged, put it back from a "
        f"backup, or {ANOTHER_FOLDER}"
    )


def _files_of_snapshots(table: Table) -> Iterator[str]:
    """Yield the names of the data files of all snapshots, newest first."""
    seen: set[str] = set()
    for snapshot in reversed(table.snapshots()):
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            for entry in manifest.fetch_manifest_entry(table.io):
                yield entry.data_file.file_path.rpartition("/")[2]


def _in_iceberg(field: pa.Field) -> pa.Field:
    kind = spark_type(field.type, field.name)
    return pa.field(field.name, pa.time64("us") if pa.types.is_time(kind) else kind)


def _arrow(schema: Any) -> pa.Schema:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return schema_to_pyarrow(schema, include_field_ids=False)
