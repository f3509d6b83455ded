"""Pins: ranges of offsets that can be read again, the same, whatever becomes of the log meanwhile.

Retention deletes segments, compaction rewrites them without what is superseded. Who must be able to
read a range twice (a batch of Spark's that is tried again) has it pinned first: the files that hold it
are kept, as they are, until the pin is released or has not been used for its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from strandline.changelog.errors import UnknownPin
from strandline.changelog.history import UNKNOWN_EPOCH
from strandline.changelog.records import Fetched, TopicPartition

MAX_TIMEOUT_MS = 30 * 24 * 60 * 60 * 1000
"""The longest that a pin may be kept unused."""
NAME_PATTERN = "[0-9a-z]{1,32}"
"""What each part of a pin's name looks like; they name folders."""


class PinName(NamedTuple):
    """A pin, by who reads and by the positions between which it reads, each a name of its choice."""

    holder: str
    since: str
    until: str

    def __str__(self) -> str:
        return f"{self.holder}/{self.since}-{self.until}"


class PinnedRange(NamedTuple):
    """Offsets of one partition."""

    topic_id: str
    start: int
    end: int
    """Not included; at most the last stable offset."""
    leader_epoch: int = UNKNOWN_EPOCH
    """Of the position at `end`, with `incarnation`: see `changelog.history`. Looked at when the
    range is pinned, not kept."""
    incarnation: str = ""


PinnedRanges = Mapping[TopicPartition, PinnedRange]


class Pins(Protocol):
    """The pins of one log. Calls may be repeated: each says how things are to be."""

    def hold(
        self, name: PinName, ranges: PinnedRanges, *, timeout_ms: int
    ) -> dict[TopicPartition, PinnedRange]:
        """Pin what is committed in these ranges, durably, until it was not used for `timeout_ms`.

        If there is a pin of that name, that is kept as it is, and its ranges are returned. The
        holder's pins that begin elsewhere (`since`) are released: whoever begins there is done with them.
        Raises OffsetOutOfRange, UnknownTopic, InvalidConfig, StorageFailed: then nothing is pinned.
        """
        ...

    def use(self, name: PinName) -> dict[TopicPartition, PinnedRange]:
        """The ranges of a pin, whose time begins anew. Raises UnknownPin."""
        ...

    def fetch(
        self, name: PinName, partition: TopicPartition, offset: int, *, max_bytes: int
    ) -> Fetched:
        """Committed records from `offset` on, about `max_bytes`, as they were when they were pinned.

        At least one batch, if there is any before the range's end, where `next_offset` stops. A batch may
        reach beyond that end. Raises UnknownPin, UnknownPartition, OffsetOutOfRange, CorruptLog.
        """
        ...

    def release(self, holder: str, until: str) -> None:
        """Let go of the holder's pins that end there; harmless when there are none."""
        ...


def there(pins: Pins | None) -> Pins:
    """The pins of a log that has some. Raises UnknownPin: nothing is pinned in one that has none."""
    if pins is None:
        raise UnknownPin("this log keeps nothing for readers: it is a Kafka cluster")
    return pins
