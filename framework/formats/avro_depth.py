"""Nesting depth of a datum of a recursive Avro schema, checked before it is decoded.

Only a schema that refers to itself allows a datum to be deeper than the schema.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strandline.changelog.depth import MAX_DEPTH, too_deep

Skip = Callable[[bytes, int, int], int]
"""Function of data, position and depth that returns the end of the value at the position."""


class AvroDepth:
    """Depth check for datums of one schema, as parsed by `fastavro.parse_schema`."""

    def __init__(self, schema: Any) -> None:
        self.is_recursive = False
        self._named: dict[str, Skip] = {}
        self._open: set[str] = set()
        self._skip = self._compiled(schema)

    def check(self, data: bytes) -> None:
        """Refuse a datum that is nested too deep. Raise RecursionError."""
        if not self.is_recursive:
            return
        try:
            self._skip(data, 0, 0)
        except IndexError:
            return  # truncated, or no such branch: the decoder reports it at the same place

    def _compiled(self, schema: Any) -> Skip:
        if isinstance(schema, list):
            return self._union([self._compiled(branch) for branch in schema])
        if isinstance(schema, str):
            return _SCALARS[schema] if schema in _SCALARS else self._reference(schema)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema)
        if kind == "array":
            return _blocks([self._compiled(schema["items"])])
        if kind == "map":
            return _blocks([_blob, self._compiled(schema["values"])])
        if kind == "enum":
            self._named[schema["name"]] = _int
            return _int
        if kind == "fixed":
            self._named[schema["name"]] = skip = _bytes(schema["size"])
            return skip
        return self._compiled(kind)

    def _record(self, schema: Any) -> Skip:
        name = schema["name"]
        self._open.add(name)
        fields = [self._compiled(field["type"]) for field in schema["fields"]]
        self._open.discard(name)

        def skip(data: bytes, at: int, depth: int) -> int:
            if depth >= MAX_DEPTH:
                raise too_deep()
            for field in fields:
                at = field(data, at, depth + 1)
            return at

        self._named[name] = skip
        return skip

    def _reference(self, name: str) -> Skip:
        self.is_recursive = self.is_recursive or name in self._open

        def skip(data: bytes, at: int, depth: int) -> int:
            return self._named[name](data, at, depth)  # known once the whole schema is compiled

        return skip

    def _union(self, branches: list[Skip]) -> Skip:
        def skip(data: bytes, at: int, depth: int) -> int:
            branch, at = _varint(data, at)
            if branch < 0:
                raise IndexError
            return branches[branch](data, at, depth)

        return skip


def _blocks(parts: list[Skip]) -> Skip:
    """Return a function that skips blocks of a count and items; a map's items have two parts."""

    def skip(data: bytes, at: int, depth: int) -> int:
        if depth >= MAX_DEPTH:
            raise too_deep()
        while True:
            count, at = _varint(data, at)
            if count == 0:
                return at
            if count < 0:
                _, at = _varint(data, at)
            for _ in range(abs(count)):
                for part in parts:
                    at = part(data, at, depth + 1)

    return skip


def _varint(data: bytes, at: int) -> tuple[int, int]:
    coded = shift = 0
    while True:
        byte = data[at]
        at += 1
        coded |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (coded >> 1) ^ -(coded & 1), at
        shift += 7


def _int(data: bytes, at: int, _depth: int) -> int:
    return _varint(data, at)[1]


def _bytes(size: int) -> Skip:
    def skip(data: bytes, at: int, _depth: int) -> int:
        if at + size > len(data):
            raise IndexError
        return at + size

    return skip


def _blob(data: bytes, at: int, _depth: int) -> int:
    length, at = _varint(data, at)
    if length < 0 or at + length > len(data):
        raise IndexError
    return at + length


_SCALARS: dict[str, Skip] = {
    "null": lambda _data, at, _depth: at,
    "boolean": _bytes(1),
    "int": _int,
    "long": _int,
    "float": _bytes(4),
    "double": _bytes(8),
    "bytes": _blob,
    "string": _blob,
}
