"""A value nested too deep is its record's fault: no decoder gets it, and no process dies of it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.changelog.decoding import known_json_decoder
from strandline.changelog.depth import MAX_DEPTH, check_json, check_msgpack
from strandline.changelog.embedded.folder import FolderMeta
from strandline.changelog.errors import InvalidRecord, InvalidRequest
from strandline.changelog.flight import endpoint
from strandline.changelog.flight import messages as flight
from strandline.framework.formats.avro import AvroSerde
from strandline.framework.formats.choice import value_codec
from strandline.framework.formats.json import JsonSerde
from strandline.framework.formats.protobuf import ProtobufSerde
from strandline.framework.formats.registry import RegisteredSchema, SchemaRegistry
from strandline.framework.formats.wire import SerdeUse
from strandline.framework.offload.progress import from_json
from strandline.framework.positions import _read
from strandline.framework.querying import messages as queries
from strandline.framework.spark import slot_messages
from strandline.framework.supervisor import report
from strandline.framework.testing import TestDriver
from strandline.statestore.aggregates import recorded
from strandline.statestore.engine import StorePosition
from strandline.statestore.serdes import MessagePack, TypedMessagePack
from tests.hostile.bombs import measured

STACK_BYTES = 256 << 10
"""Bytes of a thread's stack. gRPC's threads have 512 KiB on macOS."""
FAR = 20_000
"""Number of nested containers in a value of a few kilobytes."""

TREE = """{"type": "record", "name": "Tree", "fields": [
    {"name": "kids", "type": {"type": "array", "items": "Tree"}}]}"""
OWN = """{"type": "record", "name": "Own", "fields": [{"name": "own", "type": ["null", "Own"]}]}"""
MAPS = """{"type": "record", "name": "M", "fields": [{"name": "m", "type": {"type": "map", "values": "M"}}]}"""
ENDLESS = '{"type": "record", "name": "E", "fields": [{"name": "e", "type": "E"}]}'


class Tree(msgspec.Struct):
    kids: list[Tree] = []


@dataclass
class Plain:
    n: int


def avro(schema: str) -> Any:
    return value_codec(dict, AvroSerde(schema, registry=False), SerdeUse("t", "value", None))


def decoded(codec: Any, data: bytes) -> Any:
    return codec.decode(pa.array([data], pa.binary()))


def wired(serde: Any) -> Callable[[bytes], Any]:
    codec = value_codec(Plain, serde, SerdeUse("t", "value", None))
    return lambda data: decoded(codec, data)


ARRAYS = b"\x91" * FAR + b"\xc0"
MAPS_OF = b"\x81\x01" * FAR + b"\xc0"
LISTS, OBJECTS = b"[" * FAR + b"]" * FAR, b'{"a":' * FAR + b"1" + b"}" * FAR
UNKNOWN_PACKED = b"\x82\xa1n\x01\xa1x" + ARRAYS
UNKNOWN_JSON = b'{"n": 1, "x": ' + LISTS + b"}"
KIDS = b"\x81\xa4kids\x91" * FAR + b"\x80"

POISON: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "messagepack arrays": (MessagePack().loads, ARRAYS),
    "messagepack maps": (MessagePack().loads, MAPS_OF),
    "messagepack of a recursive type": (TypedMessagePack(Tree).loads, KIDS),
    "an unknown field in messagepack": (TypedMessagePack(Plain).loads, UNKNOWN_PACKED),
    "columns of messagepack": (wired("msgpack"), UNKNOWN_PACKED),
    "json lists": (lambda data: decoded(_json(Any), data), LISTS),
    "json objects": (lambda data: decoded(_json(dict), data), OBJECTS),
    "columns of json": (wired("json"), UNKNOWN_JSON),
    "an avro tree": (lambda data: decoded(avro(TREE), data), b"\x02" * FAR + b"\0" * (FAR + 1)),
    "an avro list": (lambda data: decoded(avro(OWN), data), b"\x02" * FAR + b"\0"),
    "avro maps": (
        lambda data: decoded(avro(MAPS), data),
        b"\x02\x02a" * FAR + b"\0" * (FAR + 1),
    ),
    "avro without an end": (lambda data: decoded(avro(ENDLESS), data), b""),
    "a request of an attached process": (
        lambda data: flight.decode(data, flight.FetchRequest),
        ARRAYS,
    ),
    "a greeting": (flight.check_version, ARRAYS),
    "a query": (queries.decoder(queries.Request), b"\x93\xa3Get" + ARRAYS),
}

FIELD = b'{"x": ' + LISTS + b"}"
ELSEWHERE: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "CorruptLog in the note of an owner": (endpoint.parse, FIELD),
    "CorruptLog in the position of a state folder": (StorePosition.from_bytes, ARRAYS),
    "RecursionError in a document of a log": (known_json_decoder(FolderMeta).decode, FIELD),
    "InvalidConfig in a description of aggregates": (
        lambda data: recorded(data.decode(), "x"),
        b"quantile " + LISTS,
    ),
    "ConnectionRefused in a message of a Spark task": (slot_messages.decoded_message, FIELD),
    "CorruptLog in the progress of an offload": (lambda data: from_json(data.decode(), ""), FIELD),
    "nothing in the report of a worker": (lambda data: report.decoded(data.decode()), FIELD),
}
"""Values that are no record's, and the errors that they cause."""


