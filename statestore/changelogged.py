"""The committed state of a store: batches and layers in memory above an engine.

A committed change stays in memory until a checkpoint moves it to the engine. At first it is in the
batch of its commit, later it is folded with other batches into layers. Reads search the layers from
the newest to the oldest, then the engine. A crash loses only the changes in memory, which are in
the changelog.

Batches stay loose, as columns, until a scan, a checkpoint or their size requires folding. From time
to time they are thinned to one batch with the last value of each key, so that keys which change
often use little memory. `get` does not search loose batches: the store above has all their keys in
its cache, and calls `fold` before it drops any of them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.arrays import as_numpy, of_numbers, repeated
from strandline.changelog.history import UNKNOWN_EPOCH, HistoryEpoch
from strandline.changelog.records import columns_schema
from strandline.statestore.cache import ENTRY_BYTES
from strandline.statestore.counters import StoreCounters
from strandline.statestore.engine import Column, Engine, Entry, StorePosition
from strandline.statestore.gate import UseGate
from strandline.statestore.layers import (
    MISSING,
    NOTHING,
    Above,
    Layer,
    Layers,
    look_up_all,
    visible,
)
from strandline.statestore.name_index import SlotArray
from strandline.statestore.ranges import NO_RANGES, DeletedRanges

THIN_BYTES = 2 << 20
"""Bytes of loose batches at which they are thinned for the first time."""
LOOSE_BYTES = 8 << 20
"""Maximum bytes of loose batches, unless the store above keeps more."""
THIN_FACTOR = 4
"""Growth factor since the last thinning at which small loose batches are thinned again."""
LARGE_THIN_FACTOR = 2
"""Growth factor of those above `LOOSE_BYTES`, whose doubles would take too much memory."""

SortedChanges = tuple[Column[bytes], Column[bytes | None]]
"""Ascending distinct keys, and the value of each; None is a deletion."""


@dataclass(frozen=True, slots=True)
class ChangelogBatch:
    """Records that a commit adds to the changelog: one for each changed key."""

    keys: pa.Array
    """Encoded keys of the store, distinct."""
    values: pa.Array
    """Value of each key; null is a deletion."""
    ranges: DeletedRanges = NO_RANGES
    """Ranges in which no other key has a value afterwards."""
    slots: SlotArray | None = None
    """Number of each key, which no other key has in batches that are loose at the same time; None
    if keys have no numbers."""

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values, including their offsets and validity."""
        return int(self.keys.nbytes + self.values.nbytes)

    def columns(self, timestamp: int) -> pa.RecordBatch:
        """Return the records as columns of the log, all with the timestamp `timestamp` (ms)."""
        arrays = [
            repeated(timestamp, len(self)),
            self.keys,
            self.values,
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=columns_schema(pa.binary(), headers=False))


