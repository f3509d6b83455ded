"""Columns from Python objects: those of rows, and those within the values of rows.

The items of each Python type become a column of the type that Arrow has for them, which is then
cast like any column of data (`casting`). So a value is accepted or refused whatever stands next to
it, and within a list or a struct as on its own. `pa.array` with the type of the topic would shorten
1.5 to the integer 1, a datetime to its day, and drop the fields that a struct lacks.
"""

from __future__ import annotations

import datetime as dt
import decimal
import difflib
from collections.abc import Iterable, Mapping, Sequence, Sized
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.arrays import of_items
from strandline.changelog.client.casting import Lengths, cast_column, lists_from, struct_from
from strandline.changelog.client.keys import is_bytes, is_list
from strandline.changelog.errors import SchemaMismatch
from strandline.changelog.printable import shown_value

UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""Exceptions that Arrow, NumPy and pandas raise for objects that they cannot put into a column."""

_Sort = tuple[type, bool]
"""Type of an object in Python, and True if it is a time with a zone."""

_TEXT = (str, bytes, bytearray, memoryview)


def column_of(items: Sequence[Any], kind: pa.DataType | None, name: str, where: str) -> pa.Array:
    """Return objects as a column of type `kind`; of the type inferred from them if it is None.

    Raises SchemaMismatch for an object that has another meaning in that type, or does not fit it.

    >>> column_of([[1, 2.0], None], pa.list_(pa.int32()), "n", "topic 't'").to_pylist()
    [[1, 2], None]
    """
    try:
        return inferred(items) if kind is None else _column(items, kind, name, where)
    except UNFIT as error:
        expected = f", expected {kind}" if kind is not None else ""
        raise SchemaMismatch(f"{where}: column {name!r}{expected}: {error}") from error


def inferred(items: Sequence[Any]) -> pa.Array | pa.ChunkedArray:
    """Return objects as a column of the type that Arrow infers from them.

    Raises one of UNFIT, also for objects that Arrow would take for others because of what stands
    beside them: a datetime for its day, text for bytes, True for 1.0.

    >>> inferred([1, 2.5]).to_pylist()
    [1.0, 2.5]
    """
    column = pa.array(items)
    if column.type not in UNMIXED:
        _check_alike(items)
    return column


def is_of(data: Any, library: str) -> bool:
    """Return True for an object of a class, or a subclass of one, that a library defines."""
    return any(sort.__module__.partition(".")[0] == library for sort in type(data).__mro__)


def check_names(
    names: Iterable[str], known: Sequence[str], required: Sequence[str], where: str
) -> None:
    """Raise SchemaMismatch for unknown, duplicate or missing required names."""
    got = list(names)
    missing = [name for name in required if name not in got]
    unknown = [name for name in got if name not in known]
    if len(set(got)) != len(got):
        raise SchemaMismatch(f"{where}: column names must be unique, got {', '.join(got)}")
    if unknown:
        hint = _near(unknown[0], missing or known) or "leave it out, or extend the topic's schema"
        raise SchemaMismatch(
            f"{where}: there is no column {unknown[0]!r}, only {', '.join(known)}; {hint}"
        )
    if missing:
        raise SchemaMismatch(
            f"{where}: column {missing[0]!r} is missing, and may not be null; "
            f"got {', '.join(got) or 'none'}"
        )


def _near(name: str, known: Sequence[str]) -> str | None:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else None


def _column(items: Sequence[Any], kind: pa.DataType, name: str, where: str) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.wrap_array(column_of(items, kind.storage_type, name, where))
    if pa.types.is_struct(kind):
        return _structs(items, kind, name, where)
    if pa.types.is_map(kind):
        return _maps(items, kind, name, where)
    if is_list(kind):
        return _lists(items, kind, name, where)
    return _plain_items(items, kind, name, where)


# Nested values ------------------------------------------------------------------------


def _structs(items: Sequence[Any], kind: pa.DataType, name: str, where: str) -> pa.StructArray:
    is_plain = {dict, type(None)}.issuperset(map(type, items))
    rows = items if is_plain else [_fields(item, kind) for item in items]
    unknown = set().union(*filter(None, rows)).difference(kind.names)
    if unknown:
        hint = _near(str(min(unknown, key=str)), kind.names) or "leave it out"
        raise SchemaMismatch(
            f"{where}: column {name!r} has no field {', '.join(sorted(map(str, unknown)))}, "
            f"only {', '.join(kind.names)}; {hint}"
        )
    children = [
        _inner(
            [None if row is None else row.get(field.name) for row in rows],
            *(field.type, f"{name}.{field.name}", where),
        )
        for field in kind
    ]
    return struct_from(kind, children, _valid(rows))


def _fields(item: Any, kind: pa.DataType) -> Mapping[str, Any] | None:
    """Return the fields of a struct by name; a tuple has all of them, in order."""
    if item is None or isinstance(item, Mapping):
        return item
    if isinstance(item, tuple) and len(item) == kind.num_fields:
        return dict(zip(kind.names, item, strict=True))
    if isinstance(item, list):
        return dict(item)
    raise TypeError(f"fields are given as a mapping or as a tuple of all, got {shown_value(item)}")


def _maps(items: Sequence[Any], kind: pa.DataType, name: str, where: str) -> pa.Array:
    given = [item.items() if isinstance(item, Mapping) else item for item in items]
    lists = [None if each is None else list(each) for each in given]
    pairs = [pair for each in lists if each for pair in each]
    if not {tuple, list}.issuperset(map(type, pairs)):
        raise TypeError("a map is given as a mapping, or as pairs of key and value")
    children = [
        _inner([key for key, _ in pairs], kind.key_type, f"{name}.key", where),
        _inner([value for _, value in pairs], kind.item_type, f"{name}.value", where),
    ]
    every = pa.repeat(pa.scalar(value=True), len(pairs))
    entries = struct_from(kind.field(0).type, children, every)
    return lists_from(kind, entries, _lengths(lists), _valid(lists))


def _lists(items: Sequence[Any], kind: pa.DataType, name: str, where: str) -> pa.Array:
    present = [item for item in items if item is not None]
    found = set(map(type, present))
    for sort in found:
        if issubclass(sort, (*_TEXT, Mapping)) or not issubclass(sort, Sized):
            wrong = next(item for item in present if type(item) is sort)
            raise TypeError(f"a list is expected, got {shown_value(wrong)}")
    if found == {np.ndarray} and _are_numbers(present):
        joined = pa.array(np.concatenate(present))
        inner = cast_column(joined, kind.value_type, f"{name}[]", where)
    else:
        flat = list(chain.from_iterable(present))
        inner = _inner(flat, kind.value_type, f"{name}[]", where)
    return lists_from(kind, inner, _lengths(items), _valid(items))


def _are_numbers(lists: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Return True for arrays of numbers, of one dimension and type. They need no walk."""
    kinds = {(each.dtype, each.ndim) for each in lists}
    return len(kinds) == 1 and all(dtype.kind in "biuf" and ndim == 1 for dtype, ndim in kinds)


