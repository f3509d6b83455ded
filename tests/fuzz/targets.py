"""Decoders of bytes from a disk or a socket, called after the checksum that would reject noise.

A target accepts any bytes and returns, or raises an error of our tree; anything else is a finding.
Its seeds are bytes as they are really written.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Any, NamedTuple

import crc32c
import msgspec
import pyarrow as pa

from strandline.changelog.clock import ManualClock
from strandline.changelog.config import TopicConfig
from strandline.changelog.embedded import document, offsets, transaction_log
from strandline.changelog.embedded.document import pack
from strandline.changelog.embedded.folder import (
    CLEAN_KIND,
    CONFIG_KIND,
    FOLDER_KIND,
    ClosedSizes,
    FolderMeta,
)
from strandline.changelog.embedded.format import (
    HEADER_SIZE,
    MAGIC,
    FrameKind,
    unpack_header,
    unpack_marker,
)
from strandline.changelog.embedded.frame import (
    decode,
    encode,
    encode_marker,
    frame_parts,
    payload_bytes,
)
from strandline.changelog.embedded.manifest import KIND as MANIFEST_KIND
from strandline.changelog.embedded.manifest import Manifest
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.embedded.pin import KIND as PIN_KIND
from strandline.changelog.embedded.pin import Pin, PinReader
from strandline.changelog.embedded.scanning import WholeFrame, durable_end_behind, scan
from strandline.changelog.embedded.segment import INDEX_KIND, Segment, SparseIndex
from strandline.changelog.embedded.side_files import ABORTED_KIND, SNAPSHOT_KIND
from strandline.changelog.embedded.topic import COPY_KIND, TopicMeta
from strandline.changelog.embedded.topic import KIND as CATALOG_KIND
from strandline.changelog.errors import CorruptLog, StrandlineError
from strandline.changelog.flight import batches, endpoint, messages, requests
from strandline.changelog.layout import SegmentName, pin_file
from strandline.changelog.log_config import LogConfig
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.pins import PinName, PinnedRange
from strandline.changelog.producer_state import ProducerEntry
from strandline.changelog.records import (
    Append,
    CommittedOffset,
    ConsumerRecord,
    ProducerIdentity,
    TopicPartition,
)
from strandline.changelog.schema import decode_schemas
from strandline.framework.formats.choice import value_codec
from strandline.framework.formats.codecs import Codec
from strandline.framework.positions import known_tasks, waiting_of
from strandline.framework.querying import messages as queries
from strandline.framework.querying.declared import form_of
from strandline.statestore.engine import StorePosition
from strandline.statestore.keys import decode_key, key_codec
from strandline.statestore.serdes import topic_key_serde, value_serde
from strandline.statestore.spec import UNSET
from tests.damage.material import CLOCK_MS, Material, ask, load, make
from tests.hostile.bombs import batch, compressed

HERE = "here"
TYPED = pa.struct([pa.field("carrier", pa.string()), pa.field("delay", pa.float64())])


class Target(NamedTuple):
    """A decoder and its seeds."""

    run: Callable[[bytes], object]
    seeds: Sequence[bytes]


# Frames -------------------------------------------------------------------------------


def framed(**options: Any) -> bytes:
    """Return a frame as it is written."""
    payload = encode(batch(options.pop("count", 40)), **options)
    producer = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 5}
    _, parts = frame_parts(payload, base_offset=41, leader_epoch=1, durable_end=41, **producer)
    return b"".join(bytes(part) for part in parts)


def typed_message() -> bytes:
    value = pa.array(
        [{"carrier": "AA", "delay": 1.5}, None, {"carrier": None, "delay": None}], TYPED
    )
    times, keys = pa.array([1, 2, 3], pa.int64()), pa.array([b"a", None, b"c"], pa.binary())
    columns = pa.RecordBatch.from_arrays([times, keys, value], names=["timestamp", "key", "value"])
    return columns.serialize().to_pybytes()


def sealed_frame(data: bytes) -> bytes:
    """Return the bytes as a frame with the right checksums."""
    content = bytearray(data.ljust(HEADER_SIZE, b"\0"))
    content[:4] = MAGIC
    content[16] = 1
    content[8:12] = crc32c.crc32c(bytes(content[HEADER_SIZE:])).to_bytes(4, "little")
    content[4:8] = crc32c.crc32c(bytes(content[8:HEADER_SIZE])).to_bytes(4, "little")
    return bytes(content)


def read_header(data: bytes) -> None:
    unpack_header(sealed_frame(data), 0, HERE)


def read_frame(data: bytes) -> None:
    content = memoryview(sealed_frame(data))
    header = unpack_header(content, 0, HERE)
    payload = payload_bytes(content, 0, header, HERE)
    if header.kind == FrameKind.CONTROL:
        unpack_marker(payload, HERE)
    else:
        look(decode(header, payload, pa.binary(), HERE))


def read_payload(kind: FrameKind, attributes: int, value: pa.DataType) -> Callable[[bytes], None]:
    """Return a decoder of a payload whose frame claims three records."""
    known = unpack_header(framed(), 0, HERE)

    def read(data: bytes) -> None:
        header = known._replace(kind=kind, attributes=attributes, record_count=3)
        look(decode(header, memoryview(data), value, HERE))

    return read


def look(columns: pa.RecordBatch) -> None:
    """Look at every value, if they are valid, as `check` does."""
    try:
        columns.validate(full=True)
    except ValueError as error:
        raise CorruptLog(str(error)) from error
    columns.to_pylist()


def read_segment(data: bytes) -> None:
    storage = MemoryStorage()
    storage.create(f"f/{SegmentName(0, 1).log_file}").append(data)
    segment = Segment.open(storage, "f", SegmentName(0, 1), 0, writable=False)
    position = 0
    for found in scan(segment, segment.file.size()):
        assert found.position >= position
        position = found.end if isinstance(found, WholeFrame) else found.position + 1
    durable_end_behind(segment, 0)
    segment.size = segment.file.size()
    list(segment.frames(0, 256))


# Documents ----------------------------------------------------------------------------


def read_document(kind: str, type_: Any, after: Callable[[Any], object] = id) -> Target:
    """Return a decoder of a document's body, called after its checksum."""

    def read(data: bytes) -> None:
        storage = MemoryStorage()
        storage.create("d").append(pack(kind, data, "d"))
        after(document.load(storage, "d", kind, type_))

    return Target(read, [body for name, body in bodies().items() if name.startswith(kind + " ")])


