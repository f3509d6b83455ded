"""Timers of one task instance: in a changelogged store, so they survive crashes and aborts.

The store has one entry per timer, (clock, packed name) -> time in ms, and one for the stream
time under the clock "". The heap beside it only finds the next one: an entry of the heap
that the store does not confirm is out of date and dropped, so cancelling a timer, and
undoing what a failed handler set, need not touch the heap.
"""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

import msgspec

from strandline.changelog.depth import check_msgpack
from strandline.changelog.errors import InvalidRecord, InvalidRequest
from strandline.framework.context import ClockName
from strandline.statestore.store import PartitionStore

TimerKey = tuple[str, bytes]

_STREAM_TIME: TimerKey = ("", b"")


class DueTimer(NamedTuple):
    """A timer whose time has come."""

    clock: ClockName
    packed: bytes
    at: int
    name: Any


class Timers:
    """The timers of one task instance."""

    def __init__(self, store: PartitionStore[TimerKey, int]) -> None:
        self._store = store
        self._heaps: dict[str, list[tuple[int, bytes]]] = {"stream": [], "wall": []}

    def set(self, name: Any, at: int, clock: ClockName) -> None:
        """See `framework.context.set_timer`."""
        key = _key(name, clock)
        self._store.put(key, at)
        heapq.heappush(self._heaps[clock], (at, key[1]))

    def cancel(self, name: Any, clock: ClockName) -> None:
        """Take back a timer."""
        self._store.delete(_key(name, clock))

    def next_at(self, clock: ClockName) -> int | None:
        """When the next timer of that clock fires, in ms."""
        heap = self._heaps[clock]
        while heap:
            at, packed = heap[0]
            if self._store.get((clock, packed), None) == at:
                return at
            heapq.heappop(heap)
        return None

    def next_due(self, clock: ClockName, now: int) -> DueTimer | None:
        """The earliest timer due by `now`."""
        at = self.next_at(clock)
        if at is None or at > now:
            return None
        packed = self._heaps[clock][0][1]
        return DueTimer(clock, packed, at, _tuples(msgspec.msgpack.decode(packed)))

    def take(self, due: DueTimer) -> None:
        """Remove a timer that is about to fire."""
        self._store.delete((due.clock, due.packed))

    def keep_stream_time(self, time: int) -> None:
        """Let the stream time be part of the next commit."""
        if self._store.get(_STREAM_TIME, -1) != time:
            self._store.put(_STREAM_TIME, time)

    def rebuild(self) -> int:
        """Forget what was not committed; return the committed stream time."""
        for heap in self._heaps.values():
            heap.clear()
        for (clock, packed), at in self._store.all():
            if clock:
                self._heaps[clock].append((at, packed))
        for heap in self._heaps.values():
            heapq.heapify(heap)
        return int(self._store.get(_STREAM_TIME, -1))


def _key(name: Any, clock: ClockName) -> TimerKey:
    if clock not in ("stream", "wall"):
        raise InvalidRequest(f"a timer's clock is 'stream' or 'wall', got {clock!r}")
    try:
        packed = msgspec.msgpack.encode(name)
        check_msgpack(packed)
        return clock, packed
    except RecursionError as error:
        raise InvalidRecord(f"the name of a timer: {error}") from error
    except (TypeError, msgspec.MsgspecError, OverflowError) as error:
        raise InvalidRecord(f"{name!r} cannot name a timer: {error}") from error


def _tuples(name: Any) -> Any:
    """MessagePack gives lists back for tuples."""
    return tuple(map(_tuples, name)) if isinstance(name, list) else name
