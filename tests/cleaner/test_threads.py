"""Threads on a folder on disk while the log is cleaned again and again: readers miss nothing.

A ledger keeps all committed records. A reader must get them once and in order. A record may be
missing only for a reason that the log had published when the reader fetched: a later record of the
key below `superseding_end`, or an expired tombstone below `purged_end`.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from strandline.changelog.broker import Broker
from strandline.changelog.clock import SystemClock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.flight.client import FlightBroker
from strandline.changelog.flight.connection_target import ConnectionTarget
from strandline.changelog.flight.server import FlightEndpoint
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.records import Append, PartitionOffsets, ProducerIdentity, TopicPartition
from strandline.statestore import StoreSpec, open_store
from tests.cleaning import little_memory
from tests.forms import by_form
from tests.log.test_threads import Crew

T0, T1 = PARTITIONS = TopicPartition("t", 0), TopicPartition("t", 1)
ROUNDS = by_form(20, 60)
BOUND = 60.0
KEYS = 12
"""Number of keys per writer. Writers do not share keys."""
TOKEN = "a token of the tests"


@dataclass
class Ledger:
    """Committed records of a partition."""

    records: dict[int, tuple[bytes, bytes | None]] = field(default_factory=dict)

    def state(self) -> dict[bytes, bytes]:
        """Return the state after all records."""
        state = {key: value for _, (key, value) in sorted(self.records.items())}
        return {key: value for key, value in state.items() if value is not None}

    def following(self) -> dict[int, int]:
        """Return the offset of the next record of the same key, by offset."""
        last, following = dict[bytes, int](), dict[int, int]()
        for offset, (key, _) in sorted(self.records.items()):
            if key in last:
                following[last[key]] = offset
            last[key] = offset
        return following


@dataclass
class Fetch:
    """Range of offsets that a reader fetched at once, the records received, and the ends right
    after."""

    start: int
    end: int
    got: dict[int, tuple[bytes, bytes | None]]
    ends: PartitionOffsets


class Reader:
    """Reads a partition continuously, and notes the records received."""

    def __init__(self, broker: Broker, tp: TopicPartition, max_bytes: int) -> None:
        self.broker, self.tp, self.max_bytes = broker, tp, max_bytes
        self.position = 0
        self.fetches: list[Fetch] = []

    def turn(self) -> None:
        start = self.position
        fetched = self.broker.fetch({self.tp: start}, max_bytes=self.max_bytes, timeout=0.02)[
            self.tp
        ]
        self.position = fetched.next_offset
        records = [r for batch in fetched.batches for r in batch.records()]
        offsets = [r.offset for r in records]
        assert offsets == sorted(set(offsets))
        assert all(start <= offset < self.position for offset in offsets)
        if self.position > start:
            got = {r.offset: (r.key or b"", r.value) for r in records}
            ends = self.broker.offsets([self.tp])[self.tp]
            self.fetches.append(Fetch(start, self.position, got, ends))

    def again_from_the_start(self) -> None:
        """Read once more from the start, up to the log's end at the beginning of this reading."""
        end = self.broker.offsets([self.tp])[self.tp].last_stable_offset
        self.position = 0
        while self.position < end:
            self.turn()

    def check(self, ledger: Ledger) -> None:
        """Check that no record is torn, repeated, or missing without a reason."""
        offsets, following = sorted(ledger.records), ledger.following()
        for fetch in self.fetches:
            for offset, record in fetch.got.items():
                assert ledger.records[offset] == record
            for offset in offsets[
                bisect_left(offsets, fetch.start) : bisect_left(offsets, fetch.end)
            ]:
                if offset not in fetch.got:
                    purged = ledger.records[offset][1] is None and offset < fetch.ends.purged_end
                    assert purged or following[offset] < fetch.ends.superseding_end

    def state(self) -> dict[bytes, bytes]:
        """Return the state after the last reading from the start."""
        first = max(n for n, fetch in enumerate(self.fetches) if fetch.start == 0)
        state: dict[bytes, bytes | None] = {}
        for fetch in self.fetches[first:]:
            state.update(fetch.got[offset] for offset in sorted(fetch.got))
        return {key: value for key, value in state.items() if value is not None}


def key_of(writer: str, number: int) -> bytes:
    return f"{writer}-{number}".encode()


class Writer:
    """A producer with keys of its own. With a name it uses transactions, and aborts some of
    them."""

    def __init__(self, owner: Owner, ledgers: dict[TopicPartition, Ledger], name: str, seed: int):
        self.owner, self.ledgers, self.name, self.seed = owner, ledgers, name, seed
        self.transactional = name.startswith("tx")
        self.producer: ProducerIdentity = owner.init_producer(name if self.transactional else None)
        self.sequences: dict[TopicPartition, int] = {}
        self.count = 0

    def work(self) -> None:
        chance = Random(self.seed)
        for _ in range(ROUNDS):
            if not self.transactional:
                self._append(chance, chance.choice(PARTITIONS), committed=True)
                continue
            committed = chance.random() < 0.7
            for tp in chance.sample(PARTITIONS, chance.randint(1, 2)):
                self._append(chance, tp, committed=committed)
            self.producer = self.owner.end_transaction(self.producer, commit=committed)
            self.sequences = {}

    def _append(self, chance: Random, tp: TopicPartition, *, committed: bool) -> None:
        size = chance.choice([1, 3, 40])
        keys = [key_of(self.name, chance.randrange(KEYS)) for _ in range(size)]
        values = [self._value(chance) for _ in range(size)]
        now = SystemClock().now_ms()
        columns = pa.record_batch(
            {
                "timestamp": pa.array([now] * size, pa.int64()),
                "key": pa.array(keys, pa.binary()),
                "value": pa.array(values, pa.binary()),
            }
        )
        sequence = self.sequences.get(tp, 0)
        self.sequences[tp] = sequence + size
        request = Append(*tp, columns, self.producer, sequence, self.transactional)
        base = self.owner.append([request])[0].base_offset
        if committed:
            records = zip(keys, values, strict=True)
            self.ledgers[tp].records.update((base + n, one) for n, one in enumerate(records))

    def _value(self, chance: Random) -> bytes | None:
        self.count += 1
        return None if chance.random() < 0.15 else b"%d" % self.count + bytes(chance.randrange(60))


