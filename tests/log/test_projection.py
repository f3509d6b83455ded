"""Some columns of a message are what they are in the whole message, and nothing is left unchecked."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.changelog.embedded import batches
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import CorruptLog
from strandline.changelog.ipc import read_batch
from strandline.changelog.ipc_projection import layout_of
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.pins import PinName, PinnedRange
from strandline.changelog.records import TopicPartition, columns_schema
from strandline.changelog.selection import ReadSelection, selected
from tests.spark.writing import Writer

TEXT = st.text(max_size=5)
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "i": (pa.int32(), st.integers(-9, 9)),
    "b": (pa.bool_(), st.booleans()),
    "f": (pa.float64(), st.floats(allow_nan=False)),
    "s": (pa.string(), TEXT),
    "S": (pa.large_string(), TEXT),
    "z": (pa.binary(), st.binary(max_size=4)),
    "w": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "d": (pa.decimal128(9, 2), st.decimals(-99, 99, places=2)),
    "t": (pa.timestamp("us", tz="UTC"), st.integers(0, 10**15)),
    "l": (pa.list_(pa.int64()), st.lists(st.integers(0, 9), max_size=3)),
    "L": (pa.list_(pa.string(), 2), st.lists(TEXT, min_size=2, max_size=2)),
    "m": (pa.map_(pa.string(), pa.int8()), st.dictionaries(TEXT, st.integers(0, 9), max_size=2)),
    "n": (
        pa.struct([("x", pa.int16()), ("y", pa.list_(pa.string()))]),
        st.fixed_dictionaries({"x": st.integers(0, 9), "y": st.lists(TEXT, max_size=2)}),
    ),
}


@st.composite
def records(draw: st.DrawFn) -> pa.RecordBatch:
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=6, unique=True))
    kind = pa.struct([pa.field(name, COLUMNS[name][0]) for name in names])
    row = st.fixed_dictionaries({name: st.none() | COLUMNS[name][1] for name in names})
    rows = draw(st.lists(st.none() | row, min_size=1, max_size=8))
    items = [None if r is None else {k: _plain(v) for k, v in r.items()} for r in rows]
    count = len(rows)
    schema = columns_schema(kind, headers=False)
    keys = pa.array([b"k"] * count, pa.binary())
    arrays = [pa.array(range(count), pa.int64()), keys, pa.array(items, kind)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _plain(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) and "x" not in value else value


def message_of(batch: pa.RecordBatch, compression: str | None) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue()
    start = 8 + int.from_bytes(stream.to_pybytes()[4:8], "little")
    return stream.slice(start, stream.size - start - 8)


@given(records(), st.sampled_from([None, "lz4", "zstd"]), st.data())
def test_a_part_is_what_it_is_in_the_whole(
    batch: pa.RecordBatch, compression: str | None, data: st.DataObject
) -> None:
    fields = batch.schema.field("value").type.names
    names = data.draw(st.frozensets(st.sampled_from([*fields, "key"])))
    part = selected(batch.schema, names)
    assert layout_of(batch.schema, part) is not None
    found = read_batch(message_of(batch, compression), batch.schema, part)
    found.validate(full=True)
    assert found.schema == part
    for name in part.names:
        if name != "value":
            assert found[name] == batch[name]
    if "value" in part.names:
        value, whole = found["value"], batch["value"]
        assert value.is_null() == whole.is_null()
        for name in value.type.names:
            assert value.field(name).to_pylist() == whole.field(name).to_pylist()


def test_a_type_of_another_layout_is_read_whole() -> None:
    schema = pa.schema([("v", pa.string_view()), ("n", pa.int64())])
    batch = pa.record_batch([pa.array(["x" * 20], pa.string_view()), pa.array([1])], schema=schema)
    part = pa.schema([schema.field("n")])
    assert layout_of(schema, part) is None
    assert read_batch(message_of(batch, None), schema, part) == batch


@given(records(), st.data())
def test_a_damaged_message_is_an_error_and_not_a_crash(
    batch: pa.RecordBatch, data: st.DataObject
) -> None:
    message = bytearray(message_of(batch, None))
    end = 8 + struct.unpack_from("<i", message, 4)[0]
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(8, end - 1))] = data.draw(st.integers(0, 255))
    name = batch.schema.field("value").type.names[0]
    part = selected(batch.schema, frozenset({name}))
    with contextlib.suppress(pa.ArrowException):
        read_batch(pa.py_buffer(bytes(message)), batch.schema, part).validate(full=True)


def test_a_message_of_another_schema_is_an_error() -> None:
    batch = pa.record_batch({"a": [1]})
    other = pa.schema([("a", pa.int64()), ("b", pa.string())])
    with pytest.raises(pa.ArrowInvalid, match="its schema 2"):
        read_batch(message_of(batch, None), other, pa.schema([other.field("a")]))


# Pinned reads

T = TopicPartition("t", 0)
PIN = PinName("q", "a", "b")
SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
ROWS = 100


@pytest.fixture
def log(storage: MemoryStorage) -> Owner:
    owner = Owner(storage, background=False)
    topic = owner.create_topic("t", 1, schema=SCHEMA, config={"compression.type": "lz4"})
    writer = Writer(owner)
    for start in range(0, 3 * ROWS, ROWS):
        rows = [{"n": start + n, "text": "x" * 100} for n in range(ROWS)]
        writer.write_rows([*rows[:-1], None], SCHEMA)
    owner.pins.hold(PIN, {T: PinnedRange(topic.topic_id, 0, 3 * ROWS)}, timeout_ms=1000)
    return owner


def fetched(log: Owner, selection: ReadSelection) -> list[pa.RecordBatch]:
    found = log.pins.fetch(PIN, T, 0, max_bytes=1 << 20, selection=selection)
    assert found.next_offset == 3 * ROWS
    return [batch.columns for batch in found.batches]


def test_a_pinned_read_decodes_selected_columns_only(log: Owner) -> None:
    whole = fetched(log, ReadSelection())
    some = fetched(log, ReadSelection(frozenset({"n"})))
    assert [each.schema.names for each in some] == [["timestamp", "value"]] * 3
    for part, every in zip(some, whole, strict=True):
        assert part["value"].type.names == ["n"]
        assert part["value"].flatten()[0] == every["value"].flatten()[0]
    none = fetched(log, ReadSelection(frozenset({"key"})))
    assert [each.schema.names for each in none] == [["timestamp", "key"]] * 3


def test_the_checksum_is_verified_although_damage_is_in_another_column(
    log: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    (batch, *_) = fetched(log, ReadSelection())
    payload = batches.LocatedFrame.payload

    def damaged(frame: Any) -> memoryview:
        found = payload.fget(frame)  # type: ignore[attr-defined]
        at = frame.position + frame.header.payload_start + frame.header.payload_size - 8
        changed = np.frombuffer(bytes(frame.data), np.uint8).copy()
        changed[at] ^= 1
        assert len(found)
        return payload.fget(frame._replace(data=memoryview(changed)))  # type: ignore[attr-defined, no-any-return]

    monkeypatch.setattr(batches.LocatedFrame, "payload", property(damaged))
    with pytest.raises(CorruptLog, match="checksum"):
        fetched(log, ReadSelection(frozenset({"n"})))


def test_batches_that_are_too_old_are_left_out(log: Owner) -> None:
    newest = max(max(each["timestamp"].to_pylist()) for each in fetched(log, ReadSelection()))
    assert len(fetched(log, ReadSelection(since_ms=newest))) >= 1
    assert fetched(log, ReadSelection(since_ms=newest + 1)) == []