def _inner(items: Sequence[Any], kind: pa.DataType, name: str, where: str) -> pa.Array:
    column = column_of(items, kind, name, where)
    if isinstance(column, pa.ChunkedArray):
        raise SchemaMismatch(
            f"{where}: column {name!r} has more than 2 GiB; append fewer rows at a time"
        )
    return column


def _lengths(lists: Sequence[Any]) -> Lengths:
    return np.array([0 if item is None else len(item) for item in lists], np.int64)


def _valid(items: Sequence[Any]) -> pa.BooleanArray:
    return of_items([item is not None for item in items], pa.bool_())


# Values without parts -----------------------------------------------------------------


def _plain_items(items: Sequence[Any], kind: pa.DataType, name: str, where: str) -> pa.Array:
    column = _at_once(items, kind)
    if column is not None:
        return _cast(column, kind, name, where)
    found = set(map(type, items))
    if absent := {sort for sort in found if _means_none(sort)}:
        items = [None if type(item) in absent else item for item in items]
    found -= {type(None), *absent}
    if not found:
        return pa.nulls(len(items), kind)
    if len(found) > 1:
        return _of_several_sorts(items, kind, name, where)
    zones = _zones(items) if issubclass(next(iter(found)), (dt.datetime, dt.time)) else {False}
    if len(zones) > 1:
        return _of_several_sorts(items, kind, name, where)
    return _of_one_sort(items, (found.pop(), zones.pop()), kind, name, where)


