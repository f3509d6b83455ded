"""Nothing an attached client sends is trusted: it gets an error, and the log serves the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import pyarrow as pa
import pytest

from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import InvalidRequest, StrandlineError
from strandline.changelog.flight import batches, messages
from strandline.changelog.flight.batches import ROW_SCHEMA, StreamMessage
from strandline.changelog.flight.client import FlightBroker
from strandline.changelog.flight.connection_target import ConnectionTarget
from strandline.changelog.flight.messages import (
    MAX_CALL_PARTITIONS,
    SMALL_APPEND,
    AppendHeader,
    FetchRequest,
    SmallAppend,
    StreamHeader,
    decode,
    encode,
)
from strandline.changelog.flight.requests import (
    REQUESTS,
    CommitOffsets,
    FetchOffsets,
    JoinGroup,
    ListOffsets,
)
from strandline.changelog.records import Append, ProducerIdentity, TopicPartition
from tests.hostile.bombs import batch, claiming, compressed, measured, schema_of_one_field, sharing
from tests.hostile.conftest import Stranger

LITTLE = 64 << 20
"""Maximum bytes of Arrow's memory for any of these; gRPC has buffers of its own."""

T0 = TopicPartition("t", 0)
Send = Callable[[Stranger, ProducerIdentity, bytes, pa.Schema], bytes]


def header(producer: ProducerIdentity, **changes: object) -> AppendHeader:
    known = AppendHeader("t", 0, 0, producer, 0, transactional=False, schema_id=0)
    return msgspec.structs.replace(known, **changes)


def as_a_stream(
    stranger: Stranger, producer: ProducerIdentity, message: bytes, schema: pa.Schema
) -> bytes:
    cells = [pa.array([message], pa.large_binary()), pa.nulls(1, pa.large_binary())]
    row = pa.RecordBatch.from_arrays(cells, schema=ROW_SCHEMA)
    first = StreamMessage(batches.EMPTY_ROW, encode(StreamHeader([schema])))
    return stranger.put([first, StreamMessage(row, encode(header(producer)))])


def at_once(
    stranger: Stranger, producer: ProducerIdentity, message: bytes, schema: pa.Schema
) -> bytes:
    return stranger.act(SMALL_APPEND, encode(SmallAppend([schema], [(header(producer), message)])))


@pytest.fixture(params=[as_a_stream, at_once], ids=["stream", "at once"])
def send(request: pytest.FixtureRequest) -> Send:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def producer(owner: Owner) -> ProducerIdentity:
    return owner.init_producer()


@pytest.fixture(autouse=True)
def the_log_goes_on(
    owner: Owner, target: ConnectionTarget, request: pytest.FixtureRequest
) -> object:
    """Function that checks that another client can append and read after the hostile call."""
    yield
    broker = FlightBroker(target, deadline=30)
    identity = broker.init_producer()
    end = broker.offsets([T0])[T0].high_watermark
    (appended,) = broker.append([Append(*T0, batch(3), identity, 0)])
    assert appended.base_offset == end
    fetched = broker.fetch({T0: end})[T0]
    assert [len(one) for one in fetched.batches] == [3]
    broker.close()


def test_a_correct_batch_is_accepted(
    stranger: Stranger, producer: ProducerIdentity, send: Send
) -> None:
    records = batch()
    assert send(stranger, producer, records.serialize().to_pybytes(), records.schema)


@pytest.mark.parametrize("claim", [1 << 40, 1 << 30, -5, (1 << 63) - 1])
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_compressed_batch_that_claims_to_be_huge_is_refused(
    stranger: Stranger, producer: ProducerIdentity, send: Send, compression: str, claim: int
) -> None:
    message = claiming(compressed(batch(), compression), lambda _: claim)
    with measured() as taken, pytest.raises(InvalidRequest, match="unpacked"):
        send(stranger, producer, message, batch().schema)
    assert taken.arrow < LITTLE


