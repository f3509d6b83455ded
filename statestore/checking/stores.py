"""Check of the stores in a log folder: each engine is compared with the fold of its changelog.

Nothing is changed: the engine is opened read-only. The fold is the last committed value of each key
up to the engine's position. Engine and fold are compared in one pass over both, sorted. Keys with
records after that position are left out, because their earlier records may have been removed by
compaction. A fold is kept in memory up to FOLD_BYTES of keys and values; a larger one is kept in a
RocksDB in a temporary folder. Last, keys and values are decoded with the recorded declarations
(`statestore.checking.declared`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from strandline.changelog.embedded.checking.findings import Severity
from strandline.changelog.embedded.checking.folder import CheckedLog
from strandline.changelog.embedded.checking.scanned import ScannedPartition
from strandline.changelog.embedded.checking.transactions import PartitionKey, PartitionReach
from strandline.changelog.errors import CorruptLog, FutureFormat
from strandline.changelog.layout import STATE
from strandline.changelog.records import Batch
from strandline.statestore.checking.declared import check_declared, shown_key
from strandline.statestore.engine import Entry, StorePosition
from strandline.statestore.engines.inspection import inspected, is_unfinished
from strandline.statestore.engines.rocksdb import DATABASE
from strandline.statestore.fold import FOLD_BYTES, LatestValues
from strandline.statestore.restore import plan_restore
from strandline.statestore.spec import changelog_topic


@dataclass
class CheckedStores:
    """Results of the check of stores that repair needs."""

    bad: dict[str, str] = field(default_factory=dict)
    """Reasons to rebuild a store, by its folder, relative to the log folder."""
    reaches: dict[PartitionKey, PartitionReach] = field(default_factory=dict)
    """Least end offset of each changelog partition, because a store has reached it."""


def check_stores(root: Path, checked: CheckedLog, *, fold_bytes: int = FOLD_BYTES) -> CheckedStores:
    """Check every store below the log folder `root`; add findings to the report of `checked`."""
    stores = CheckedStores()
    for folder in sorted((root / STATE).glob("*/*/*")):
        if (folder / DATABASE).is_dir():
            checked.report.stores += 1
            _StoreCheck(folder, folder.relative_to(root), checked, stores, fold_bytes).run()
    check_declared(checked, fold_bytes)
    return stores


class _StoreCheck:
    """The check of one partition of a store."""

    def __init__(
        self,
        folder: Path,
        relative: Path,
        checked: CheckedLog,
        stores: CheckedStores,
        fold_bytes: int,
    ) -> None:
        self._folder = folder
        self._name = str(relative)
        self._checked = checked
        self._stores = stores
        self._fold_bytes = fold_bytes
        _, app, store, number = relative.parts
        # A suffix after a dot marks a folder that was made because the partition's own was locked.
        partition = number.partition(".")[0]
        topic = changelog_topic(app, store)
        known = int(partition) if partition.isdecimal() else -1
        self._changelog = checked.named(topic, known)
        self._changelog_name = f"{topic}-{partition}"

    def run(self) -> None:
        if (self._folder / "damaged").exists():
            self._note("was found damaged before; it is rebuilt when its app starts")
            return
        if is_unfinished(self._folder):
            return
        try:
            with inspected(self._folder) as content:
                position = content.position()
                if position is None:
                    self._check_empty(content.entries())
                else:
                    self._check(position, content.entries())
        except FutureFormat:
            raise
        except CorruptLog as error:
            self._bad(str(error))

    def _check_empty(self, entries: Iterator[Entry]) -> None:
        if next(entries, None) is not None:
            self._bad("holds entries, and no position in its changelog")

    def _check(self, position: StorePosition, entries: Iterator[Entry]) -> None:
        changelog = self._changelog
        if changelog is None or changelog.meta.topic_id != position.topic_id:
            self._note(
                f"is of a changelog that is gone ({self._changelog_name}); it is rebuilt when its "
                f"app starts"
            )
            return
        if not position.is_of(changelog.number):
            self._note(
                f"is of partition {position.partition} of its changelog; it is rebuilt when its app "
                "starts"
            )
            return
        self._note_reach(changelog, position)
        if changelog.gaps:
            self._bad("cannot be compared: its changelog is damaged")
            return
        self._compare(changelog, position, entries)

    def _note_reach(self, changelog: ScannedPartition, position: StorePosition) -> None:
        place = (position.topic_id, changelog.number)
        reach = PartitionReach(position.offset, f"the store in {self._name}")
        self._stores.reaches[place] = max(reach, self._stores.reaches.get(place, reach))
        if position.offset > changelog.next_offset:
            self._checked.report.add(
                Severity.DAMAGE,
                "end",
                changelog.folder,
                f"ends at offset {changelog.end}, but {reach.because} reaches to {reach.offset}",
                partition=changelog.topic_partition,
                offsets=(changelog.end, reach.offset),
            )

    def _compare(
        self, changelog: ScannedPartition, position: StorePosition, entries: Iterator[Entry]
    ) -> None:
        with ExitStack() as closing:
            fold = LatestValues(self._fold_bytes, closing)
            fold.add(self._clipped(changelog, 0, position.offset), position)
            plan = plan_restore(position, changelog.offsets(), fold.last_before(position.offset))
            if plan.action == "rebuild":
                self._note(f"is rebuilt when its app starts: {plan.reason}")
                return
            later = LatestValues(self._fold_bytes, closing)
            superseding_end = changelog.manifest.superseding_end
            cleaned = self._clipped(changelog, position.offset, superseding_end)
            later.add(map(_keys_only, cleaned), position)
            partial = changelog.manifest.log_start > 0
            difference = _difference(
                _without(entries, later.entries()),
                _without(fold.entries(), later.entries()),
                partial=partial,
            )
        if difference is not None:
            self._bad(f"differs from its changelog up to offset {position.offset}: {difference}")

    def _clipped(self, changelog: ScannedPartition, start: int, end: int) -> Iterator[Batch]:
        """Return the committed records with offsets in [`start`, `end`).

        Batches are clipped, because cleaning merges several into one. Open transactions are treated
        as opening the log would: it commits the prepared ones and aborts the others.
        """
        place = (changelog.meta.topic_id, changelog.number)

        def is_live(producer_id: int, epoch: int) -> bool:
            return self._checked.transactions.is_live(producer_id, epoch, place)

        committed = changelog.committed_when_opened(end, is_live)
        clipped = (batch.clip(start, end) for batch in committed)
        return (batch for batch in clipped if len(batch))

    def _bad(self, what: str) -> None:
        self._stores.bad[self._name] = what
        self._add(
            Severity.REPAIRABLE,
            what,
            "run `strandline repair`, which moves it away: it is restored from its changelog",
        )

    def _note(self, what: str) -> None:
        self._add(Severity.NOTE, what, "its app rebuilds it")

    def _add(self, severity: Severity, what: str, way_out: str) -> None:
        partition = self._changelog.topic_partition if self._changelog is not None else None
        self._checked.report.add(
            severity, "store", self._name, what, way_out=way_out, partition=partition
        )


def _keys_only(batch: Batch) -> Batch:
    """Return the batch with an empty value for every key, including deleted ones."""
    empty = pa.repeat(pa.scalar(b"", pa.binary()), len(batch))
    return replace(batch, columns=batch.columns.set_column(2, "value", empty))


def _without(entries: Iterator[Entry], left_out: Iterator[Entry]) -> Iterator[Entry]:
    """Yield the sorted entries whose key is not in `left_out`, which is sorted too."""
    other = next(left_out, None)
    for entry in entries:
        while other is not None and other[0] < entry[0]:
            other = next(left_out, None)
        if other is None or other[0] != entry[0]:
            yield entry


def _difference(held: Iterator[Entry], folded: Iterator[Entry], *, partial: bool) -> str | None:
    """Return the first difference of two sorted streams as text; None if they are equal.

    With `partial`, the start of the changelog was deleted, so it may lack keys of the store.
    """
    ours, theirs = next(held, None), next(folded, None)
    while ours is not None or theirs is not None:
        if ours == theirs:
            ours, theirs = next(held, None), next(folded, None)
        elif theirs is None or (ours is not None and ours[0] < theirs[0]):
            assert ours is not None
            if not partial:
                return f"it has the key {shown_key(ours[0])}, which its changelog lacks"
            ours = next(held, None)
        elif ours is None or theirs[0] < ours[0]:
            return f"it lacks the key {shown_key(theirs[0])}, which its changelog has"
        else:
            return f"it has another value for the key {shown_key(ours[0])}"
    return None
