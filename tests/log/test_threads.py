"""Threads on a folder on disk: all kinds of calls at once, and a consistent log at the end."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from strandline.changelog.clock import SystemClock
from strandline.changelog.embedded import maintenance, ticker
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import (
    OffsetOutOfRange,
    ProducerFenced,
    StrandlineError,
    TransactionAborted,
)
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import Isolation, ProducerIdentity, TopicPartition
from tests.log.kit import Client, World

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
PARTITIONS = (T0, T1, U0)
ROUNDS = 150
BOUND = 60.0
"""Seconds after which a thread counts as hung."""


class RealWorld(World):
    """A log in a folder on disk, with the system clock and the owner's own thread."""

    def open(self) -> Owner:
        self.owner = Owner(self.storage)
        return self.owner


class Crew:
    """Worker threads that run to their end, and readers that read until all workers are done."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.errors: list[str] = []
        self._workers: list[threading.Thread] = []
        self._readers: list[threading.Thread] = []

    def works(self, work: Callable[[], object]) -> None:
        self._workers.append(self._thread(work))

    def repeat(self, turn: Callable[[], object]) -> None:
        def turns() -> None:
            while not self.done.is_set():
                turn()

        self._readers.append(self._thread(turns))

    def run(self) -> None:
        """Run all threads. Raises AssertionError if one failed or hangs."""
        for thread in self._workers + self._readers:
            thread.start()
        for thread in self._workers:
            thread.join(BOUND)
        self.done.set()
        for thread in self._readers:
            thread.join(BOUND)
        assert not self.errors, self.errors[0]
        assert not any(thread.is_alive() for thread in self._workers + self._readers)

    def _thread(self, work: Callable[[], object]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException:
                self.errors.append(traceback.format_exc())
                self.done.set()

        return threading.Thread(target=guarded, daemon=True)


class Sums:
    """Records that the writers know to be acknowledged or aborted."""

    def __init__(self) -> None:
        self.acknowledged: dict[tuple[TopicPartition, int], bytes] = {}
        self.aborted: set[bytes] = set()
        self._clock = SystemClock()

    def write(self, client: Client, tp: TopicPartition, value: bytes) -> int:
        now = self._clock.now_ms()
        return client.append(value, topic=tp.topic, partition=tp.partition, times=now).base_offset

    def plain(self, world: World, name: str) -> Callable[[], None]:
        client, chance = Client(world), Random(name)

        def work() -> None:
            for n in range(ROUNDS):
                tp, value = chance.choice((T0, T1)), f"{name}-{n}".encode() + b"." * 300
                self.acknowledged[tp, self.write(client, tp, value)] = value

        return work

    def transactional(self, world: World, name: str) -> Callable[[], None]:
        client, chance = Client(world, name, timeout_ms=60_000), Random(name)

        def work() -> None:
            for n in range(ROUNDS // 3):
                aborts = chance.random() < 0.4
                values = [f"{name}-{n}-{i}".encode() + b"." * 300 for i in range(3)]
                if aborts:
                    self.aborted.update(values)
                written = {}
                for value in values:
                    tp = chance.choice((T0, U0))
                    written[tp, self.write(client, tp, value)] = value
                if aborts:
                    client.abort()
                else:
                    client.commit()
                    self.acknowledged.update(written)

        return work

    def reader(self, world: World, tp: TopicPartition, isolation: Isolation) -> Callable[[], None]:
        chance, position = Random(f"{tp} {isolation}"), 0

        def turn() -> None:
            nonlocal position
            try:
                offsets, values, position = self._read(world, tp, position, isolation, chance)
            except OffsetOutOfRange:
                position = world.owner.offsets([tp])[tp].log_start
                return
            assert offsets == sorted(set(offsets))
            if isolation == "read_committed":
                assert not self.aborted.intersection(values)
            if chance.random() < 0.02:
                position = world.owner.offsets([tp])[tp].log_start

        return turn

    @staticmethod
    def _read(
        world: World, tp: TopicPartition, position: int, isolation: Isolation, chance: Random
    ) -> tuple[list[int], list[bytes], int]:
        fetched = world.owner.fetch(
            {tp: position},
            max_bytes=chance.choice((1, 4096, 1 << 20)),
            isolation=isolation,
            timeout=0.01,
        )[tp]
        assert fetched.next_offset >= position
        offsets = [offset for batch in fetched.batches for offset in batch.offsets.to_pylist()]
        values = [
            value for batch in fetched.batches for value in batch.columns.column(2).to_pylist()
        ]
        assert all(offset >= position for offset in offsets)
        return offsets, values, fetched.next_offset

    def check(self, world: World) -> None:
        """Check that each record is at its offset, that there are no others, and no open
        transaction."""
        for tp in PARTITIONS:
            ends = world.owner.offsets([tp])[tp]
            assert ends.last_stable_offset == ends.high_watermark
            expected = {
                offset: value
                for (where, offset), value in self.acknowledged.items()
                if where == tp and offset >= ends.log_start
            }
            assert dict(shown(world, tp)) == expected


def shown(world: World, tp: TopicPartition) -> Iterator[tuple[int, bytes]]:
    position = world.owner.offsets([tp])[tp].log_start
    while True:
        fetched = world.owner.fetch({tp: position})[tp]
        for batch in fetched.batches:
            yield from zip(
                batch.offsets.to_pylist(), batch.columns.column(2).to_pylist(), strict=True
            )
        if fetched.next_offset == position:
            return
        position = fetched.next_offset


@pytest.fixture(params=["as usual", "switching all the time"])
def switching(request: pytest.FixtureRequest) -> Iterator[None]:
    """Interval in which the interpreter switches threads."""
    before = sys.getswitchinterval()
    if request.param != "as usual":
        sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealWorld]:
    """A log of small segments whose periodic work never pauses."""
    monkeypatch.setattr(ticker, "TICK_S", 0.001)
    monkeypatch.setattr(maintenance, "RETENTION_CHECK_MS", 1)
    world = RealWorld(LocalStorage(tmp_path))
    config = {"segment.bytes": "4096"}
    world.owner.create_topic("t", 2, config=config)
    world.owner.create_topic("u", 1, config=config)
    yield world
    world.owner.close()


@pytest.mark.usefixtures("switching")
def test_writers_readers_and_retention_at_once(busy: RealWorld) -> None:
    sums, crew, chance = Sums(), Crew(), Random(7)

    def delete_records() -> None:
        crew.done.wait(0.02)
        tp = chance.choice((T0, U0))
        ends = busy.owner.offsets([tp])[tp]
        busy.owner.delete_records(tp, max(ends.log_start, ends.last_stable_offset - 20))

    def topics_come_and_go() -> None:
        config = {"segment.bytes": "4096", "retention.ms": "1", "file.delete.delay.ms": "0"}
        for n in range(10):
            name = f"passing-{n}"
            busy.owner.create_topic(name, 2, config=config)
            client = Client(busy)
            for i in range(8):
                now = SystemClock().now_ms()
                client.append(b"x" * 1500, topic=name, partition=i % 2, times=now)
            busy.owner.delete_topic(name)

    for name in ("plain-0", "plain-1"):
        crew.works(sums.plain(busy, name))
    for name in ("tx-0", "tx-1"):
        crew.works(sums.transactional(busy, name))
    crew.works(topics_come_and_go)
    crew.repeat(delete_records)
    for tp in PARTITIONS:
        crew.repeat(sums.reader(busy, tp, "read_committed"))
    crew.repeat(sums.reader(busy, T0, "read_uncommitted"))
    crew.run()
    sums.check(busy)
    busy.reopen()
    sums.check(busy)


def test_readers_at_the_end_find_their_place_while_the_index_grows() -> None:
    world, crew = World(MemoryStorage()), Crew()
    world.owner.create_topic("t", config={"index.interval.bytes": "0"})
    client = Client(world)
    client.append(b"a")

    def append() -> None:
        for _ in range(2_000):
            client.append(b"b")

    def tail() -> Callable[[], None]:
        position = 0

        def turn() -> None:
            nonlocal position
            position = world.owner.fetch({T0: position})[T0].next_offset

        return turn

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        crew.works(append)
        for _ in range(2):
            crew.repeat(tail())
        crew.run()
    finally:
        sys.setswitchinterval(before)
    assert len(world.values()) == 2_001


def test_old_producers_of_before_a_reopening_call_while_their_successors_start() -> None:
    world, crew = World(MemoryStorage()), Crew()
    world.owner.create_topic("t")
    clients = [Client(world, f"tx-{n}") for n in range(500)]
    world.crash()
    stranger = ProducerIdentity(1_000_000, 0)

    def ask(client: Client, identity: ProducerIdentity) -> Callable[[], None]:
        def turn() -> None:
            try:
                client.append(b"late", identity=identity)
            except (ProducerFenced, TransactionAborted):
                return
            raise AssertionError("a producer of before was let in")

        return turn

    def come() -> None:
        for client in clients:
            Client(world, client.transactional_id)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        crew.works(come)
        crew.repeat(ask(clients[-1], clients[-1].identity))
        crew.repeat(ask(clients[-1], stranger))
        crew.run()
    finally:
        sys.setswitchinterval(before)
    assert world.values() == []


@pytest.mark.parametrize("time", range(5))
def test_appends_in_progress_at_the_close_are_stored_or_refused(tmp_path: Path, time: int) -> None:
    world, crew = RealWorld(LocalStorage(tmp_path)), Crew()
    world.owner.create_topic("t")
    acknowledged: list[bytes] = []
    started = threading.Event()

    def append() -> None:
        client = Client(world)
        while True:
            value = b"%d-%d" % (client.identity.producer_id, len(client.sequences))
            try:
                value += b"-%d" % client.append(value).base_offset
            except StrandlineError:
                return
            acknowledged.append(value)
            if len(acknowledged) > 20 * time:
                started.set()

    def close() -> None:
        assert started.wait(BOUND)
        world.owner.close()

    for _ in range(3):
        crew.works(append)
    crew.works(close)
    crew.run()
    world.open()
    there = [b"%s-%d" % (value, offset) for offset, value in shown(world, T0)]
    assert set(acknowledged) <= set(there)
    assert len(there) - len(acknowledged) <= 3  # one append of each thread may have lost its answer
    world.owner.close()
