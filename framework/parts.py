"""Merging of the parts of a store that its partitions hold, so that no part is taken for the whole.

Each partition of a store is kept by its own task instance. If the store is keyed as the task's
input is, a key is in one partition only. Otherwise several partitions hold the key, each with the
part that its own records made. Such parts are merged where that is exact (counters and aggregates),
and refused elsewhere.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Generic, TypeVar

from strandline.changelog.errors import InvalidRequest, KeyInSeveralPartitions

V = TypeVar("V")

Merge = Callable[[Sequence[V]], V]
"""Function that makes one value of the values that several partitions hold of one key."""

Entry = tuple[bytes, int, V]
"""An encoded key, its partition, and the value there."""


@dataclass(frozen=True)
class PartitionMerger(Generic[V]):
    """Merges the entries that the partitions of one store hold."""

    store: str
    """Name of the store, for errors."""
    key_of: Callable[[bytes], Any]
    """Function that decodes a key, for errors."""
    merge: Merge[V] | None = None
    """Function that merges values; None if they cannot be merged."""

    def whole(self, key: bytes, found: Mapping[int, V]) -> V:
        """Return the value of a key from the values of at least one partition.

        Raises KeyInSeveralPartitions.
        """
        if len(found) > 1:
            return self._merged(key, found)
        [value] = found.values()
        return value

    def scan(
        self, streams: Iterable[Iterable[Entry[V]]], *, reverse: bool = False
    ) -> Iterator[tuple[bytes, V]]:
        """Yield the entries of all partitions in the order of the keys, each key once.

        Each of `streams` holds the entries of one partition, in that order. Raises
        KeyInSeveralPartitions.
        """
        merged = heapq.merge(*streams, key=itemgetter(0), reverse=reverse)
        for key, same in groupby(merged, key=itemgetter(0)):
            yield key, self.whole(key, {number: value for _, number, value in same})

    def _merged(self, key: bytes, found: Mapping[int, V]) -> V:
        if self.merge is not None:
            return self.merge([found[number] for number in sorted(found)])
        numbers = sorted(found)
        raise KeyInSeveralPartitions(
            f"store {self.store!r} has key {self.key_of(key)!r} in several partitions "
            f"({', '.join(map(str, numbers))}), each with a part of it, because the input of its task "
            f"is keyed by something else; use app.repartition(topic, key=…) before the task, or read "
            f"one part with partition={numbers[0]}"
        )


def partitions_asked(store: str, count: int, partition: int | None) -> range:
    """Return the partitions to read of a store with `count` partitions: all, or the requested one.

    Raises InvalidRequest if there is no such partition.
    """
    if partition is None:
        return range(count)
    if not 0 <= partition < count:
        raise InvalidRequest(
            f"store {store!r} has partitions 0 to {count - 1}; there is no partition {partition}"
        )
    return range(partition, partition + 1)