class Changelogged:
    """Committed changes in memory above an engine.

    One thread calls `apply`. `checkpoint` may run on another thread, and reads on any;
    `statestore.reader` explains why that is safe. Threads that do not know when the store is closed
    enter `gate` before they read.
    """

    def __init__(
        self,
        engine: Engine,
        counters: StoreCounters | None = None,
        *,
        loose_bytes: int | None = None,
    ) -> None:
        """Take over an engine.

        Args:
            engine: Engine at its last checkpoint.
            counters: Counters of the store.
            loose_bytes: Maximum bytes of loose batches, by default `LOOSE_BYTES`. More is faster
                for a store that seldom scans; its first scan then takes longer.
        """
        self.engine = engine
        self._most_loose = LOOSE_BYTES if loose_bytes is None else loose_bytes
        self.counters = counters or StoreCounters()
        self.gate = UseGate()
        self._layers = Layers()
        self._loose: list[ChangelogBatch] = []
        self._loose_bytes = 0
        self._thin_at = THIN_BYTES
        self.position: StorePosition | None = engine.position()
        """Changelog position that this state has reached, including the changes in memory."""
        self._moving: tuple[Layer, StorePosition] | None = None
        """Layer that a checkpoint writes, and the position it reaches; kept if the write fails."""
        self._applying = threading.Lock()
        """Guards the loose batches and the position. Held only briefly."""
        self._checkpointing = threading.Lock()
        """Held during a checkpoint. It is taken before `_applying`."""

    @property
    def pending_bytes(self) -> int:
        """Approximate bytes of changes that are not checkpointed."""
        return self._layers.nbytes + self._loose_bytes

    @property
    def finds_nothing(self) -> bool:
        """True if `get` finds no value of any key, so that look-ups can be skipped."""
        return not self._layers and self.engine.is_empty()

    def get(self, key: bytes) -> bytes | None:
        """Return the committed value of a key that is in no loose batch; None if it has none."""
        value = self._layers.find(key)
        if value is not MISSING:
            return value
        return None if self.engine.is_empty() else self.engine.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys as `get` does; the engine reads its keys in one call."""
        found = self._layers.find_all(keys)
        wanted = [key for key, value in zip(keys, found, strict=True) if value is MISSING]
        if not wanted:
            return found
        fetched = iter(self.engine.get_many(wanted))
        return [next(fetched) if value is MISSING else value for value in found]

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the committed values of keys as of one moment, including loose batches."""
        if self._loose:
            self.fold()
        if len(keys) == 1:
            return [self.get(keys[0])]
        while True:
            before, layers = self._layers.hold_count, self._layers.seal()
            found = look_up_all(layers, keys)
            wanted = [key for key, value in zip(keys, found, strict=True) if value is MISSING]
            fetched = iter(self.engine.get_many(wanted) if wanted else ())
            # If a checkpoint has begun in between, newer commits may be in the engine: see `scan`.
            if self._layers.hold_count == before:
                return [next(fetched) if value is MISSING else value for value in found]

    def scan(
        self,
        lower: bytes,
        upper: bytes | None,
        *,
        reverse: bool,
        above: Above = NOTHING,
    ) -> Iterator[Entry]:
        """Return the entries of [lower, upper) as of now, under the changes `above`."""
        self.fold()
        bounds = (lower, upper)
        while True:
            before, layers = self._layers.hold_count, self._layers.seal()
            engine = None if self.engine.is_empty() else self.engine.scan
            found = visible(above, layers, engine, bounds, reverse=reverse)
            # A checkpoint may write to the engine meanwhile. If it began before `seal`, its changes
            # are in the sealed layers. If it began between `seal` and the engine's scan, it may
            # write newer commits, which would be visible for keys without an entry in the layers.
            # In that case the scan starts again.
            if self._layers.hold_count == before:
                return found

    def apply(self, batch: ChangelogBatch, position: StorePosition) -> None:
        """Add the batch of a durable commit, which reaches `position`."""
        with self._applying:
            self.counters.changes += len(batch)
            self._loose.append(batch)
            self._loose_bytes += batch.nbytes
            self.position = position
            if self._loose_bytes > self._thin_at:
                self._thin()

    def fold(self) -> None:
        """Fold loose batches into the layers, where look-ups find them."""
        if self._loose:
            with self._applying:
                self._fold()

    def advance(self, position: StorePosition) -> None:
        """Set the position; the changelog has no further changes for this state before it."""
        with self._applying:
            self.position = position

    def checkpoint(self) -> int:
        """Move all layers to the engine in one atomic write; return the number of changes.

        The commits that it covers must be durable.
        """
        with self._checkpointing:
            moving = self._moving or self._hold()
            if moving is None:
                return 0
            # Kept if the write fails: the next attempt must write this layer with this position.
            self._moving = moving
            layer, position = moving
            with self.counters.checkpoints.timed():
                keys, values = layer.sorted_changes()
                self.engine.write(keys, values, position, layer.ranges)
            self._moving = None
            self._layers.drop()
            return len(layer)

    def refill(self, chunks: Iterable[tuple[SortedChanges, StorePosition]]) -> None:
        """Write sorted chunks of the changelog directly to the engine, during a restore."""
        while self.checkpoint():
            pass  # changes in memory are older than the chunks, so they must not stay above them
        for (keys, values), position in chunks:
            try:
                self.engine.write(keys, values, position)
            finally:
                self.position = self.engine.position()

    def wipe(self) -> None:
        """Delete all entries and the position, in memory and in the engine."""
        self._clear()
        self.engine.wipe()
        self.position = self._moving = None

    def approximate_num_entries(self) -> int:
        """Return the approximate number of keys; changes in memory count as further keys."""
        self.fold()
        return self.num_entries_unfolded()

    def num_entries_unfolded(self) -> int:
        """Return the approximate number of keys without folding: less exact, but cheap."""
        loose = sum(map(len, self._loose))
        return self.engine.approximate_num_entries() + self._layers.num_changes() + loose

    def close(self) -> None:
        """Close the engine and drop the changes in memory, which are in the changelog."""
        self.gate.shut()  # first, so that no reader sees the engine without the layers above it
        self._clear()
        self.engine.close()

    def _thin(self) -> None:
        """Merge the loose batches into one with the last value of each key; fold it if large."""
        self._set_loose([_latest(self._loose)])
        if self._loose_bytes > self._most_loose // 2:
            self._fold()

    def _fold(self) -> None:
        # Added to the layers before they leave the loose batches. A reader in between finds the
        # changes twice; in the other order it could miss them.
        if self._loose:
            batch = _latest(self._loose)
            nbytes = batch.nbytes + ENTRY_BYTES * len(batch)
            keys, values = batch.keys.to_pylist(), batch.values.to_pylist()
            self._layers.add(keys, values, nbytes, batch.ranges)
            self._set_loose([])

    def _set_loose(self, batches: list[ChangelogBatch]) -> None:
        self._loose = batches
        self._loose_bytes = sum(batch.nbytes for batch in batches)
        small = min(max(THIN_BYTES, THIN_FACTOR * self._loose_bytes), LOOSE_BYTES)
        self._thin_at = min(max(small, LARGE_THIN_FACTOR * self._loose_bytes), self._most_loose)

    def _clear(self) -> None:
        with self._applying:
            self._set_loose([])
            self._layers.clear()

    def _hold(self) -> tuple[Layer, StorePosition] | None:
        """Return all changes as one sealed layer, with the position that it reaches."""
        with self._applying:
            batch = _latest(self._loose) if self._loose else None
            if batch is None or batch.ranges or self._layers:
                self._fold()
            else:
                self._layers.hold_as(_sorted_layer(batch))
                self._set_loose([])
            layer = self._layers.hold()
            return None if layer is None or self.position is None else (layer, self.position)


