"""Confluent's wire format: a header before each value, used with schema registries.

    0          one byte, the version of this format
    schema id  4 bytes, big-endian
    indexes    Protobuf only: the message of the schema, as ints in Avro's encoding, their count
               first; [0], the first message, is the single byte 0

The value follows. See "Wire format" in
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.arrays import of_numbers
from strandline.changelog.errors import InvalidRecord
from strandline.framework.formats.binary import Ints, binary, bounds_of, flat, ranges

MAGIC = 0
HEADER_BYTES = 5
"""Bytes of version and schema id."""


def header(schema_id: int) -> bytes:
    """Return the header of a value of that schema.

    >>> header(7).hex()
    '0000000007'
    """
    return bytes([MAGIC]) + schema_id.to_bytes(4, "big")


def framed(data: pa.Array, prefix: bytes) -> pa.Array:
    """Return each value with `prefix` before it.

    >>> framed(pa.array([b"a", b""]), header(1)).to_pylist()
    [b'\\x00\\x00\\x00\\x00\\x01a', b'\\x00\\x00\\x00\\x00\\x01']
    """
    joined = pc.binary_join_element_wise(prefix, data, pa.scalar(b"", pa.binary()))
    return joined.cast(pa.binary())


def schema_ids(data: pa.Array) -> Ints:
    """Return the schema id of each value. Raise InvalidRecord."""
    raw, bounds = flat(data)
    starts = bounds[:-1]
    if len(data) and (np.diff(bounds).min() < HEADER_BYTES or raw[starts].any()):
        raise InvalidRecord(
            "a value does not begin with 0 and a schema id of 4 bytes, as with a schema registry"
            " (Confluent's wire format); if it was written without one, declare registry=False"
        )
    digits = raw[starts[:, None] + np.arange(1, HEADER_BYTES)].astype(np.int64)
    ids: Ints = digits @ np.array([1 << 24, 1 << 16, 1 << 8, 1], np.int64)
    return ids


def by_schema(data: pa.Array) -> Iterator[tuple[int, Any, pa.Array]]:
    """Yield for each schema id the places of its values, and the values without their headers."""
    ids = schema_ids(data)
    for schema_id in np.unique(ids).tolist():
        places = np.flatnonzero(ids == schema_id)
        yield schema_id, places, without(data.take(of_numbers(places)), HEADER_BYTES)


def without(data: pa.Array, count: int) -> pa.Array:
    """Return each value without its first `count` bytes; no value may be shorter."""
    raw, bounds = flat(data)
    lengths = np.diff(bounds) - count
    return binary(bounds_of(lengths), raw[ranges(bounds[:-1] + count, lengths)])
