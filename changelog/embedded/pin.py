"""One pin on the disk: the document that says what it holds, and reading by it.

Like a `RecordView` it is made of plain values, and its files are its own links: who may read the folder can read
by it, in the owner's process or in another one, for as long as the document is there.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Annotated

import msgspec

from strandline.changelog.embedded import document
from strandline.changelog.embedded.aborted import AbortedTransactions
from strandline.changelog.embedded.manifest import Count
from strandline.changelog.embedded.names import PIN_LINK, pin_file, pin_folder
from strandline.changelog.embedded.producer_state import EndedTransaction
from strandline.changelog.embedded.segment import SegmentPiece
from strandline.changelog.embedded.view import RecordView
from strandline.changelog.errors import OffsetOutOfRange, UnknownPartition
from strandline.changelog.pins import MAX_TIMEOUT_MS, PinName, PinnedRange
from strandline.changelog.records import Fetched, TopicPartition
from strandline.changelog.schema import decode_schemas
from strandline.changelog.storage import Storage

KIND = "pin"


class PinnedPiece(msgspec.Struct, array_like=True):
    """Whole frames in one of the pin's links."""

    file: Annotated[str, msgspec.Meta(pattern=PIN_LINK)]
    """It names a file, so nothing else is believed."""
    base_offset: Count
    """No frame in it begins before this offset."""
    start: Count
    end: Count
    """Positions in the file."""


class PinnedPartition(msgspec.Struct):
    """A range of one partition, and where its records are."""

    topic: str
    topic_id: str
    partition: Count
    start: Count
    end: Count
    pieces: list[PinnedPiece]
    aborted: list[EndedTransaction]
    """Those among its records."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Pin(msgspec.Struct):
    """What a pin holds, and for how long."""

    created_ms: int
    expires_ms: int
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=MAX_TIMEOUT_MS)]
    schemas: dict[str, list[bytes]]
    """By topic id, of its values: version 1, 2, … as Arrow IPC schema messages."""
    partitions: list[PinnedPartition]

    def ranges(self) -> dict[TopicPartition, PinnedRange]:
        """What is pinned."""
        return {
            one.topic_partition: PinnedRange(one.topic_id, one.start, one.end)
            for one in self.partitions
        }

    def missing(self, storage: Storage, name: PinName) -> list[str]:
        """Those of its links that are not there."""
        links = {f"{pin_folder(name)}/{p.file}" for one in self.partitions for p in one.pieces}
        return sorted(link for link in links if not storage.exists(link))

    def save(self, storage: Storage, name: PinName) -> None:
        """Put it into the pin's folder, durably: from then on there is this pin."""
        document.save(storage, pin_file(name), KIND, self)

    @staticmethod
    def load(storage: Storage, name: PinName) -> Pin:
        """Read what `save` wrote. Raises FileNotFoundError, CorruptLog, FutureFormat."""
        return document.load(storage, pin_file(name), KIND, Pin)


class PinReader:
    """Reads by pins in `storage`; it remembers the document of the last one."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._last: tuple[PinName, Pin] | None = None

    def fetch(
        self, name: PinName, partition: TopicPartition, offset: int, *, max_bytes: int
    ) -> Fetched:
        """`Pins.fetch`; raises FileNotFoundError if the pin is gone, or one of its files."""
        return _view(self._pin(name), name, partition, offset).fetch(self._storage, max_bytes)

    def forget(self) -> None:
        """What it remembers may be gone."""
        self._last = None

    def _pin(self, name: PinName) -> Pin:
        last = self._last
        if last is None or last[0] != name:
            last = self._last = name, Pin.load(self._storage, name)
        return last[1]


def _view(pin: Pin, name: PinName, partition: TopicPartition, offset: int) -> RecordView:
    for one in pin.partitions:
        if one.topic_partition == partition:
            return _view_of(one, pin.schemas.get(one.topic_id, []), pin_folder(name), offset)
    raise UnknownPartition(f"pin {name} does not hold {partition}")


def _view_of(one: PinnedPartition, schemas: list[bytes], folder: str, offset: int) -> RecordView:
    if not one.start <= offset <= one.end:
        raise OffsetOutOfRange(
            f"{one.topic_partition} is pinned from {one.start} to {one.end}, got {offset}"
        )
    first = bisect_right(one.pieces, offset, key=lambda piece: piece.base_offset) - 1
    return RecordView(
        one.topic_partition,
        offset,
        one.end,
        tuple(
            SegmentPiece(f"{folder}/{piece.file}", piece.base_offset, piece.start, piece.end)
            for piece in one.pieces[max(0, first) :]
        ),
        AbortedTransactions(one.aborted),
        decode_schemas(schemas, f"{folder}, topic {one.topic}"),
        log_start=one.start,
        high_watermark=one.end,
        last_stable_offset=one.end,
    )
