"""The lineage of an Iceberg table: which load is the last one that its current snapshot comes from.

The current snapshot and those before it answer this, as long as the table has them. When snapshots
have expired, the links between the others are gone too; earlier metadata files of the table still
have them. Where those end, a data file that the last load has added, and that is still in the table,
shows that this load was not rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strandline.changelog.errors import InvalidConfig
from strandline.framework.offload.plan import ANOTHER_FOLDER
from strandline.framework.offload.progress import KEY, Progress, from_json

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

SNAPSHOT = "strandline.offload.snapshot"
"""Property of a table: identifier of the snapshot that has the progress in the property `KEY`."""


def last_progress(table: Table, where: str) -> Progress | None:
    """Return the progress of the last load that the current snapshot comes from; None without any.

    `where` names the table, for messages.

    Raises:
        InvalidConfig: There was a load, and nothing shows if it is in the table or was rolled back.
        CorruptLog: The progress cannot be read.
    """
    recorded, at = table.properties.get(KEY), table.properties.get(SNAPSHOT)
    for number, snapshot in _lineage(table):
        if recorded and str(number) == at:
            return from_json(recorded, where)
        if snapshot and snapshot.summary and (found := snapshot.summary.get(KEY)):
            return from_json(found, where)
    current = table.current_snapshot()
    if current is None or not recorded:
        return None
    progress = from_json(recorded, where)
    if at is not None and _has_file_of(table, current, at):
        return progress
    raise _undecided(progress, current, where)


def _lineage(table: Table) -> Iterator[tuple[int, Snapshot | None]]:
    """Yield the current snapshot and those before it, each after its identifier.

    It ends with None in the place of a snapshot that nothing is known of.
    """
    known = _Snapshots(table)
    number = table.metadata.current_snapshot_id
    while number is not None:
        snapshot = known.find(number)
        yield number, snapshot
        number = None if snapshot is None else known.parent(number)


class _Snapshots:
    """The snapshots of a table, also expired ones: earlier metadata is read when it is needed."""

    def __init__(self, table: Table) -> None:
        self._known = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
        # A table without the property has no load to look for.
        self._earlier = _earlier_metadata(table) if KEY in table.properties else iter(())

    def find(self, number: int) -> Snapshot | None:
        while number not in self._known and self._learn():
            pass
        return self._known.get(number)

    def parent(self, number: int) -> int | None:
        # PyIceberg removes the link to a snapshot that expires; Iceberg's Java library keeps it.
        while self._known[number].parent_snapshot_id is None and self._learn():
            pass
        return self._known[number].parent_snapshot_id

    def _learn(self) -> bool:
        """Read the metadata before the earliest that was read; return False if there is none."""
        metadata = next(self._earlier, None)
        if metadata is None:
            return False
        self._known |= {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
        return True


def _earlier_metadata(table: Table) -> Iterator[TableMetadata]:
    """Yield the earlier metadata of a table that was not removed, newest first."""
    from pyiceberg.serializers import FromInputFile

    for entry in reversed(table.metadata.metadata_log):
        try:
            yield FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
        except FileNotFoundError:
            continue


def _has_file_of(table: Table, current: Snapshot, number: str) -> bool:
    """Return True if a data file in the current snapshot was added by snapshot `number`."""
    return any(
        str(entry.snapshot_id) == number
        for manifest in current.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    )


def _undecided(progress: Progress, current: Snapshot, where: str) -> InvalidConfig:
    return InvalidConfig(
        f"{where}: snapshots before its current one ({current.snapshot_id}) have expired, and nothing shows "
        f"whether the last load is still in it or was rolled back. That load ended before the offsets "
        f"{progress.shown()}. If the table has the records before them, set its property "
        f"{SNAPSHOT!r} to '{current.snapshot_id}'; if it has no record of the topic, remove its property "
        f"{KEY!r}; otherwise {ANOTHER_FOLDER}"
    )
