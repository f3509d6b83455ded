"""Fingerprints of operators that keep state: the part of their definition that state depends on.

A fingerprint has the keys with their types, the window, the aggregates, and the partitioner. It
does not have what comes before the operator: another filter changes what is counted, not what a
count is. The functions of a reducer are not part of it either, because code has no stable text; the
version that a user gives them is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from strandline.framework.streams.stateful import DropDuplicates, GroupAggregate, StatefulNode
from strandline.framework.streams.type_names import type_name

if TYPE_CHECKING:
    import polars as pl

VERSION = 1
"""Version of the form of fingerprints."""
PARTITIONER = "murmur2"
"""Function that assigns keys to partitions (changelog/client/partitioner.py)."""

Definition = Mapping[str, Any]
"""Plain data that defines the state of an operator."""


@dataclass(frozen=True)
class Fingerprint:
    """Definition of the state of one operator, with its hash."""

    name: str
    """Name of the operator."""
    definition: Definition

    @property
    def json(self) -> bytes:
        """Definition as JSON: without spaces, and with sorted keys, so equal ones have one text."""
        return msgspec.json.encode(self.definition, order="sorted")

    @property
    def sha256(self) -> str:
        """SHA-256 of the JSON, in hexadecimal digits."""
        return hashlib.sha256(self.json).hexdigest()


@dataclass(frozen=True)
class Compatibility:
    """Result of a comparison of a deployed definition with a declared one."""

    verdict: Literal["same", "extended", "changed"]
    """`extended` if only aggregates were added, which begin empty; `changed` needs a reset."""
    differences: tuple[str, ...] = ()
    """Each difference in words."""


def fingerprint(node: StatefulNode) -> Fingerprint:
    """Return the fingerprint of an operator that keeps state."""
    if isinstance(node, GroupAggregate):
        specific = _aggregation(node)
    else:
        assert isinstance(node, DropDuplicates)
        specific = {"keys": _typed(node.on, node.schema), "within_ms": node.within_ms}
    shared = {"version": VERSION, "operator": node.label, "partitioner": PARTITIONER}
    return Fingerprint(node.name, shared | specific)


def compatible(old: Definition, new: Definition) -> Compatibility:
    """Compare the definition of stored state with the declared one.

    Args:
        old: Definition with which the state was made.
        new: Definition that is declared now.

    >>> old = {"keys": [["carrier", "string"]], "aggregates": {"n": {"kind": "count"}}}
    >>> compatible(old, {**old, "keys": [["origin", "string"]]}).differences
    ('keys: [["carrier","string"]] before, [["origin","string"]] now',)
    """
    differences = tuple(_differences(old, new))
    if not differences:
        return Compatibility("same")
    before, now = old.get("aggregates") or {}, new.get("aggregates") or {}
    rest = {name: figure for name, figure in now.items() if name in before}
    extended = not list(_differences(old, {**new, "aggregates": rest})) if before else False
    return Compatibility("extended" if extended else "changed", differences)


def _aggregation(node: GroupAggregate) -> dict[str, Any]:
    rows, results = node.inputs[0].schema, node.schema
    figures = {
        name: {
            "kind": one.described,
            "columns": _typed(one.columns, rows),
            "result": type_name(results[name]),
        }
        for name, one in node.aggregates.aggregates.items()
    }
    window = None if node.window is None else node.window.to_dict()
    return {"keys": _typed(node.keys, rows), "window": window, "aggregates": figures}


def _typed(names: tuple[str, ...], schema: Mapping[str, pl.DataType]) -> list[list[str]]:
    """Return names of columns with their types."""
    return [[name, type_name(schema[name])] for name in names]


def _differences(old: Definition, new: Definition) -> Iterator[str]:
    """Yield each difference of two definitions in words."""
    before, now = old.get("aggregates") or {}, new.get("aggregates") or {}
    for name in sorted({*old, *new} - {"aggregates"}):
        if old.get(name) != new.get(name):
            yield f"{name}: {_text(old.get(name))} before, {_text(new.get(name))} now"
    for name in sorted({*before, *now}):
        if name not in now:
            yield f"the aggregate {name} was removed"
        elif name not in before:
            yield f"the aggregate {name} was added"
        elif before[name] != now[name]:
            yield f"the aggregate {name}: {_text(before[name])} before, {_text(now[name])} now"


def _text(data: Any) -> str:
    return msgspec.json.encode(data, order="sorted").decode()
