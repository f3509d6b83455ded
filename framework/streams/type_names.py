"""Names of types of columns, in Arrow's words, which versions of Polars do not change."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa

from strandline.changelog.errors import InvalidConfig
from strandline.framework.streams.schemas import arrow_schema, polars_schema

if TYPE_CHECKING:
    import polars as pl

OBJECT = "object"
"""Name of the type of Python objects that no Arrow type has."""


def type_name(dtype: pl.DataType) -> str:
    """Return the name of a type.

    >>> import polars as pl
    >>> type_name(pl.Datetime("us", "UTC")), type_name(pl.List(pl.String()))
    ('timestamp[us, tz=UTC]', 'list<item: string>')
    """
    import polars as pl

    if isinstance(dtype, pl.Object):
        return OBJECT
    return str(arrow_schema({"column": dtype}, "fingerprint").field(0).type)


def type_of_name(name: str) -> pl.DataType:
    """Return the type with a name that `type_name` has returned. Raises InvalidConfig.

    >>> type_of_name("list<item: struct<time: int64, value: decimal128(9, 2)>>").inner
    Struct({'time': Int64, 'value': Decimal(precision=9, scale=2)})
    """
    import polars as pl

    if name == OBJECT:
        return pl.Object()
    try:
        return polars_schema(pa.schema([("column", _arrow_type(name))]))["column"]
    except (ValueError, TypeError, RecursionError, pa.ArrowException) as error:
        raise InvalidConfig(f"unknown type {name!r:.200}; use a later version") from error


def _arrow_type(name: str) -> pa.DataType:
    """Return an Arrow type by its name. Raises ValueError, and Arrow's errors."""
    if found := _ZONED.fullmatch(name):
        return pa.timestamp(found["unit"], found["zone"])
    if found := _DECIMAL.fullmatch(name):
        return pa.decimal128(int(found["precision"]), int(found["scale"]))
    if found := _NESTED.fullmatch(name):
        fields = [_arrow_field(each) for each in _divided(found["fields"])]
        return pa.struct(fields) if found["kind"] == "struct" else pa.list_(fields[0].type)
    return pa.type_for_alias(_ALIASES.get(name, name))


def _arrow_field(text: str) -> pa.Field:
    name, colon, kind = text.strip().partition(": ")
    if not colon:
        raise ValueError(f"{text!r} is no field")
    return pa.field(name, _arrow_type(kind))


def _divided(fields: str) -> list[str]:
    """Return the fields of a nested type, which commas outside of brackets separate."""
    found, depth, begin = [], 0, 0
    for at, letter in enumerate(fields):
        depth += (letter in "<[(") - (letter in ">])")
        if letter == "," and not depth:
            found.append(fields[begin:at])
            begin = at + 1
    return [*found, fields[begin:]]


_ZONED = re.compile(r"timestamp\[(?P<unit>s|ms|us|ns), tz=(?P<zone>[^\]]+)\]")
_DECIMAL = re.compile(r"decimal128\((?P<precision>\d+), (?P<scale>\d+)\)")
_NESTED = re.compile(r"(?P<kind>list|struct)<(?P<fields>.+)>")
_ALIASES = {"double": "float64", "float": "float32", "halffloat": "float16"}
"""Names that Arrow writes and does not read as such."""