def _json(kind: Any) -> Any:
    return value_codec(kind, JsonSerde(kind), SerdeUse("t", "value", None))


def survive() -> None:
    """Decode every poisoned value on a thread with a small stack, and print the errors."""

    def work() -> None:
        for name, (decode, data) in POISON.items():
            try:
                decode(data)
            except InvalidRequest as error:  # includes InvalidRecord
                sys.stdout.write(f"{name}: {type(error).__name__}\n")
        for name, (decode, data) in ELSEWHERE.items():
            caused = "nothing"
            try:
                decode(data)
            except (sl.StrandlineError, slot_messages.ConnectionRefused, RecursionError) as error:
                caused = type(error).__name__
            assert name.partition(" ")[0] == caused, (name, caused)
        assert _read('{"tasks": ' + "[" * FAR).tasks == {}
        sys.stdout.write("alive\n")

    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_no_poison_ends_a_process_whose_threads_have_small_stacks(repository: Path) -> None:
    code = "from tests.hostile.test_depth import survive; survive()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    told = dict(line.split(": ") for line in done.stdout.splitlines()[:-1])
    assert done.stdout.splitlines()[-1] == "alive", done.stderr
    assert told.keys() == POISON.keys()
    wire = {"a request of an attached process", "a greeting", "a query"}
    assert {name for name, kind in told.items() if kind != "InvalidRecord"} == wire


