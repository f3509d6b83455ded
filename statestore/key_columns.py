"""Columns of keys, to and from the bytes that `statestore.keys` makes of single keys.

    declared key                 column
    str, bytes                   string, binary (also large, view and dictionary columns)
    int                          int64 (also all other types of integers)
    float, bool                  double, bool
    date, datetime               date32, timestamp with a zone (decoded as microseconds in UTC)
    tuple[A, B | None]           struct with the elements in order, whatever their names
    tuple[A, ...]                list

A batch is reduced to its distinct keys before any bytes are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol, get_args, get_origin

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.changelog.arrays import as_numpy, of_items, of_numbers
from strandline.changelog.client.casting import plain
from strandline.changelog.errors import InvalidRecord
from strandline.statestore.cells import CellReader, Unexpected
from strandline.statestore.key_elements import (
    ELEMENTS,
    DeclaredElement,
    Element,
    element_of,
    without_none,
)
from strandline.statestore.key_encoding import encoded_scalars, encoded_tuples
from strandline.statestore.keys import KeyCodec
from strandline.statestore.ordered import TAG_TUPLE
from strandline.statestore.scalar_columns import objects

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DistinctKeys:
    """Distinct keys of a batch, in the order of their first rows."""

    names: pa.Array
    """Encoded keys, distinct."""
    codes: Codes
    """Index in `names` of each row's key."""

    @property
    def are_rows(self) -> bool:
        """True if each row has a key of its own, so that row n has key n."""
        return len(self.names) == len(self.codes)

    def last_rows(self) -> Codes:
        """Return the last row of each key.

        >>> column = pa.array(["a", "b", "a"]).dictionary_encode()
        >>> DistinctKeys(column.dictionary, column.indices.to_numpy()).last_rows().tolist()
        [2, 1]
        """
        if self.are_rows:
            return self.codes
        last = np.empty(len(self.names), np.int64)
        # NumPy assigns in order, so of equal indices the last row remains.
        last[self.codes] = np.arange(len(self.codes))
        return last


class _Form(Protocol):
    """Columns of one declared type of key. Rows must not be null."""

    arrow: pa.DataType

    def distinct(self, column: pa.Array) -> DistinctKeys: ...

    def decode(self, names: pa.Array) -> pa.Array: ...


class KeyColumns:
    """Converts columns of keys of one declared type to encoded keys and back.

    >>> from strandline.statestore.keys import key_codec
    >>> columns = KeyColumns(key_codec(int), "totals")
    >>> found = columns.distinct(pa.array([7, 1, 7]))
    >>> found.names.to_pylist(), found.codes.tolist()
    ([b'!\\x07', b'!\\x01'], [0, 1, 0])
    >>> columns.decode(found.names).to_pylist()
    [7, 1]
    """

    def __init__(self, codec: KeyCodec[Any], store: str = "") -> None:
        self._codec = codec
        self._store = store
        self._form = _form(codec)
        self.arrow: pa.DataType = self._form.arrow
        """Type of the columns that `decode` returns."""

    def distinct(self, column: pa.Array | pa.ChunkedArray) -> DistinctKeys:
        """Return the distinct keys of a column.

        Raises:
            InvalidRecord: A key is null, or not of the declared type.
        """
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        column = plain(column)
        if column.null_count:
            raise self._refusal(f"must be {self._codec.name}, got a null; filter nulls out first")
        try:
            return self._form.distinct(column)
        except InvalidRecord as error:
            raise self._refusal(str(error)) from error

    def decode(self, names: pa.Array) -> pa.Array:
        """Return the keys of a column of encoded keys.

        Raises:
            CorruptLog: A key is not an encoded key of the declared type.
            InvalidRecord: A key does not fit in a column, such as an int of more than 64 bits.
        """
        try:
            return self._form.decode(names)
        except Unexpected:
            keys = [_as_item(self._codec.decode(name)) for name in names.to_pylist()]
        try:
            return of_items(keys, self.arrow)
        except (pa.ArrowException, OverflowError, UnicodeError) as error:
            raise self._refusal(
                f"does not fit in a column of {self.arrow} ({error}); read it with get() or range()"
            ) from error

    def _refusal(self, why: str) -> InvalidRecord:
        return InvalidRecord(f"store {self._store!r}: a key {why}")


class _Numbers:
    """Columns of keys whose bytes have a limited length."""

    def __init__(self, element: Element) -> None:
        self.arrow = element.arrow
        self._element = element

    def distinct(self, column: pa.Array) -> DistinctKeys:
        coded = self._element.admit(column).dictionary_encode()
        return DistinctKeys(encoded_scalars(self._element, coded.dictionary), _codes(coded))

    def decode(self, names: pa.Array) -> pa.Array:
        assert self._element.read is not None
        reader = CellReader(names)
        found = self._element.read(reader)
        reader.check_end()
        return found


class _Texts:
    """Columns of keys that are str or bytes."""

    def __init__(self, element: Element) -> None:
        self.arrow = element.arrow
        self._element = element

    def distinct(self, column: pa.Array) -> DistinctKeys:
        coded = self._element.coded(self._element.admit(column))
        return DistinctKeys(encoded_scalars(self._element, coded.dictionary), _codes(coded))

    def decode(self, names: pa.Array) -> pa.Array:
        return self._element.read_whole(names)


