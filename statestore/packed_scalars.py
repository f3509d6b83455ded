"""Columns of scalars, to and from MessagePack.

A column of scalars is held as two arrays: the kind of each row's value, and 64 bits with the value.
Text and bytes are in a third array, of Python objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.changelog.arrays import of_items
from strandline.statestore.cells import (
    WORD_BYTES,
    ByteArray,
    CellPart,
    CellReader,
    Sizes,
    Unexpected,
    high_bits,
    slices,
    tagged,
)

Bits = npt.NDArray[np.int64]
Objects = npt.NDArray[np.object_]

NULL, INT, FLOAT, BOOL, TEXT, BYTES = range(6)
"""Kinds of scalars."""
KIND_OF: dict[type, int] = {
    type(None): NULL,
    int: INT,
    float: FLOAT,
    bool: BOOL,
    str: TEXT,
    bytes: BYTES,
}
"""Kind of each Python type."""


@dataclass(frozen=True, slots=True)
class Scalars:
    """Scalars of a column."""

    kinds: ByteArray
    """Kind of each row's value."""
    bits: Bits
    """Value of each int, float (its bits) and bool; else 0."""
    texts: Objects | None = None
    """Value of each str and bytes; None if the column has none."""

    @property
    def has_texts(self) -> bool:
        """True if a row is str or bytes."""
        return self.texts is not None and bool((self.kinds >= TEXT).any())

    def item(self, row: int) -> Any:
        """Return the value of a row."""
        kind, bits = self.kinds[row], self.bits[row]
        if kind >= TEXT and self.texts is not None:
            return self.texts[row]
        if kind == FLOAT:
            return bits.view(np.float64).item()
        return (None, int(bits), None, bool(bits))[kind]


def kinds_among(kinds: ByteArray) -> list[int]:
    """Return the kinds that rows have, ascending.

    >>> kinds_among(np.array([FLOAT, NULL, FLOAT], np.uint8))
    [0, 2]
    """
    # Counting is many times faster than the sort of `np.unique`.
    return np.flatnonzero(np.bincount(kinds)).tolist()


def same_kind(kind: int, bits: Bits) -> Scalars:
    """Return a column of scalars of one kind."""
    return Scalars(np.full(len(bits), kind, np.uint8), bits)


def of_objects(items: list[Any]) -> Scalars:
    """Return the column of Python scalars. Raises OverflowError for an int beyond 64 bits.

    >>> of_objects([1, None, "a"]).kinds.tolist()
    [1, 0, 4]
    """
    kinds = np.array([KIND_OF[type(item)] for item in items], np.uint8)
    bits = np.zeros(len(items), np.int64)
    is_float = kinds == FLOAT
    for kind in (INT, BOOL):
        found = np.flatnonzero(kinds == kind)
        bits[found] = np.array([int(items[row]) for row in found.tolist()], np.int64)
    floats = np.array([items[row] for row in np.flatnonzero(is_float).tolist()], np.float64)
    bits[is_float] = floats.view(np.int64)
    if not (kinds >= TEXT).any():
        return Scalars(kinds, bits)
    texts = np.empty(len(items), np.object_)
    texts[:] = [item if type(item) in (str, bytes) else None for item in items]
    return Scalars(kinds, bits, texts)


# MessagePack --------------------------------------------------------------------------


def packed(column: Scalars) -> CellPart:
    """Return the MessagePack of each row; nothing for str and bytes."""
    kinds, numbers = column.kinds, column.bits
    form = np.searchsorted(_INT_BOUNDS, numbers, "right")
    tags = np.where(form == _FIXINT, numbers & 0xFF, _INT_TAGS[form])
    sizes = _INT_SIZES[form]
    if (kinds != INT).any():
        is_bool = kinds == BOOL
        tags = np.where(kinds == INT, tags, _TAGS[kinds] + np.where(is_bool, numbers, 0))
        sizes = np.where(kinds == INT, sizes, _SIZES[kinds])
    part = tagged(tags.astype(np.uint8), numbers.view(np.uint64), np.maximum(sizes - 1, 0))
    return CellPart(part.cells, sizes)


def packed_texts(column: Scalars) -> pa.Array:
    """Return the MessagePack of each str and bytes; empty for other rows."""
    assert column.texts is not None
    is_text = (column.kinds >= TEXT).tolist()
    rows = zip(column.texts.tolist(), is_text, strict=True)
    return of_items([_pack(text) if has else b"" for text, has in rows], pa.binary())


