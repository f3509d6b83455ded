"""Casts of Arrow columns to the types of a topic, without a loss.

Values within lists, maps and structs are cast one level at a time, and nested columns are put
together here: Arrow's own cast of a list to one of a fixed size reads buffers that a column of nulls
need not have, and ends the process. `number_casts` casts the numbers.

A float may become a shorter one if it is not beyond its range. It is rounded then, as anywhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.arrays import as_numpy
from strandline.changelog.client.keys import is_bytes, is_list, is_text
from strandline.changelog.client.number_casts import cast_number, is_number
from strandline.changelog.errors import SchemaMismatch
from strandline.changelog.schema import with_fields

Lengths = npt.NDArray[np.int64]

_MOST_ITEMS = np.iinfo(np.int32).max
"""Maximum number of items of a list or map whose offsets have 32 bits."""


def cast_column(column: pa.Array, kind: pa.DataType, name: str, where: str) -> pa.Array:
    """Cast `column` to a type of the same family. Raises SchemaMismatch if that loses data.

    >>> cast_column(pa.array([1.5]), pa.decimal128(3, 1), "price", "topic 't'").to_pylist()
    [Decimal('1.5')]
    """
    if column.type == kind:
        return column
    if not _is_related(column.type, kind):
        raise SchemaMismatch(
            f"{where}: column {name!r}: expected {kind}, got {column.type}; convert it first"
        )
    return _cast(column, kind, name, where)


def plain(column: pa.Array) -> pa.Array:
    """Decode dictionaries and views, because few of Arrow's functions support them."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        values = plain(column.dictionary)
        return pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode()
    if pa.types.is_string_view(kind):
        return pc.cast(column, pa.string())
    if pa.types.is_binary_view(kind):
        return pc.cast(column, pa.binary())
    return column


def with_buffers(column: pa.Array) -> pa.Array:
    """Return a column whose empty items, within lists, have all their buffers.

    Arrow lets them have none, and crashes when it casts such a column or is asked for its size
    (docs/upstream.md).
    """
    kind = column.type
    if pa.types.is_struct(kind):
        children = [column.field(index) for index in range(kind.num_fields)]
        made = [with_buffers(child) for child in children]
        is_same = all(new is old for new, old in zip(made, children, strict=True))
        return column if is_same else struct_from(kind, made, column.is_valid())
    if not (pa.types.is_map(kind) or is_list(kind)):
        return column
    lists = _entries(column)
    if len(lists.values) == 0:
        none = np.zeros(len(column), np.int64)
        return lists_from(kind, pa.nulls(0, kind.field(0).type), none, column.is_valid())
    items = lists.flatten()
    made = with_buffers(items)
    if made is items:
        return column
    return lists_from(kind, _required(made, kind.field(0).type), _lengths(lists), column.is_valid())


