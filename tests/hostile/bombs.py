"""Messages and frames that claim to be larger than they are, and the memory that reading them
takes."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from collections.abc import Callable, Iterator

import pyarrow as pa

from strandline.changelog import ipc
from strandline.changelog.embedded.format import (
    HEADER_SIZE,
    FrameHeader,
    FrameKind,
    pack_header,
    padded,
)
from strandline.changelog.embedded.frame import _payload, frame_parts
from strandline.changelog.flatbuffers import field, target
from tests.log.kit import columns


def batch(count: int = 100) -> pa.RecordBatch:
    """Return records of bytes that compress well."""
    return columns([b"x" * 50] * count)


def compressed(records: pa.RecordBatch, compression: str = "zstd") -> bytes:
    """Return the compressed message of a batch, as with `compression.type`."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, records.schema, options=options) as writer:
        writer.write_batch(records)
    stream = sink.getvalue().to_pybytes()
    return stream[8 + int.from_bytes(stream[4:8], "little") : -8]


def claiming(message: bytes, sizes: Callable[[int], int]) -> bytes:
    """Return the compressed message with each buffer claiming another size."""
    found = pa.ipc.read_message(message)
    start = len(message) - found.body.size
    changed = bytearray(message)
    for at in _compressed_buffers(found):
        (size,) = struct.unpack_from("<q", changed, start + at)
        if size != ipc._STORED_UNCOMPRESSED:
            struct.pack_into("<q", changed, start + at, sizes(size))
    return bytes(changed)


def _compressed_buffers(message: pa.Message) -> Iterator[int]:
    metadata = memoryview(message.metadata)
    start = _buffers(metadata)
    (count,) = struct.unpack_from("<I", metadata, start)
    for index in range(count):
        at, size = struct.unpack_from("<qq", metadata, start + 4 + 16 * index)
        if size:
            yield at


def _buffers(metadata: memoryview) -> int:
    """Return the position of the vector of buffers."""
    table = target(metadata, field(metadata, target(metadata, 0), 2))
    return target(metadata, field(metadata, table, 2))


def sharing(message: bytes) -> bytes:
    """Return the message with all buffers at one place, each of the largest size: many columns, few
    bytes."""
    found = pa.ipc.read_message(message)
    metadata = memoryview(found.metadata)
    start = _buffers(metadata)
    (count,) = struct.unpack_from("<I", metadata, start)
    pairs = [struct.unpack_from("<qq", metadata, start + 4 + 16 * i) for i in range(count)]
    largest = max(pairs, key=lambda pair: pair[1])
    changed = bytearray(message)
    for index, (_, size) in enumerate(pairs):
        if size == largest[1]:
            at = _METADATA + start + 4 + 16 * index
            struct.pack_into("<qq", changed, at, *largest)
    return bytes(changed)


def frame(
    message: bytes, kind: FrameKind = FrameKind.ARROW, count: int = 100, **header: int
) -> bytes:
    """Return a frame around a message, with the right checksums."""
    if kind == FrameKind.ARROW:
        body = 8 + int.from_bytes(message[4:8], "little")
        start = padded(HEADER_SIZE + body) - body
    else:
        start = HEADER_SIZE
    payload = _payload(kind, 0, count, 0, 0, 0, message, start)
    made, parts = frame_parts(payload, base_offset=0, leader_epoch=0, durable_end=0)
    content = b"".join(bytes(part) for part in parts)
    return pack_header(made._replace(**header)) + content[HEADER_SIZE:]


def header_claiming(**fields: int) -> bytes:
    """Return a frame's header with these fields and the right checksum."""
    known = dict.fromkeys(FrameHeader._fields, 0)
    sizes = {"length": 128, "version": 1, "kind": FrameKind.ROWS, "record_count": 1}
    places = {"payload_start": HEADER_SIZE, "payload_size": 8}
    return pack_header(FrameHeader(**{**known, **sizes, **places, **fields}))


