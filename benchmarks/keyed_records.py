"""Records to clean, the same for every log: keys of 12 bytes, values of 100.

A key is `Quser0000007` (as a store with str keys encodes `user0000007`). The value is the record's
number and padding, so that the log shows after cleaning which record of a key is left. All records
have one timestamp, so no segment ends by age. One more record at the end is half an hour later:
before it the active segment is closed, so that everything else can be cleaned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.changelog.records import columns_schema

Numbers = npt.NDArray[np.int64]

BATCH_RECORDS = 8_000
"""Number of records of a batch: less than a mebibyte in either system."""
VALUE_BYTES = 100
SEGMENT_BYTES = 256 << 20
SEGMENT_MS = 60_000
LATER_MS = 30 * 60_000

_CHUNK_RECORDS = 125 * BATCH_RECORDS
_SCATTER = 2_654_435_761
"""A large prime that divides no count of records."""


@dataclass(frozen=True)
class KeyedRecords:
    """Content of a log: a number of records over a number of keys."""

    count: int
    keys: int | None = None
    """Number of keys, drawn from uniformly; None if each record has its own key, in no order."""
    timestamp: int = 0
    """Milliseconds since the epoch. Timestamp of all records."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield `timestamp`, `key` and `value` of all records, in order."""
        for start, drawn in self._drawn():
            keys = _texts(b"Quser", drawn, max(7, len(str(self._largest))))
            numbers = np.arange(start, start + len(drawn))
            values = _texts(b"", numbers, 12, padding=VALUE_BYTES - 12)
            columns = _columns(keys, values, self.timestamp)
            for first in range(0, len(drawn), BATCH_RECORDS):
                yield columns.slice(first, BATCH_RECORDS)

    @property
    def closing(self) -> pa.RecordBatch:
        """Record that ends the last segment: of another key, and later."""
        key, value = (pa.array([b], pa.binary()) for b in (b"Qlast", b"x" * VALUE_BYTES))
        return _columns(key, value, self.timestamp + LATER_MS)

    @cached_property
    def survivors(self) -> Numbers:
        """Offsets left in a cleaned log, in order: the last one of each key, `closing` not
        counted."""
        last = np.full(self._largest + 1, -1, dtype=np.int64)
        for start, drawn in self._drawn():
            # A later offset of a key overwrites the earlier ones.
            last[drawn] = np.arange(start, start + len(drawn))
        return np.sort(last[last >= 0])

    @property
    def _largest(self) -> int:
        return (self.keys or self.count) - 1

    def _drawn(self) -> Iterator[tuple[int, Numbers]]:
        """Yield the number of the first record and the key numbers, a part at a time."""
        chance = np.random.default_rng(1)
        for start in range(0, self.count, _CHUNK_RECORDS):
            size = min(_CHUNK_RECORDS, self.count - start)
            if self.keys is None:
                yield start, np.arange(start, start + size) * _SCATTER % self.count
            else:
                yield start, chance.integers(self.keys, size=size)


def _columns(keys: pa.Array, values: pa.Array, timestamp: int) -> pa.RecordBatch:
    times = pa.repeat(pa.scalar(timestamp, pa.int64()), len(keys))
    schema = columns_schema(pa.binary(), headers=False)
    return pa.RecordBatch.from_arrays([times, keys, values], schema=schema)


def _texts(prefix: bytes, numbers: Numbers, width: int, *, padding: int = 0) -> pa.Array:
    """Return `prefix`, the number in `width` digits, and `padding` times x, for each number."""
    size = len(prefix) + width + padding
    rows = np.full((len(numbers), size), ord("x"), dtype=np.uint8)
    rows[:, : len(prefix)] = np.frombuffer(prefix, dtype=np.uint8)
    for column in range(len(prefix) + width - 1, len(prefix) - 1, -1):
        numbers, digit = np.divmod(numbers, 10)
        rows[:, column] = digit + ord("0")
    buffers = [None, pa.py_buffer(rows)]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(rows), buffers).cast(
        pa.binary()
    )
