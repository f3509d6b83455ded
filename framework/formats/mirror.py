"""Columns from formats that msgspec reads, through a fast class with the same fields."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pyarrow as pa

from strandline.changelog.depth import MAX_DEPTH
from strandline.changelog.errors import UNREADABLE, InvalidConfig, InvalidRecord
from strandline.framework.formats.schema import RowType, hints_of, is_typed, item_type


class TypeMirror:
    """Reader of values of a type in one format, such as "JSON", into columns.

    Construction raises InvalidConfig if a field has no form in the format.

    >>> from strandline.changelog.depth import check_json
    >>> rows = RowType(pa.schema([("n", pa.int64())]))
    >>> mirror = TypeMirror(rows, "JSON", msgspec.json.Decoder, check_json)
    >>> mirror.column(pa.array([b'{"n": 1}'])).to_pylist()
    [{'n': 1}]
    """

    def __init__(
        self,
        rows: RowType,
        form: str,
        decoder: Callable[[Any], Any],
        check: Callable[[bytes], None],
    ) -> None:
        for field in rows.schema:
            _check_type(field.type, field.name, rows.name, form)
        self._rows = rows
        self._form = form
        self._check = check
        mirror = mirror_of(rows)
        self._decode = decoder(mirror).decode
        self._mirrored = RowType(mirror)

    def values(self, column: pa.Array) -> list[Any]:
        """Return the values of a struct column as objects of the fast class, for an encoder."""
        return self._mirrored.values(column)

    def column(self, data: pa.Array) -> pa.Array:
        """Return the struct column of values without nulls. Raise InvalidRecord."""
        try:
            texts = data.to_pylist()
            for text in texts:
                if len(text) > MAX_DEPTH:
                    self._check(text)
            rows = list(map(self._decode, texts))
        except UNREADABLE as error:
            raise InvalidRecord(f"not {self._form} of {self._rows.name}: {error}") from error
        try:
            arrays = [
                field.collect(list(map(attrgetter(field.name), rows)))
                for field in self._rows.fields
            ]
        except (pa.ArrowException, OverflowError, ValueError, TypeError, InvalidRecord) as error:
            raise InvalidRecord(f"{self._form} that is no {self._rows.name}: {error}") from error
        return pa.StructArray.from_arrays(arrays, fields=list(self._rows.arrow))


def mirror_of(rows: RowType) -> type[msgspec.Struct]:
    """Return a class with the same fields that is fast to create and to take apart."""
    if isinstance(rows.kind, pa.Schema):
        declared = [
            (f.name, _hint(f.type) | None, None) if f.nullable else (f.name, _hint(f.type))
            for f in rows.kind
        ]
    else:
        hints = hints_of(rows.kind)
        declared = [
            (f.name, hints[f.name]) if f.default is None else (f.name, hints[f.name], None)
            for f in rows.fields
        ]
    return msgspec.defstruct("Row", declared, kw_only=True, gc=False)


def _hint(kind: pa.DataType) -> Any:
    """Return the annotation for an Arrow type."""
    if pa.types.is_struct(kind):
        fields = {
            f.name: NotRequired[_hint(f.type) | None] if f.nullable else _hint(f.type) for f in kind
        }
        return TypedDict("Nested", fields)  # type: ignore[operator]
    if pa.types.is_list(kind):
        return list[_hint(kind.value_type) | None]  # type: ignore[misc]
    if pa.types.is_decimal128(kind):
        return Annotated[Decimal, kind]
    return item_type(kind)


def has_plain_names(kind: Any) -> bool:
    """Return True if msgspec's names of the fields are those of the columns, at any depth."""
    if isinstance(kind, pa.Schema) or not is_typed(kind):
        inner = () if isinstance(kind, pa.Schema) else getattr(kind, "__args__", ())
        return all(map(has_plain_names, inner))
    if issubclass(kind, msgspec.Struct):
        config = kind.__struct_config__
        renamed = any(f.encode_name != f.name for f in msgspec.structs.fields(kind))
        if renamed or config.tag is not None or config.array_like or config.forbid_unknown_fields:
            return False
    return all(map(has_plain_names, hints_of(kind).values()))


def _check_type(kind: pa.DataType, name: str, owner: str, form: str) -> None:
    for index in range(kind.num_fields):
        _check_type(kind.field(index).type, name, owner, form)
    known = pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_decimal128(kind)
    if not known and not any(is_one(kind) for is_one in _FORMED):
        raise InvalidConfig(
            f"field {name!r} of {owner} is {kind}, which has no form in {form}; use a number, decimal128,"
            " text, bool, bytes, datetime, date, a list or struct of these, or another serde"
        )


_FORMED = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_timestamp,
    pa.types.is_date,
)
"""Types without parts that have a form, besides decimals."""