@pytest.mark.parametrize("depth", [1, MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1])
def test_the_depth_is_the_same_in_every_form(depth: int) -> None:
    """A value that could not be read cannot be written either."""
    nested: Any = []
    for _ in range(depth - 1):
        nested = [nested]
    tree: Any = {"kids": []}
    for _ in range(depth // 2 - 1):
        tree = {"kids": [tree]}
    if depth <= MAX_DEPTH:
        assert MessagePack().loads(MessagePack().dumps(nested)) == nested
        assert JsonSerde().loads(JsonSerde().dumps(nested)) == nested
        codec = avro(TREE)
        assert decoded(codec, codec.encode([codec.item(tree)])[0].as_py()) == [tree]
        return
    tree = {"kids": [tree]}
    with pytest.raises(InvalidRecord, match="more than 200 deep"):
        MessagePack().dumps(nested)
    with pytest.raises(InvalidRecord, match="more than 200 deep"):
        _json(Any).item(nested)
    with pytest.raises(InvalidRecord, match="more than 200 deep"):
        avro(TREE).item(tree)


values = st.recursive(
    st.none() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=60,
)


@given(values, st.integers(0, 240))
def test_flat_values_pass_and_deep_ones_do_not(value: Any, wraps: int) -> None:
    for _ in range(wraps):
        value = [0, value, 1.5]
    depth = _depth(value)
    packed = msgspec.msgpack.encode(value)
    text = msgspec.json.encode(value)
    for check, data in ((check_msgpack, packed), (check_json, text)):
        if depth > MAX_DEPTH:
            with pytest.raises(RecursionError):
                check(data)
        else:
            check(data)


@given(st.binary(max_size=1_000))
def test_the_check_survives_any_bytes(data: bytes) -> None:
    for check in (check_msgpack, check_json):
        check(data * 2)  # too short to be too deep, or noise: never another error


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


def test_brackets_in_text_do_not_count_as_nesting() -> None:
    check_json(msgspec.json.encode(["[" * 1_000, '"[{\\"' * 1_000]))
    check_msgpack(msgspec.msgpack.encode([b"\x91" * 1_000, "\x01" * 300]))
    check_msgpack(msgspec.msgpack.encode([[[1.5]]] * 1_000))
    check_msgpack(msgspec.msgpack.encode({"v": [n / 7 for n in range(1_000)]}))


def test_depth_after_many_floats_is_found() -> None:
    floats = msgspec.msgpack.encode([n / 7 for n in range(1_000)])
    for data in (b"\x92" + floats + ARRAYS, b"\xdc\x03\xe9" + floats[3:] + ARRAYS):
        with pytest.raises(RecursionError):
            check_msgpack(data)


def test_a_large_message_is_checked_without_a_copy() -> None:
    flat = msgspec.msgpack.encode([b"\x91" * (8 << 20), [1.5] * 1_000])
    deep = b"\x92" + msgspec.msgpack.encode(bytes(8 << 20)) + ARRAYS
    # The bytes of an Arrow buffer are signed.
    for kind in (bytes, lambda data: memoryview(pa.py_buffer(data)), memoryview):
        with measured() as taken:
            check_msgpack(kind(flat))  # type: ignore[operator]
            with pytest.raises(RecursionError):
                check_msgpack(kind(deep))  # type: ignore[operator]
        assert taken.python < 3 << 20


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
def test_a_poisoned_record_follows_the_policy(on_error: Any) -> None:
    app = sl.App("app")
    words = app.topic("words", value=dict)
    seen: list[Any] = []
    app.task(words, on_error=on_error, name="t")(lambda record: seen.append(record.value))
    raw = sl.App("raw").topic("words", value=bytes)
    driver = TestDriver(app)
    driver._take([(raw, "k", value) for value in (b"\x81\x01\x02", ARRAYS, b"\x81\x03\x04")])
    driver.settle()
    assert seen == [{1: 2}, {3: 4}]


# Avro schemas -------------------------------------------------------------------------


def record(name: str, *types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{n}", "type": kind} for n, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def chained(count: int, times: int, first: str = "long") -> list[Any]:
    """Return types of which each has the one before it, a number of times."""
    later = [record(f"R{n}", *[f"R{n - 1}"] * times) for n in range(1, count)]
    return [record("R0", first), *later]


MANY = b"\x80\x80\x80\x80\x80\x80\x80\x80\x20"
"""2**60 as an int of Avro."""
BOUNDLESS: dict[str, tuple[Any, bytes]] = {
    "items of an empty record": (
        record("T", record("E"), {"type": "array", "items": "E"}),
        MANY + b"\0",
    ),
    "items of records of null": (
        record("T", {"type": "array", "items": record("E", "null")}),
        MANY + b"\0",
    ),
    "items of a fixed of no bytes": (
        record("T", {"type": "fixed", "name": "Z", "size": 0}, {"type": "array", "items": "Z"}),
        MANY + b"\0",
    ),
    "items of a type in a namespace": (
        record("a.T", record("E", record("F")), {"type": "array", "items": "a.E"}),
        MANY + b"\0",
    ),
    "types within each other": (chained(20_000, 1), b"\xbe\xb8\x02" + b"\0"),
    "records of null": (["long", *chained(40, 2, "null")], b"\x50"),
}
DOUBLED = record("T", *[["null", kind] for kind in chained(60, 2)])
"""A schema of 60 names, which has 2**60 columns."""


@pytest.mark.parametrize("name", BOUNDLESS)
def test_a_schema_of_values_without_bounds_is_refused(name: str) -> None:
    schema, datum = BOUNDLESS[name]
    with pytest.raises(sl.InvalidConfig, match="no bound|take no bytes|more than 200 deep"):
        avro(json.dumps(schema))
    registry = SchemaRegistry("mock://boundless")
    registry._schemas[7] = RegisteredSchema("AVRO", json.dumps(schema))
    maps = json.dumps(record("M", {"type": "map", "values": "long"}))
    for kind, own in ((Plain, None), (dict, maps)):
        codec = value_codec(kind, AvroSerde(own, registry=registry), SerdeUse("t", "value", None))
        with pytest.raises(InvalidRecord, match="no bound|take no bytes|more than 200 deep"):
            decoded(codec, b"\0\0\0\0\x07" + datum)


def test_columns_that_double_with_each_name_take_no_time() -> None:
    registry = SchemaRegistry("mock://doubled")
    registry._schemas[7] = RegisteredSchema("AVRO", json.dumps(DOUBLED))
    codec = value_codec(Plain, AvroSerde(registry=registry), SerdeUse("t", "value", None))
    with pytest.raises(InvalidRecord, match="missing"):
        decoded(codec, b"\0\0\0\0\x07" + b"\0" * 60)


def test_many_optional_fields_and_a_type_used_often_are_accepted() -> None:
    kinds = [record("A", *["long"] * 20), *["A"] * 100, *[["null", "A"]] * 100, *["null"] * 10]
    assert avro(json.dumps(record("T", *kinds)))
    assert avro(json.dumps(record("T", *[["null", "string"]] * 500)))


# Protobuf -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nest() -> Any:
    """Return the class of a message within itself: in a field, a group, a list and a map."""
    kinds = descriptor_pb2.FieldDescriptorProto
    one, many = kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED
    file = descriptor_pb2.FileDescriptorProto(name="nest.proto", syntax="proto2")
    nest = file.message_type.add(name="Nest")
    inner = {"type": kinds.TYPE_MESSAGE, "type_name": ".Nest"}
    nest.field.add(name="own", number=1, label=one, **inner)
    nest.field.add(name="kids", number=2, label=many, **inner)
    group = nest.nested_type.add(name="Grouped")
    group.field.add(name="own", number=1, label=one, **inner)
    grouped = {"type": kinds.TYPE_GROUP, "type_name": ".Nest.Grouped"}
    nest.field.add(name="grouped", number=3, label=one, **grouped)
    for number, (name, value) in enumerate(
        [("named", inner), ("counts", {"type": kinds.TYPE_INT32})], 4
    ):
        entry = nest.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=one, type=kinds.TYPE_STRING)
        entry.field.add(name="value", number=2, label=one, **value)
        kind = {"type": kinds.TYPE_MESSAGE, "type_name": f".Nest.{entry.name}"}
        nest.field.add(name=name, number=number, label=many, **kind)
    needed = file.message_type.add(name="Needed")
    needed.field.add(name="n", number=1, label=kinds.LABEL_REQUIRED, type=kinds.TYPE_INT32)
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(name)) for name in ("Nest", "Needed")}