def bodies() -> dict[str, bytes]:
    """Return the body of every document of a log, by kind and path."""
    found = {}
    for path, content in material().files.items():
        line, _, body = content.partition(b"\n")
        if line.startswith(b"strandline "):
            found[f"{line.split()[1].decode()} {path}"] = body
    return found


def material() -> Material:
    if not _MADE:
        _MADE.append(make(closed=True, rounds=4))
    return _MADE[0]


_MADE: list[Material] = []


def use_topic(meta: TopicMeta) -> None:
    decode_schemas(meta.schemas, HERE)
    TopicConfig.parse(meta.config)


def use_index(data: bytes) -> None:
    index = SparseIndex.load(data, HERE)
    index.position_of(7), index.offset_of_time(7), index.cut(0, 512)


def read_pin() -> Target:
    """Return a decoder of a pin's document that also reads the pinned records."""
    storage, name, tp = MemoryStorage(), PinName("q", "a", "b"), TopicPartition("t", 0)
    owner = Owner(storage, clock=ManualClock(CLOCK_MS), background=False)
    owner.create_topic("t", 1)
    owner.append([Append("t", 0, batch(3), owner.init_producer(), 0)])
    span = PinnedRange(owner.topic("t").topic_id, 0, 3)
    owner.pins.hold(name, {tp: span}, timeout_ms=1_000)
    file, known = pin_file(name), document.read(storage, pin_file(name), PIN_KIND)

    def read(data: bytes) -> None:
        storage.unlink(file)
        storage.create(file).append(pack(PIN_KIND, data, file))
        reader = PinReader(storage)
        for tp, span in Pin.load(storage, name).ranges().items():
            with contextlib.suppress(FileNotFoundError):  # a link that the document names
                for found in reader.fetch(name, tp, span.start, max_bytes=1 << 20).batches:
                    look(found.columns)

    return Target(read, [known])


