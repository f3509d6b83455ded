"""docs/format.md describes the bytes on disk: its tables and its example are compared with the
code."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.changelog.embedded import frame
from strandline.changelog.embedded.batches import batch_of, records_of
from strandline.changelog.embedded.format import (
    _HEADER,
    HEADER_SIZE,
    FrameHeader,
    FrameKind,
    unpack_header,
)
from strandline.changelog.embedded.segment import LocatedFrame
from strandline.changelog.errors import CorruptLog, StrandlineError
from strandline.changelog.layout import partition_folder, place_of
from strandline.changelog.records import HEADERS_TYPE, TopicPartition
from strandline.changelog.schema import ValueSchemas
from tests.forms import examples
from tests.log.kit import columns

TYPES = {"4s": "4s", "u8": "B", "u16": "H", "u32": "I", "i32": "i", "i64": "q"}
PLACE = place_of(f"{partition_folder('0123456789abcdef' * 2, 3)}/x.log")
PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text()


def test_the_table_of_the_frame_header_is_the_struct() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \| (\w+) \|", PAGE, re.MULTILINE)
    at = 0
    for position, size, type_, _ in rows:
        assert int(position) == at
        assert int(size) == struct.calcsize("<" + TYPES[type_])
        at += int(size)
    assert at == HEADER_SIZE
    assert "<" + "".join(TYPES[type_] for _, _, type_, _ in rows) == _HEADER.format
    assert tuple(name for *_, name in rows) == ("magic", "header_crc", *FrameHeader._fields)


def test_the_worked_example_matches_the_written_bytes_and_reads_back() -> None:
    lines = re.findall(r"^[0-9a-f]{4}  ((?:[0-9a-f]{2} ?){16})$", PAGE, re.MULTILINE)
    documented = bytes.fromhex("".join(lines))
    batch = columns([b"\x0b"], key=b"AA", times=1_700_000_000_000)
    header, parts = frame.frame_parts(
        frame.encode(batch),
        base_offset=41,
        producer_id=7,
        producer_epoch=3,
        base_sequence=5,
        transactional=True,
        leader_epoch=1,
        durable_end=41,
        place=PLACE,
    )
    assert b"".join(bytes(part) for part in parts) == documented
    assert unpack_header(documented, 0, "example") == header
    payload = frame.payload_bytes(memoryview(documented), 0, header, "example", PLACE)
    assert frame.decode(header, payload, pa.binary(), "example").to_pydict() == batch.to_pydict()


@pytest.mark.parametrize("count", [1, 31, 32, 5000])
@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("with_headers", [False, True])
def test_batches_of_any_size_read_back_as_they_were_written(
    count: int, compression: str, *, with_headers: bool
) -> None:
    batch = columns([None, *[b"v%d" % n for n in range(count - 1)]])
    if with_headers:
        headers = pa.array([[{"key": "h", "value": b"\xff"}], *[[]] * (count - 1)], HEADERS_TYPE)
        batch = batch.append_column("headers", headers)
    header, parts = frame.frame_parts(frame.encode(batch, compression=compression), base_offset=0)
    data = memoryview(b"".join(bytes(part) for part in parts))
    assert len(data) == header.length
    payload = frame.payload_bytes(data, 0, header, "test")
    if header.kind == FrameKind.ARROW:
        metadata_size = int.from_bytes(payload[4:8], "little")
        assert (header.payload_start + 8 + metadata_size) % 64 == 0
    assert frame.decode(header, payload, pa.binary(), "test").to_pydict() == batch.to_pydict()


def test_a_few_large_records_are_stored_as_arrow_and_compressed() -> None:
    large = columns([bytes(frame.ROWS_MAX_BYTES)] * 2)
    header, parts = frame.frame_parts(frame.encode(large, compression="zstd"), base_offset=0)
    assert header.kind == FrameKind.ARROW
    assert sum(len(part) for part in parts) < 2_000
    few = columns([b"v"] * 100_000).slice(5, 3)
    header, parts = frame.frame_parts(frame.encode(few, compression="zstd"), base_offset=0)
    assert header.kind == FrameKind.ROWS
    assert sum(len(part) for part in parts) < 300


@pytest.mark.parametrize("count", [1, 31, 32])
@pytest.mark.parametrize("shape", ["plain", "headers", "sparse", "typed"])
def test_records_read_one_by_one_are_those_of_the_batch(count: int, shape: str) -> None:
    batch, schemas = columns([None, *[b"v%d" % n for n in range(count - 1)]]), ValueSchemas()
    offsets = pa.array(range(40, 40 + 2 * count, 2)) if shape == "sparse" else None
    if shape == "headers":
        headers = pa.array([[{"key": "h", "value": b"\xff"}], *[[]] * (count - 1)], HEADERS_TYPE)
        batch = batch.append_column("headers", headers)
    if shape == "typed":
        schemas = schemas.extended(pa.schema({"n": pa.int64()}), "t")
        batch = batch.set_column(2, "value", pa.nulls(count, schemas.latest_type))
    payload = frame.encode(batch, offsets=offsets, schema_id=schemas.latest_id)
    located = locate(*frame.frame_parts(payload, base_offset=40))
    partition = TopicPartition("t", 3)
    expected = list(batch_of(located, partition, schemas).records())
    assert list(records_of(located, partition, schemas)) == expected
    assert [record.offset for record in expected][-1] == 39 + (2 * count - 1 if offsets else count)


@pytest.mark.parametrize(
    "rows",
    [
        [[1], [b"k"], [b"v"], None],
        [[1, 2], [b"k"], [b"v", b"w"], None],
        [[1, 2], [b"k", b"l"], [b"v", b"w"], [[], []]],
        [[1, 2], ["k", "l"], [b"v", b"w"], None],
        [1, 2],
    ],
    ids=["too few", "a key is missing", "headers", "keys of text", "no columns"],
)
def test_rows_that_contradict_the_header_are_damage(rows: list[object]) -> None:
    header, _ = frame.frame_parts(frame.encode(columns([b"v", b"w"])), base_offset=0)
    with pytest.raises(CorruptLog, match="here: "):
        frame.decode_pairs(header, memoryview(msgspec.msgpack.encode(rows)), "here")


def locate(header: FrameHeader, parts: list[bytes]) -> LocatedFrame:
    return LocatedFrame(header, memoryview(b"".join(bytes(part) for part in parts)), 0, "here")


@settings(max_examples=examples(300))
@given(bit=st.integers(0, 1151 * 8 - 1), count=st.sampled_from([1, 40]))
def test_a_flipped_bit_is_always_detected(bit: int, count: int) -> None:
    batch = columns([b"%d" % n for n in range(count)])
    _, parts = frame.frame_parts(frame.encode(batch), base_offset=0)
    data = bytearray(b"".join(bytes(part) for part in parts))
    bit %= len(data) * 8
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptLog):
        verify(memoryview(data))


def verify(data: memoryview) -> None:
    frame.payload_bytes(data, 0, unpack_header(data, 0, "test"), "test")


@settings(max_examples=examples(200))
@given(noise=st.binary(max_size=400))
def test_noise_is_refused_and_never_decoded(noise: bytes) -> None:
    with pytest.raises(StrandlineError):
        unpack_header(noise, 0, "test")
