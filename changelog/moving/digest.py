"""A checksum of records in order that does not depend on the batches.

Each property of a record (its timestamp, the length of its key, the key's bytes, …) is a separate
stream of bytes with a running CRC-32C. The checksum is computed from columns, without touching
single records. Readers that fetch different batches get the same value. It can be saved and
continued.
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

from strandline.changelog.arrays import repeated
from strandline.changelog.records import HEADERS_TYPE

_NO_HEADERS = pa.array([], HEADERS_TYPE.value_type)


class StreamDigest(msgspec.Struct, frozen=True, array_like=True):
    """Number of records and the checksums of their streams so far.

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
    """Number of records."""
    sums: tuple[int, ...] = ()
    """CRC-32C of each stream; empty before the first record."""

    def over(self, columns: pa.RecordBatch) -> StreamDigest:
        """Return the digest continued over a batch with columns of `changelog.records`.

        All batches must have values of the same type.
        """
        if columns.num_rows == 0:
            return self
        streams = list(_streams_of(columns))
        previous = self.sums or (0,) * len(streams)
        sums = (crc32c(data, crc) for data, crc in zip(streams, previous, strict=True))
        return StreamDigest(self.count + columns.num_rows, tuple(sums))

    @property
    def text(self) -> str:
        """Digest of count and checksums for display: 16 hexadecimal digits."""
        packed = struct.pack(f"<q{len(self.sums)}I", self.count, *self.sums)
        return hashlib.blake2b(packed, digest_size=8).hexdigest()


def _streams_of(columns: pa.RecordBatch) -> Iterator[memoryview]:
    """Yield the streams of a batch of records."""
    for name in ("timestamp", "key", "value"):
        yield from _streams(columns.column(name))
    yield from _of_headers(columns)


def _of_headers(columns: pa.RecordBatch) -> Iterator[memoryview]:
    """Yield the number of headers per record and all headers; null counts as an empty list."""
    if columns.schema.get_field_index("headers") < 0:
        counts, pairs = repeated(0, columns.num_rows, np.int32), _NO_HEADERS
    else:
        headers = columns.column("headers").cast(HEADERS_TYPE)
        counts, pairs = pc.list_value_length(headers).fill_null(0), headers.flatten()
    yield _bytes_of(counts)
    yield from _streams(pairs)


def _streams(array: pa.Array) -> Iterator[memoryview]:
    """Yield the streams of an array; bytes under nulls or outside of its slice do not count."""
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
    """Return the values of a fixed-width array without nulls as bytes."""
    width = array.type.bit_width // 8
    data = _bytes_in(array.buffers()[1])
    return data[array.offset * width : (array.offset + len(array)) * width]


def _content(array: pa.Array) -> memoryview:
    """Return the concatenated values of a large_binary array."""
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[[array.offset, array.offset + len(array)]]
    return _bytes_in(data)[ends[0] : ends[1]]


def _bytes_in(buffer: pa.Buffer | None) -> memoryview:
    return memoryview(b"" if buffer is None else buffer)
