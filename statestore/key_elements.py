"""Columns of scalar keys, and of the elements of tuple keys, to and from their bytes.

`statestore.ordered` describes the bytes. There is one `Element` for each scalar type of a key.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any, NamedTuple, Union, get_args, get_origin

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.arrays import as_numpy, of_items, of_numbers
from strandline.changelog.client.keys import is_bytes, is_text
from strandline.changelog.errors import InvalidRecord
from strandline.statestore.cells import (
    WORD_BYTES,
    ByteArray,
    CellPart,
    CellReader,
    Mask,
    Sizes,
    Unexpected,
    Words,
    high_bits,
    offsets_and_bytes,
    side_by_side,
    slices,
    tagged,
)
from strandline.statestore.ordered import TAG_BYTES, TAG_STR

Values = npt.NDArray[Any]

TAG_NONE, TAG_FALSE, TAG_ZERO, TAG_FLOAT, TAG_DATE, TAG_DATETIME = (
    0x02,
    0x03,
    0x20,
    0x38,
    0x40,
    0x41,
)


@dataclass(frozen=True, slots=True)
class Element:
    """Scalar type of a key as a column."""

    name: str
    arrow: pa.DataType
    """Type of the column."""
    accepts: Callable[[pa.DataType], bool]
    """Returns True for the types of columns that can be cast to `arrow` without changing a key."""
    part: Callable[[pa.Array], CellPart] | None
    """Encodes a column without nulls; None for text, whose length has no limit."""
    read: Callable[[CellReader], pa.Array] | None
    """Reads the next element of each row. Raises Unexpected."""
    check: Callable[[pa.Array], pa.Array] = lambda column: column
    """Returns a column of `arrow` with equal keys made the same. Raises InvalidRecord."""
    tag: int = 0
    """First byte of an encoded text."""

    def admit(self, column: pa.Array) -> pa.Array:
        """Return a column without dictionaries as one of the type `arrow`. Raises InvalidRecord."""
        if not (self.accepts(column.type) or pa.types.is_null(column.type)):
            raise InvalidRecord(
                f"must be {self.name}, got a column of {column.type}; cast it first"
            )
        try:
            return self.check(column.cast(self.arrow))
        except pa.ArrowInvalid as error:
            raise InvalidRecord(f"must be {self.name}: {error}") from error

    def coded(self, column: pa.Array) -> pa.DictionaryArray:
        """Return an admitted column, which may have nulls, as its distinct keys and their places.

        Raises InvalidRecord for text that is no UTF-8, because it could not be read again.
        """
        coded = column.dictionary_encode(null_encoding="encode")
        try:
            if self.arrow == pa.string():
                coded.dictionary.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidRecord(f"must be {self.name}: {error}") from error
        return coded

    def whole(self, column: pa.Array) -> pa.Array:
        """Return the texts of a column as whole keys."""
        return _prefixed(self.tag, column.cast(pa.binary()), b"")

    def terminated(self, column: pa.Array) -> pa.Array:
        """Return the texts of a column, which may be null, as elements of tuples."""
        texts = column.cast(pa.binary())
        if _has_zeros(texts):
            texts = pc.replace_substring(texts, b"\x00", b"\x00\xff")
        found = _prefixed(self.tag, texts, b"\x00")
        return pc.fill_null(found, bytes((TAG_NONE,))) if found.null_count else found

    def read_whole(self, names: pa.Array) -> pa.Array:
        """Return the texts of whole keys. Raises Unexpected."""
        reader = CellReader(names)
        reader.skip_constant(bytes((self.tag,)))
        return self._texts(slices(reader.data, reader.at, reader.ends))

    def read_terminated(self, reader: CellReader) -> pa.Array:
        """Read the next text of each row, an element of a tuple. Raises Unexpected."""
        reader.skip_constant(bytes((self.tag,)))
        ends = _terminators(reader)
        texts = slices(reader.data, reader.at, ends)
        reader.skip(ends - reader.at + 1)
        if _has_zeros(texts):
            texts = pc.replace_substring(texts, b"\x00\xff", b"\x00")
        return self._texts(texts)

    def _texts(self, data: pa.Array) -> pa.Array:
        try:
            return data.cast(self.arrow)
        except pa.ArrowInvalid as error:
            raise Unexpected("a text is not UTF-8") from error


def with_nulls(part: CellPart, valid: Mask) -> CellPart:
    """Return a part of a tuple's element with None in the rows that are not valid."""
    cells = part.cells.copy()
    cells[~valid, 0] = TAG_NONE
    whole = np.full(len(valid), cells.shape[1], np.int64) if part.sizes is None else part.sizes
    return CellPart(cells, np.where(valid, whole, 1))


