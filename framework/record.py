"""What a handler is given: one record, decoded."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from strandline.changelog.records import Headers

K_co = TypeVar("K_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)


class Record(msgspec.Struct, Generic[K_co, V_co], frozen=True, gc=False):
    """One record of an input topic, with its key and value decoded.

    >>> Record("AA", 3, 1_000, topic="flights", partition=0, offset=7).key
    'AA'
    """

    key: K_co
    value: V_co
    timestamp: int = 0
    """Milliseconds since the epoch."""
    headers: Headers = ()
    """Pairs of name and bytes."""
    topic: str = ""
    partition: int = -1
    offset: int = -1

    @property
    def position(self) -> str:
        """Where it came from, for messages: topic, partition and offset."""
        return f"{self.topic}-{self.partition} @ {self.offset}"
