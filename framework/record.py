"""Argument of a handler: one record, decoded."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from strandline.changelog.records import Headers

K_co = TypeVar("K_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)


class Record(msgspec.Struct, Generic[K_co, V_co], frozen=True, gc=False):
    """One record of an input topic, with its key and value decoded. Records are immutable.

    Attributes:
        key: Key as the topic's type; None if the record has no key.
        value: Value as the topic's type; None if the record is a tombstone.
        timestamp: Milliseconds since the epoch.
        headers: Pairs of name (str) and value (bytes), by default none.
        topic: Name of the topic that the record was read from.
        partition: Partition that the record was read from; -1 if it was not read from a log.
        offset: Offset of the record in its partition; -1 if it was not read from a log.

    >>> Record("AA", 3, 1_000, topic="flights", partition=0, offset=7).key
    'AA'
    """

    key: K_co
    """Key of the record; None if it has none."""
    value: V_co
    """Value of the record; None if it is a tombstone."""
    timestamp: int = 0
    """Milliseconds since the epoch."""
    headers: Headers = ()
    """Pairs of name (str) and value (bytes)."""
    topic: str = ""
    """Name of the topic that the record was read from."""
    partition: int = -1
    """Partition that the record was read from; -1 if it was not read from a log."""
    offset: int = -1
    """Offset in its partition; -1 if it was not read from a log."""

    @property
    def position(self) -> str:
        """Topic, partition and offset of the record as one text, for messages."""
        return f"{self.topic}-{self.partition} @ {self.offset}"
