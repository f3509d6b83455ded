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
