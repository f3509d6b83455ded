"""A stateful task with two stores and timers on the storage twin, and its expected results.

It counts each word, remembers its last value, and sends the count. Some words delete the last
values of a range of keys. QUIET_MS of stream time after
the last record of a word a timer sends the count once more. A timer by the wall clock sends once
for each word. `fold` computes stores and outputs if each record counts exactly once.

RocksDB does its own I/O, so here the stores' engines keep their content in the twin: a checkpoint
and a restore are written, synced and renamed there, and can be stopped anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec

import strandline as sl
from strandline.changelog import storage
from strandline.changelog.clock import Clock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.layout import STATE
from strandline.changelog.records import TopicPartition
from strandline.changelog.storage import Storage
from strandline.framework.container.folders import StoreFolders
from strandline.framework.container.running import worker_on
from strandline.framework.options import Options
from strandline.statestore.column_store import open_column_store
from strandline.statestore.committing import CommittingStore
from strandline.statestore.engine import Column, Entry, StorePosition
from strandline.statestore.ranges import NO_RANGES, DeletedRanges
from strandline.statestore.spec import StoreLimits, StoreSpec
from strandline.statestore.store import open_store
from strandline.statestore.values import Expiry
from tests.crash.oracle import check, records
from tests.crash.twin import read_all
from tests.log.kit import START_MS

APP = "tally"
WORDS = (TopicPartition("words", 0), TopicPartition("words", 1))
OUT = (TopicPartition("out", 0), TopicPartition("out", 1))
QUIET_MS = 25
FORGETS = 4
"""A word whose value is a multiple of this deletes the last values of the keys before its own."""
WALL_MS = START_MS + 1_000
CHECKPOINT_MS = 2_000
FOREVER_MS = 1 << 40
SMALL = {"segment.bytes": "4096"}


class Tally(NamedTuple):
    """The app, and its parts."""

    app: sl.App
    out: Any
    seen: Any
    last: Any


def tally(limits: StoreLimits) -> Tally:
    app = sl.App(APP)
    words = app.topic("words", value=int, partitions=2, config=SMALL)
    out = app.topic("out", value=int, partitions=2, config=SMALL)
    seen = app.store("seen", value=int, default=0, limits=limits)
    last = app.store("last", value=int, default=0, limits=limits)

    @app.task(words, stores=[seen, last])
    def count(record: sl.Record[str, int]) -> None:
        n = seen[record.key] = seen[record.key] + 1
        last[record.key] = record.value
        if record.value % FORGETS == 0:
            last.delete_range(None, record.key)
        out.send(record.key, n)
        sl.set_timer(record.key, record.timestamp + QUIET_MS)
        if n == 1:
            sl.set_timer(("wall", record.key), WALL_MS, clock="wall")

    @app.on_timer(count)
    def on_timer(name: Any) -> None:
        if isinstance(name, tuple):
            out.send(f"wall {name[1]}", 1)
        else:
            out.send(f"quiet {name}", seen[name])

    return Tally(app, out, seen, last)


# Expected results ------------------------------------------------------------------------


class Word(NamedTuple):
    """A record of the input."""

    key: str
    value: int
    at_ms: int


@dataclass
class Expected:
    """Stores and outputs after some input."""

    seen: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    sent: dict[str, list[int]] = field(default_factory=dict)
    """Values sent, in order, by key; without the wall clock's timers."""

    def take(self, words: Iterable[Word]) -> None:
        """Process one partition of the input, in order."""
        timers: dict[str, int] = {}
        last: dict[str, int] = {}
        for word in words:
            for key in sorted(timers, key=lambda key: timers[key]):
                if timers[key] <= word.at_ms:
                    self._send(f"quiet {key}", self.seen[key])
                    del timers[key]
            self.seen[word.key] = self.seen.get(word.key, 0) + 1
            last[word.key] = word.value
            if word.value % FORGETS == 0:
                last = {key: value for key, value in last.items() if key >= word.key}
            self._send(word.key, self.seen[word.key])
            timers[word.key] = word.at_ms + QUIET_MS
        self.last |= last

    def _send(self, key: str, value: int) -> None:
        self.sent.setdefault(key, []).append(value)


def fold(inputs: Iterable[Sequence[Word]]) -> Expected:
    """Return the expected stores and outputs for these partitions."""
    expected = Expected()
    for words in inputs:
        expected.take(words)
    return expected


# The task on a log --------------------------------------------------------------------


