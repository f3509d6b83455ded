"""Byte strings of many rows, written and read one part of all rows at a time.

`CellPart` is a part of each row, at most a few bytes long: a matrix with one line for each row, of
which a row uses the first bytes. `joined` puts parts side by side. `CellReader` goes through the
rows of a column from the left, and every call of it handles all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.arrays import of_items

ByteArray = npt.NDArray[np.uint8]
Sizes = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

WORD_BYTES = 8
"""Bytes of a number."""
JOINED_ROWS = 1 << 14
"""Number of rows that are joined at a time, because their matrix then stays in the cache."""
_NOTHING = of_items([b""], pa.binary())[0]


@dataclass(frozen=True, slots=True)
class CellPart:
    """Part of each row."""

    cells: ByteArray
    """Matrix with a line for each row."""
    sizes: Sizes | None = None
    """Number of bytes that each row uses; None if all use the whole line."""

    def lines(self, rows: slice) -> tuple[ByteArray, Mask]:
        """Return the lines of some rows, and the places in them that are used."""
        cells = self.cells[rows]
        if self.sizes is None:
            return cells, np.ones(cells.shape, np.bool_)
        return cells, np.arange(cells.shape[1]) < self.sizes[rows, None]

    def trimmed(self) -> CellPart:
        """Return the part without the columns that no row uses."""
        if self.sizes is None or not len(self.sizes):
            return self
        longest = int(self.sizes.max())
        is_even = int(self.sizes.min()) == longest
        return CellPart(self.cells[:, :longest], None if is_even else self.sizes)


def constant(data: bytes, rows: int) -> CellPart:
    """Return the part that has the bytes `data` in each row.

    >>> joined([constant(b"a", 2)]).to_pylist()
    [b'a', b'a']
    """
    return CellPart(np.broadcast_to(np.frombuffer(data, np.uint8), (rows, len(data))))


def numbers(words: Words, sizes: Sizes | None = None) -> CellPart:
    """Return the part with the low bytes of numbers, the most significant byte first.

    Args:
        words: Number of each row.
        sizes: Number of its low bytes, 0 to 8; None for all 8.

    >>> joined([numbers(np.array([7, 258], np.uint64), np.array([1, 2]))]).to_pylist()
    [b'\\x07', b'\\x01\\x02']
    """
    if sizes is not None:
        # A shift by the whole width is undefined; numbers without bytes are shifted by less.
        words = words << np.minimum(8 * (WORD_BYTES - sizes), 63).astype(np.uint64)
    return CellPart(_big_endian(words), sizes)


def tagged(tags: ByteArray, words: Words, sizes: Sizes | None = None) -> CellPart:
    """Return the part with a byte and the low bytes of a number, as `numbers` does."""
    number = numbers(words, sizes)
    cells = np.empty((len(tags), 1 + WORD_BYTES), np.uint8)
    cells[:, 0] = tags
    cells[:, 1:] = number.cells
    return CellPart(cells, None if sizes is None else sizes + 1)


def joined(parts: Sequence[CellPart]) -> pa.Array:
    """Return the column whose rows have the parts side by side. Raises OverflowError above 2 GiB.

    >>> counts = numbers(np.array([7, 0], np.uint64), np.array([1, 0]))
    >>> joined([constant(b"n=", 2), counts]).to_pylist()
    [b'n=\\x07', b'n=']
    """
    parts = [part.trimmed() for part in parts]
    count = len(parts[0].cells)
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(_lengths(parts, count), out=ends[1:])
    if ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError("a column of bytes has more than 2 GiB")
    starts = range(0, count, JOINED_ROWS)
    pieces = [_joined(parts, slice(start, start + JOINED_ROWS)) for start in starts]
    body = np.concatenate(pieces) if pieces else np.empty(0, np.uint8)
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(body)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _lengths(parts: Sequence[CellPart], count: int) -> Sizes:
    fixed = sum(part.cells.shape[1] for part in parts if part.sizes is None)
    lengths = np.full(count, fixed, np.int64)
    for part in parts:
        if part.sizes is not None:
            lengths += part.sizes
    return lengths


def _joined(parts: Sequence[CellPart], rows: slice) -> ByteArray:
    if all(part.sizes is None for part in parts):
        return np.concatenate([part.cells[rows] for part in parts], axis=1).ravel()
    lines, used = zip(*[part.lines(rows) for part in parts], strict=True)
    taken: ByteArray = np.concatenate(lines, axis=1)[np.concatenate(used, axis=1)]
    return taken


def _big_endian(words: Words) -> ByteArray:
    return words.astype(">u8").view(np.uint8).reshape(len(words), WORD_BYTES)


class Unexpected(ValueError):
    """Raised for rows with a form that only a slower decoder can read, or none."""


class CellReader:
    """Place in each row of a column, from which the next bytes are read.

    A call may read beyond the end of a row, which then shows in `check_end`.
    """

    def __init__(self, column: pa.Array) -> None:
        """Begin at the first byte of each row.

        Args:
            column: Column of type binary, without nulls.
        """
        offsets, data = offsets_and_bytes(column)
        self.data = np.concatenate([data[: offsets[-1]], np.zeros(2 * WORD_BYTES, np.uint8)])
        self.at = offsets[:-1].astype(np.int64)
        self.ends = offsets[1:].astype(np.int64)

    def byte(self) -> ByteArray:
        """Return the next byte of each row, without moving on."""
        taken: ByteArray = self.data[self.at]
        return taken

    def word(self, after: int = 0) -> Words:
        """Return the 8 bytes from `after` as a number, without moving on."""
        every = np.ndarray((len(self.data) - WORD_BYTES + 1,), ">u8", self.data, 0, (1,))
        return every[self.at + after].astype(np.uint64)

    def skip(self, sizes: Sizes | int) -> None:
        """Move past a number of bytes. Raises Unexpected beyond the end of a row."""
        self.at = self.at + sizes
        if (self.at > self.ends).any():
            raise Unexpected("a row ends too early")

    def skip_constant(self, data: bytes) -> None:
        """Move past `data` in each row. Raises Unexpected if a row has something else there."""
        self.skip(len(data))
        for place, byte in enumerate(data):
            if (self.data[self.at - len(data) + place] != byte).any():
                raise Unexpected("a row has other bytes")

    def check_end(self) -> None:
        """Raise Unexpected unless each row was read to its end, not less and not more."""
        if (self.at != self.ends).any():
            raise Unexpected("a row has more bytes")


def offsets_and_bytes(column: pa.Array) -> tuple[npt.NDArray[np.int32], ByteArray]:
    """Return the offsets of the rows of a column of type binary, and the bytes that they refer to.

    There is one more offset than rows: row n has the bytes from offset n to offset n + 1.
    """
    _, ends, body = column.buffers()
    offsets = np.frombuffer(ends or bytes(4), np.int32)[column.offset :][: len(column) + 1]
    return offsets, np.frombuffer(body or b"", np.uint8)


def side_by_side(pieces: Sequence[pa.Array]) -> pa.Array:
    """Return the column of type binary whose rows have those of `pieces` one after another."""
    if len(pieces) == 1:
        return pieces[0]
    return pc.binary_join_element_wise(*pieces, _NOTHING)


def slices(data: ByteArray, starts: Sizes, ends: Sizes) -> pa.Array:
    """Return the parts of `data` from `starts` to `ends` as a column of type binary."""
    sizes = ends - starts
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    size = int(sizes[0]) if len(sizes) else 0
    if size and (sizes == size).all():
        every = np.ndarray((len(data) - size + 1,), f"V{size}", data, 0, (1,))
        body = every[starts].view(np.uint8)
    else:
        # The place of each byte: that in the result, moved by what was left out before its row.
        body = data[np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes)]
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(body)]
    return pa.Array.from_buffers(pa.binary(), len(starts), buffers)


def high_bits(words: Words, sizes: Sizes) -> Words:
    """Return the first `sizes` bytes (0 to 8) of numbers as numbers."""
    shifted: Words = words >> np.minimum(8 * (WORD_BYTES - sizes), 63).astype(np.uint64)
    return np.where(sizes > 0, shifted, np.uint64(0))
