"""A client with a token cannot exceed its limits, and other clients continue to be served."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from strandline import changelog
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import (
    InvalidRequest,
    OwnerUnavailable,
    QuotaExceeded,
    RecordTooLarge,
)
from strandline.changelog.flight import batches, hello, http2
from strandline.changelog.flight.address import parse_url
from strandline.changelog.flight.batches import ROW_SCHEMA, StreamMessage, small_append
from strandline.changelog.flight.budgets import Budgets, ClientBudget
from strandline.changelog.flight.clients import Client, Principal
from strandline.changelog.flight.connection import FlightConnection
from strandline.changelog.flight.hello import UNKNOWN_TOKEN
from strandline.changelog.flight.limits import MAX_CALL_BYTES, ListenerLimits
from strandline.changelog.flight.messages import (
    REMOTE_APPEND,
    FetchRequest,
    SmallAppend,
    StreamHeader,
    encode,
)
from strandline.changelog.flight.requests import CreateTopic, DescribeGroup, InitProducer
from strandline.changelog.flight.serve import ServedLog, serve
from strandline.changelog.flight.splice import ConnectionCut
from strandline.changelog.groups import Subscription
from strandline.changelog.pins import PinName, PinnedRange, there
from strandline.changelog.records import Append, Batch, Fetched, TopicPartition
from tests.hostile.bombs import batch, compressed, measured
from tests.hostile.conftest import Stranger
from tests.hostile.test_front import process, read, resets, taken
from tests.hostile.test_wire import header
from tests.log.kit import columns

TOKEN = "sixteen-or-more-characters"
MIB = 1 << 20
LARGE = {"max.message.bytes": str(128 * MIB)}
Eventually = Callable[..., Any]


def client() -> Client:
    return Client(Principal("test", UNKNOWN_TOKEN), "credential", "192.0.2.1")


# Budgets --------------------------------------------------------------------------------------


def test_a_client_is_refused_more_than_its_share() -> None:
    budget, one = ClientBudget("bytes", 10, 100), client()
    budget.take(one, 10)
    with pytest.raises(QuotaExceeded, match="at most 10"):
        budget.take(one, 1)
    budget.give(one, 4)
    budget.take(one, 4)
    assert budget.room(one) == 0


def test_a_reservation_keeps_other_calls_from_the_same_bytes() -> None:
    budget, one = ClientBudget("bytes", 10, 100), client()
    assert budget.reserve(one, 8) == 8
    waiting: list[int] = []
    other = threading.Thread(target=lambda: waiting.append(budget.reserve(one, 8)))
    other.start()
    budget.settle(one, 8, 3)
    other.join(30)
    assert waiting == [7]
    with pytest.raises(QuotaExceeded, match="at most 10"):
        budget.settle(one, 7, 8)
    assert budget.room(one) == 0
    budget.give(one, 7)
    assert budget.room(one) == 7


def test_what_is_left_is_reserved_if_no_other_call_reads() -> None:
    budget, one, other = ClientBudget("bytes", 10, 15), client(), client()
    budget.take(one, 9)
    assert budget.reserve(other, 50) == 6
    budget.settle(other, 6, 0)
    assert budget.reserve(one, 5) == 1
    budget.settle(one, 1, 1)
    with pytest.raises(QuotaExceeded, match="read the answers first"):
        budget.reserve(one, 1)


def test_a_reservation_of_a_client_that_is_gone_counts_until_it_is_returned() -> None:
    budget, one, other = ClientBudget("bytes", 10, 10), client(), client()
    reserved = budget.reserve(one, 10)
    one.drop()
    waiting: list[int] = []
    thread = threading.Thread(target=lambda: waiting.append(budget.reserve(other, 10)))
    thread.start()
    assert (budget.room(one), budget.room(other)) == (0, 10)
    budget.settle(one, reserved, 0)
    thread.join(30)
    assert waiting == [10]
    assert (budget.room(one), budget.room(other)) == (10, 0)


def test_a_client_that_is_gone_reserves_nothing_any_more() -> None:
    budget, one = ClientBudget("bytes", 10, 10), client()
    reserved, refused = budget.reserve(one, 10), []

    def reserve() -> None:
        with pytest.raises(QuotaExceeded, match="has ended"):
            budget.reserve(one, 10)
        refused.append(True)

    waiting = threading.Thread(target=reserve)
    waiting.start()
    one.drop()
    budget.wake()
    waiting.join(30)
    assert refused
    for call in (budget.reserve, budget.take):
        with pytest.raises(QuotaExceeded, match="has ended"):
            call(one, 1)
    with pytest.raises(QuotaExceeded, match="has ended"):
        budget.settle(one, reserved, 11)
    assert budget.room(one) == 0


def test_the_client_with_the_most_is_cut_off_when_the_budget_is_used_up() -> None:
    budget = ClientBudget("bytes", 60, 100)
    small, large, other = client(), client(), client()
    budget.take(small, 20)
    budget.take(large, 60)
    stopped = threading.Event()
    large.begin(stopped.set)
    taking = threading.Thread(target=lambda: budget.take(other, 30))
    taking.start()
    assert stopped.wait(30)
    assert large.exceeded.startswith("it had the most bytes in flight (60)")
    assert [budget.room(one) for one in (small, large, other)] == [40, 0, 60]
    budget.give(large, 60)
    taking.join(30)
    assert [budget.room(one) for one in (small, large, other)] == [40, 60, 30]
    budget.take(other, 30)
    with pytest.raises(QuotaExceeded, match="this one has the most"):
        ClientBudget("bytes", 100, 5).take(small, 6)


def test_returned_bytes_count_once() -> None:
    budget, one = ClientBudget("bytes", 10, 10), client()
    with budget.taken(one, 6):
        budget.forget(one)
    budget.give(one, 100)
    with budget.taken(one, 10), pytest.raises(QuotaExceeded):
        budget.take(one, 1)
    assert budget.room(one) == 10


def test_calls_count_until_they_have_ended_though_their_connection_has() -> None:
    budgets, one = Budgets(ListenerLimits()), client()
    full = budgets.calls.room(one)
    budgets.calls.take(one, 2)
    budgets.requests.take(one, 1_000)
    assert one.begin_call()
    assert one.begin_call()
    one.drop()
    budgets.end(one)
    one.end_call()
    assert budgets.calls.room(one) == full - 2
    one.end_call()
    assert budgets.calls.room(one) == full
    assert budgets.requests._sum == 0
    assert not one.begin_call()


# Answers --------------------------------------------------------------------------------------


def test_an_answer_that_is_not_read_has_no_batch_twice() -> None:
    partition, records = TopicPartition("t", 0), batch(3)
    there = weakref.ref(records)
    rows = batches.fetched_rows(
        {partition: Fetched([Batch("t", 0, 0, records, 0, None)], 3, 0, 3, 3)}
    )
    del records
    next(rows)
    encoded = next(rows)
    assert there() is None
    assert encoded.data.num_rows == 1


# The meter ------------------------------------------------------------------------------------


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def message(size: int) -> bytes:
    return b"\0" + size.to_bytes(4, "big")


def call(stream: int, body: bytes = b"") -> bytes:
    return frame(http2.HEADERS, http2.END_HEADERS, stream, b"h") + frame(
        http2.DATA, 0, stream, body
    )


class Time(SystemClock):
    """A clock that is set by hand."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def budgets() -> Budgets:
    return Budgets(ListenerLimits(max_calls_per_client=4, max_request_bytes_per_client=20_000))