class _Tuples:
    """Columns of tuples of scalars; an element may be None if it is declared so."""

    def __init__(self, elements: list[DeclaredElement]) -> None:
        self._elements = elements
        fields = [
            pa.field(str(place), element.arrow, nullable=may_be_none)
            for place, (element, may_be_none) in enumerate(elements)
        ]
        self.arrow = pa.struct(fields)

    def distinct(self, column: pa.Array) -> DistinctKeys:
        admitted = zip(self._elements, self._admitted(column), strict=True)
        coded = [element.coded(each) for (element, _), each in admitted]
        combined = of_numbers(_combined(coded)).dictionary_encode()
        rows = _first_rows(combined)
        columns = [each.dictionary.take(each.indices.take(rows)) for each in coded]
        elements = [element for element, _ in self._elements]
        return DistinctKeys(encoded_tuples(elements, columns), _codes(combined))

    def decode(self, names: pa.Array) -> pa.Array:
        reader = CellReader(names)
        reader.skip_constant(bytes((TAG_TUPLE,)))
        columns = [self._read(reader, element) for element, _ in self._elements]
        reader.check_end()
        return pa.StructArray.from_arrays(columns, fields=list(self.arrow))

    def _admitted(self, column: pa.Array) -> list[pa.Array]:
        if not pa.types.is_struct(column.type) or column.type.num_fields != len(self._elements):
            raise InvalidRecord(
                f"must be a tuple of {len(self._elements)} elements, got a column of "
                f"{column.type}; give a struct with the elements in order"
            )
        pairs = zip(self._elements, map(plain, column.flatten()), strict=True)
        return [_element_admitted(*declared, each) for declared, each in pairs]

    @staticmethod
    def _read(reader: CellReader, element: Element) -> pa.Array:
        # Rows with None take the slow path of `KeyColumns.decode`.
        return element.read_terminated(reader) if element.read is None else element.read(reader)


class _OneByOne:
    """Columns of tuples that contain tuples, or have any number of elements."""

    def __init__(self, codec: KeyCodec[Any]) -> None:
        self._codec = codec
        self.arrow = _arrow_type(codec.declared)

    def distinct(self, column: pa.Array) -> DistinctKeys:
        keys = [_as_key(item) for item in objects(column)]
        coded = self._codec.encode_all([self._codec.admit(key) for key in keys]).dictionary_encode()
        return DistinctKeys(coded.dictionary, _codes(coded))

    def decode(self, names: pa.Array) -> pa.Array:
        raise Unexpected("these keys are decoded one by one")


def _form(codec: KeyCodec[Any]) -> _Form:
    if not codec.is_tuple:
        element = ELEMENTS[codec.declared]
        return _Texts(element) if element.part is None else _Numbers(element)
    elements = [element_of(each) for each in get_args(codec.declared)]
    if any(each is None for each in elements):
        return _OneByOne(codec)
    return _Tuples([each for each in elements if each is not None])


def _element_admitted(element: Element, may_be_none: bool, column: pa.Array) -> pa.Array:
    if column.null_count and not may_be_none:
        raise InvalidRecord(f"has a null in an element that must be {element.name}")
    try:
        return element.admit(column)
    except InvalidRecord as error:
        raise InvalidRecord(f"has an element that {error}") from error


def _combined(coded: list[pa.Array]) -> Codes:
    """Return one number for each row, which is equal for rows with equal codes only."""

    def combine(left: tuple[Codes, int], right: pa.Array) -> tuple[Codes, int]:
        codes, count = left
        more = max(1, len(right.dictionary))
        if count * more >= 1 << 62:
            again = of_numbers(codes).dictionary_encode()
            codes, count = _codes(again), len(again.dictionary)
        return codes * more + _codes(right), count * more

    start = (np.zeros(len(coded[0]), np.int64), 1)
    return reduce(combine, coded, start)[0]


def _first_rows(coded: pa.Array) -> pa.Array:
    """Return a row with each value of the dictionary."""
    rows = np.empty(len(coded.dictionary), np.int64)
    codes = _codes(coded)
    rows[codes] = np.arange(len(codes))
    return of_numbers(rows)


def _codes(coded: pa.Array) -> Codes:
    return as_numpy(coded.indices).astype(np.int64, copy=False)


def _arrow_type(declared: Any) -> pa.DataType:
    declared, _ = without_none(declared)
    if get_origin(declared) is not tuple:
        return ELEMENTS[declared].arrow
    arguments = get_args(declared)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return pa.list_(_arrow_type(arguments[0]))
    return pa.struct([(str(place), _arrow_type(each)) for place, each in enumerate(arguments)])


def _as_key(item: Any) -> Any:
    """Return an item of a nested column as an element of a key."""
    if isinstance(item, dict):
        return tuple(map(_as_key, item.values()))
    return tuple(map(_as_key, item)) if isinstance(item, list) else item


def _as_item(key: Any) -> Any:
    """Return an element of a key as an item of a column; pairs stand for the fields of a struct."""
    return tuple(map(_as_item, key)) if isinstance(key, tuple) else key
