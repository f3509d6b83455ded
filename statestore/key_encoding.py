"""Encoded keys of many rows at once: from columns of scalars, or from Python keys.

The bytes are those that `statestore.ordered` makes of single keys. Columns are three to five times
as fast, and cannot hold every key: ints beyond 64 bits and strs with lone surrogates are encoded
one by one, with all keys that are encoded together with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, get_args, get_origin

import pyarrow as pa

from strandline.changelog.arrays import as_numpy, of_items
from strandline.changelog.errors import InvalidRecord
from strandline.statestore.cells import CellPart, constant, joined, side_by_side
from strandline.statestore.key_elements import TAG_NONE, Element, element_of, with_nulls
from strandline.statestore.ordered import TAG_TUPLE

FEW_KEYS = 256
"""Number of keys up to which encoding one by one is faster."""


def encoder(declared: Any, encode: Callable[[Any], bytes]) -> Callable[[Collection[Any]], pa.Array]:
    """Return a function that encodes admitted keys of a declared type as a column.

    Args:
        declared: The type: a scalar, or a tuple. Tuples that contain tuples, or have any number of
            elements, are encoded one by one.
        encode: Encodes one key.

    >>> from strandline.statestore.ordered import encode_int
    >>> encoder(int, encode_int)([7, -1]).to_pylist()
    [b'!\\x07', b'\\x1f\\xfe']
    """
    is_tuple = get_origin(declared) is tuple
    found = [element_of(each) for each in (get_args(declared) if is_tuple else [declared])]
    elements = [each.element for each in found if each is not None]
    has_columns = len(elements) == len(found)

    def encode_all(keys: Collection[Any]) -> pa.Array:
        if has_columns and len(keys) > FEW_KEYS:
            with suppress(pa.ArrowException, OverflowError, UnicodeError, InvalidRecord):
                if is_tuple:
                    return encoded_tuples(elements, _columns(elements, keys))
                return encoded_scalars(elements[0], _column(elements[0], list(keys)))
        return of_items(map(encode, keys), pa.binary())

    return encode_all


def encoded_scalars(element: Element, column: pa.Array) -> pa.Array:
    """Return the keys of a column without nulls, which the element has admitted."""
    if element.part is None:
        return element.whole(column)
    return joined([_part(element, column)])


def encoded_tuples(elements: Sequence[Element], columns: Sequence[pa.Array]) -> pa.Array:
    """Return the tuples of scalars that have these columns, which the elements have admitted.

    A null is None in the tuple.
    """
    pieces: list[pa.Array] = []
    parts = [constant(bytes((TAG_TUPLE,)), len(columns[0]))]
    for element, column in zip(elements, columns, strict=True):
        if element.part is not None:
            parts.append(_part(element, column))
            continue
        if parts:
            pieces.append(joined(parts))
            parts = []
        pieces.append(element.terminated(column))
    if parts:
        pieces.append(joined(parts))
    return side_by_side(pieces)


def _columns(elements: Sequence[Element], keys: Collection[tuple[Any, ...]]) -> list[pa.Array]:
    return [
        _column(element, [key[place] for key in keys]) for place, element in enumerate(elements)
    ]


def _column(element: Element, items: list[Any]) -> pa.Array:
    return element.check(of_items(items, element.arrow))


def _part(element: Element, column: pa.Array) -> CellPart:
    assert element.part is not None
    if not column.null_count:
        return element.part(column)
    valid = as_numpy(column.is_valid())
    if not valid.any():
        return constant(bytes((TAG_NONE,)), len(column))
    filled = column.fill_null(column.drop_null()[0])
    return with_nulls(element.part(filled), valid)