def _at_once(items: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """Return text, truth values and numbers as Arrow infers them, which it does faithfully.

    None is returned for all others. A whole number among floats is refused if it cannot be a
    float64, but not if it cannot be a shorter one.
    """
    if not (kind in _FAITHFUL or pa.types.is_integer(kind)):
        return None
    try:
        column = pa.array(items)
    except UNFIT:
        return None
    if column.type not in _FAITHFUL or (column.type == pa.float64() and _has_bools(items, column)):
        return None
    return column


def _has_bools(items: Sequence[Any], floats: pa.Array | pa.ChunkedArray) -> bool:
    """Return True if a truth value is among the objects that Arrow took for floats."""
    may_be = pc.or_(pc.equal(floats, 0.0), pc.equal(floats, 1.0))
    return bool(pc.any(may_be).as_py()) and bool in set(map(type, items))


def _zones(times: Sequence[Any]) -> set[bool]:
    """Return a set of True if a time has a zone, and of False if one has none."""
    return {zone is not None for zone in set(map(attrgetter("tzinfo"), filter(None, times)))}


def _of_several_sorts(items: Sequence[Any], kind: pa.DataType, name: str, where: str) -> pa.Array:
    """Return objects of several types as a column. Datetimes with a zone are a type of their own."""
    places: dict[_Sort, list[int]] = {}
    for at, item in enumerate(items):
        if item is not None:
            sort = (type(item), getattr(item, "tzinfo", None) is not None)
            places.setdefault(sort, []).append(at)
    parts = [
        _of_one_sort([items[at] for at in each], sort, kind, name, where)
        for sort, each in places.items()
    ]
    count = sum(map(len, parts))
    # Other items are null, and take their place from a null after all parts.
    order = np.full(len(items), count)
    order[np.concatenate(list(places.values()))] = np.arange(count)
    return pa.concat_arrays([*parts, pa.nulls(1, kind)]).take(pa.array(order))


def _of_one_sort(
    items: Sequence[Any], sort: _Sort, kind: pa.DataType, name: str, where: str
) -> pa.Array:
    """Return objects of one type (and None) as a column."""
    if issubclass(sort[0], np.datetime64):
        return _cast(pa.array(np.array(items, np.datetime64)), kind, name, where)
    return _cast(pa.array(items, _type_of(sort, items, kind)), kind, name, where)


def _cast(
    column: pa.Array | pa.ChunkedArray, kind: pa.DataType, name: str, where: str
) -> pa.Array | pa.ChunkedArray:
    if not isinstance(column, pa.ChunkedArray):
        return cast_column(column, kind, name, where)
    return pa.chunked_array([cast_column(each, kind, name, where) for each in column.chunks], kind)


def _type_of(sort: _Sort, items: Sequence[Any], kind: pa.DataType) -> pa.DataType | None:
    """Return the type that Arrow has for objects of a type; None lets Arrow infer it.

    It is that of the topic if `pa.array` refuses whatever does not fit.
    """
    python, is_zoned = sort
    if python in _EXACT:
        takes, natural = _EXACT[python]
        return kind if any(matches(kind) for matches in takes) else natural
    if issubclass(python, dt.datetime):
        unit = _unit(items, python, "nanosecond")
        return pa.timestamp(unit, "UTC" if is_zoned else None)
    if issubclass(python, dt.timedelta):
        return pa.duration(_unit(items, python, "nanoseconds"))
    if issubclass(python, dt.time) and is_zoned:
        raise TypeError("a time of day with a zone cannot be stored; remove the zone")
    return None


def _unit(items: Sequence[Any], python: type, nanoseconds: str) -> str:
    """Return the unit of datetimes or timedeltas; those of pandas may have nanoseconds."""
    is_finer = hasattr(python, nanoseconds) and any(getattr(i, nanoseconds, 0) for i in items)
    return "ns" if is_finer else "us"


def _check_alike(items: Sequence[Any]) -> None:
    """Raise TypeError for objects of several kinds, also within lists and mappings."""
    found = set(map(type, items))
    kinds = set(map(_kind_of, found)) - {""}
    if len(kinds) > 1:
        raise TypeError(f"{' and '.join(sorted(kinds))} are mixed; make them all of one type")
    if len(_zones(_those(items, found, (dt.datetime, dt.time)))) > 1:
        raise TypeError("times with and without a zone are mixed; give all of them a zone")
    if lists := _those(items, found, _LISTS):
        _check_alike(list(chain.from_iterable(lists)))
    rows = _those(items, found, (Mapping,))
    for name in dict.fromkeys(chain.from_iterable(rows)):
        _check_alike([row[name] for row in rows if name in row])


def _those(items: Sequence[Any], found: set[type], sorts: tuple[type, ...]) -> list[Any]:
    """Return the items that are of one of these types; `found` has the types of all items."""
    if not any(issubclass(sort, sorts) for sort in found):
        return []
    return [item for item in items if isinstance(item, sorts)]


def _kind_of(sort: type) -> str:
    """Return the name of the kind of a class of objects; "" for a class that Arrow judges."""
    return next((name for name, kinds in _KINDS.items() if issubclass(sort, kinds)), "")


def _means_none(sort: type) -> bool:
    """Return True for the types of pandas' missing values."""
    return sort.__name__ in ("NAType", "NaTType") and sort.__module__.startswith("pandas.")


_FAITHFUL = {pa.string(), pa.bool_(), pa.int64(), pa.float64()}
"""Types that Arrow infers without a change of any item."""

UNMIXED = {pa.string(), pa.bool_(), pa.int64()}
"""Types that Arrow infers only if all objects are of them."""

_LISTS = (list, tuple, set, frozenset)

_KINDS: dict[str, tuple[type, ...]] = {
    "truth values": (bool, np.bool_),
    "datetimes": (dt.datetime, np.datetime64),
    "dates": (dt.date,),
    "texts": (str,),
    "bytes": (bytes, bytearray, memoryview),
    "numbers": (int, float, decimal.Decimal, np.number),
}
"""Kinds of objects that are no others, by name; the first that fits counts."""

_DECIMAL, _INTEGER = pa.types.is_decimal, pa.types.is_integer

_EXACT: dict[type, tuple[tuple[Any, ...], pa.DataType | None]] = {
    str: ((is_bytes,), pa.string()),
    int: ((_INTEGER, _DECIMAL), pa.int64()),
    float: ((), pa.float64()),
    bool: ((), pa.bool_()),
    decimal.Decimal: ((_DECIMAL,), None),
    dt.date: ((), pa.date32()),
    **dict.fromkeys((bytes, bytearray, memoryview), ((is_bytes,), pa.binary())),
}
"""By type of Python: types of topics that `pa.array` checks, and the type for all others."""
