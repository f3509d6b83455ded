"""The committed state of a store: what its changelog holds, wherever it is by now.

A committed change waits in memory until a checkpoint moves it to the engine: first in the
batch it was committed with, then folded with many others into layers. Reads look through the
layers, then into the engine. A crash loses only what waits, and that the changelog has.

Batches stay loose, as columns, until a scan, a checkpoint or their size asks for folding. Now and
then they are thinned to one batch with the last value of each key: keys that change often then
take little room, however many commits wait. A look-up of one key does not see loose batches: the
store above has all their keys at hand, and calls `fold` before it drops any.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pyarrow as pa

from strandline.changelog.history import UNKNOWN_EPOCH, HistoryEpoch
from strandline.changelog.records import columns_schema
from strandline.statestore.cache import ENTRY_BYTES
from strandline.statestore.counters import StoreCounters
from strandline.statestore.engine import Column, Engine, Entry, StorePosition
from strandline.statestore.gate import UseGate
from strandline.statestore.layers import MISSING, Change, Layer, Layers, look_up, overlaid

THIN_BYTES = 2 << 20
"""How much waits in loose batches before they are thinned for the first time."""
LOOSE_BYTES = 8 << 20
"""How much may wait in them at most."""
THIN_FACTOR = 4
"""They are thinned again when there is so many times as much as was left."""

SortedChanges = tuple[Column[bytes], Column[bytes | None]]
"""Keys in ascending order, each once, and the value of each; None is a deletion."""


@dataclass(frozen=True, slots=True)
class ChangelogBatch:
    """What a commit adds to the changelog: one record for each changed key."""

    keys: pa.Array
    """Encoded keys of the store, each once."""
    values: pa.Array
    """The value of each key; null is a deletion."""

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values, and of what separates them."""
        return int(self.keys.nbytes + self.values.nbytes)

    def columns(self, timestamp: int) -> pa.RecordBatch:
        """The records as the log takes them, all at `timestamp` (ms)."""
        arrays = [
            pa.repeat(pa.scalar(timestamp, pa.int64()), len(self)),
            self.keys,
            self.values,
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=columns_schema(pa.binary(), headers=False))


