"""The committed state of one partition of a store, read on any thread, beside the task at work.

Why that is safe, layer by layer:

- Nothing uncommitted is looked at: a reader begins at `Changelogged`, which gets a commit's
  changes only after the transaction is durable, and all of them in one batch.
- One key: loose batches are folded first, so what was applied before the call is seen. A change
  goes into each place before it leaves the one above it (loose → layers → engine), and a reader
  looks from the top down, so it meets a change at least once and never an older one instead.
- Several keys, and scans: the layers are sealed, which makes them one moment, and the engine is
  read as it is then. A checkpoint may write below in the meantime. What it writes is what it held
  when it began, which sealed layers contain, so it changes nothing for this reader, unless it began
  in between and held newer commits: then the reader begins again (`Changelogged.scan`).
- The end: whoever closes the store shuts a gate, which waits for the readers inside and lets
  no more in. So no reader meets an engine without its layers, and none keeps the engine's files.

A reader never waits for a checkpoint. It shares one short lock with a commit: to fold what is
loose, which costs what the next checkpoint would have to do anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from strandline.statestore.changelogged import Changelogged
from strandline.statestore.engine import Entry, StorePosition
from strandline.statestore.gate import UseGate
from strandline.statestore.ordered import FIRST_KEY
from strandline.statestore.values import ValueCodec

PAGE_ENTRIES = 1_000
PAGE_BYTES = 1 << 20
LOOKED_AT = 10
"""A page ends when it has passed over so many times as many entries as it may have: expired ones."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Which keys: those of [lower, upper) as they are encoded, from which end."""

    lower: bytes = FIRST_KEY
    upper: bytes | None = None
    """None is no limit."""
    reverse: bool = False

    def behind(self, key: bytes) -> KeyRange:
        """What is left behind `key`."""
        if self.reverse:
            return KeyRange(self.lower, key, reverse=True)
        return KeyRange(key + b"\x00", self.upper)


@dataclass(frozen=True, slots=True)
class FoundValues:
    """What some keys have."""

    values: list[bytes | None]
    position: StorePosition | None
    """Of the changelog: nothing behind it was seen."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some entries of a scan, all of one moment."""

    entries: list[Entry]
    rest: KeyRange | None
    """Where it goes on; None if that was all."""
    position: StorePosition | None
    """Of the changelog: nothing behind it was seen."""


class CommittedReader:
    """Reads one partition's committed state. Thread-safe. Keys and values are as they are stored.

    All of it gives None once the store is closed; it raises what the engine does.
    """

    __slots__ = ("_committed", "_gate", "_values")

    def __init__(self, committed: Changelogged, values: ValueCodec) -> None:
        self._committed = committed
        self._values = values
        self._gate: UseGate = committed.gate

    def position(self) -> StorePosition | None:
        """Up to where of the changelog a read that begins now sees everything."""
        return self._committed.position

    def get_many(self, keys: Sequence[bytes]) -> FoundValues | None:
        """The values of keys, all of one moment."""
        if not self._gate.enter():
            return None
        try:
            found = self._committed.read(keys)
            values = [None if data is None else self._values.body(data) for data in found]
            return FoundValues(values, self._committed.position)
        finally:
            self._gate.leave()

    def page(self, bounds: KeyRange, limit: int = PAGE_ENTRIES) -> Page | None:
        """The first entries of `bounds`: at most `limit`, and about PAGE_BYTES."""
        if not self._gate.enter():
            return None
        try:
            return self._page(bounds, min(limit, PAGE_ENTRIES))
        finally:
            self._gate.leave()

    def stored(self, after: bytes | None = None) -> Iterator[Entry]:
        """Return the entries behind the key `after` as they are stored, of one moment.

        For whoever keeps the store open meanwhile: the gate is not asked.
        """
        first = FIRST_KEY if after is None else after + b"\x00"
        return self._committed.scan((), first, None, reverse=False)

    def approximate_num_entries(self) -> int | None:
        """About how many keys there are; each change that waits counts as one."""
        if not self._gate.enter():
            return None
        try:
            return self._committed.approximate_num_entries()
        finally:
            self._gate.leave()

    def _page(self, bounds: KeyRange, limit: int) -> Page:
        entries: list[Entry] = []
        nbytes = 0
        scan = self._committed.scan((), bounds.lower, bounds.upper, reverse=bounds.reverse)
        for looked, (key, data) in enumerate(scan, 1):
            value = self._values.body(data)
            if value is not None:
                entries.append((key, value))
                nbytes += len(key) + len(value)
            is_full = len(entries) >= limit or nbytes >= PAGE_BYTES
            if is_full or looked >= LOOKED_AT * limit or self._gate.is_shut:
                return Page(entries, bounds.behind(key), self._committed.position)
        return Page(entries, None, self._committed.position)
