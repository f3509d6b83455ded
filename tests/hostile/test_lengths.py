"""Lengths in frames, messages and documents are checked before memory is allocated."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from strandline.changelog.embedded import document
from strandline.changelog.embedded.format import MAX_FRAME_BYTES, FrameKind, unpack_header
from strandline.changelog.embedded.frame import decode, encode, payload_bytes
from strandline.changelog.embedded.manifest import Manifest
from strandline.changelog.embedded.scanning import BrokenFrame, scan
from strandline.changelog.embedded.segment import Segment
from strandline.changelog.errors import CorruptLog, RecordTooLarge
from strandline.changelog.flight import messages, requests
from strandline.changelog.ipc import MAX_UNPACKED_BYTES, claimed_bytes, read_batch
from strandline.changelog.layout import SegmentName
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.schema import read_schema
from strandline.statestore.serdes import MessagePack
from tests.hostile.bombs import (
    batch,
    claiming,
    compressed,
    frame,
    header_claiming,
    measured,
    message_with_one_pair,
    schema_of_one_field,
)

pytestmark = pytest.mark.damages

LITTLE = 8 << 20
"""Maximum bytes that any of these may allocate."""


def read_frame(content: bytes) -> pa.RecordBatch:
    header = unpack_header(content, 0, "here")
    return decode(
        header, payload_bytes(memoryview(content), 0, header, "here"), pa.binary(), "here"
    )


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize(
    "claim",
    [lambda _: 1 << 40, lambda _: MAX_UNPACKED_BYTES, lambda _: -5, lambda _: (1 << 63) - 1],
    ids=["a TiB", "a GiB each", "less than nothing", "overflowing"],
)
def test_a_compressed_frame_that_claims_to_be_huge_is_damage(compression: str, claim) -> None:  # type: ignore[no-untyped-def]
    content = frame(claiming(compressed(batch(), compression), claim))
    with measured() as taken, pytest.raises(CorruptLog, match=r"cannot be decoded.*unpacked"):
        read_frame(content)
    assert taken.arrow < LITTLE


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_compressed_frame_that_claims_a_slightly_wrong_size_is_damage(compression: str) -> None:
    for by in (-8, 8, 64):
        with pytest.raises(CorruptLog):
            read_frame(
                frame(claiming(compressed(batch(), compression), lambda size, by=by: size + by))
            )
    whole = read_frame(frame(compressed(batch(), compression)))
    assert whole.to_pylist() == batch().to_pylist()


def test_a_batch_that_unpacks_to_too_much_is_refused_when_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("strandline.changelog.ipc.MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(RecordTooLarge, match="send smaller batches"):
        encode(batch(), compression="lz4")
    assert encode(batch(), compression="none").record_count == 100


@pytest.mark.parametrize(
    "fields",
    [
        {"length": 1 << 31},
        {"length": MAX_FRAME_BYTES + 64},
        {"length": MAX_FRAME_BYTES},
        {"length": 0},
        {"payload_size": (1 << 32) - 1},
        {"payload_start": (1 << 32) - 1},
        {"payload_start": 0},
    ],
    ids=str,
)
def test_a_header_that_claims_more_than_the_file_is_damage(fields: dict[str, int]) -> None:
    storage = MemoryStorage()
    file = storage.create("f/" + SegmentName(0, 1).log_file)
    file.append(header_claiming(**fields) + b"\0" * 24)
    segment = Segment.open(storage, "f", SegmentName(0, 1), 0, writable=False)
    with measured() as taken:
        (found,) = scan(segment, segment.file.size())
        assert isinstance(found, BrokenFrame)
        segment.size = segment.file.size()
        with pytest.raises(CorruptLog):
            list(segment.frames(0, 4096))
    assert taken.arrow + taken.python < LITTLE


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\x94\xdd\x7f\xff\xff\xff\x01",
        b"\x94\x90\x90\xdd\x7f\xff\xff\xff",
        b"\x94\x91\x01\x91\xc6\xff\xff\xff\xff",
        b"\x94\x91\xcf" + b"\xff" * 8 + b"\x91\xc0\x91\xc0\xc0",
        b"\x94\x91\x01\x91\xc0\x91\xc0\x91\x91\x92\xdb\xff\xff\xff\xff",
        b"\x94\x91\x01\x91\xc0\x91\xc0\x92\x90\x90",
        b"\x91" * 100_000,
    ],
)
def test_rows_that_claim_more_than_the_frame_are_damage(body: bytes) -> None:
    with measured() as taken, pytest.raises(CorruptLog, match="cannot be decoded"):
        read_frame(frame(body, FrameKind.ROWS, 1))
    assert taken.arrow + taken.python < LITTLE


@pytest.mark.parametrize(
    "bomb",
    [
        schema_of_one_field([100, 100], 3_000),
        schema_of_one_field([50, 50, 50], 4_000),
        schema_of_one_field([2_000, 2_000], 2_100_000),
        schema_of_one_field([1_000], 100_000, name=b"x" * 10_000),
        schema_of_one_field([2] * 40, 40_000),
        schema_of_one_field([1] * 300, 40_000),
        message_with_one_pair(1_000, b"x" * 10_000),
    ],
    ids=["fields", "three levels", "many fields", "names", "levels", "deep", "metadata"],
)
def test_references_of_a_schema_count_each_time(
    bomb: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow accepts such schemas, and takes memory for each reference, so it must not see them."""
    monkeypatch.setattr(pa.ipc, "read_schema", not_called)
    with measured() as taken, pytest.raises(pa.ArrowInvalid):
        read_schema(bomb)
    assert taken.python < LITTLE