def open_with(name: str) -> Target:
    """Return a target that opens a log one of whose documents has another body, and queries it."""
    paths = [key.partition(" ")[2] for key in bodies() if key.startswith(name + " ")]
    path = max(paths, key=lambda path: len(material().files[path]))
    header, _, known = material().files[path].partition(b"\n")
    kind = header.split()[1].decode()

    def read(data: bytes) -> None:
        storage = load({**material().files, path: pack(kind, data, path)})
        owner = Owner(storage, clock=ManualClock(CLOCK_MS), background=False)
        try:
            ask(owner)
        finally:
            owner._log.context.pool.shutdown()

    return Target(read, [known])


# Records ------------------------------------------------------------------------------


def record(data: bytes) -> ConsumerRecord:
    """Return a record whose key has the length given by the first byte; the rest is the value."""
    cut = 1 + (data[0] if data else 0)
    return ConsumerRecord("t", 0, 7, 0, data[1:cut], data[cut:] or None)


def recorded(key: bytes, value: bytes) -> bytes:
    return bytes([len(key)]) + key + value


def read_transaction(data: bytes) -> None:
    transaction_log.parsed(record(data))


def read_offset(data: bytes) -> None:
    offsets.parsed(record(data))


def transaction_seeds() -> list[bytes]:
    prepared = transaction_log.PreparedPartition("t", "0" * 32, 0, 1, 99)
    state = transaction_log.TransactionRecord("prepare", 7, 1, 2, 10_000, (prepared,))
    encoded = msgspec.msgpack.encode
    return [
        recorded(b"tx", encoded(state)),
        recorded(b"tx", b""),
        recorded(transaction_log.PRODUCER_IDS_KEY, encoded(1000)),
    ]


def offset_seeds() -> list[bytes]:
    key = msgspec.msgpack.encode(("group", "t", 0))
    return [recorded(key, msgspec.msgpack.encode((5, "m", "0" * 32, 1))), recorded(key, b"")]


# Wire ---------------------------------------------------------------------------------


def read_request(data: bytes) -> None:
    """Decode a request of the kind given by the first byte."""
    kinds = [*requests.REQUESTS.values(), messages.FetchRequest, messages.AppendHeader]
    kinds += [
        messages.StreamHeader,
        messages.FetchedHeader,
        messages.SessionHello,
        messages.RemoteFailure,
    ]
    if data:
        messages.decode(data[1:], kinds[data[0] % len(kinds)])


QUERY_KINDS = (
    *(
        queries.QueryHello,
        queries.QueryWelcome,
        queries.Request,
        queries.Answer,
        queries.QueryFailure,
    ),
)


def read_query(data: bytes) -> None:
    """Decode a query message of the kind given by the first byte."""
    if data:
        said = queries.decoder(QUERY_KINDS[data[0] % len(QUERY_KINDS)])(data[1:])
        if isinstance(said, queries.StoreDescription):
            form_of("app/store", said, UNSET, UNSET)


def query_seeds() -> list[bytes]:
    at = ("0" * 32, 5)
    figures = {"n": ("count", None), "worst": ("max", "delay")}
    said: list[tuple[int, queries.QueryMessage]] = [
        (0, queries.QueryHello(3)),
        (1, queries.QueryWelcome(3)),
        (2, queries.Describe("app/store")),
        (2, queries.GetKeys("app/store", [0, 1], [b"k"], {0: at})),
        (2, queries.ScanRange("app/store", 0, b"a", None, False, 10, at)),
        (2, queries.CountKeys("app/store", [0])),
        (3, queries.StoreDescription(["t"], "int", "typed", "m:C", None, b"d")),
        (3, queries.StoreDescription(["t"], ["tuple", ["str"], False], "typed", "", figures, None)),
        (3, queries.FoundKeys([queries.KeyValues(0, [b"v", None], at)])),
        (3, queries.Scanned(True, [(b"k", b"v")], (b"l", None), at)),
        (3, queries.KeyCounts({0: 5})),
        (4, queries.QueryFailure("DiskFull", "full")),
    ]
    return [bytes([kind]) + queries.encode(message)[queries.HEAD_BYTES :] for kind, message in said]