@pytest.fixture
def meter(budgets: Budgets, time: Time) -> http2.FlowMeter:
    meter = http2.FlowMeter(client(), budgets, time)
    meter.from_client(memoryview(http2.PREFACE + frame(http2.SETTINGS, 0, 0)))
    return meter


def sends(meter: http2.FlowMeter, *frames: bytes) -> None:
    meter.from_client(memoryview(b"".join(frames)))


def ends(meter: http2.FlowMeter, stream: int, kind: int = http2.HEADERS) -> None:
    flags = 0 if kind == http2.RST_STREAM else http2.END_STREAM
    meter.from_server(memoryview(frame(kind, flags, stream, b"abc")))


def test_a_connection_that_does_not_begin_as_http2_is_cut_off(budgets: Budgets, time: Time) -> None:
    with pytest.raises(ConnectionCut, match="HTTP/2"):
        http2.FlowMeter(client(), budgets, time).from_client(memoryview(b"GET / HTTP/1.1\r\n"))


def test_a_message_counts_from_its_beginning_to_the_end_of_its_call(meter: http2.FlowMeter) -> None:
    sends(meter, call(1, message(9_000)))
    with pytest.raises(ConnectionCut, match="bytes of requests"):
        sends(meter, call(3, message(9_000)))


@pytest.mark.parametrize("kind", [http2.HEADERS, http2.DATA, http2.RST_STREAM])
def test_a_call_that_has_ended_counts_no_more(meter: http2.FlowMeter, kind: int) -> None:
    for stream in range(1, 41, 2):
        sends(meter, call(stream, message(9_000)))
        ends(meter, stream, kind)