def _required(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column of entries of a map with the fields of `kind`, some of which need values.

    Arrow 24 and 25 end the process when they read a column whose type is not exactly its own.
    """
    if column.type.equals(kind):
        return column
    if pa.types.is_struct(kind):
        children = [_required(column.field(at), field.type) for at, field in enumerate(kind)]
        return struct_from(kind, children, column.is_valid())
    lists = _entries(column)
    items = _required(lists.flatten(), kind.field(0).type)
    return lists_from(kind, items, _lengths(lists), column.is_valid())


def check_nulls(column: pa.Array, kind: pa.DataType, name: str, where: str) -> None:
    """Raise SchemaMismatch for a null within a value, in a field that is not nullable."""
    if not _has_required(kind):
        return
    present = column.drop_null() if column.null_count else column
    for path, field, inner in _fields_within(present, kind, name):
        if not field.nullable and inner.null_count:
            raise SchemaMismatch(
                f"{where}: column {path!r} ({field.type} not null) is null in a value; give it a "
                "value, or make the whole of it null"
            )
        check_nulls(inner, field.type, path, where)


def struct_from(
    kind: pa.DataType, children: Sequence[pa.Array], valid: pa.BooleanArray
) -> pa.StructArray:
    """Return a column of structs, put together from one child for each field of `kind`."""
    return pa.Array.from_buffers(kind, len(valid), [_bits(valid)], children=list(children))


def lists_from(
    kind: pa.DataType, items: pa.Array, lengths: Lengths, valid: pa.BooleanArray
) -> pa.Array:
    """Return a column of lists or maps, put together from the items of all that are not null.

    Args:
        kind: Type of the column.
        items: Items, of the type that `kind` has within; structs of key and value for a map.
        lengths: Number of items of each list, 0 if it is null.
        valid: False for each list that is null.

    Raises:
        ArrowInvalid: A list does not have the size of `kind`, a key of a map is null, or there are
            too many items.
    """
    count = len(valid)
    if pa.types.is_map(kind) and items.field(0).null_count:
        raise pa.ArrowInvalid("a key of a map is null")  # Arrow would end the process
    if pa.types.is_fixed_size_list(kind):
        items = _spaced(items, kind.list_size, lengths, valid)
        return pa.Array.from_buffers(kind, count, [_bits(valid)], children=[items])
    if len(items) > _MOST_ITEMS and not pa.types.is_large_list(kind):
        raise pa.ArrowInvalid(f"{len(items):,} items are too many for one column; give fewer rows")
    width = np.int64 if pa.types.is_large_list(kind) else np.int32
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(width)
    buffers = [_bits(valid), pa.py_buffer(ends)]
    return pa.Array.from_buffers(kind, count, buffers, children=[items])


def _bits(valid: pa.BooleanArray) -> pa.Buffer | None:
    if valid.false_count == 0:
        return None
    # A copy, because the bits of a slice do not begin at those of its buffer.
    return pa.array(as_numpy(valid)).buffers()[1]


def _spaced(items: pa.Array, size: int, lengths: Lengths, valid: pa.BooleanArray) -> pa.Array:
    """Return the items of lists of a fixed size, with `size` items for each null list too."""
    there = as_numpy(valid)
    wrong = lengths[there & (lengths != size)]
    if len(wrong):
        raise pa.ArrowInvalid(f"a list has {wrong[0]} items instead of {size}")
    if there.all():
        return items
    if len(items) == 0:
        return pa.nulls(len(valid) * size, items.type)
    # Null lists repeat the first item, because a field that is not nullable may hold no null.
    places = np.zeros(len(valid) * size, np.int64)
    places[np.repeat(there, size)] = np.arange(len(items))
    try:
        return items.take(pa.array(places))
    except pa.ArrowNotImplementedError:  # Arrow takes no views within lists.
        return pa.concat_arrays([items.slice(place, 1) for place in places.tolist()])


def _cast(column: pa.Array, kind: pa.DataType, name: str, where: str) -> pa.Array:
    """Cast a column to a type that is related to its own."""
    column = plain(column)
    if column.type == kind:
        return column
    if len(column) == 0 or pa.types.is_null(column.type):
        return pa.nulls(len(column), kind)
    if pa.types.is_struct(kind):
        return _cast_struct(column, kind, name, where)
    try:
        if pa.types.is_map(kind) or is_list(kind):
            return _cast_lists(column, kind, name, where)
        return cast_number(column, kind) if is_number(kind) else pc.cast(column, kind)
    except pa.ArrowException as error:
        raise SchemaMismatch(
            f"{where}: column {name!r}: expected {kind}, got {column.type}, which loses something: {error}"
        ) from error


def _cast_struct(column: pa.Array, kind: pa.DataType, name: str, where: str) -> pa.StructArray:
    have = dict(zip(column.type.names, column.flatten(), strict=True))
    children = [
        _cast(have[field.name], field.type, f"{name}.{field.name}", where)
        if field.name in have
        else pa.nulls(len(column), field.type)
        for field in kind
    ]
    return struct_from(kind, children, column.is_valid())


def _cast_lists(column: pa.Array, kind: pa.DataType, name: str, where: str) -> pa.Array:
    lists = _entries(column)
    path = f"{name}[]" if is_list(kind) else name
    items = _cast(lists.flatten(), kind.field(0).type, path, where)
    return lists_from(kind, items, _lengths(lists), column.is_valid())


def _lengths(lists: pa.Array) -> Lengths:
    lengths: Lengths = as_numpy(pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int64()))
    return lengths


def _entries(column: pa.Array) -> pa.Array:
    """Return maps as lists of their entries; Arrow has no functions for those of maps.

    The fields within are nullable, because Arrow also refuses their nulls within a null.
    """
    if pa.types.is_map(column.type):
        return pc.cast(column, pa.list_(_nullable(column.type.field(0))))
    return column


def _nullable(field: pa.Field) -> pa.Field:
    """Return a field that may be null, as all fields within it."""
    return field.with_nullable(nullable=True).with_type(with_fields(field.type, _nullable))


def _has_required(kind: pa.DataType) -> bool:
    """Return True if a field within values of a type may not be null."""
    if not pa.types.is_nested(kind):
        return False
    fields = [kind.field(index) for index in range(kind.num_fields)]
    return any(not field.nullable or _has_required(field.type) for field in fields)


def _fields_within(
    column: pa.Array, kind: pa.DataType, name: str
) -> Iterator[tuple[str, pa.Field, pa.Array]]:
    """Yield the path, field and content of each field of a nested column that has no nulls."""
    if pa.types.is_struct(kind):
        for field, inner in zip(kind, column.flatten(), strict=True):
            yield f"{name}.{field.name}", field, inner
    elif pa.types.is_map(kind) or is_list(kind):
        path = f"{name}[]" if is_list(kind) else name
        yield path, kind.field(0), _entries(column).flatten()


def _is_related(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Return True if values of type `kind` can be cast to `wanted` without another meaning.

    A struct may lack nullable fields, but have no others, because Arrow would drop them.
    """
    if pa.types.is_null(kind):
        return True
    if pa.types.is_dictionary(kind):
        return _is_related(kind.value_type, wanted)
    if _family(kind) != _family(wanted):
        return False
    if pa.types.is_struct(kind):
        needed = {field.name for field in wanted if not field.nullable}
        is_clear = len(set(kind.names)) == len(kind.names)
        return (
            is_clear
            and needed <= set(kind.names) <= set(wanted.names)
            and all(_is_related(field.type, wanted.field(field.name).type) for field in kind)
        )
    if pa.types.is_map(kind):
        parts = ((kind.key_type, wanted.key_type), (kind.item_type, wanted.item_type))
        return all(_is_related(*pair) for pair in parts)
    return not pa.types.is_nested(kind) or _is_related(kind.value_type, wanted.value_type)


def _family(kind: pa.DataType) -> str:
    """Return the name of a type's family. Casts within a family keep the meaning of a value."""
    types = pa.types
    if is_number(kind):
        return "number"
    if is_text(kind):
        return "text"
    if is_bytes(kind):
        return "bytes"
    if types.is_timestamp(kind):
        return "zoned time" if kind.tz else "time"
    if is_list(kind):
        return "list"
    nested = (types.is_struct, types.is_map, types.is_nested)
    for same in (types.is_date, types.is_time, types.is_duration, *nested):
        if same(kind):
            return str(same.__name__)
    return str(kind)
