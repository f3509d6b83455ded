"""The records that are cleaned, the same for every log: keys of 12 bytes, values of 100.

A key is `Quser0000007` (as a store with str keys encodes `user0000007`), the value the record's
number and padding, so that after cleaning it can be seen which record of a key is left. All
bear one timestamp, so no segment ends by age, but for one more record at the end, an hour's
half later: before it the active segment is closed, and everything else can be cleaned.
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

BATCH = 8_000
"""Records of a batch: below a mebibyte in either system."""
VALUE_BYTES = 100
SEGMENT_BYTES = 256 << 20
SEGMENT_MS = 60_000
LATER_MS = 30 * 60_000

_AT_ONCE = 125 * BATCH
_SCATTER = 2_654_435_761
"""A large prime, which no count of records has for a factor."""


@dataclass(frozen=True)
class KeyedRecords:
    """A log's content: how many records, and over how many keys."""

    count: int
    keys: int | None = None
    """Drawn from uniformly; None: each record has a key of its own, in no order."""
    timestamp: int = 0
    """Of all records (ms since 1970)."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """`timestamp`, `key` and `value` of every record, in order."""
        for start, drawn in self._drawn():
            keys = _texts(b"Quser", drawn, max(7, len(str(self._largest))))
            numbers = np.arange(start, start + len(drawn))
            values = _texts(b"", numbers, 12, padding=VALUE_BYTES - 12)
            columns = _columns(keys, values, self.timestamp)
            for first in range(0, len(drawn), BATCH):
                yield columns.slice(first, BATCH)

    @property
    def closing(self) -> pa.RecordBatch:
        """The record that ends the last segment: of another key, and later."""
        key, value = (pa.array([b], pa.binary()) for b in (b"Qlast", b"x" * VALUE_BYTES))
        return _columns(key, value, self.timestamp + LATER_MS)

    @cached_property
    def survivors(self) -> Numbers:
        """The offsets that a cleaned log has left, in order: each key's last, `closing` not counted."""
        last = np.full(self._largest + 1, -1, dtype=np.int64)
        for start, drawn in self._drawn():
            last[drawn] = np.arange(start, start + len(drawn))  # of several the last stays
        return np.sort(last[last >= 0])

    @property
    def _largest(self) -> int:
        return (self.keys or self.count) - 1

    def _drawn(self) -> Iterator[tuple[int, Numbers]]:
        """Numbers of keys, and of the first record that has them."""
        chance = np.random.default_rng(1)
        for start in range(0, self.count, _AT_ONCE):
            size = min(_AT_ONCE, self.count - start)
            if self.keys is None:
                yield start, np.arange(start, start + size) * _SCATTER % self.count
            else:
                yield start, chance.integers(self.keys, size=size)


def _columns(keys: pa.Array, values: pa.Array, timestamp: int) -> pa.RecordBatch:
    times = pa.repeat(pa.scalar(timestamp, pa.int64()), len(keys))
    schema = columns_schema(pa.binary(), headers=False)
    return pa.RecordBatch.from_arrays([times, keys, values], schema=schema)


def _texts(prefix: bytes, numbers: Numbers, width: int, *, padding: int = 0) -> pa.Array:
    """`prefix`, the number in `width` digits, and `padding` times x, for each number."""
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