def request_seeds() -> list[bytes]:
    tp = ("t", 0)
    schema = batch().schema.serialize().to_pybytes()
    filled = {
        "CreateTopic": ["new", 2, {"retention.ms": "-1"}, schema, False],
        "DeleteTopic": ["t"],
        "AlterTopic": ["t", {"retention.ms": None}, 3, None],
        "ListTopics": [],
        "DescribeTopic": ["t"],
        "ListOffsets": [[tp]],
        "ListExtents": [{tp: [0, 5]}, 1 << 20],
        "OffsetForTime": [tp, 5, "read_committed"],
        "DeleteRecords": [tp, 5],
        "CleanTopics": [["t"]],
        "Cleaning": [],
        "HoldPin": [["q", "a", "b"], {tp: ["0" * 32, 0, 5]}, 10_000],
        "UsePin": [["q", "a", "b"]],
        "ReleasePins": ["q", "b"],
        "TakeSnapshot": [],
        "ReleaseSnapshot": ["a" * 16],
        "InitProducer": ["tx", 10_000],
        "AddOffsets": [[7, 0], "g", {tp: [5, "m", ""]}],
        "EndTransaction": [[7, 0], True],
        "CommitOffsets": ["g", {tp: [5, "m", ""]}],
        "FetchOffsets": ["g", [tp], True],
        "ListGroups": [],
        "DescribeGroup": ["g"],
        "JoinGroup": ["g", {"topics": ["t"], "assignor": "range", "instance": None}],
        "Heartbeat": [["g", "m"], 1, 0, [tp], 0.5],
        "LeaveGroup": [[["g", "m"]]],
        "DescribeConfig": [],
        "AlterConfig": [{"log.retention.ms": None, "log.roll.ms": "5"}],
    }
    assert filled.keys() == requests.REQUESTS.keys()
    numbered = {name: number for number, name in enumerate(requests.REQUESTS)}
    count = len(numbered)
    others = [[{tp: 5}, 1 << 20, "read_committed", 0.5], ["t", 0, 0, [7, 0], 0, False, 0]]
    others += [[[schema], [["t", 0, 1, 0, 1, 1]]], ["t", 0, 0, 5, 1], [1, 4711, "x"], ["A", "b"]]
    encoded = msgspec.msgpack.encode
    return [
        *(bytes([numbered[name]]) + encoded(body) for name, body in filled.items()),
        *(bytes([count + number]) + encoded(body) for number, body in enumerate(others)),
    ]


def read_hello(data: bytes) -> None:
    messages.check_version(data)


def read_error(data: bytes) -> None:
    failure = messages.decode(data, messages.RemoteFailure)
    error = messages.error_of(failure)
    assert isinstance(error, StrandlineError)


def read_small_append(data: bytes) -> None:
    for append in batches.read_small_append(messages.decode(data, messages.SmallAppend)):
        encode_again(append)


def encode_again(append: Append) -> None:
    """Encode an admitted batch again, as the owner does."""
    if append.columns.schema.names[:3] == ["timestamp", "key", "value"]:
        encode(append.columns, compression="lz4")


def small_append_seeds() -> list[bytes]:
    producer = ProducerIdentity(7, 0)
    return [
        messages.encode(batches.small_append([Append("t", 0, records, producer, 0)]))
        for records in (batch(3), batch(40))
    ]


def read_batch_of_a_stream(schema: pa.Schema) -> Callable[[bytes], None]:
    header = messages.AppendHeader("t", 0, 0, None, 0, transactional=False, schema_id=0)

    def read(data: bytes) -> None:
        encode_again(batches._checked_append(header, pa.py_buffer(data), [schema]))

    return read


