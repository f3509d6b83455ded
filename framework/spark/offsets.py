"""Offsets in Spark's checkpoint.

    {"version": 1,
     "topics": {"flights": {"id": "0f3a…", "partitions": {
         "0": {"offset": 120, "leader_epoch": 3, "incarnation": "9c1e…"}}}},
     "holder": "77ab…", "pinned": true}

Each offset names its history (`changelog.history`): the topic's id, and the leader epoch and the
incarnation that wrote the record before it. A topic that was deleted and created again, a log that
lost its tail, and a log restored from a backup are therefore distinguished from the log that the
query read. Checkpoints of earlier versions have no incarnation, and an offset without one is
written without it.

`holder` is the name under which the query pins its batches (`pinning`). `pinned` is true if the
records up to here were pinned. `since`, of the same form as `topics`, is the start of a query's
first batch: Spark stores the ends of batches, and requests the start of a query again until the
first batch is committed. Topics and partitions are always in the same order, because Spark compares
offsets as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from strandline.changelog.decoding import converter
from strandline.changelog.errors import CorruptLog, FutureFormat
from strandline.changelog.records import ReadPosition, TopicPartition

VERSION = 1


Position = ReadPosition
"""Read position in one partition, with its history."""

Positions = Mapping[TopicPartition, Position]


class QueryProgress(NamedTuple):
    """Read positions of a query."""

    positions: Positions
    holder: str = ""
    """Name under which the query pins; empty if unknown."""
    pinned: bool = False
    """True if the records up to these positions were pinned."""
    since: Positions | None = None
    """Start of the batch, if it is the first of a query."""


def to_json(reached: QueryProgress) -> dict[str, Any]:
    """Return a query's progress as Spark stores it.

    >>> to_json(QueryProgress({TopicPartition("flights", 0): Position(120, "0f3a", 3)}, "77ab"))
    {'version': 1, 'topics': {'flights': {'id': '0f3a', 'partitions': {'0': {'offset': 120, 'leader_epoch': 3}}}}, 'holder': '77ab', 'pinned': False}
    """
    stored = {
        "version": VERSION,
        "topics": _topics(reached.positions),
        "holder": reached.holder,
        "pinned": reached.pinned,
    }
    return stored if reached.since is None else stored | {"since": _topics(reached.since)}


def from_json(stored: Mapping[str, Any]) -> QueryProgress:
    """Return the progress that `to_json` wrote. Raise FutureFormat, CorruptLog."""
    if isinstance(version := stored.get("version"), int) and version > VERSION:
        raise FutureFormat(
            f"the query's checkpoint has offsets of version {version}; this Strandline knows "
            f"{VERSION}: upgrade it"
        )
    try:
        document = _converted(stored)
    except msgspec.ValidationError as error:
        raise CorruptLog(
            f"the query's checkpoint holds offsets that Strandline did not write ({error}); if "
            "another source wrote them, use a new checkpointLocation"
        ) from error
    since = None if document.since is None else _positions(document.since)
    return QueryProgress(_positions(document.topics), document.holder, document.pinned, since)


def _topics(positions: Positions) -> dict[str, Any]:
    topics: dict[str, Any] = {}
    for (topic, partition), position in sorted(positions.items()):
        entry = topics.setdefault(topic, {"id": position.topic_id, "partitions": {}})
        at = {"offset": position.offset, "leader_epoch": position.leader_epoch}
        named = {"incarnation": position.incarnation} if position.incarnation else {}
        entry["partitions"][str(partition)] = at | named
    return topics


def _positions(topics: Mapping[str, _Topic]) -> dict[TopicPartition, Position]:
    return {
        TopicPartition(name, partition): Position(
            at.offset, topic.id, at.leader_epoch, at.incarnation
        )
        for name, topic in topics.items()
        for partition, at in topic.partitions.items()
    }


class _At(msgspec.Struct):
    offset: int
    leader_epoch: int
    incarnation: str = ""


class _Topic(msgspec.Struct):
    id: str
    partitions: dict[int, _At]


class _Document(msgspec.Struct):
    version: int
    topics: dict[str, _Topic]
    holder: str = ""
    pinned: bool = False
    since: dict[str, _Topic] | None = None


_converted = converter(_Document, strict=False)