class Changelogged:
    """Committed changes above an engine.

    One thread applies; `checkpoint` may run on another, and reads on any: `statestore.reader` says
    why. Those of threads that do not know when it is closed go through `gate`.
    """

    def __init__(self, engine: Engine, counters: StoreCounters | None = None) -> None:
        self.engine = engine
        self.counters = counters or StoreCounters()
        self.gate = UseGate()
        self._layers = Layers()
        self._loose: list[ChangelogBatch] = []
        self._loose_bytes = 0
        self._thin_at = THIN_BYTES
        self._position: StorePosition | None = engine.position()
        self._moving: tuple[Layer, StorePosition] | None = None
        self._applying = threading.Lock()
        self._checkpointing = threading.Lock()

    @property
    def position(self) -> StorePosition | None:
        """Up to where of the changelog this state reaches, what waits counted."""
        return self._position

    @property
    def pending_bytes(self) -> int:
        """About how many bytes wait for a checkpoint."""
        return self._layers.nbytes + self._loose_bytes

    def get(self, key: bytes) -> bytes | None:
        """The committed value of a key that no loose batch has."""
        value = self._layers.find(key)
        if value is not MISSING:
            return value
        return None if self.engine.is_empty() else self.engine.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The same for many keys, those of the engine in one call."""
        found = [self._layers.find(key) for key in keys]
        wanted = [key for key, value in zip(keys, found, strict=True) if value is MISSING]
        if not wanted:
            return found
        fetched = iter(self.engine.get_many(wanted))
        return [next(fetched) if value is MISSING else value for value in found]

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The committed values of keys, loose batches included, all of one moment."""
        self.fold()
        if len(keys) == 1:
            return [self.get(keys[0])]
        while True:
            holds, layers = self._layers.holds, self._layers.seal()
            found = [look_up(layers, key) for key in keys]
            wanted = [key for key, value in zip(keys, found, strict=True) if value is MISSING]
            fetched = iter(self.engine.get_many(wanted) if wanted else ())
            if self._layers.holds == holds:  # as in `scan`
                return [next(fetched) if value is MISSING else value for value in found]

    def scan(
        self, above: Iterable[Change], lower: bytes, upper: bytes | None, *, reverse: bool
    ) -> Iterator[Entry]:
        """Entries of [lower, upper) as they are now, with `above` (sorted) on top of them."""
        self.fold()
        while True:
            holds, layers = self._layers.holds, self._layers.seal()
            below: Iterator[Change] = iter(self.engine.scan(lower, upper, reverse=reverse))
            # What a checkpoint writes meanwhile is in the layers, unless it took hold in between: of
            # newer commits, which would show where the layers have nothing, and only there.
            if self._layers.holds == holds:
                break
        streams = [iter(above), *(layer.scan(lower, upper, reverse=reverse) for layer in layers)]
        merged = reduce(
            lambda older, newer: overlaid(newer, older, reverse=reverse), reversed(streams), below
        )
        return ((key, value) for key, value in merged if value is not None)

    def apply(self, batch: ChangelogBatch, position: StorePosition) -> None:
        """Take in what has been committed durably, up to `position`."""
        with self._applying:
            self.counters.changes += len(batch)
            self._loose.append(batch)
            self._loose_bytes += batch.nbytes
            self._position = position
            if self._loose_bytes > self._thin_at:
                self._thin()

    def fold(self) -> None:
        """Let look-ups see everything that was applied."""
        if self._loose:
            with self._applying:
                self._fold()

    def advance(self, position: StorePosition) -> None:
        """The changelog is held up to `position` without any change of this state."""
        with self._applying:
            self._position = position

    def checkpoint(self) -> int:
        """Move all layers to the engine in one atomic write; return how many keys that were.

        The commits it covers must be durable.
        """
        with self._checkpointing:
            moving = self._moving or self._hold()
            if moving is None:
                return 0
            self._moving = moving  # kept if the write fails: layer and position belong together
            layer, position = moving
            with self.counters.checkpoints.timed():
                self.engine.write(layer.index, [layer.data[key] for key in layer.index], position)
            self._moving = None
            self._layers.drop()
            return len(layer.data)

    def refill(self, chunks: Iterable[tuple[SortedChanges, StorePosition]]) -> None:
        """Write sorted chunks of the changelog straight to the engine, at a restore."""
        while self.checkpoint():
            pass  # what waits is older than the chunks, and must not lie above them
        for (keys, values), position in chunks:
            self.engine.write(keys, values, position)
            self._position = position

    def wipe(self) -> None:
        """Forget everything, the engine's content too."""
        self._clear()
        self.engine.wipe()
        self._position = self._moving = None

    def approximate_num_entries(self) -> int:
        """About how many keys there are: changes that wait count as keys."""
        self.fold()
        return self.num_entries_unfolded()

    def num_entries_unfolded(self) -> int:
        """The same without folding: more of them count twice, and it costs nothing to be asked."""
        loose = sum(map(len, self._loose))
        return self.engine.approximate_num_entries() + self._layers.num_changes() + loose

    def close(self) -> None:
        """Let go of the engine; what waits for a checkpoint is left to the changelog."""
        self.gate.shut()  # a reader must not find the engine without what is above it
        self._clear()
        self.engine.close()

    def _thin(self) -> None:
        """Let one batch stand for the loose ones; fold it if too many keys are left."""
        self._set_loose([_latest(self._loose)])
        if self._loose_bytes > LOOSE_BYTES // 2:
            self._fold()

    def _fold(self) -> None:
        # First into the layers, then no more loose: a reader in between finds it twice.
        if self._loose:
            batch = _latest(self._loose)
            nbytes = batch.nbytes + ENTRY_BYTES * len(batch)
            self._layers.add(batch.keys.to_pylist(), batch.values.to_pylist(), nbytes)
            self._set_loose([])

    def _set_loose(self, batches: list[ChangelogBatch]) -> None:
        self._loose = batches
        self._loose_bytes = sum(batch.nbytes for batch in batches)
        self._thin_at = min(max(THIN_BYTES, THIN_FACTOR * self._loose_bytes), LOOSE_BYTES)

    def _clear(self) -> None:
        with self._applying:
            self._set_loose([])
            self._layers.clear()

    def _hold(self) -> tuple[Layer, StorePosition] | None:
        with self._applying:
            self._fold()
            layer = self._layers.hold()
            return None if layer is None or self._position is None else (layer, self._position)


def _latest(batches: Sequence[ChangelogBatch]) -> ChangelogBatch:
    """The last value of each key of several batches."""
    if len(batches) == 1:
        return batches[0]
    keys = pa.concat_arrays([batch.keys for batch in batches]).dictionary_encode()
    values = pa.concat_arrays([batch.values for batch in batches])
    last = np.empty(len(keys.dictionary), np.int64)
    last[keys.indices.to_numpy()] = np.arange(len(keys))  # of equal indices the last one stays
    return ChangelogBatch(keys.dictionary, values.take(pa.array(last)))


def later(
    position: StorePosition, offset: int, leader_epoch: int | None, incarnation: str
) -> StorePosition:
    """Return `position` moved to `offset`, behind what was written in a leader epoch.

    Kafka does not say in which: that is then looked up where the position is used again.
    """
    if leader_epoch is None:
        return replace(position, offset=offset, leader_epoch=UNKNOWN_EPOCH)
    return position.at(offset, HistoryEpoch(leader_epoch, 0, incarnation))