@pytest.fixture(params=[1 << 24, 1000], ids=["in memory", "spilling"])
def owner(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Owner]:
    """A log that is cleaned all the time, and deletes replaced segments at once."""
    with little_memory(request.param):
        yield from _owner(tmp_path)


def _owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(LocalStorage(tmp_path / "log"))
    owner.alter_config({"log.cleaner.backoff.ms": "1", "log.cleaner.threads": "2"})
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": "4096",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "50",
        "file.delete.delay.ms": "0",
    }
    owner.create_topic("t", len(PARTITIONS), config=config)
    yield owner
    owner.close()


@contextmanager
def attached(owner: Owner, folder: Path) -> Iterator[FlightBroker]:
    """Attach to the owner: this broker reads the files itself, while the owner removes some."""
    location = f"grpc+unix://{folder}/s"
    endpoint = FlightEndpoint(owner, location, token=TOKEN, locate=owner.locate)
    target = ConnectionTarget(location, TOKEN, "the test's log")
    broker = FlightBroker(replace(target, folder=folder / "log"), deadline=20)
    try:
        yield broker
    finally:
        broker.close()
        endpoint.close()


class Cleaning:
    """Requests cleaning continuously, and removes replaced segments at once."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self._turn = threading.Lock()

    def turn(self) -> None:
        with self._turn:
            self.owner.clean()
        self.owner.tick()
        statuses = self.owner.cleaning()
        assert not [status.reason for status in statuses if status.reason]

    def finish(self) -> None:
        """Return when the topic is clean."""
        until = time.monotonic() + BOUND
        while time.monotonic() < until:
            self.turn()
            left = [
                s
                for s in self.owner.cleaning()
                if s.topic == "t" and (s.dirty_bytes or s.state != "idle")
            ]
            if not left:
                return
        pytest.fail(f"cleaning does not come to an end: {left}")


def test_readers_miss_and_repeat_nothing_while_the_log_is_cleaned(
    owner: Owner, tmp_path: Path
) -> None:
    ledgers = {tp: Ledger() for tp in PARTITIONS}
    writers = [Writer(owner, ledgers, name, n) for n, name in enumerate(["a", "b", "tx-c", "tx-d"])]
    cleaning, crew = Cleaning(owner), Crew()
    with attached(owner, tmp_path) as beside:
        tailing = [Reader(broker, tp, 2_000) for tp in PARTITIONS for broker in (owner, beside)]
        whole = [Reader(broker, tp, 1 << 20) for tp in PARTITIONS for broker in (owner, beside)]
        for writer in writers:
            crew.works(writer.work)
        crew.repeat(cleaning.turn)
        for reader in tailing:
            crew.repeat(reader.turn)
        for reader in whole:
            crew.repeat(reader.again_from_the_start)
        crew.run()
        cleaning.finish()
        for reader in [*tailing, *whole]:
            reader.again_from_the_start()
            reader.check(ledgers[reader.tp])
            assert reader.state() == ledgers[reader.tp].state()
    ends = owner.offsets(PARTITIONS)
    assert all(0 < ends[tp].purged_end <= ends[tp].clean_end for tp in PARTITIONS)


def test_a_store_restored_while_its_changelog_is_cleaned_has_the_committed_state(
    owner: Owner, tmp_path: Path
) -> None:
    ledgers = {tp: Ledger() for tp in PARTITIONS}
    writers = [Writer(owner, ledgers, name, n) for n, name in enumerate(["a", "tx-b"])]
    cleaning, crew = Cleaning(owner), Crew()
    spec: StoreSpec[bytes, bytes] = StoreSpec("s", engine="memory")
    kept = open_store(spec, None)
    late = count(1)

    def restore() -> None:
        fresh = open_store(spec, None)
        fresh.restore(owner, T0)
        fresh.close()
        if next(late) % 20 == 0:  # expired tombstones that it has not seen are removed by then
            kept.restore(owner, T0)

    for writer in writers:
        crew.works(writer.work)
    crew.repeat(cleaning.turn)
    crew.repeat(restore)
    crew.run()
    cleaning.finish()
    fresh = open_store(spec, None)
    for store in (kept, fresh):
        store.restore(owner, T0)
        keys = [key_of(writer.name, n) for writer in writers for n in range(KEYS)]
        found = zip(keys, store._committed.get_many(keys), strict=True)
        assert {k: v for k, v in found if v is not None} == ledgers[T0].state()
        store.close()
