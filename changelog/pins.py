"""Pins: ranges of offsets that can be read repeatedly with the same result.

Retention deletes segments, and compaction rewrites them without superseded records. A reader that
must be able to read a range twice, such as a Spark batch that may be retried, pins it first. The
files of the range are kept unchanged until the pin is released, or was not used for its timeout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from strandline.changelog.errors import UnknownPin
from strandline.changelog.history import UNKNOWN_EPOCH
from strandline.changelog.records import Fetched, TopicPartition
from strandline.changelog.selection import EVERYTHING, ReadSelection

MAX_TIMEOUT_MS = 30 * 24 * 60 * 60 * 1000
"""Maximum milliseconds for which an unused pin may be kept."""
NAME_PATTERN = "[0-9a-z]{1,32}"
"""Regular expression for each part of a pin's name; the parts are names of folders."""


class PinName(NamedTuple):
    """Name of a pin: its holder, and names of the start and end position, chosen by the holder."""

    holder: str
    since: str
    until: str

    def __str__(self) -> str:
        return f"{self.holder}/{self.since}-{self.until}"


class PinnedRange(NamedTuple):
    """A range of offsets of one partition."""

    topic_id: str
    start: int
    end: int
    """End offset (exclusive); at most the last stable offset."""
    leader_epoch: int = UNKNOWN_EPOCH
    """Leader epoch of the position at `end` (see `changelog.history`). It is checked when the
    range is pinned, and not stored."""
    incarnation: str = ""
    """Incarnation of the position at `end`, used like `leader_epoch`."""


PinnedRanges = Mapping[TopicPartition, PinnedRange]


class Pins(Protocol):
    """The pins of one log. All calls are idempotent."""

    def hold(
        self, name: PinName, ranges: PinnedRanges, *, timeout_ms: int
    ) -> dict[TopicPartition, PinnedRange]:
        """Pin the committed records in these ranges, durably, and return the pinned ranges.

        If a pin of this name exists, it is kept unchanged and its ranges are returned. Pins of
        the same holder with another start (`since`) are released, because a holder that starts
        at a new position has finished with them.

        Args:
            name: Name of the pin.
            ranges: Ranges by partition.
            timeout_ms: Milliseconds without use after which the pin expires.

        Raises:
            OffsetOutOfRange: A range is not in the log. After any error nothing is pinned.
            UnknownTopic: A topic does not exist.
            InvalidConfig: The name or the timeout is invalid.
            StorageFailed: The file system refused an operation.
        """
        ...

    def use(self, name: PinName) -> dict[TopicPartition, PinnedRange]:
        """Return the ranges of a pin, and restart its timeout. Raises UnknownPin."""
        ...

    def fetch(
        self,
        name: PinName,
        partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        selection: ReadSelection = EVERYTHING,
    ) -> Fetched:
        """Return about `max_bytes` of pinned records from `offset` on, as they were when pinned.

        The result has at least one selected batch if there is one before the end of the range.
        `next_offset` is at most that end, but the last batch may reach beyond it.

        Raises UnknownPin, UnknownPartition, OffsetOutOfRange, CorruptLog.
        """
        ...

    def release(self, holder: str, until: str) -> None:
        """Release the holder's pins that end at `until`, if there are any."""
        ...


def there(pins: Pins | None) -> Pins:
    """Return `pins`. Raises UnknownPin if it is None, because the log does not support pins."""
    if pins is None:
        raise UnknownPin("this log has no pins, because it is a Kafka cluster")
    return pins