def test_a_batch_of_many_columns_in_few_bytes_is_refused(
    stranger: Stranger, producer: ProducerIdentity, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unpacked size counts, not the size that was sent."""
    monkeypatch.setattr(batches, "MAX_APPEND_BYTES", 1_000_000)
    column = pa.array([b"x" * 1000] * 100, pa.binary())
    records = pa.record_batch([column] * 50, names=[str(n) for n in range(50)])
    message = sharing(records.serialize().to_pybytes())
    with pytest.raises(InvalidRequest):
        send(stranger, producer, message, records.schema)


@pytest.mark.parametrize("seed", range(60))
def test_damaged_batches_are_refused(
    stranger: Stranger, producer: ProducerIdentity, send: Send, seed: int
) -> None:
    """Flipped bits in lengths, offsets and types of Arrow, which no checksum protects."""
    records = batch()
    message = bytearray(records.serialize().to_pybytes())
    for step in range(1 + seed % 4):
        message[(seed * 37 + step * 101) % len(message)] ^= 1 << seed % 8
    try:
        send(stranger, producer, bytes(message), records.schema)
    except StrandlineError:
        return  # a value was hit, which is another record and no damage


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([]),
        pa.schema([pa.field("timestamp", pa.dictionary(pa.int32(), pa.binary()))]),
        pa.schema([pa.field("x", pa.list_(pa.list_(pa.list_(pa.int8()))))]),
        pa.schema([pa.field("timestamp", pa.run_end_encoded(pa.int32(), pa.int64()))]),
        pa.schema(
            [("timestamp", pa.int64()), ("key", pa.binary()), ("value", pa.list_(pa.null()))]
        ),
    ],
    ids=str,
)
def test_batches_of_another_schema_are_refused(
    stranger: Stranger, producer: ProducerIdentity, send: Send, schema: pa.Schema
) -> None:
    with pytest.raises(InvalidRequest):
        send(stranger, producer, batch().serialize().to_pybytes(), schema)


def test_a_schema_with_references_to_one_field_is_refused(
    stranger: Stranger, producer: ProducerIdentity
) -> None:
    bomb = schema_of_one_field([2_000, 2_000], 600_000)
    append = msgspec.msgpack.encode(
        [[bomb], [[header(producer), batch().serialize().to_pybytes()]]]
    )
    for kind, body in (
        ("CreateTopic", msgspec.msgpack.encode(["new", 1, None, bomb, False])),
        ("AlterTopic", msgspec.msgpack.encode(["t", None, None, bomb])),
        (SMALL_APPEND, append),
    ):
        with measured() as taken, pytest.raises(InvalidRequest, match="repeated ones included"):
            stranger.act(kind, body)
        assert taken.arrow < LITTLE


def test_the_fields_of_all_schemas_of_a_request_are_limited(
    stranger: Stranger, producer: ProducerIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MAX_REQUEST_FIELDS", 100)
    schemas = [pa.schema([(f"{n} {i}", pa.bool_()) for i in range(20)]) for n in range(6)]
    message = batch().serialize().to_pybytes()
    sent = SmallAppend([batch().schema, *schemas[:4]], [(header(producer), message)])
    stranger.act(SMALL_APPEND, encode(sent))
    sent = SmallAppend([batch().schema, *schemas], [(header(producer), message)])
    with pytest.raises(InvalidRequest, match="more may be sent in this request"):
        stranger.act(SMALL_APPEND, encode(sent))


@pytest.mark.parametrize("number", [-1, 1, 1 << 40])
def test_an_unknown_schema_number_is_refused(
    stranger: Stranger, producer: ProducerIdentity, number: int
) -> None:
    message = batch().serialize().to_pybytes()
    sent = SmallAppend([batch().schema], [(header(producer, schema=number), message)])
    with pytest.raises(InvalidRequest):
        stranger.act(SMALL_APPEND, encode(sent))


@pytest.mark.parametrize("kind", [*sorted(REQUESTS), "SmallAppend", "Locate", "Hello", "None"])
def test_invalid_bodies_are_refused(stranger: Stranger, kind: str) -> None:
    for body in (b"", b"\xc0", b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000, b"\xff" * 50, b"\x9f"):
        try:
            stranger.act(kind, body)
        except StrandlineError:
            continue
        assert kind in ("ListTopics", "ListGroups", "DescribeConfig", "Cleaning"), (
            "only what has no fields may be asked so"
        )


def asking_with(number: int) -> Iterator[Callable[[Stranger], object]]:
    """Yield calls that take a number, with this number."""
    for kind, body in (
        ("DeleteRecords", [["t", 0], number]),
        ("OffsetForTime", [["t", 0], number, "read_committed"]),
        ("ListExtents", [{("t", 0): [number, number]}, number]),
        ("ListExtents", [{("t", number): [0, 1]}, 1]),
        ("ListOffsets", [[["t", number]]]),
        ("CommitOffsets", ["g", {("t", 0): [number, "", ""]}]),
        ("CommitOffsets", ["g", {("t", number): [0, "", ""]}]),
        ("CreateTopic", ["new", number, None, None, False]),
        ("AlterTopic", ["t", None, number, None]),
        ("InitProducer", ["tx", number]),
        ("EndTransaction", [[number, number], True]),
        ("AddOffsets", [[number, number], "g", {("t", 0): [0, "", ""]}]),
        ("Locate", [{("t", 0): number}, number, "read_committed", 0.0]),
    ):
        yield partial(Stranger.act, kind=kind, body=msgspec.msgpack.encode(body))
    fetch = [{("t", 0): number}, 1, "read_committed", 0.0]
    yield partial(Stranger.get, ticket=msgspec.msgpack.encode(fetch))
    yield partial(Stranger.get, ticket=msgspec.msgpack.encode([{("t", 0): 0}, number, *fetch[2:]]))


@pytest.mark.parametrize("number", [(1 << 64) - 1, -(1 << 63), 1 << 62, -1])
def test_numbers_out_of_range_are_refused(stranger: Stranger, owner: Owner, number: int) -> None:
    unexpected = []
    for ask in asking_with(number):
        try:
            ask(stranger)
        except StrandlineError as error:
            # unforeseen errors of the owner arrive as this class
            if type(error) is StrandlineError:
                unexpected.append(str(error))
    assert not unexpected
    assert [info.name for info in owner.topics() if not info.internal] == ["t"]


def test_invalid_streams_are_refused(stranger: Stranger, producer: ProducerIdentity) -> None:
    first = StreamMessage(batches.EMPTY_ROW, encode(StreamHeader([batch().schema])))
    other = pa.record_batch({"x": pa.array([1])})
    nulls = pa.RecordBatch.from_arrays([pa.nulls(1, pa.large_binary())] * 2, schema=ROW_SCHEMA)
    for rows, schema in (
        ([], ROW_SCHEMA),
        ([StreamMessage(other, b"")], other.schema),
        ([StreamMessage(nulls, b"")], ROW_SCHEMA),
        ([first, StreamMessage(nulls, encode(header(producer)))], ROW_SCHEMA),
        ([first, StreamMessage(batches.EMPTY_ROW, encode(header(producer)))], ROW_SCHEMA),
        ([first, StreamMessage(nulls, b"\x91" * 100_000)], ROW_SCHEMA),
    ):
        with pytest.raises(InvalidRequest):
            stranger.put(rows, schema)
    with pytest.raises(InvalidRequest, match="unknown stream"):
        stranger.put([first], command=b"pickle")


def test_a_message_that_is_too_large_is_refused(stranger: Stranger) -> None:
    with pytest.raises(InvalidRequest, match="over the limit"):
        stranger.act("DescribeTopic", b"\x91\xdb\x01\x10\x00\x00" + b"x" * (17 << 20))


def entries(count: int, each: bytes, *, mapped: bool = False) -> bytes:
    """Return a MessagePack list or map with equal entries."""
    return (b"\xdf" if mapped else b"\xdd") + count.to_bytes(4, "big") + each * count


PARTITION = b"\x92\xa1t\x00"
TOO_MANY = MAX_CALL_PARTITIONS + 1


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ListOffsets, b"\x91" + entries(TOO_MANY, PARTITION)),
        (FetchOffsets, b"\x93\xa1g" + entries(TOO_MANY, PARTITION) + b"\xc2"),
        (CommitOffsets, b"\x92\xa1g" + entries(TOO_MANY, PARTITION + b"\xc0", mapped=True)),
        (FetchRequest, b"\x94" + entries(TOO_MANY, PARTITION + b"\0", mapped=True)),
        (JoinGroup, b"\x92\xa1g\x81\xa6topics" + entries(TOO_MANY, b"\xa0")),
        (JoinGroup, b"\x92\xa1g\x81\xa8together" + entries(TOO_MANY, b"\x90")),
    ],
    ids=["offsets", "committed", "commit", "fetch", "topics", "together"],
)
def test_lists_that_are_too_long_are_refused_before_they_are_decoded(
    kind: type, body: bytes
) -> None:
    with pytest.raises(InvalidRequest, match="of length <= "):
        decode(body, kind)


def test_a_call_may_name_every_partition_of_several_topics() -> None:
    partitions = [TopicPartition("t", number) for number in range(MAX_CALL_PARTITIONS)]
    assert decode(encode(ListOffsets(partitions)), ListOffsets).partitions == partitions
