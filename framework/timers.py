"""Timers of one task instance, in a changelogged store, so that they survive crashes and aborts.

The store has one entry per timer, (clock, packed name) -> time in ms, and one for the stream time
under the clock "". The heaps only find the next timer: an entry that the store does not confirm is
out of date and is dropped. Cancelling a timer, or undoing the changes of a failed handler,
therefore need not touch the heaps.
"""

from __future__ import annotations

import heapq
from typing import Any, Literal

import msgspec

from strandline.changelog.decoding import msgpack_value
from strandline.changelog.depth import check_msgpack
from strandline.changelog.errors import InvalidRecord, InvalidRequest
from strandline.statestore.typed_store import TypedStore

ClockName = Literal["stream", "wall"]
"""Clock of a timer: the time of the records, or the wall clock."""
TimerKey = tuple[str, bytes]

LATEST_TIME_MS = 2**63 - 1
"""Latest time of a timer, in ms. As the time of the earliest timer it means that there is none."""
_STREAM_TIME: TimerKey = ("", b"")


class DueTimer(msgspec.Struct, frozen=True, gc=False):
    """A timer whose time has come. A struct, because many are made in the loop over records."""

    key: TimerKey
    at: int
    name: Any

    @property
    def step_name(self) -> str:
        """Description of the timer as a step."""
        return f"timer {self.name!r}"


class Timers:
    """Timers of one task instance."""

    def __init__(self, store: TypedStore[TimerKey, int]) -> None:
        self.store = store
        """Store of the timers: that of the partition, or what a step sees of it."""
        self._heaps: dict[str, list[tuple[int, bytes]]] = {"stream": [], "wall": []}
        self.earliest = LATEST_TIME_MS
        """No timer in stream time fires before this time (ms)."""

    def set(self, name: Any, at: int, clock: ClockName) -> None:
        """Set a timer; see `framework.context.set_timer`."""
        key = _key(name, clock)
        self.store.put_admitted(key, at)
        self._push(clock, at, key[1])

    def cancel(self, name: Any, clock: ClockName) -> None:
        """Cancel a timer, if it exists."""
        self.store.delete_admitted(_key(name, clock))

    def next_at(self, clock: ClockName) -> int | None:
        """Return the time in ms of the next timer of a clock; None if there is none."""
        due = self.next_due(clock, LATEST_TIME_MS)
        return None if due is None else due.at

    def next_due(self, clock: ClockName, now: int) -> DueTimer | None:
        """Return the earliest timer due by `now` (ms), if any."""
        due = self.pop_due(clock, now)
        if due is not None:
            self.put_back(due)
        return due

    def pop_due(self, clock: ClockName, now: int) -> DueTimer | None:
        """Return the earliest timer due by `now` (ms), if any, and stop looking for it.

        Call `take` next, and `put_back` if that is undone.
        """
        heap, store, due = self._heaps[clock], self.store, None
        while heap and heap[0][0] <= now:
            at, packed = heapq.heappop(heap)
            key = (clock, packed)
            held = store.young.get(key)
            if (store.held(key) if held is None else held) == at:
                due = DueTimer(key, at, _tuples(msgpack_value(packed)))
                break
        if clock == "stream":
            self.earliest = heap[0][0] if heap else LATEST_TIME_MS
        return due

    def put_back(self, due: DueTimer) -> None:
        """Look for a timer again that `pop_due` has returned."""
        clock, packed = due.key
        self._push(clock, due.at, packed)

    def take(self, due: DueTimer) -> None:
        """Remove a timer that is about to fire."""
        self.store.delete_admitted(due.key)

    def absorb(self, step: Timers) -> None:
        """Note the timers that a step has set, whose changes were added to the store."""
        for clock, heap in step._heaps.items():
            for at, packed in heap:
                self._push(clock, at, packed)

    def _push(self, clock: str, at: int, packed: bytes) -> None:
        heapq.heappush(self._heaps[clock], (at, packed))
        if clock == "stream" and at < self.earliest:
            self.earliest = at

    def keep_stream_time(self, time: int) -> None:
        """Make the stream time part of the next commit."""
        if self.store.get(_STREAM_TIME, -1) != time:
            self.store.put(_STREAM_TIME, time)

    def rebuild(self) -> int:
        """Rebuild the heaps from the committed timers; return the committed stream time."""
        for heap in self._heaps.values():
            heap.clear()
        for (clock, packed), at in self.store.all():
            if clock:
                self._heaps[clock].append((at, packed))
        for heap in self._heaps.values():
            heapq.heapify(heap)
        self.next_at("stream")
        return int(self.store.get(_STREAM_TIME, -1))


def _key(name: Any, clock: ClockName) -> TimerKey:
    if clock not in ("stream", "wall"):
        raise InvalidRequest(f"a timer's clock is 'stream' or 'wall', got {clock!r}")
    try:
        packed = msgspec.msgpack.encode(name)
        if type(name) not in _FLAT:
            check_msgpack(packed)
        return clock, packed
    except RecursionError as error:
        raise InvalidRecord(f"the name of a timer: {error}") from error
    except (TypeError, msgspec.MsgspecError, OverflowError) as error:
        raise InvalidRecord(f"{name!r} cannot name a timer: {error}") from error


def _tuples(name: Any) -> Any:
    """Return lists as tuples, because MessagePack decodes tuples as lists."""
    return tuple(map(_tuples, name)) if isinstance(name, list) else name


_FLAT = frozenset({str, int, bytes})
"""Types of names that nest nothing."""