def _latest(batches: Sequence[ChangelogBatch]) -> ChangelogBatch:
    """Return the last value of each key of several batches."""
    if len(batches) == 1:
        return batches[0]
    keys = pa.concat_arrays([batch.keys for batch in batches])
    values = pa.concat_arrays([batch.values for batch in batches])
    ranges = reduce(or_, (batch.ranges for batch in batches))
    numbered = [batch.slots for batch in batches if batch.slots is not None]
    if len(numbered) < len(batches):
        last = of_numbers(_last_places(as_numpy(keys.dictionary_encode().indices)))
        return ChangelogBatch(keys.take(last), values.take(last), ranges)
    slots = np.concatenate(numbered)
    places = _last_places(slots)
    last = of_numbers(places)
    return ChangelogBatch(keys.take(last), values.take(last), ranges, slots[places])


def _last_places(numbers: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the last place of each number, in ascending order.

    >>> _last_places(np.array([7, 2, 7, 5])).tolist()
    [1, 2, 3]
    """
    places = np.arange(len(numbers))
    # Only the elements that are assigned are read, so that the size of the array costs no time.
    last = np.empty(int(numbers.max(initial=-1)) + 1, np.int64)
    # NumPy assigns in order, so of equal numbers the last place remains.
    last[numbers] = places
    return np.flatnonzero(last[numbers] == places)


def _sorted_layer(batch: ChangelogBatch) -> Layer:
    """Return the changes of a batch without ranges as a layer."""
    order = pc.sort_indices(batch.keys)
    keys, values = batch.keys.take(order).to_pylist(), batch.values.take(order).to_pylist()
    return Layer.of_sorted(keys, values, batch.nbytes)


def later(
    position: StorePosition, offset: int, leader_epoch: int | None, incarnation: str
) -> StorePosition:
    """Return `position` moved to `offset`, the end of records written in a leader epoch.

    Kafka does not report that epoch (None): it is looked up when the position is used again.
    """
    if leader_epoch is None:
        return replace(position, offset=offset, leader_epoch=UNKNOWN_EPOCH)
    return position.at(offset, HistoryEpoch(leader_epoch, 0, incarnation))
