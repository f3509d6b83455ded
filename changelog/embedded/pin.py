"""One pin on the disk: its document, and reads of the pinned range.

Like a `RecordView`, a pin is made of plain values, and its files are its own links. Any process
that may read the folder can read the range, for as long as the document exists.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Annotated

import msgspec

from strandline.changelog.embedded import document
from strandline.changelog.embedded.aborted import AbortedTransactions
from strandline.changelog.embedded.manifest import Count
from strandline.changelog.embedded.segment import SegmentPiece
from strandline.changelog.embedded.view import RecordView
from strandline.changelog.errors import OffsetOutOfRange, UnknownPartition
from strandline.changelog.layout import PIN_LINK, pin_file, pin_folder
from strandline.changelog.pins import MAX_TIMEOUT_MS, PinName, PinnedRange
from strandline.changelog.producer_state import EndedTransaction
from strandline.changelog.records import Fetched, TopicPartition
from strandline.changelog.schema import decode_schemas
from strandline.changelog.selection import EVERYTHING, ReadSelection
from strandline.changelog.storage import Storage

KIND = "pin"


class PinnedPiece(msgspec.Struct, array_like=True):
    """Consecutive whole frames in one of the pin's links."""

    file: Annotated[str, msgspec.Meta(pattern=PIN_LINK)]
    """Name of the link. The pattern is checked, because the name becomes part of a path."""
    base_offset: Count
    """Lower bound of the offsets in the piece."""
    start: Count
    end: Count
    """End (exclusive) of the piece; as `start`, a position in bytes in the file."""


class PinnedPartition(msgspec.Struct):
    """A range of one partition, and the positions of its records."""

    topic: str
    topic_id: str
    partition: Count
    start: Count
    end: Count
    pieces: list[PinnedPiece]
    aborted: list[EndedTransaction]
    """Aborted transactions that have records in the range."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Pin(msgspec.Struct):
    """Document of a pin: its ranges, and its timeout."""

    created_ms: int
    expires_ms: int
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=MAX_TIMEOUT_MS)]
    schemas: dict[str, list[bytes]]
    """Schemas of the values by topic id: versions 1, 2, … as Arrow IPC schema messages."""
    partitions: list[PinnedPartition]

    def ranges(self) -> dict[TopicPartition, PinnedRange]:
        """Return the pinned ranges."""
        return {
            one.topic_partition: PinnedRange(one.topic_id, one.start, one.end)
            for one in self.partitions
        }

    def missing(self, storage: Storage, name: PinName) -> list[str]:
        """Return the paths of the pin's links that do not exist."""
        links = {f"{pin_folder(name)}/{p.file}" for one in self.partitions for p in one.pieces}
        return sorted(link for link in links if not storage.exists(link))

    def save(self, storage: Storage, name: PinName) -> None:
        """Write the document into the pin's folder, durably. From then on the pin exists."""
        document.save(storage, pin_file(name), KIND, self)

    @staticmethod
    def load(storage: Storage, name: PinName) -> Pin:
        """Read the document. Raises FileNotFoundError, CorruptLog, FutureFormat."""
        return document.load(storage, pin_file(name), KIND, Pin)


class PinReader:
    """Reads by the pins in `storage`. The document of the last pin is cached."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._last: tuple[PinName, Pin] | None = None

    def fetch(
        self,
        name: PinName,
        partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        selection: ReadSelection = EVERYTHING,
    ) -> Fetched:
        """Implement `Pins.fetch`.

        Raises FileNotFoundError if the pin or one of its files is gone.
        """
        view = _view(self._pin(name), name, partition, offset)
        return view.fetch(self._storage, max_bytes, selection)

    def forget(self) -> None:
        """Drop the cached document, because its pin may be gone."""
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
