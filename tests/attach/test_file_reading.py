"""An attached process reads the log's files, and sees the same records as the owner sends."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import pyarrow as pa
import pytest

from strandline.changelog.errors import (
    CorruptLog,
    InvalidRequest,
    OffsetOutOfRange,
    OwnerUnavailable,
    UnknownTopic,
)
from strandline.changelog.flight.client import FlightBroker
from strandline.changelog.flight.files import FileReader
from strandline.changelog.flight.messages import (
    FetchRequest,
    encode,
)
from strandline.changelog.flight.server import FlightEndpoint
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import Append, TopicPartition

T0 = TopicPartition("t", 0)
SMALL = {"segment.bytes": "4096", "file.delete.delay.ms": "0", "index.interval.bytes": "1024"}


@pytest.fixture
def requests(beside, monkeypatch):
    """Fetches in which the owner was asked to send records."""
    seen = []
    fetch = beside._connection.fetch

    def counted(request):
        seen.append(request)
        return fetch(request)

    monkeypatch.setattr(beside._connection, "fetch", counted)
    return seen


@pytest.fixture
def between(beside, monkeypatch):
    """Function that runs an action once, between the owner's answer and the reading of the
    files."""
    locate = beside._connection.locate

    def do(act):
        def disturbed(request):
            found = locate(request)
            monkeypatch.setattr(beside._connection, "locate", locate)
            act()
            return found

        monkeypatch.setattr(beside._connection, "locate", disturbed)

    return do


@pytest.fixture
def filled(owner, columns):
    """Topic t with 200 records in several segments."""
    owner.create_topic("t", config=SMALL)
    producer = owner.init_producer()
    for n in range(40):
        owner.append([Append("t", 0, columns(5, 5 * n), producer, 5 * n)])
    assert len(segments(owner)) > 2
    return producer


def segments(owner):
    return [segment.path for segment in owner._log.partition(T0).segments]


def values(broker, position=0):
    seen = []
    while True:
        fetched = broker.fetch({T0: position})[T0]
        seen += [int(record.value) for batch in fetched.batches for record in batch.records()]
        if fetched.next_offset == position:
            return seen
        position = fetched.next_offset


def test_no_record_is_sent_over_the_socket(beside, owner, columns, requests):
    owner.create_topic("t")
    owner.create_topic("typed", schema=pa.schema([pa.field("n", pa.int64())]))
    number = pa.struct([pa.field("n", pa.int64())])
    typed = columns(40).set_column(2, "value", pa.array([{"n": n} for n in range(40)], number))
    producer = owner.init_producer()
    owner.append([Append("t", 0, columns(3), producer, 0)])
    owner.append([Append("typed", 0, typed, producer, 0, schema_id=1)])
    wider = pa.schema([pa.field("n", pa.int64()), pa.field("more", pa.string())])
    owner.alter_topic("typed", schema=wider)
    both = {T0: 1, TopicPartition("typed", 0): 0}
    fetched = beside.fetch(both)
    assert fetched == owner.fetch(both)
    (batch,) = fetched[TopicPartition("typed", 0)].batches
    assert batch.columns["value"][7].as_py() == {"n": 7, "more": None}
    assert requests == []


@pytest.mark.parametrize("seed", range(4))
def test_any_history_reads_the_same_as_from_the_owner(seed, beside, owner, columns, requests):
    chance = random.Random(seed)
    owner.create_topic("t", config=SMALL)
    plain, sequence, end = owner.init_producer(), 0, 0
    transactional = [owner.init_producer(f"txn-{n}", timeout_ms=600_000) for n in range(3)]
    positions = [0, 0, 0]
    for _ in range(60):
        number, count = chance.randrange(3), chance.choice([1, 5, 40])
        producer = transactional[number]
        if chance.random() < 0.3:
            owner.append([Append("t", 0, columns(count, end), plain, sequence)])
            sequence += count
        elif positions[number] and chance.random() < 0.4:
            transactional[number] = owner.end_transaction(producer, commit=chance.random() < 0.5)
            positions[number] = 0
            count = 1
        else:
            batch = Append("t", 0, columns(count, end), producer, positions[number], True)
            owner.append([batch])
            positions[number] += count
        end += count
    ends = owner.offsets([T0])[T0]
    assert ends.high_watermark == end
    for offset in chance.sample(range(end + 1), 25):
        for isolation in ("read_committed", "read_uncommitted"):
            for size in (1, 3000, 1 << 20):
                asked = {"max_bytes": size, "isolation": isolation}
                mine = beside.fetch({T0: offset}, **asked)
                assert mine == owner.fetch({T0: offset}, **asked)
    assert requests == []


def test_any_number_of_aborted_records_is_skipped(beside, owner, columns):
    owner.create_topic("t", config=SMALL)
    producer = owner.init_producer("me")
    for n in range(20):
        owner.append([Append("t", 0, columns(5), producer, 5 * n, transactional=True)])
    owner.end_transaction(producer, commit=False)
    owner.append([Append("t", 0, columns(1, 7), owner.init_producer(), 0)])
    (batch,) = beside.fetch({T0: 0}, max_bytes=500)[T0].batches
    assert [record.value for record in batch.records()] == [b"7"]


def test_a_marker_alone_does_not_end_the_waiting(attached, owner, columns, eventually, monkeypatch):
    owner.create_topic("t")
    producer = owner.init_producer("me")
    owner.append([Append("t", 0, columns(5), producer, 0, transactional=True)])
    asked = []

    def noted(call):
        return lambda request: asked.append(request.positions[T0]) or call(request)

    for name in ("fetch", "locate"):
        monkeypatch.setattr(attached._connection, name, noted(getattr(attached._connection, name)))
    found = []
    thread = threading.Thread(target=lambda: found.append(attached.fetch({T0: 0}, timeout=20)))
    thread.start()
    owner.end_transaction(producer, commit=False)
    eventually(lambda: 6 in asked, timeout=10)
    owner.append([Append("t", 0, columns(1, 7), owner.init_producer(), 0)])
    thread.join(20)
    (batch,) = found[0][T0].batches
    assert [record.value for record in batch.records()] == [b"7"]


# Files that are missing or damaged
# -----------------------------------------------------------------


def test_located_records_are_read_even_if_the_owner_has_gone(beside, endpoint, filled, between):
    between(endpoint.close)
    assert len(beside.fetch({T0: 0})[T0].batches) == 40
    with pytest.raises(OwnerUnavailable):
        beside.fetch({T0: 0})


def test_records_deleted_before_they_are_read_are_no_damage(
    beside, owner, filled, between, requests
):
    def drop():
        owner.delete_records(T0, 90)
        owner.tick()

    between(drop)
    with pytest.raises(OffsetOutOfRange, match="offsets 90 to 200"):
        beside.fetch({T0: 0})
    assert len(requests) == 1
    assert values(beside, 90) == list(range(90, 200))
    assert len(requests) == 1


def test_a_topic_deleted_under_the_reader_is_unknown(beside, owner, filled, between):
    between(lambda: owner.delete_topic("t"))
    with pytest.raises(UnknownTopic):
        beside.fetch({T0: 0})


@pytest.mark.damages
def test_damage_is_named_by_the_owner(beside, owner, filled, tmp_path, requests):
    (first, *_) = segments(owner)
    with (tmp_path / "log" / first).open("r+b") as file:
        file.seek(200)
        file.write(b"\xff\xff")
    with pytest.raises(CorruptLog, match="checksum"):
        beside.fetch({T0: 0})
    assert len(requests) == 1


class HalfStorage(LocalStorage):
    """A storage whose files end early."""

    def open(self, path, *, writable=False):
        file = super().open(path, writable=writable)
        file._end //= 2
        return file


@pytest.mark.parametrize("kind", [HalfStorage, lambda _: MemoryStorage()])
def test_records_are_sent_if_the_files_cannot_be_read(kind, beside, filled, requests, tmp_path):
    beside._reader = FileReader(kind(tmp_path / "log"), beside._connection)
    assert values(beside) == list(range(200))
    assert requests


def test_an_endpoint_that_cannot_locate_records_sends_them(owner, filled, target, tmp_path):
    location = f"grpc+unix://{tmp_path}/s2"
    other = FlightEndpoint(owner, location, token=target.token)
    broker = FlightBroker(replace(target, location=location, folder=tmp_path / "log"), deadline=5)
    assert values(broker) == list(range(200))
    with pytest.raises(InvalidRequest, match="no call named 'Locate'"):
        broker._connection.locate(FetchRequest({T0: 0}, 1, "read_committed", 0.0))
    broker.close()
    other.close()


def test_the_size_of_an_answer_does_not_grow_with_the_log(beside, owner, filled):
    """The answer lists only the files of one fetch."""
    request = FetchRequest({T0: 0}, 1500, "read_committed", 0.0)
    (view,) = beside._connection.locate(request).values()
    assert sum(piece.size for piece in view.pieces) <= 1500 + 1024
    assert view.limit < 200
    assert len(encode(view)) < 1_000