def test_frames_and_messages_may_arrive_in_any_pieces(meter: http2.FlowMeter) -> None:
    content = call(1, message(300) + bytes(300) + message(200) + bytes(100))
    content += frame(http2.DATA, 0, 1, bytes(100) + message(9_200)[:3])
    content += frame(http2.DATA, 0, 1, message(9_200)[3:])
    for at in range(len(content) - 1):
        sends(meter, content[at : at + 1])
    with pytest.raises(ConnectionCut, match="bytes of requests"):
        sends(meter, content[-1:])


def test_a_message_larger_than_any_call_is_cut_off(time: Time) -> None:
    budgets = Budgets(ListenerLimits(max_request_bytes_per_client=1 << 40))
    for size in (MAX_CALL_BYTES, MAX_CALL_BYTES + 1):
        meter = http2.FlowMeter(client(), budgets, time)
        meter.from_client(memoryview(http2.PREFACE + frame(http2.SETTINGS, 0, 0)))
        large = size > MAX_CALL_BYTES
        with pytest.raises(ConnectionCut, match="at most") if large else contextlib.nullcontext():
            sends(meter, call(1, message(size)))


def test_calls_are_counted(meter: http2.FlowMeter) -> None:
    sends(meter, *(call(stream) for stream in (1, 3, 5, 7)))
    ends(meter, 3)
    sends(meter, call(9))
    with pytest.raises(ConnectionCut, match="calls in flight"):
        sends(meter, call(11))


def test_calls_that_are_reset_count_for_a_while(meter: http2.FlowMeter, time: Time) -> None:
    """Otherwise resetting each call at once would create any number of threads."""
    reset = [call(s, message(100)) + frame(http2.RST_STREAM, 0, s, bytes(4)) for s in (1, 3, 5, 7)]
    sends(meter, *reset)
    with pytest.raises(ConnectionCut, match="calls in flight"):
        sends(meter, call(9))
    time.now += 11
    sends(meter, frame(http2.SETTINGS, http2.ACK, 0), call(11))
    assert meter._budgets.requests.room(meter._client) == 20_000


def test_messages_marked_as_compressed_are_cut_off(meter: http2.FlowMeter) -> None:
    with pytest.raises(ConnectionCut, match="compresses"):
        sends(meter, call(1, b"\1\0\0\0\x10" + bytes(16)))


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([call(1), frame(http2.DATA, http2.PADDED, 1, b"\0")], "pads"),
        ([frame(http2.HEADERS, 0, 3), *[frame(9, 0, 3, bytes(16_000))] * 5], "headers of a call"),
        ([frame(http2.PING, 0, 0, bytes(8))] * 2_000, "pings"),
    ],
    ids=["padding", "headers", "pings"],
)
def test_frames_without_use_are_cut_off(
    meter: http2.FlowMeter, frames: list[bytes], why: str
) -> None:
    with pytest.raises(ConnectionCut, match=why):
        sends(meter, *frames)


def test_answers_to_pings_do_not_count_as_pings(meter: http2.FlowMeter) -> None:
    sends(meter, *[frame(http2.PING, http2.ACK, 0, bytes(8))] * 5_000)


# Over a socket --------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(folder: Path, **limits: Any) -> Iterator[ServedLog]:
    served = serve(
        folder / "log", listen="127.0.0.1:0", token=TOKEN, limits=ListenerLimits(**limits)
    )
    with changelog.open(folder / "log") as log:
        log.create_topic("t", 4, config={"retention.ms": "-1", "compression.type": "none"})
    try:
        yield served
    finally:
        served.close()


