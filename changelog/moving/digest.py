"""A checksum of records in their order, the same however they are cut into batches.

Each property of a record (its time, the length of its key, the key's bytes, …) is a stream of bytes of
its own, and a CRC-32C runs along each. So it goes over columns without touching single records, two
readers that fetch differently come to the same, and it can be put down and taken up again.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from strandline.changelog.records import HEADERS_TYPE

_NO_HEADERS = pa.array([], HEADERS_TYPE.value_type)


class StreamDigest(msgspec.Struct, frozen=True, array_like=True):
    """How many records, and the checksums of their streams so far.

    >>> from strandline.changelog.records import columns_schema
    >>> rows = [{"timestamp": n, "key": None, "value": b"v" * n} for n in range(5)]
    >>> batch = pa.RecordBatch.from_pylist(rows, columns_schema(pa.binary(), headers=False))
    >>> whole = StreamDigest().over(batch)
    >>> StreamDigest().over(batch.slice(0, 2)).over(batch.slice(2)) == whole
    True
    >>> whole.count, StreamDigest().over(batch.slice(2)).over(batch.slice(0, 2)) == whole
    (5, False)
    """

    count: int = 0
    sums: tuple[int, ...] = ()

    def over(self, columns: pa.RecordBatch) -> StreamDigest:
        """With a batch (columns of `changelog.records`) at its end; one with values of the same type."""
        if columns.num_rows == 0:
            return self
        streams = list(_streams_of(columns))
        before = self.sums or (0,) * len(streams)
        sums = (crc32c(data, crc) for data, crc in zip(streams, before, strict=True))
        return StreamDigest(self.count + columns.num_rows, tuple(sums))

    @property
    def text(self) -> str:
        """All in one, for people: 16 hexadecimal digits."""
        packed = struct.pack(f"<q{len(self.sums)}I", self.count, *self.sums)
        return hashlib.blake2b(packed, digest_size=8).hexdigest()


def _streams_of(columns: pa.RecordBatch) -> Iterator[memoryview]:
    for name in ("timestamp", "key", "value"):
        yield from _streams(columns.column(name))
    yield from _of_headers(columns)


def _of_headers(columns: pa.RecordBatch) -> Iterator[memoryview]:
    """Of each record how many headers, and all of them; none are as good as an empty list."""
    if columns.schema.get_field_index("headers") < 0:
        counts, pairs = pa.repeat(pa.scalar(0, pa.int32()), columns.num_rows), _NO_HEADERS
    else:
        headers = columns.column("headers").cast(HEADERS_TYPE)
        counts, pairs = pc.list_value_length(headers).fill_null(0), headers.flatten()
    yield _bytes_of(counts)
    yield from _streams(pairs)


def _streams(array: pa.Array) -> Iterator[memoryview]:
    """What an array holds, whatever lies behind its nulls, or in front of its slice."""
    kind = array.type
    yield _bytes_of(pc.is_valid(array).cast(pa.int8()))
    if _is_binary(kind):
        dense = array.drop_null().cast(pa.large_binary())
        yield _bytes_of(pc.binary_length(dense))
        yield _content(dense)
    elif pa.types.is_struct(kind):
        for child in array.flatten():
            yield from _streams(child)
    elif pa.types.is_map(kind):
        yield from _streams(array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield _bytes_of(pc.list_value_length(array.drop_null()).cast(pa.int64()))
        yield from _streams(array.flatten())
    elif pa.types.is_fixed_size_list(kind):
        yield from _streams(array.flatten())
    elif pa.types.is_boolean(kind):
        yield _bytes_of(array.drop_null().cast(pa.int8()))
    else:
        yield _bytes_of(array.drop_null())


def _is_binary(kind: pa.DataType) -> bool:
    checks = (
        *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
        *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    )
    return any(check(kind) for check in checks)


def _bytes_of(array: pa.Array) -> memoryview:
    """The values of an array of a fixed width, none of them null."""
    width = array.type.bit_width // 8
    data = _bytes_in(array.buffers()[1])
    return data[array.offset * width : (array.offset + len(array)) * width]


def _content(array: pa.Array) -> memoryview:
    """The bytes of an array of large_binary, one value after the other."""
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[[array.offset, array.offset + len(array)]]
    return _bytes_in(data)[ends[0] : ends[1]]


def _bytes_in(buffer: pa.Buffer | None) -> memoryview:
    return memoryview(b"" if buffer is None else buffer)
