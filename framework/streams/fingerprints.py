"""Fingerprints of operators that keep state: the part of their definition that state depends on.

A fingerprint has the keys with their types, the window, the aggregates, the partitioner, and the
columns by which rows are assigned to partitions. It has nothing else of what comes before the
operator: another filter changes what is counted, not what a count is. The functions of a reducer
are not part of it either, because code has no stable text; the version that a user gives them is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from strandline.framework.streams.schemas import Keying
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


def fingerprint(node: StatefulNode) -> Fingerprint:
    """Return the fingerprint of an operator that keeps state."""
    if isinstance(node, GroupAggregate):
        specific = _aggregation(node)
    else:
        assert isinstance(node, DropDuplicates)
        specific = {"keys": _typed(node.on, node.schema), "within_ms": node.within_ms}
    shared = {"version": VERSION, "operator": node.label, "partitioner": PARTITIONER}
    shared |= {"placed_by": _placing(node.inputs[0].keying)}
    return Fingerprint(node.name, shared | specific)


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


def _placing(keying: Keying) -> str:
    """Return how rows are assigned to partitions, because the state of a group is in one of them.

    >>> _placing(Keying(placed_by=("carrier",)))
    'carrier, the key of the topic'
    """
    how = "through a repartition topic" if keying.is_repartitioned else "the key of the topic"
    return f"{', '.join(keying.placed_by)}, {how}"


def _typed(names: tuple[str, ...], schema: Mapping[str, pl.DataType]) -> list[list[str]]:
    """Return names of columns with their types."""
    return [[name, type_name(schema[name])] for name in names]
