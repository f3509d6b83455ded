"""Reads of a store partition's committed state on any thread, while its task runs.

These are the reasons why that is safe:

- Uncommitted changes are not visible: reads begin at `Changelogged`, which gets a commit's changes
  only after the transaction is durable, and all of them in one batch.
- One key: loose batches are folded first, so everything applied before the call is visible. A
  change is added to the next place before it leaves the previous one (loose → layers → engine).
  A reader searches in the same order, so it finds each change at least once, and never an older
  one instead.
- Several keys, and scans: the layers are sealed, which fixes one moment, and the engine is read as
  of then. A checkpoint may write to the engine meanwhile. If it began before the sealing, the
  sealed layers contain its changes, so the result is the same. If it began in between, it may write
  newer commits, and the reader starts again (`Changelogged.scan`).
- Closing: the thread that closes the store shuts a gate, which admits no further readers and waits
  for those inside. So no reader sees an engine without its layers, and none keeps files open.

A reader never waits for a checkpoint. It shares one short lock with commits, to fold loose batches,
which the next checkpoint would have to do anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from strandline.statestore.changelogged import Changelogged
from strandline.statestore.engine import Entry, StorePosition
from strandline.statestore.gate import UseGate
from strandline.statestore.ordered import FIRST_KEY
from strandline.statestore.values import ValueCodec

PAGE_ENTRIES = 1_000
"""Maximum number of entries in a page."""
PAGE_BYTES = 1 << 20
"""Bytes of keys and values at which a page ends."""
READ_FACTOR = 10
"""Factor by which a page may read more entries than it returns, if some have expired."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Range [lower, upper) of encoded keys, and the end from which it is read."""

    lower: bytes = FIRST_KEY
    """First key."""
    upper: bytes | None = None
    """End of the range (exclusive); None for no limit."""
    reverse: bool = False
    """True to read the last key first."""

    def after_key(self, key: bytes) -> KeyRange:
        """Return the part of the range that is read after `key`."""
        if self.reverse:
            return KeyRange(self.lower, key, reverse=True)
        return KeyRange(key + b"\x00", self.upper)


class FoundValues(NamedTuple):
    """Values of some keys as of one moment."""

    values: list[bytes | None]
    """Encoded value of each key; None if it has none."""
    position: StorePosition | None
    """Changelog position that bounds the values: none of them is of a later commit."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some entries of a scan, all as of one moment."""

    entries: list[Entry]
    """Encoded keys and values."""
    rest: KeyRange | None
    """Range of the next page; None if this is the last one."""
    position: StorePosition | None
    """Changelog position that bounds the entries: none of them is of a later commit."""


class CommittedReader:
    """Reads the committed state of one partition as encoded keys and values. Thread-safe.

    The methods that enter the gate return None once the store is closed. All methods raise the
    engine's errors.
    """

    __slots__ = ("_committed", "_gate", "_values")

    def __init__(self, committed: Changelogged, values: ValueCodec) -> None:
        self._committed = committed
        self._values = values
        self._gate: UseGate = committed.gate

    @property
    def position(self) -> StorePosition | None:
        """Return the changelog position up to which a read that begins now sees everything."""
        return self._committed.position

    def get_many(self, keys: Sequence[bytes]) -> FoundValues | None:
        """Return the values of keys as of one moment; None if the store is closed."""
        if not self._gate.enter():
            return None
        try:
            found = self._committed.read(keys)
            values = [None if data is None else self._values.body(data) for data in found]
            return FoundValues(values, self._committed.position)
        finally:
            self._gate.leave()

    def page(self, bounds: KeyRange, limit: int = PAGE_ENTRIES) -> Page | None:
        """Return the first entries of `bounds`: at most `limit` and about PAGE_BYTES.

        None if the store is closed.
        """
        if not self._gate.enter():
            return None
        try:
            return self._page(bounds, min(limit, PAGE_ENTRIES))
        finally:
            self._gate.leave()

    def stored(self, after: bytes | None = None) -> Iterator[Entry]:
        """Return the stored entries after the key `after`, as of one moment.

        The gate is not entered, so the caller must keep the store open meanwhile.
        """
        first = FIRST_KEY if after is None else after + b"\x00"
        return self._committed.scan(first, None, reverse=False)

    def approximate_num_entries(self) -> int | None:
        """Return the approximate number of keys; each pending change counts as one more key."""
        if not self._gate.enter():
            return None
        try:
            return self._committed.approximate_num_entries()
        finally:
            self._gate.leave()

    def _page(self, bounds: KeyRange, limit: int) -> Page:
        entries: list[Entry] = []
        nbytes = 0
        scan = self._committed.scan(bounds.lower, bounds.upper, reverse=bounds.reverse)
        for looked, (key, data) in enumerate(scan, 1):
            value = self._values.body(data)
            if value is not None:
                entries.append((key, value))
                nbytes += len(key) + len(value)
            is_full = len(entries) >= limit or nbytes >= PAGE_BYTES
            if is_full or looked >= READ_FACTOR * limit or self._gate.is_shut:
                return Page(entries, bounds.after_key(key), self._committed.position)
        return Page(entries, None, self._committed.position)
