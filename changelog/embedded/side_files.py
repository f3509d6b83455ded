"""What lies beside a partition's segments and can be made anew from them: producers, aborted transactions.

All are documents. A producer snapshot is taken at each roll, as of the offset at which the new segment
begins; an aborted index when a segment is closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strandline.changelog.embedded import document
from strandline.changelog.embedded.names import SegmentName, producer_snapshot, snapshot_offset
from strandline.changelog.embedded.producer_state import (
    EndedTransaction,
    ProducerEntry,
    ProducerStates,
)
from strandline.changelog.errors import REPAIR, CorruptLog
from strandline.changelog.storage import Storage

SNAPSHOT_KIND = "producers"
ABORTED_KIND = "aborted"


def save_producers(
    storage: Storage, folder: str, offset: int, entries: Mapping[int, ProducerEntry], before: int
) -> None:
    """Write the producer state as of `offset`, and keep that as of `before` of such files.

    `before` is where the last segment begins that the manifest has by now: the roll may fail, and the
    next one too, and until one has not, that file is the one to begin with.
    """
    path = f"{folder}/{producer_snapshot(offset)}"
    document.save(storage, path, SNAPSHOT_KIND, list(entries.items()))
    for name in storage.list_dir(folder):
        if snapshot_offset(name) not in (None, offset, before):
            storage.unlink(f"{folder}/{name}")


def load_producers(storage: Storage, folder: str, offset: int) -> ProducerStates:
    """The producer state as of `offset`. Raises FileNotFoundError, CorruptLog, FutureFormat."""
    path = f"{folder}/{producer_snapshot(offset)}"
    entries = document.load(storage, path, SNAPSHOT_KIND, list[tuple[int, ProducerEntry]])
    return ProducerStates(dict(entries))


def save_aborted(
    storage: Storage, folder: str, segment: SegmentName, ended: Iterable[EndedTransaction]
) -> None:
    """Write the aborted-transaction index of a segment: those whose marker is in it."""
    document.save(storage, f"{folder}/{segment.aborted_file}", ABORTED_KIND, list(ended))


def load_aborted(
    storage: Storage, folder: str, segment: SegmentName, end: int
) -> list[EndedTransaction]:
    """Read what `save_aborted` wrote of a segment with offsets below `end`.

    Raises FileNotFoundError, CorruptLog, FutureFormat.
    """
    path = f"{folder}/{segment.aborted_file}"
    rows = document.load(storage, path, ABORTED_KIND, list[tuple[int, int, int]])
    ended = [EndedTransaction(*row) for row in rows]
    for one in ended:  # files of format version 1 do not say what they belong to
        if not segment.base_offset <= one.marker_offset < max(end, segment.base_offset):
            raise CorruptLog(
                f"{path}: lists {one}, which does not end in offsets {segment.base_offset} to {end}; "
                f"{REPAIR}"
            )
    return ended