def stranger_to(served: ServedLog) -> Stranger:
    return Stranger(parse_url(f"{served.url}?token={TOKEN}"))


def connection_to(served: ServedLog, deadline: float = 30) -> FlightConnection:
    target = parse_url(f"{served.url}?token={TOKEN}")
    return FlightConnection(target, deadline=deadline, connect_within=30)


def check_served(served: ServedLog) -> None:
    """Check that another client can write and read."""
    with changelog.open(served.url, token=TOKEN) as log, log.consumer() as consumer:
        consumer.assign({TopicPartition("t", 3): log.offsets("t")[3].high_watermark})
        with log.producer() as producer:
            producer.send("t", b"v", partition=3)
        assert [len(found) for found in consumer.poll(timeout=30)] == [1]


def bomb(sizes: Sequence[int]) -> tuple[bytes, pa.Schema]:
    """Return a batch of values that is small only in compressed form."""
    records = columns([b"\0" * size for size in sizes])
    return compressed(records), records.schema


def test_batches_count_with_their_unpacked_size(tmp_path: Path) -> None:
    with serving(tmp_path, max_request_bytes_per_client=64 * MIB) as served:
        stranger = stranger_to(served)
        producer = stranger.connection.ask(InitProducer(None, 10_000))
        packed, schema = bomb([40 * MIB])
        assert len(packed) < 20_000
        sent = SmallAppend([schema], [(header(producer), packed)])
        for kind in (REMOTE_APPEND, "SmallAppend"):
            with pytest.raises(QuotaExceeded, match="bytes of requests"):
                stranger.act(kind, encode(sent), [producer])
        stranger.connection.close()
        check_served(served)


def test_batches_that_unpack_to_more_than_an_append_call_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        stranger = stranger_to(served)
        producer = stranger.connection.ask(InitProducer(None, 10_000))
        packed, schema = bomb([61 * MIB])
        sent = SmallAppend([schema], [(header(producer), packed)] * 2)
        for kind in (REMOTE_APPEND, "SmallAppend"):
            with pytest.raises(RecordTooLarge, match="over TCP"):
                stranger.act(kind, encode(sent), [producer])
        stranger.connection.close()
        check_served(served)


