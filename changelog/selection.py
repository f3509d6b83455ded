"""Selections: the part of the records that a reader needs, so that the rest need not be decoded."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

_SELECTABLE = frozenset({"key", "value", "headers"})
"""Columns of a batch that may be left out; the others are needed to make a batch."""


class ReadSelection(NamedTuple):
    """Columns and times that a reader needs.

    It is a hint: a fetch may return more than was selected, and never less.
    """

    names: frozenset[str] | None = None
    """Names of the needed columns: `key`, `headers`, and `value` or, if values are typed, fields of
    the value. None selects all columns. Columns that are not named may be missing from a batch."""
    since_ms: int | None = None
    """Milliseconds since the epoch. Batches whose records are all older may be left out. None
    selects records of all times."""

    def may_hold(self, max_timestamp: int) -> bool:
        """Return True if records up to that timestamp (ms) may be selected."""
        return self.since_ms is None or max_timestamp >= self.since_ms


EVERYTHING = ReadSelection()


@lru_cache(maxsize=256)
def selected(schema: pa.Schema, names: frozenset[str] | None) -> pa.Schema:
    """Return the selected part of a batch's schema, in the same order.

    >>> value = pa.struct([("n", pa.int64()), ("x", pa.string())])
    >>> schema = pa.schema([("timestamp", pa.int64()), ("key", pa.binary()), ("value", value)])
    >>> selected(schema, frozenset({"x"})).field("value").type
    StructType(struct<x: string>)
    """
    if names is None:
        return schema
    return pa.schema([part for field in schema for part in _part(field, names)])


def _part(field: pa.Field, names: Collection[str]) -> list[pa.Field]:
    """Return the selected part of a field, in a list that is empty if nothing is selected."""
    if field.name == "value" and pa.types.is_struct(field.type):
        fields = [each for each in field.type if each.name in names]
        return [field.with_type(pa.struct(fields))] if fields else []
    return [field] if field.name not in _SELECTABLE or field.name in names else []