def read_schema(data: bytes) -> None:
    schema = decode_schemas([data], HERE).versions[0]
    schema.empty_table()


# Keys and values ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Delay:
    """A value with fields."""

    carrier: str
    minutes: float = 0.0


KEYS = (str, bytes, int, float, bool, date, datetime, tuple[str, int], tuple[int | None, ...])
VALUES = (None, int, str, float, bool, bytes, dict, list, Delay, tuple[int, str])
KEY_CODECS = [key_codec(declared) for declared in KEYS]
SERDES = [*map(value_serde, VALUES), *map(topic_key_serde, (str, bytes, int, float))]
COLUMN_CODECS = list(map(value_codec, (int, str, float, bool)))
FORM_CODECS = [value_codec(Delay, form) for form in ("json", "avro", "protobuf", "msgpack")]  # type: ignore[arg-type]


def read_key(data: bytes) -> None:
    """Check that a decoded key has its type and can be encoded."""
    for codec in KEY_CODECS:
        try:
            found = codec.decode(data)
            again = codec.encode(codec.admit(found))
        except StrandlineError:
            continue
        same = codec.decode(again)
        assert same == found or found != found, (codec.declared, found, same)
    decode_key(data)


def read_value(data: bytes) -> None:
    for declared in VALUES:
        for serde in (
            value_serde(declared),
            topic_key_serde(declared if declared in KEYS else str),
        ):
            try:
                serde.loads(data)
            except StrandlineError:
                continue


def read_column(data: bytes) -> None:
    """Check that values decoded together equal those decoded one by one."""
    data = data[:100]
    read_together(COLUMN_CODECS, data[1:], 1 + (data[0] % 16 if data else 0))


def read_form(data: bytes) -> None:
    """Check that values with fields, in every form, decode together as they do one by one."""
    read_together(FORM_CODECS, data[1:200], 1 + (data[0] % 48 if data else 0))


def read_together(codecs: Sequence[Codec], data: bytes, size: int) -> None:
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    for codec in codecs:
        alone = [outcome(codec, [part]) for part in parts]
        together = outcome(codec, parts)
        if None in alone:
            assert together is None, (codec, parts, together)
        else:
            assert together == [value for one in alone for value in one or ()], (codec, parts)


def outcome(codec: Any, parts: Sequence[bytes]) -> list[str] | None:
    try:
        return [repr(value) for value in codec.decode(pa.array(parts, pa.binary()))]
    except StrandlineError:
        return None


def key_seeds() -> list[bytes]:
    keys: list[Any] = ["a", "é\0b", b"\0\xff", 5, -(2**70), 1.5, True, date(2024, 1, 2)]
    seeds = [key_codec(type(key)).encode(key) for key in keys]
    return [*seeds, key_codec(tuple[str, int]).encode(("a\0", -7))]


def form_seeds() -> list[bytes]:
    """Return two values of one length in each form, after that length."""
    seeds = []
    for codec in FORM_CODECS:
        items = [codec.item(Delay(carrier, 1.5)) for carrier in ("AA", "UA")]
        data = codec.encode(items).to_pylist()
        seeds.append(bytes([len(data[0]) - 1]) + b"".join(data))
    return seeds


def value_seeds() -> list[bytes]:
    values: list[Any] = [None, 5, 2**70, "text", 1.5, True, b"bytes", {"a": [1, {"b": 2}]}]
    return [*(value_serde(None).dumps(value) for value in values), b"\x00" * 8]


def read_position(data: bytes) -> None:
    StorePosition.from_bytes(data)


def read_metadata(data: bytes) -> None:
    committed = CommittedOffset(5, data.decode("utf-8", "replace"))
    known_tasks(committed.metadata)
    waiting_of(committed)


# All ----------------------------------------------------------------------------------