@pytest.mark.parametrize("packed", [False, True], ids=["as it is", "compressed"])
@pytest.mark.parametrize("count", [1, 1_000])
def test_an_append_takes_no_more_memory_than_is_counted(
    process: subprocess.Popen[str], count: int, *, packed: bool
) -> None:
    url = f"strandline://127.0.0.1:{int(read(process))}?token={TOKEN}"
    stranger = Stranger(parse_url(url))
    stranger.connection.ask(CreateTopic("t", 1, LARGE, None, internal=False))
    producer = stranger.connection.ask(InitProducer(None, 10_000))
    sizes = [80 * MIB // count] * count
    if packed:
        message, schema = bomb(sizes)
        body = encode(SmallAppend([schema], [(header(producer), message)]))
    else:
        records = columns([b"\0" * size for size in sizes])
        body = encode(small_append([Append("t", 0, records, producer, 0)]))
    before = taken(process)
    stranger.act(REMOTE_APPEND, body, [producer])
    during = taken(process)
    counted = 3 * len(body) + 2 * sum(sizes)
    assert during["peak_kib"] - before["peak_kib"] <= (counted + 24 * MIB) >> 10
    stranger.connection.close()


@contextlib.contextmanager
def packed_batches(served: ServedLog, count: int) -> Iterator[changelog.Log]:
    """A client, after it has appended batches that unpack to 8 MiB each."""
    with changelog.open(served.url, token=TOKEN) as log:
        log.create_topic("packed", config={"compression.type": "zstd", "retention.ms": "-1"})
        producer, zeros = log.broker.init_producer(), columns([bytes(8 * MIB // 32)] * 32)
        for number in range(count):
            log.broker.append([Append("packed", 0, zeros, producer, 32 * number)])
        yield log


@pytest.mark.parametrize("pinned", [False, True], ids=["fetch", "pin"])
def test_fetched_batches_count_with_their_unpacked_size(tmp_path: Path, pinned: bool) -> None:
    packed = TopicPartition("packed", 0)
    with serving(tmp_path) as served, packed_batches(served, 24) as log:
        pins, pin = there(log.broker.pins), PinName("holder", "since", "until")
        whole = PinnedRange(log.topic("packed").topic_id, 0, 24 * 32)
        pins.hold(pin, {packed: whole}, timeout_ms=60_000)
        with measured() as taken:
            if pinned:
                fetched = pins.fetch(pin, packed, 0, max_bytes=20 * MIB)
            else:
                fetched = log.broker.fetch({packed: 0}, max_bytes=20 * MIB)[packed]
        assert len(fetched.batches) == 2
        assert taken.arrow < 64 * MIB
        assert len(pins.fetch(pin, packed, 0, max_bytes=1).batches) == 1


def test_streams_of_a_client_are_never_read(tmp_path: Path) -> None:
    """They are refused with the headers: Arrow reads their schema before the call's handler runs,
    and references to one field make gigabytes of a schema of megabytes."""
    with serving(tmp_path) as served:
        stranger = stranger_to(served)
        first = StreamMessage(batches.EMPTY_ROW, encode(StreamHeader([batch().schema])))
        with pytest.raises(InvalidRequest, match="a client over TCP sends none"):
            stranger.put([first])
        with (
            pytest.raises(InvalidRequest, match="a client over TCP sends none"),
            stranger.connection._errors_translated("session"),
        ):
            descriptor = flight.FlightDescriptor.for_command(b"session")
            options = stranger.connection._options()
            writer, reader = stranger.connection._client.do_exchange(descriptor, options)
            writer.begin(ROW_SCHEMA)
            reader.read_chunk()
        stranger.connection.close()
        check_served(served)


def test_unread_answers_are_bounded(tmp_path: Path, eventually: Eventually) -> None:
    limits = {"max_answer_bytes_per_client": 4 * MIB, "max_calls_per_client": 100}
    with serving(tmp_path, **limits) as served:
        with changelog.open(tmp_path / "log") as log, log.producer() as producer:
            for _ in range(32):
                producer.send("t", bytes(MIB // 2), partition=0)
                producer.flush()
        connection = connection_to(served)
        request = FetchRequest({TopicPartition("t", 0): 0}, 1 << 40, "read_committed", 0.0)
        ticket = flight.Ticket(encode(request))
        budget = served._endpoint.budgets.answers
        readers = []
        with pytest.raises(QuotaExceeded):
            for _ in range(50):
                with connection._errors_translated("fetch"):
                    readers.append(connection._client.do_get(ticket, connection._options()))
                    assert readers[-1].schema == ROW_SCHEMA
                    readers[-1].read_chunk()
                    (holder,) = served._endpoint.clients._by_credential.values()
                    assert budget.room(holder) >= 0
        check_served(served)
        for reader in readers:
            reader.cancel()
        eventually(lambda: budget.room(holder) == 4 * MIB)
        connection.close()


def test_other_answers_are_counted_until_they_are_sent(
    tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number:05}".ljust(240, "t") for number in range(10_000)]
    counted: list[int] = []
    add = ClientBudget.add

    def recorded(budget: ClientBudget, client: Client, amount: int) -> None:
        add(budget, client, amount)
        counted.append(amount)

    monkeypatch.setattr(ClientBudget, "add", recorded)
    limits = {"max_answer_bytes_per_client": 8 * MIB}
    with serving(tmp_path, **limits) as served, changelog.open(tmp_path / "log") as log:
        log.broker.join_group("large", Subscription(names, session_timeout_ms=300_000))
        stranger = stranger_to(served)
        budget = served._endpoint.budgets.answers
        (holder,) = served._endpoint.clients._by_credential.values()
        asked = "DescribeGroup", encode(DescribeGroup("large"))
        with budget.taken(holder, 8 * MIB):
            with pytest.raises(QuotaExceeded):
                stranger.act(*asked)
            assert counted == []
            check_served(served)
        assert [len(stranger.act(*asked))] == counted
        assert counted[0] > 2 * MIB
        eventually(lambda: budget.room(holder) == 8 * MIB)
        stranger.connection.close()


def test_a_client_that_is_dropped_is_logged_and_returns_what_its_calls_hold(
    tmp_path: Path, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    limits = {"max_answer_bytes_per_client": 32 * MIB, "max_answer_bytes": 40 * MIB}
    with serving(tmp_path, **limits) as served:
        with changelog.open(tmp_path / "log") as log, log.producer() as producer:
            for _ in range(24):
                producer.send("t", bytes(MIB), partition=0)
                producer.flush()
        budgets = served._endpoint.budgets
        request = FetchRequest({TopicPartition("t", 0): 0}, 24 * MIB, "read_committed", 0.0)
        ticket, connections, readers = flight.Ticket(encode(request)), [], []
        for _ in range(3):
            connections.append(connection_to(served))
            reader = connections[-1]._client.do_get(ticket, connections[-1]._options())
            assert reader.schema == ROW_SCHEMA
            reader.read_chunk()
            readers.append(reader)
            assert budgets.answers._sum <= 40 * MIB
        eventually(lambda: "ended the connection of" in caplog.text)
        (warning,) = [r for r in caplog.records if "ended the connection of" in r.message]
        assert warning.levelname == "WARNING"
        assert "from 127.0.0.1: it had the most bytes of answers in flight" in warning.message
        with pytest.raises(flight.FlightError):
            readers[0].read_all()
        for reader in readers[1:]:
            reader.cancel()
        for connection in connections:
            connection.close()
        for budget in (budgets.answers, budgets.requests, budgets.calls):
            eventually(lambda budget=budget: not budget._sum and not budget._reserved)


def test_parallel_fetches_of_a_client_do_not_read_into_the_same_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, max_answer_bytes_per_client=4 * MIB) as served:
        with changelog.open(tmp_path / "log") as log, log.producer() as producer:
            for _ in range(16):
                producer.send("t", bytes(MIB // 2), partition=0)
                producer.flush()
        broker, meeting, met = served.broker, threading.Barrier(2), []
        fetch = broker.fetch

        def held(*positions: Any, **limits: Any) -> Any:
            """Fetch, after waiting for another fetch that reads at the same time."""
            with contextlib.suppress(threading.BrokenBarrierError):
                met.append(meeting.wait(timeout=2))
            return fetch(*positions, **limits)

        monkeypatch.setattr(broker, "fetch", held)
        connection = connection_to(served)
        request = FetchRequest({TopicPartition("t", 0): 0}, 1 << 40, "read_committed", 0.0)
        ticket, readers, refused = flight.Ticket(encode(request)), [], []

        def get() -> None:
            try:
                with connection._errors_translated("fetch"):
                    reader = connection._client.do_get(ticket, connection._options())
                    readers.append(reader)
                    assert reader.schema == ROW_SCHEMA
                    reader.read_chunk()
            except QuotaExceeded as error:
                refused.append(error)

        threads = [threading.Thread(target=get) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not met
        assert refused
        for reader in readers:
            reader.cancel()
        connection.close()


def test_large_batches_of_several_partitions_come_in_parts(tmp_path: Path) -> None:
    with serving(tmp_path, max_answer_bytes_per_client=5 * MIB // 2) as served:
        with changelog.open(served.url, token=TOKEN) as log, log.producer() as producer:
            for number in range(4):
                producer.send("t", bytes(MIB), partition=number)
            producer.flush()
            at = {TopicPartition("t", number): 0 for number in range(4)}
            parts = []
            while at:
                fetched = log.broker.fetch(at)
                parts.append([tp for tp in at if fetched[tp].batches])
                assert all(fetched[tp].next_offset == int(tp in parts[-1]) for tp in at)
                at = {tp: 0 for tp in at if tp not in parts[-1]}
        assert [len(part) for part in parts] == [2, 2]


def test_a_fetch_of_many_partitions_comes_in_parts(tmp_path: Path) -> None:
    with serving(tmp_path, max_answer_bytes_per_client=2 * MIB) as served:
        with changelog.open(tmp_path / "log") as log:
            log.create_topic("many", 100)
            producer = log.producer()
            for number in range(100):
                producer.send("many", bytes(100_000), partition=number)
            producer.close()
        with changelog.open(served.url, token=TOKEN) as log, log.consumer() as consumer:
            consumer.subscribe("many")
            seen: set[int] = set()
            while len(seen) < 100:
                found = consumer.poll(timeout=30)
                assert found
                seen.update(one.partition for one in found)


def test_an_append_that_is_too_large_raises_before_it_is_sent(tmp_path: Path) -> None:
    columns = {
        "timestamp": pa.array([SystemClock().now_ms()]),
        "key": pa.array([b"k"], pa.binary()),
    }
    value = pa.array([bytes(61 * MIB)], pa.binary())
    records = pa.record_batch({**columns, "value": value})
    with serving(tmp_path) as served, changelog.open(served.url, token=TOKEN) as log:
        producer = log.broker.init_producer()
        appends = [Append("t", partition, records, producer, 0) for partition in range(2)]
        with pytest.raises(RecordTooLarge, match="over TCP"):
            log.broker.append(appends)


@pytest.mark.long
def test_large_appends_of_several_threads_take_turns(tmp_path: Path) -> None:
    with serving(tmp_path) as served, changelog.open(served.url, token=TOKEN) as log:

        def append() -> None:
            with log.producer() as producer:
                producer.send("t", bytes(60 * MIB))
                producer.flush()

        threads = [threading.Thread(target=append) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert sum(end.high_watermark for end in log.offsets("t").values()) == 4


# Resources that a client with a token can use --------------------------------------------------

__all__ = ["process"]


def a_large_message(url: str) -> None:
    stranger = Stranger(parse_url(url))
    with pytest.raises(OwnerUnavailable):
        stranger.act("ListTopics", bytes(300 * MIB))
    stranger.connection.close()


def a_stream_that_becomes_large(url: str) -> None:
    stranger = Stranger(parse_url(url))
    cells = [pa.array([bytes(256 * MIB)], pa.large_binary()), pa.nulls(1, pa.large_binary())]
    row = pa.RecordBatch.from_arrays(cells, schema=ROW_SCHEMA)
    options = flight.FlightCallOptions(
        timeout=30,
        headers=stranger.connection._headers,
        write_options=pa.ipc.IpcWriteOptions(compression="zstd"),
    )
    descriptor = flight.FlightDescriptor.for_command(b"append")
    with contextlib.suppress(flight.FlightError, OSError):
        writer, _ = stranger.connection._client.do_put(descriptor, ROW_SCHEMA, options)
        writer.write_with_metadata(row, encode(StreamHeader([ROW_SCHEMA])))
        writer.close()
    stranger.connection.close()


def calls_that_are_reset(url: str) -> None:
    host, _, port = url.removeprefix("strandline://").partition("?")[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as peer:
        opening = hello.pack_opening(hello.ClientOpening("", bytes(32)))
        peer.sendall(opening)
        status = peer.recv(3, socket.MSG_WAITALL)
        transcript = opening + peer.recv(hello.NONCE_BYTES, socket.MSG_WAITALL)
        peer.sendall(hello.proof_of(TOKEN, transcript))
        status = peer.recv(3 + hello.PROOF_BYTES, socket.MSG_WAITALL)
        assert status[0] == hello.ACCEPTED
        with contextlib.suppress(OSError):
            resets(peer)
            while peer.recv(65_536):
                pass


@pytest.mark.skipif(sys.platform != "linux", reason="measures by /proc")
@pytest.mark.parametrize(
    "attack",
    [
        a_large_message,
        a_stream_that_becomes_large,
        calls_that_are_reset,
    ],
)
def test_a_client_with_a_token_takes_bounded_resources(
    process: subprocess.Popen[str], attack: Callable[[str], None]
) -> None:
    url = f"strandline://127.0.0.1:{int(read(process))}?token={TOKEN}"
    with changelog.open(url) as log:
        assert log.topics() == []
    before = taken(process)
    attack(url)
    during = taken(process)
    assert during["threads"] <= before["threads"] + 140
    assert during["peak_kib"] <= before["peak_kib"] + (64 << 10)
    with changelog.open(url) as log:
        assert log.topics() == []