def test_arrow_accepts_references_to_one_field() -> None:
    """Without this the test above would show nothing."""
    assert len(pa.ipc.read_schema(pa.py_buffer(schema_of_one_field([100, 100], 270_000)))) == 100


def test_metadata_of_a_batch_count_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pa.ipc, "read_message", not_called)
    bomb = pa.py_buffer(message_with_one_pair(1_000, b"x" * 10_000, header=3))
    for read in (lambda: read_batch(bomb, batch().schema), lambda: claimed_bytes(bomb)):
        with pytest.raises(pa.ArrowInvalid, match="repeated ones included"):
            read()


def not_called(*_: object) -> None:
    raise AssertionError("Arrow has opened the message")


@pytest.mark.parametrize("count", [0, 1, 2, 7, 3_000])
@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.timestamp("us", "Europe/Berlin"),
        pa.struct([]),
        pa.struct([("", pa.null())]),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dense_union([pa.field("", pa.null())]),
        pa.map_(pa.string(), pa.list_(pa.bool_())),
    ],
    ids=str,
)
def test_every_schema_that_arrow_writes_is_read(kind: pa.DataType, count: int) -> None:
    for metadata in (None, {"": ""}, {"": "", "k": "v"}):
        schema = pa.schema([pa.field("", kind, metadata=metadata)] * count, metadata)
        assert read_schema(schema.serialize().to_pybytes()).equals(schema, check_metadata=True)


def test_an_impossibly_large_document_is_damage(tmp_path: Path) -> None:
    (tmp_path / "manifest.meta").touch()
    with (tmp_path / "manifest.meta").open("r+b") as file:
        file.truncate(1 << 40)  # a sparse file
    with measured() as taken, pytest.raises(CorruptLog, match="strandline repair"):
        Manifest.load(LocalStorage(tmp_path), ".")
    assert taken.arrow + taken.python < LITTLE


def test_a_document_that_is_too_deep_is_damage() -> None:
    storage = MemoryStorage()
    document.replace(storage, "manifest.meta", document.pack("manifest", b'{"x":' + b"[" * 100_000))
    with pytest.raises(CorruptLog, match="cannot be decoded"):
        document.load(storage, "manifest.meta", "manifest", Manifest)


@pytest.mark.parametrize("kind", sorted(requests.REQUESTS))
def test_a_request_that_claims_more_than_it_has_is_refused(kind: str) -> None:
    for body in (b"\xdd\xff\xff\xff\xff", b"\x9f" + b"\xdf\xff\xff\xff\xff" * 3, b"\x91" * 100_000):
        with measured() as taken, pytest.raises(messages.InvalidRequest):
            messages.decode(body + b"\x01", requests.REQUESTS[kind])
        assert taken.python < LITTLE


def test_a_record_that_is_too_deep_cannot_be_decoded() -> None:
    with pytest.raises(messages.StrandlineError, match="MessagePack"):
        MessagePack().loads(b"\x91" * 100_000 + b"\xc0")
    assert MessagePack().loads(msgspec.msgpack.encode([[[]]])) == [[[]]]
