"""The last value of each key of a changelog, for checks; kept in memory, or on disk if large."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice

import pyarrow as pa

from strandline.changelog.errors import CorruptLog
from strandline.changelog.records import Batch
from strandline.statestore.engine import Engine, Entry, StorePosition
from strandline.statestore.engines.memory import MemoryEngine
from strandline.statestore.engines.rocksdb import RocksEngine
from strandline.statestore.last_record import LastRecord
from strandline.statestore.latest import latest_per_key
from strandline.statestore.ordered import FIRST_KEY
from strandline.statestore.replay import ArrowColumn

FOLD_BYTES = 64 << 20
"""Maximum bytes of keys and values that a fold keeps in memory, and sorts at a time."""

MOVED_ENTRIES = 100_000
"""Number of entries that are moved from memory to disk at a time."""


class LatestValues:
    """The last value of each key, by ascending keys; on disk once it exceeds the memory limit."""

    def __init__(self, most: int, closing: ExitStack) -> None:
        self._most = most
        self._closing = closing
        self._engine: Engine = MemoryEngine()
        self._held = 0
        self._last: Batch | None = None

    def add(self, batches: Iterator[Batch], position: StorePosition) -> None:
        """Fold the batches, which end at `position`."""
        waiting: list[Batch] = []
        size = 0
        for batch in batches:
            waiting.append(batch)
            size += batch.columns.nbytes
            if size >= self._most:
                self._write(waiting, position)
                waiting, size = [], 0
        self._write(waiting, position)

    def last_before(self, offset: int) -> LastRecord | None:
        """Return the record just before `offset`; None if the last batch does not contain it.

        Its value is not looked up, because the check compares all values anyway.
        """
        last = self._last
        if last is None or not last.base_offset <= offset - 1 <= last.last_offset:
            return None
        return LastRecord(offset - 1, last.leader_epoch)

    def entries(self) -> Iterator[Entry]:
        """Return the entries that are left after folding, in the order of their keys."""
        return self._engine.scan(FIRST_KEY, None, reverse=False)

    def _write(self, batches: list[Batch], position: StorePosition) -> None:
        if not batches:
            return
        self._last = batches[-1]
        keys = pa.concat_arrays([batch.columns.column("key") for batch in batches])
        if keys.null_count:
            raise CorruptLog("its changelog has records without a key; something else writes to it")
        values = pa.concat_arrays([batch.columns.column("value") for batch in batches])
        self._held += keys.nbytes + values.nbytes
        if self._held > self._most and isinstance(self._engine, MemoryEngine):
            self._move_to_disk(position)
        names, latest = latest_per_key(keys, values)
        self._engine.write(ArrowColumn[bytes](names), ArrowColumn[bytes | None](latest), position)

    def _move_to_disk(self, position: StorePosition) -> None:
        held = self.entries()
        folder = self._closing.enter_context(tempfile.TemporaryDirectory(prefix="strandline-"))
        self._engine = RocksEngine(folder)
        self._closing.callback(self._engine.close)
        while chunk := list(islice(held, MOVED_ENTRIES)):
            keys, values = zip(*chunk, strict=True)
            self._engine.write(keys, values, position)