def targets() -> dict[str, Target]:
    """Return the targets by name, which is also a folder of the corpus."""
    rows = encode(batch(3)).parts[1]
    with_headers = 2
    return {
        "header": Target(read_header, [framed()[:HEADER_SIZE]]),
        "frame": Target(
            read_frame, [framed(), framed(count=3), framed(compression="lz4"), marker()]
        ),
        "rows": Target(read_payload(FrameKind.ROWS, 0, pa.binary()), [bytes(rows)]),
        "rows-with-headers": Target(
            read_payload(FrameKind.ROWS, with_headers, pa.binary()),
            [
                b"\x94\x93\x01\x02\x03\x93\xc0\xc0\xc0\x93\xc0\xc0\xc0\x93\x90\x91\x92\xa1a\xc4\x01b\x90"
            ],
        ),
        "arrow": Target(
            read_payload(FrameKind.ARROW, 0, pa.binary()),
            [batch(3).serialize().to_pybytes(), compressed(batch(3)), compressed(batch(3), "lz4")],
        ),
        "arrow-typed": Target(read_payload(FrameKind.ARROW, 0, TYPED), [typed_message()]),
        "segment": Target(read_segment, [framed(count=3) + framed(count=2), framed() + framed()]),
        "document": Target(
            lambda data: document.unpack("manifest", data, HERE), [pack("manifest", b"{}")]
        ),
        "manifest": read_document(MANIFEST_KIND, Manifest),
        "catalog": read_document(
            CATALOG_KIND, list[TopicMeta], lambda all_: [*map(use_topic, all_)]
        ),
        "topic": read_document(COPY_KIND, TopicMeta, use_topic),
        "clean": read_document(CLEAN_KIND, ClosedSizes),
        "config": read_document(CONFIG_KIND, dict[str, str], LogConfig),
        "log": read_document(FOLDER_KIND, FolderMeta),
        "aborted": read_document(ABORTED_KIND, list[tuple[int, int, int]]),
        "pin": read_pin(),
        "producers": read_document(SNAPSHOT_KIND, list[tuple[int, ProducerEntry]], dict),
        "index": Target(
            use_index, [b for k, b in bodies().items() if k.startswith(INDEX_KIND + " ")]
        ),
        "opening-manifest": open_with(MANIFEST_KIND),
        "opening-catalog": open_with(CATALOG_KIND),
        "opening-config": open_with(CONFIG_KIND),
        "opening-producers": open_with(SNAPSHOT_KIND),
        "opening-aborted": open_with(ABORTED_KIND),
        "opening-index": open_with(INDEX_KIND),
        "transaction": Target(read_transaction, transaction_seeds()),
        "offset": Target(read_offset, offset_seeds()),
        "request": Target(read_request, request_seeds()),
        "query": Target(read_query, query_seeds()),
        "hello": Target(
            read_hello, [messages.encode(messages.SessionHello(messages.WIRE_VERSION, 7, "x"))]
        ),
        "error": Target(read_error, [messages.encode(messages.RemoteFailure("DiskFull", "full"))]),
        "small-append": Target(read_small_append, small_append_seeds()),
        "stream-batch": Target(
            read_batch_of_a_stream(batch().schema),
            [batch(3).serialize().to_pybytes(), compressed(batch(40))],
        ),
        "schema": Target(read_schema, [batch().schema.serialize().to_pybytes()]),
        "endpoint": Target(lambda data: endpoint.parse(data), endpoint_seeds()),
        "key": Target(read_key, key_seeds()),
        "value": Target(read_value, value_seeds()),
        "column": Target(read_column, [b"\x00\x01\x02\x03", b"\x01\xa1a\xa1b\xa0\xa0"]),
        "form": Target(read_form, form_seeds()),
        "position": Target(read_position, [StorePosition("t", 1, 5).to_bytes()]),
        "metadata": Target(read_metadata, [b'{"tasks":{"task":5}}']),
    }


def marker() -> bytes:
    payload = encode_marker(commit=True, coordinator_epoch=0, timestamp=0)
    _, parts = frame_parts(payload, base_offset=41, leader_epoch=1, durable_end=41, producer_id=7)
    return b"".join(bytes(part) for part in parts)


def endpoint_seeds() -> list[bytes]:
    known = endpoint.OwnerEndpoint("grpc+unix:///x", "token", 7, "9", "pid:[1]")
    return [msgspec.json.encode(known)]
