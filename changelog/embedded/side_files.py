"""Files beside a partition's segments that can be rebuilt: producer state, aborted transactions.

All are documents. Each roll writes a producer snapshot as of the first offset of the new segment.
Closing a segment writes its index of aborted transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strandline.changelog.embedded import document
from strandline.changelog.errors import REPAIR, CorruptLog
from strandline.changelog.layout import SegmentName, producer_snapshot, snapshot_offset
from strandline.changelog.producer_state import (
    EndedTransaction,
    ProducerEntry,
    ProducerStates,
)
from strandline.changelog.storage import Storage

SNAPSHOT_KIND = "producers"
ABORTED_KIND = "aborted"


def save_producers(
    storage: Storage, folder: str, offset: int, entries: Mapping[int, ProducerEntry], before: int
) -> None:
    """Write the producer state as of `offset`. Delete all other snapshots, except that of `before`.

    `before` is the base offset of the last segment in the manifest. A roll may fail after this
    write, repeatedly, and recovery then still starts with the snapshot at `before`.
    """
    path = f"{folder}/{producer_snapshot(offset)}"
    document.save(storage, path, SNAPSHOT_KIND, list(entries.items()))
    for name in storage.list_dir(folder):
        if snapshot_offset(name) not in (None, offset, before):
            storage.unlink(f"{folder}/{name}")


def load_producers(storage: Storage, folder: str, offset: int) -> ProducerStates:
    """Load the producer state as of `offset`.

    Raises FileNotFoundError, CorruptLog, FutureFormat.
    """
    path = f"{folder}/{producer_snapshot(offset)}"
    entries = document.load(storage, path, SNAPSHOT_KIND, list[tuple[int, ProducerEntry]])
    return ProducerStates(dict(entries))


def save_aborted(
    storage: Storage, folder: str, segment: SegmentName, ended: Iterable[EndedTransaction]
) -> None:
    """Write the aborted-transaction index of a segment: the transactions whose marker is in it."""
    document.save(storage, f"{folder}/{segment.aborted_file}", ABORTED_KIND, list(ended))


def load_aborted(
    storage: Storage, folder: str, segment: SegmentName, end: int
) -> list[EndedTransaction]:
    """Load the aborted-transaction index of a segment that ends at offset `end` (exclusive).

    Raises FileNotFoundError, CorruptLog, FutureFormat.
    """
    path = f"{folder}/{segment.aborted_file}"
    rows = document.load(storage, path, ABORTED_KIND, list[tuple[int, int, int]])
    ended = [EndedTransaction(*row) for row in rows]
    for one in ended:  # files of format version 1 do not name their segment
        if not segment.base_offset <= one.marker_offset < max(end, segment.base_offset):
            raise CorruptLog(
                f"{path}: lists {one}, which does not end in offsets {segment.base_offset} to {end}; "
                f"{REPAIR}"
            )
    return ended
