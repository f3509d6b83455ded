"""Reduction of a chunk of a changelog to the last record of each key, sorted, by columns.

Sorting would take most of the time of a large restore. So byte strings are compared as machine
words: after the prefix that all keys share, each key is cut into 8-byte big-endian words, padded
with zeros. If keys differ in length, the last byte of the last word is the key's length, which
decides between keys that differ only in padding. Most keys need one word. The sort need not be
stable, because the last of equal keys is the one with the highest position.

No Python objects are created for keys and values. A restore sorts while another thread writes and
holds the interpreter lock. Each NumPy call has to wait for that lock, so there are few of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.arrays import as_numpy, of_numbers

Octets = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Lengths = npt.NDArray[np.int32]
Order = npt.NDArray[np.int64]

WORD_BYTES = 8
MAX_WORDS = 4
"""Maximum number of words of a key; Arrow sorts longer keys faster."""


def latest_per_key(keys: pa.Array, values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the distinct keys in ascending order, and the last value of each.

    >>> keys = pa.array([b"b", b"a", b"b"])
    >>> names, latest = latest_per_key(keys, pa.array([b"1", b"2", None], pa.binary()))
    >>> names.to_pylist(), latest.to_pylist()
    ([b'a', b'b'], [b'2', None])
    """
    if not len(keys):
        return keys, values
    strings = _Strings.of(keys.cast(pa.binary()))
    words = _words(strings)
    order = np.argsort(words[0]) if len(words) == 1 else np.lexsort(words[::-1])
    is_first = _is_first(words, order)
    last = order if is_first.all() else np.maximum.reduceat(order, np.flatnonzero(is_first))
    return strings.take(last), values.take(of_numbers(last))


@dataclass(frozen=True, slots=True)
class _Strings:
    """A column of byte strings with its buffers as NumPy arrays."""

    column: pa.Array
    data: Octets
    """Bytes of all strings, followed by enough zeros to read whole words after the last one."""
    starts: Lengths
    """Index of each string's first byte in `data`."""
    lengths: Lengths
    """Number of bytes of each string."""
    shortest: int
    """Least number of bytes of a string."""
    longest: int
    """Greatest number of bytes of a string."""

    @classmethod
    def of(cls, column: pa.Array) -> _Strings:
        _, offset_buffer, data_buffer = column.buffers()
        offsets = np.frombuffer(offset_buffer, np.int32)[column.offset :][: len(column) + 1]
        data = np.frombuffer(data_buffer or b"", np.uint8)[: offsets[-1]]
        padded = np.concatenate([data, np.zeros(WORD_BYTES * (MAX_WORDS + 1), np.uint8)])
        lengths = np.diff(offsets)
        return cls(column, padded, offsets[:-1], lengths, int(lengths.min()), int(lengths.max()))

    def shared_prefix(self) -> int:
        """Return the length of the prefix of all strings: that shared by the least and greatest."""
        extremes = pc.min_max(self.column)
        pairs = zip(extremes["min"].as_py(), extremes["max"].as_py(), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def words(self, at: int) -> Words:
        """Return bytes [at, at + 8) of each string as a number, with zeros after its end."""
        if self.shortest == self.longest:
            word = self._numbers(len(self.starts), int(self.starts[0]) + at, self.longest)
            return word.astype(np.uint64) >> np.uint64(8 * max(0, at + WORD_BYTES - self.longest))
        anywhere = self._numbers(len(self.data) - WORD_BYTES + 1, 0, 1)
        word = anywhere[self.starts + at].astype(np.uint64)
        beyond = (8 * np.clip(at + WORD_BYTES - self.lengths, 0, WORD_BYTES)).astype(np.uint64)
        return (word >> beyond) << beyond

    def _numbers(self, count: int, first: int, stride: int) -> npt.NDArray[Any]:
        """Return `count` 8-byte numbers: at byte `first`, and then every `stride` bytes."""
        return np.ndarray((count,), ">u8", self.data, first, (stride,))

    def take(self, positions: Order) -> pa.Array:
        """Return the strings at `positions`; several times faster than Arrow for equal lengths."""
        length = self.longest
        if not 0 < length == self.shortest:
            return self.column.take(of_numbers(positions))
        every = np.ndarray((len(self.starts),), f"V{length}", self.data, int(self.starts[0]))
        taken = every.take(positions)
        offsets = np.arange(0, taken.nbytes + 1, length, dtype=np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(taken)]
        return pa.Array.from_buffers(pa.binary(), len(taken), buffers)


def _words(keys: _Strings) -> list[Words]:
    """Return columns of numbers that order like the keys; the first column is most significant."""
    skip = keys.shared_prefix()
    varied = keys.shortest != keys.longest
    end = max(keys.longest + varied, skip + 1)
    if end - skip > WORD_BYTES * MAX_WORDS:
        return [as_numpy(pc.rank(keys.column, tiebreaker="dense"))]
    words = [keys.words(at) for at in range(skip, end, WORD_BYTES)]
    if varied:
        words[-1] |= (keys.lengths - skip).astype(np.uint64)  # at most 8 * MAX_WORDS: one byte
    return words


def _is_first(words: list[Words], order: Order) -> npt.NDArray[np.bool_]:
    """Return for each index of `order` whether its key differs from the one before."""
    is_first = np.zeros(len(order), np.bool_)
    is_first[0] = True
    for word in words:
        ordered = word[order]
        is_first[1:] |= ordered[1:] != ordered[:-1]
    return is_first
