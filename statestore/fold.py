"""The last value of each key of a changelog, for checks: in memory, or on disk where that is too much."""

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
from strandline.statestore.restore import ArrowColumn

FOLD_BYTES = 64 << 20
"""Of keys and values that a fold keeps in memory, and that are sorted at once."""

MOVED_AT_ONCE = 100_000


class LatestValues:
    """The last value of each key, by ascending keys; on disk once it is too much for memory."""

    def __init__(self, most: int, closing: ExitStack) -> None:
        self._most = most
        self._closing = closing
        self._engine: Engine = MemoryEngine()
        self._held = 0
        self._last: Batch | None = None

    def add(self, batches: Iterator[Batch], position: StorePosition) -> None:
        """Fold all of them."""
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
        """The record just before `offset`, if there is one; its value is compared with all others."""
        last = self._last
        if last is None or not last.base_offset <= offset - 1 <= last.last_offset:
            return None
        return LastRecord(offset - 1, last.leader_epoch)

    def entries(self) -> Iterator[Entry]:
        """What is left of it all."""
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
        while chunk := list(islice(held, MOVED_AT_ONCE)):
            keys, values = zip(*chunk, strict=True)
            self._engine.write(keys, values, position)
