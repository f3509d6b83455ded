"""Bounds of an Avro schema, checked before a value is decoded by it.

A schema of a few kilobytes can describe values without bounds, because types refer to others by
name: types within each other as deep as there are names, a number of fields that doubles with each
name, and arrays whose items take no bytes, so that a value of six bytes announces 2**60 of them.
A schema can come from a registry, so no memory and time may be spent on its word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from strandline.changelog.depth import MAX_DEPTH, check_json, too_deep

MAX_FIELDS_WITHOUT_BYTES = 10
"""Maximum number of fields that take no bytes, of a value, or of one branch of a union, item of an
array or value of a map. A reader makes an object of each."""


class _Size(NamedTuple):
    """Size of the values of one type."""

    depth: int
    """Number of types within each other. A type within itself counts as 0 there, because the depth
    of such values is checked one by one (`AvroDepth`)."""
    fields: int
    """Number of scalars, counted at each place that refers to their type."""
    without_bytes: int
    """Number of values within each other or beside each other that take no bytes, since the last
    byte that a union, an array or a map writes."""
    is_nothing: bool
    """True if a value takes no bytes."""


class SchemaSize:
    """Size of the values of a schema, given as parsed JSON.

    >>> SchemaSize({"type": "array", "items": "long"}).fields
    1
    >>> SchemaSize({"type": "array", "items": "null"})
    Traceback (most recent call last):
    ValueError: an array of items without bytes has no bound

    Args:
        schema: The schema. Its JSON must not be nested too deep (`loaded`).

    Raises:
        RecursionError: Types are nested more than MAX_DEPTH deep.
        ValueError: An array has items without bytes, or too many fields take no bytes.
        KeyError, TypeError, AttributeError: The schema is not valid.
    """

    def __init__(self, schema: Any) -> None:
        self._named: dict[str, _Size] = {}
        self.fields = _after_a_byte([self._of(schema, "")]).fields
        """Number of scalars, counted at each place that refers to their type."""

    def _of(self, schema: Any, space: str) -> _Size:
        if isinstance(schema, list):
            return _after_a_byte([self._of(branch, space) for branch in schema])
        if isinstance(schema, str):
            # A name that is not known yet is that of a type around this one, or is no type.
            unknown = _NOTHING if schema == "null" else _SCALAR
            return self._named.get(full_name(schema, space), unknown)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self._of(kind, space)
        if kind == "array":
            items = self._of(schema["items"], space)
            if items.is_nothing:
                raise ValueError("an array of items without bytes has no bound")
            return _after_a_byte([items])
        if kind == "map":
            return _after_a_byte([self._of(schema["values"], space)])
        if kind in ("record", "error"):
            return self._of_record(schema, space)
        if kind == "fixed":
            return self._keep(schema, space, _SCALAR if schema["size"] else _NOTHING)
        if kind == "enum":
            return self._keep(schema, space, _SCALAR)
        return self._of(kind, space)

    def _of_record(self, schema: Mapping[str, Any], space: str) -> _Size:
        inner = full_name(schema["name"], schema.get("namespace", space)).rpartition(".")[0]
        fields = [self._of(field["type"], inner) for field in schema["fields"]]
        is_nothing = all(field.is_nothing for field in fields)
        return self._keep(schema, space, _within(fields, is_nothing=is_nothing))

    def _keep(self, schema: Mapping[str, Any], space: str, size: _Size) -> _Size:
        self._named[full_name(schema["name"], schema.get("namespace", space))] = size
        return size


def loaded(text: str) -> Any:
    """Return a schema as parsed JSON. Raise ValueError, or RecursionError if it is too deep."""
    check_json(text)
    return json.loads(text)


def full_name(name: str, space: str) -> str:
    """Return the name of a type with its namespace.

    >>> full_name("Flight", "de.lab"), full_name("de.Flight", "lab")
    ('de.lab.Flight', 'de.Flight')
    """
    return name if "." in name or not space else f"{space}.{name}"


def _after_a_byte(inner: list[_Size]) -> _Size:
    """Return the size of a union, array or map, which writes a byte before each of its values.

    Raises RecursionError, and ValueError for too many fields without bytes after that byte.
    """
    if max((size.without_bytes for size in inner), default=0) > MAX_FIELDS_WITHOUT_BYTES:
        raise ValueError(f"more than {MAX_FIELDS_WITHOUT_BYTES} fields take no bytes")
    return _within(inner, is_nothing=False)._replace(without_bytes=0)


def _within(inner: list[_Size], *, is_nothing: bool) -> _Size:
    """Return the size of a type from those of its parts. Raise RecursionError."""
    depth = 1 + max((size.depth for size in inner), default=0)
    if depth > MAX_DEPTH:
        raise too_deep()
    fields = sum(size.fields for size in inner)
    empty = is_nothing + sum(size.without_bytes for size in inner)
    return _Size(depth, fields, empty, is_nothing)


_SCALAR = _Size(0, 1, 0, is_nothing=False)
_NOTHING = _Size(0, 1, 1, is_nothing=True)