# Encoding -----------------------------------------------------------------------------


def _ints(column: pa.Array) -> CellPart:
    values = as_numpy(column).astype(np.int64, copy=False)
    is_negative = values < 0
    # ~v + 1 instead of -v, which overflows for the least number.
    magnitudes = np.where(is_negative, (~values).view(np.uint64) + np.uint64(1), values.view("u8"))
    sizes = np.searchsorted(_LEAST, magnitudes, "right")
    payloads = np.where(is_negative, _MASKS[sizes] - magnitudes, magnitudes)
    tags = np.where(is_negative, TAG_ZERO - sizes, TAG_ZERO + sizes).astype(np.uint8)
    return tagged(tags, payloads, sizes)


def _floats(column: pa.Array) -> CellPart:
    bits = np.ascontiguousarray(as_numpy(column)).view(np.uint64)
    return _of_tag(TAG_FLOAT, bits ^ np.where(bits & _TOP, _ALL, _TOP))


def _bools(column: pa.Array) -> CellPart:
    return CellPart((TAG_FALSE + as_numpy(column).astype(np.uint8)).reshape(-1, 1))


def _dates(column: pa.Array) -> CellPart:
    days = as_numpy(column.cast(pa.int32())).astype(np.int64) + _UNIX_ORDINAL
    part = _of_tag(TAG_DATE, days.view(np.uint64) << np.uint64(32))
    return CellPart(part.cells[:, :5])


def _datetimes(column: pa.Array) -> CellPart:
    return _of_tag(TAG_DATETIME, as_numpy(column.cast(pa.int64())).view(np.uint64) ^ _TOP)


def _of_tag(tag: int, words: Words) -> CellPart:
    return tagged(np.full(len(words), tag, np.uint8), words)


def _prefixed(tag: int, texts: pa.Array, end: bytes) -> pa.Array:
    prefix, suffix = of_items([bytes((tag,)), end], pa.binary())
    return side_by_side([prefix, texts, *([suffix] if end else [])])


def _has_zeros(texts: pa.Array) -> bool:
    offsets, body = offsets_and_bytes(texts)
    return bool((body[offsets[0] : offsets[-1]] == 0).any())


# Checks -------------------------------------------------------------------------------


def _check_floats(column: pa.Array) -> pa.Array:
    if pc.any(pc.is_nan(column)).as_py():
        raise InvalidRecord(
            "must be float, got NaN; NaN equals nothing, so it cannot be found again"
        )
    return pc.add(column, 0.0)  # -0.0 becomes the equal 0.0


