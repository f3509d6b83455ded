"""A folder of Parquet files with a manifest of each commit.

    _strandline/commits/<number>.json    document: the files of a commit, and the progress after it

A commit is decided when `pending.json` is durable: its files are complete by then. A crash after
that is repaired by doing the rest: the files are moved, and `pending.json` becomes the manifest. So
a file that is once in its place stays, and a reader by pattern sees no record twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from strandline.changelog.errors import CorruptLog, SchemaMismatch
from strandline.changelog.schema import nullable, read_schema
from strandline.framework.offload.folder import META, PENDING, Commit, TargetFolder
from strandline.framework.offload.periods import values
from strandline.framework.offload.plan import check_extends
from strandline.framework.offload.progress import Progress
from strandline.framework.offload.table_limits import check_parquet
from strandline.framework.offload.target import DataFile

COMMITS = f"{META}/commits"


class ParquetTarget:
    """Parquet files and manifests in a folder. Implements Target."""

    def __init__(self, folder: TargetFolder) -> None:
        self._folder = folder
        self._columns: pa.Schema | None = None
        folder.storage.make_dir(COMMITS)

    def progress(self) -> Progress | None:
        self._complete()
        self._folder.sweep()
        last = self._last()
        if last is None:
            self._check_empty()
        return None if last is None else last.progress

    def _check_empty(self) -> None:
        """Raise CorruptLog if there are files without a manifest, which a load would add again."""
        names = self._folder.storage.list_dir("")
        records = [name for name in names if name.startswith(("part-", "_day=", "utc_day="))]
        if records:
            raise CorruptLog(
                f"there is {records[0]!r}, and no manifest in {COMMITS}: put the manifests back, or load into "
                "another folder"
            )

    def _complete(self) -> None:
        """Complete the commit that a crash has interrupted."""
        pending = self._folder.pending()
        if pending is not None:
            self._folder.move(pending)
            self._finish(pending)

    def _last(self) -> Commit | None:
        names = self._folder.storage.list_dir(COMMITS)
        found = [name for name in names if name.endswith(".json")]
        return self._folder.read(f"{COMMITS}/{found[-1]}", Commit) if found else None

    def columns(self, wanted: pa.Schema) -> pa.Schema:
        last = self._last()
        if last is not None:
            have = _schema(last.columns)
            wanted = pa.schema([*have, *check_extends(wanted, have)])
        check_parquet(wanted)
        self._check_periods(wanted)
        self._columns = wanted
        return wanted

    def _check_periods(self, columns: pa.Schema) -> None:
        """Raise SchemaMismatch for a column that readers would take from the names of folders."""
        claim = self._folder.claim
        periods = values(0, claim.partition_by, claim.period_prefix)
        if taken := [name for name in columns.names if name.lower() in periods]:
            raise SchemaMismatch(
                f"topic {claim.topic!r} has a column {taken[0]!r}, which files divided by the {claim.partition_by} "
                "have in the names of their folders; load it into another folder without that division"
            )

    def commit(self, files: Sequence[DataFile], progress: Progress) -> None:
        assert self._columns is not None
        columns = self._columns.serialize().to_pybytes()
        commit = Commit(progress=progress, files=list(files), columns=columns)
        self._folder.publish(commit)
        self._finish(commit)

    def _finish(self, commit: Commit) -> None:
        """Make the pending commit the last one, durably."""
        storage = self._folder.storage
        storage.rename(PENDING, f"{COMMITS}/{commit.progress.commit:020d}.json")
        storage.sync_dir(COMMITS)
        storage.sync_dir(META)


def _schema(message: bytes) -> pa.Schema:
    try:
        # Targets of earlier versions have fields that are not nullable.
        return pa.schema([nullable(f).remove_metadata() for f in read_schema(message)])
    except pa.ArrowException as error:
        raise CorruptLog(
            f"{COMMITS}: the columns of the last commit cannot be read: {error}"
        ) from error