STEPS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "field": (1, lambda message: message.own),
    "list": (1, lambda message: message.kids.add()),
    "group": (2, lambda message: message.grouped.own),
    "map": (2, lambda message: message.named["a"]),
}
"""Ways from a message to the next one, and the number of messages that each of them adds."""


@pytest.mark.parametrize("way", STEPS)
@pytest.mark.parametrize("last", ["nothing", "a map of numbers"])
def test_a_message_that_could_not_be_read_is_not_written(nest: Any, way: str, last: str) -> None:
    codec = value_codec(nest["Nest"], ProtobufSerde(registry=False), SerdeUse("t", "value", None))
    adds, step = STEPS[way]
    for depth in range(90, 112):
        message = innermost = nest["Nest"]()
        for _ in range(depth // adds):
            innermost = step(innermost)
        innermost.SetInParent()
        total = depth // adds * adds
        if last == "a map of numbers":
            innermost.counts["a"] = 1
            total += 1
        if total <= 100:
            written = codec.encode([codec.item(message)])
            assert codec.decode(written) == [message]
            continue
        with pytest.raises(InvalidRecord, match="Nest is nested more than 100 deep"):
            codec.item(message)
        with pytest.raises(InvalidRecord, match="not a Protobuf message"):
            decoded(codec, message.SerializeToString())


def test_a_message_that_would_overflow_the_stack_is_refused(nest: Any) -> None:
    codec = value_codec(nest["Nest"], ProtobufSerde(registry=False), SerdeUse("t", "value", None))
    message = innermost = nest["Nest"]()
    for _ in range(100_000):
        innermost = innermost.own
    innermost.SetInParent()
    with pytest.raises(InvalidRecord, match="more than 100 deep"):
        codec.item(message)


def test_a_message_without_a_required_field_is_refused(nest: Any) -> None:
    codec = value_codec(nest["Needed"], ProtobufSerde(registry=False), SerdeUse("t", "value", None))
    with pytest.raises(InvalidRecord, match="Needed"):
        codec.item(nest["Needed"]())