def _within(least: Any, greatest: Any, kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """Return a check that refuses times that Python does not have."""

    def check(column: pa.Array) -> pa.Array:
        # Compared as Arrow values, because Python has no objects for such times. They are made
        # here, because the first value made imports pandas if it is installed.
        first, last = pa.scalar(least, kind), pa.scalar(greatest, kind)
        times = column.cast(kind)
        outside = pc.or_(pc.less(times, first), pc.greater(times, last))
        if pc.any(outside).as_py():
            raise InvalidRecord("must be a time of the years 1 to 9999, got one outside of them")
        return column

    return check


# Decoding -----------------------------------------------------------------------------


def _read_ints(reader: CellReader) -> pa.Array:
    tags = reader.byte().astype(np.int64)
    sizes = np.abs(tags - TAG_ZERO)
    if (sizes > WORD_BYTES).any():
        raise Unexpected("an int has more than 64 bits, or there is none")
    payloads = high_bits(reader.word(1), sizes)
    reader.skip(sizes + 1)
    is_negative = tags < TAG_ZERO
    magnitudes = np.where(is_negative, _MASKS[sizes] - payloads, payloads)
    if (magnitudes > np.where(is_negative, _TOP, _TOP - np.uint64(1))).any():
        raise Unexpected("an int has more than 64 bits")
    values = np.where(is_negative, ~magnitudes + np.uint64(1), magnitudes)
    return of_numbers(values.view(np.int64))


def _read_floats(reader: CellReader) -> pa.Array:
    bits = _read_tagged(reader, TAG_FLOAT)
    return of_numbers((bits ^ np.where(bits & _TOP, _TOP, _ALL)).view(np.float64))


def _read_bools(reader: CellReader) -> pa.Array:
    tags = reader.byte()
    if ((tags != TAG_FALSE) & (tags != TAG_FALSE + 1)).any():
        raise Unexpected("a bool is missing")
    reader.skip(1)
    return pa.array(tags == TAG_FALSE + 1)


def _read_dates(reader: CellReader) -> pa.Array:
    days = (_read_tagged(reader, TAG_DATE, 4) >> np.uint64(32)).astype(np.int64)
    if ((days < 1) | (days > date.max.toordinal())).any():
        raise Unexpected("a date is outside of the years 1 to 9999")
    return of_numbers((days - _UNIX_ORDINAL).astype(np.int32)).cast(pa.date32())


def _read_datetimes(reader: CellReader) -> pa.Array:
    micros = of_numbers((_read_tagged(reader, TAG_DATETIME) ^ _TOP).view(np.int64))
    try:
        return _check_datetimes(micros.cast(_MICROS))
    except InvalidRecord as error:
        raise Unexpected("a datetime is outside of the years 1 to 9999") from error


def _read_tagged(reader: CellReader, tag: int, size: int = WORD_BYTES) -> Words:
    reader.skip_constant(bytes((tag,)))
    words = reader.word()
    reader.skip(size)
    return words


def _terminators(reader: CellReader) -> Sizes:
    """Return the place of the zero that ends the next text of each row."""
    data: ByteArray = reader.data
    zeros = np.flatnonzero(data[:-1] == 0)
    zeros = zeros[data[zeros + 1] != 0xFF]
    found: Sizes = zeros[np.searchsorted(zeros, reader.at)]
    return found


_LEAST = np.array([1 << 8 * size for size in range(WORD_BYTES)], np.uint64)
"""Least number that needs so many bytes: 1 for one byte, 256 for two."""
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(WORD_BYTES + 1)], np.uint64)
_TOP, _ALL = np.uint64(1 << 63), np.uint64((1 << 64) - 1)
_UNIX_ORDINAL = date(1970, 1, 1).toordinal()
_MICROS = pa.timestamp("us", "UTC")


def _is_aware(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is not None


_check_dates = _within(date.min, date.max, pa.date32())
_check_datetimes = _within(
    datetime.combine(date.min, time.min, UTC),
    datetime.combine(date.max, time.max, UTC),
    pa.timestamp("us", "UTC"),
)

ELEMENTS: dict[Any, Element] = {
    str: Element("str", pa.string(), is_text, None, None, tag=TAG_STR),
    bytes: Element("bytes", pa.binary(), is_bytes, None, None, tag=TAG_BYTES),
    int: Element("int", pa.int64(), pa.types.is_integer, _ints, _read_ints),
    float: Element(
        "float", pa.float64(), pa.types.is_floating, _floats, _read_floats, _check_floats
    ),
    bool: Element("bool", pa.bool_(), pa.types.is_boolean, _bools, _read_bools),
    date: Element("date", pa.date32(), pa.types.is_date32, _dates, _read_dates, _check_dates),
    datetime: Element(
        *("an aware datetime", _MICROS, _is_aware),
        *(_datetimes, _read_datetimes, _check_datetimes),
    ),
}
"""Scalar types of keys by their Python type."""


class DeclaredElement(NamedTuple):
    """Element of a declared type of keys, or of one argument of a tuple."""

    element: Element
    may_be_none: bool


def element_of(declared: Any) -> DeclaredElement | None:
    """Return the element of a declared type; None if it is not a scalar.

    >>> element_of(str | None).element.name, element_of(tuple[str, int])
    ('str', None)
    """
    declared, may_be_none = without_none(declared)
    element = ELEMENTS.get(declared) if isinstance(declared, type) else None
    return None if element is None else DeclaredElement(element, may_be_none)


def without_none(declared: Any) -> tuple[Any, bool]:
    """Return a declared type without None, and True if None was part of it."""
    if get_origin(declared) in (Union, types.UnionType):
        [inner] = [argument for argument in get_args(declared) if argument is not type(None)]
        return _named(inner), True
    return _named(declared), False


def _named(declared: Any) -> Any:
    # A NewType stands for its supertype.
    return getattr(declared, "__supertype__", declared)