class FlatBuffer:
    """FlatBuffer in which any number of references may lead to one table or text."""

    def __init__(self) -> None:
        self._data = bytearray(4)

    def table(self, **slots: tuple[int, str, int]) -> tuple[int, dict[str, int]]:
        """Append a table, and return its position and those of its fields.

        Args:
            slots: The number, format and value of each field; the format "I" is a reference.
        """
        self._align(4)
        vtable, count = (
            len(self._data),
            max((slot for slot, _, _ in slots.values()), default=-1) + 1,
        )
        self._data += struct.pack("<HH", 4 + 2 * count, 0) + bytes(2 * count)
        self._align(8)
        start, at = len(self._data), {}
        self._data += struct.pack("<i", start - vtable)
        for name, (slot, form, value) in slots.items():
            self._align(struct.calcsize(form))
            at[name] = len(self._data)
            self._data += struct.pack("<" + form, value)
            struct.pack_into("<H", self._data, vtable + 4 + 2 * slot, at[name] - start)
        struct.pack_into("<H", self._data, vtable + 2, len(self._data) - start)
        return start, at

    def vector(self, count: int) -> int:
        """Append a vector of references, and return its position."""
        self._align(4)
        self._data += struct.pack("<I", count) + bytes(4 * count)
        return len(self._data) - 4 * count - 4

    def text(self, content: bytes) -> int:
        """Append a text, and return its position."""
        self._align(4)
        self._data += struct.pack("<I", len(content)) + content + b"\0"
        return len(self._data) - len(content) - 5

    def refer(self, at: int, target: int) -> None:
        """Let the reference at a position lead to `target`."""
        struct.pack_into("<I", self._data, at, target - at)

    def repeat(self, vector: int, count: int, target: int) -> None:
        """Let all references of a vector lead to `target`."""
        for index in range(count):
            self.refer(vector + 4 + 4 * index, target)

    def message(self, padding: int = 0) -> bytes:
        """Return the encapsulated message, with unused bytes after it."""
        self._align(8)
        content = bytes(self._data) + bytes(padding // 8 * 8)
        return struct.pack("<II", 0xFFFFFFFF, len(content)) + content

    def _align(self, to: int) -> None:
        self._data += bytes(-len(self._data) % to)


def schema_of_one_field(widths: list[int], padding: int = 0, *, name: bytes = b"f") -> bytes:
    """Return a schema in which each level of fields is one table, referred to many times.

    Args:
        widths: Number of references on each level: columns, their children, and so on.
        padding: Number of unused bytes, since Arrow accepts more tables in a larger message.
        name: Name of every field.
    """
    made = FlatBuffer()
    root, at = made.table(header=(2, "I", 0), version=(0, "h", 4), kind=(1, "B", 1))
    made.refer(0, root)
    schema, of_schema = made.table(fields=(1, "I", 0), endianness=(0, "h", 0))
    made.refer(at["header"], schema)
    holder = of_schema["fields"]
    for level, width in enumerate(widths):
        fields = made.vector(width)
        made.refer(holder, fields)
        kind = (2, "B", _BOOL if level == len(widths) - 1 else _STRUCT)
        table, of_field = made.table(
            name=(0, "I", 0),
            type=(3, "I", 0),
            children=(5, "I", 0),
            nullable=(1, "B", 1),
            kind=kind,
        )
        made.repeat(fields, width, table)
        made.refer(of_field["name"], made.text(name))
        made.refer(of_field["type"], made.table()[0])
        holder = of_field["children"]
    made.refer(holder, made.vector(0))
    return made.message(padding)


def message_with_one_pair(count: int, value: bytes, header: int = 1) -> bytes:
    """Return a message whose metadata refer to one pair many times; its header is empty."""
    made = FlatBuffer()
    root, at = made.table(
        header=(2, "I", 0), metadata=(4, "I", 0), version=(0, "h", 4), kind=(1, "B", header)
    )
    made.refer(0, root)
    made.refer(at["header"], made.table()[0])
    pairs = made.vector(count)
    made.refer(at["metadata"], pairs)
    pair, of_pair = made.table(key=(0, "I", 0), value=(1, "I", 0))
    made.repeat(pairs, count, pair)
    made.refer(of_pair["key"], made.text(b"k"))
    made.refer(of_pair["value"], made.text(value))
    return made.message(padding=32 * count)


_BOOL, _STRUCT = 6, 13
"""Numbers of types in Arrow's format/Schema.fbs."""
_METADATA = 8
"""Position of the metadata, after the message's mark and its length."""


class Taken:
    """Peak number of bytes in use."""

    arrow = 0
    python = 0


_POOLS: list[pa.MemoryPool] = []
"""Memory pools that are never released, because memory may be returned to them much later."""


@contextlib.contextmanager
def measured() -> Iterator[Taken]:
    """Measure the peak memory that Arrow and Python take inside the block."""
    taken, before = Taken(), pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        yield taken
    finally:
        taken.python = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        pa.set_memory_pool(before)
        taken.arrow = pool.max_memory() or 0