class SnapshotEngine:
    """Implements `Engine`: all entries and the position in one file, replaced whole."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._folder = folder
        self._path = f"{folder}/snapshot"
        self._entries: dict[bytes, bytes] = {}
        self._position: StorePosition | None = None
        if storage.exists(self._path):
            said, self._entries = msgspec.msgpack.decode(
                read_all(storage, self._path), type=tuple[bytes, dict[bytes, bytes]]
            )
            self._position = StorePosition.from_bytes(said)
        else:
            storage.make_dir(folder)

    def position(self) -> StorePosition | None:
        return self._position

    def is_empty(self) -> bool:
        return self._position is None

    def get(self, key: bytes) -> bytes | None:
        return self._entries.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._entries.get(key) for key in keys]

    def scan(self, lower: bytes, upper: bytes | None, *, reverse: bool) -> Iterator[Entry]:
        keys = [k for k in self._entries if lower <= k and (upper is None or k < upper)]
        return iter([(key, self._entries[key]) for key in sorted(keys, reverse=reverse)])

    def write(
        self,
        keys: Column[bytes],
        values: Column[bytes | None],
        position: StorePosition,
        ranges: DeletedRanges = NO_RANGES,
    ) -> None:
        changes = dict(zip(keys, values, strict=True))
        assert list(changes) == sorted(changes)
        kept = {key: value for key, value in self._entries.items() if key not in ranges}
        merged = {**kept, **changes}
        entries = {key: value for key, value in merged.items() if value is not None}
        content = msgspec.msgpack.encode((position.to_bytes(), entries))
        storage.replace(self._storage, self._path, content)
        self._entries, self._position = entries, position

    def wipe(self) -> None:
        self._storage.unlink(self._path)
        self._storage.sync_dir(self._folder)
        self._entries, self._position = {}, None

    def approximate_num_entries(self) -> int:
        return len(self._entries)

    def disk_bytes(self) -> int:
        return 0

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class TwinFolders(StoreFolders):
    """Opens stores whose engines are in the twin."""

    storage: Storage

    def open(
        self,
        spec: StoreSpec[Any, Any],
        partition: int,
        lock_timeout: float = 0.0,
        expiry: Expiry | None = None,
        *,
        columns: bool = False,
    ) -> CommittingStore[Any, Any]:
        limits = replace(spec.limits, checkpoint_interval_ms=CHECKPOINT_MS)
        spec = replace(spec, limits=limits)
        engine = SnapshotEngine(self.storage, f"{STATE}/{APP}/{spec.name}/{partition}")
        if columns:
            return open_column_store(spec, clock=self.clock, engine=engine, expiry=expiry)
        return open_store(spec, clock=self.clock, engine=engine, expiry=expiry)


class Runner:
    """The task at work on an open log. It raises the log's errors."""

    def __init__(
        self,
        owner: Owner,
        clock: Clock,
        folders: StoreFolders,
        *,
        checkpoint_ms: int = CHECKPOINT_MS,
    ) -> None:
        self.tally = tally(StoreLimits(checkpoint_interval_ms=checkpoint_ms))
        self._owner = owner
        # Commits are called explicitly, and stores are restored one after another.
        options = Options(commit_interval_ms=FOREVER_MS, restore_threads=1)
        self._worker = worker_on(
            owner, self.tally.app.declared, clock, options, folders, alone=True
        )

    def start(self) -> None:
        """Start the worker: fence the previous one, restore the stores."""
        self._worker.start()

    def work(self, wait: float = 0.0) -> None:
        """Handle and commit all input. Wait up to `wait` seconds for the first record."""
        while self._worker.cycle(wait=wait):
            wait = 0.0
        self._worker.commit()

    def abandon(self) -> None:
        self._worker.abandon()

    def judge(self, *, finished: bool) -> None:
        """Compare stores and outputs with those expected for the committed input.

        `finished` means that all input was handled and the timers by the wall clock have fired.
        """
        inputs = [list(self._input(tp, finished=finished)) for tp in WORDS]
        expected = fold(inputs)
        for handle, wanted in ((self.tally.seen, expected.seen), (self.tally.last, expected.last)):
            held = self._held(handle)
            check("state", held == wanted, f"store {handle.name} holds {held}, not {wanted}")
        sent = self._sent()
        for key in expected.seen:
            rung = sent.pop(f"wall {key}", [])
            check(
                "outputs",
                rung == [1] or (rung == [] and not finished),
                f"{key}'s timer fired {rung}",
            )
        check("outputs", sent == expected.sent, f"sent was {sent}, not {expected.sent}")

    def _input(self, tp: TopicPartition, *, finished: bool) -> Iterator[Word]:
        """Yield the records of a partition, up to the committed offset unless `finished`."""
        position = self._owner.committed(APP).get(tp)
        end = position.offset if position is not None else 0
        for record in records(self._owner, tp):
            if finished or record.offset < end:
                yield Word(_text(record.key), number_of(record.value), record.timestamp)

    def _held(self, handle: Any) -> dict[str, int]:
        held: dict[str, int] = {}
        for instance in self._worker.instances:
            store = instance.stores[instance.spec.stores.index(handle)]
            held.update(store.all())
        return held

    def _sent(self) -> dict[str, list[int]]:
        sent: dict[str, list[int]] = {}
        for tp in OUT:
            for record in records(self._owner, tp):
                sent.setdefault(_text(record.key), []).append(number_of(record.value))
        return sent


def _text(key: bytes | None) -> str:
    return (key or b"").decode()


def number_of(value: Any) -> int:
    return int(msgspec.msgpack.decode(value))