def read_scalars(reader: CellReader) -> Scalars:
    """Read the next MessagePack scalar of each row. Raises Unexpected for anything else."""
    tags = reader.byte()
    kinds = _KIND_OF_TAG[tags]
    if (kinds == _NO_KIND).any():
        raise Unexpected("a value is no scalar")
    sizes = _NUMBER_BYTES[tags]
    numbers = _numbers(reader, tags, sizes)
    starts = reader.at + 1 + sizes
    is_text = kinds >= TEXT
    if not is_text.any():
        reader.skip(1 + sizes)
        return Scalars(kinds, numbers)
    lengths = np.where(is_text, np.where(_IS_FIXSTR[tags], tags & 0x1F, numbers), 0)
    reader.skip(1 + sizes + lengths)
    texts = _texts(reader, kinds, starts, starts + lengths)
    return Scalars(kinds, np.where(is_text, 0, numbers), texts)


def _numbers(reader: CellReader, tags: ByteArray, sizes: Sizes) -> Bits:
    """Return the number after each tag, or in it."""
    words = reader.word(1)
    unsigned = high_bits(words, sizes).view(np.int64)
    if ((tags == _UINT64) & (unsigned < 0)).any():
        raise Unexpected("an int has more than 64 bits")
    signed = words.view(np.int64) >> np.minimum(8 * (WORD_BYTES - sizes), 63)
    numbers = np.where(_IS_SIGNED[tags], signed, unsigned)
    numbers = np.where(_IS_FIXINT[tags], tags.view(np.int8), numbers)
    return np.where(tags == _TRUE, 1, numbers)


def _texts(reader: CellReader, kinds: ByteArray, starts: Sizes, ends: Sizes) -> Objects:
    texts = np.empty(len(kinds), np.object_)
    for kind, arrow in ((TEXT, pa.string()), (BYTES, pa.binary())):
        rows = np.flatnonzero(kinds == kind)
        try:
            found = slices(reader.data, starts[rows], ends[rows]).cast(arrow)
        except pa.ArrowInvalid as error:
            raise Unexpected("a text is not UTF-8") from error
        texts[rows] = found.to_pylist()
    return texts


_pack = msgspec.msgpack.Encoder().encode

# Lower bounds of the ranges of ints, and for each range the tag and the number of bytes: int64,
# int32, int16, int8, one byte, uint8, uint16, uint32, uint64.
_INT_BOUNDS = np.array([-(2**31), -(2**15), -(2**7), -(2**5), 2**7, 2**8, 2**16, 2**32], np.int64)
_INT_TAGS = np.array([0xD3, 0xD2, 0xD1, 0xD0, 0, 0xCC, 0xCD, 0xCE, 0xCF], np.int64)
_INT_SIZES = np.array([9, 5, 3, 2, 1, 2, 3, 5, 9], np.int64)
_FIXINT = 4
"""Index of the range of ints that are one byte."""
_UINT64, _TRUE = 0xCF, 0xC3

# By kind: tag and number of bytes. Ints have those above.
_TAGS = np.array([0xC0, 0, 0xCB, 0xC2, 0, 0], np.int64)
_SIZES = np.array([1, 0, 9, 1, 0, 0], np.int64)

_NO_KIND = 255
_KIND_OF_TAG = np.full(256, _NO_KIND, np.uint8)
_NUMBER_BYTES = np.zeros(256, np.int64)
_IS_FIXINT = np.zeros(256, np.bool_)
_IS_FIXSTR = np.zeros(256, np.bool_)
_IS_SIGNED = np.zeros(256, np.bool_)


def _describe_tags() -> None:
    for tags, kind in (
        (range(0x80), INT),
        (range(0xE0, 0x100), INT),
        (range(0xA0, 0xC0), TEXT),
        ((0xC0,), NULL),
        ((0xC2, 0xC3), BOOL),
        ((0xC4, 0xC5, 0xC6), BYTES),
        ((0xCB,), FLOAT),
        (range(0xCC, 0xD4), INT),
        ((0xD9, 0xDA, 0xDB), TEXT),
    ):
        _KIND_OF_TAG[list(tags)] = kind
    for first, sizes in ((0xC4, (1, 2, 4)), (0xCB, (8, 1, 2, 4, 8, 1, 2, 4, 8)), (0xD9, (1, 2, 4))):
        _NUMBER_BYTES[first : first + len(sizes)] = sizes
    _IS_FIXINT[[*range(0x80), *range(0xE0, 0x100)]] = True
    _IS_FIXSTR[0xA0:0xC0] = True
    _IS_SIGNED[0xD0:0xD4] = True


_describe_tags()
