"""Offsets as they stand in Spark's checkpoint.

    {"version": 1,
     "topics": {"flights": {"id": "0f3a…", "partitions": {
         "0": {"offset": 120, "leader_epoch": 3, "incarnation": "9c1e…"}}}},
     "holder": "77ab…", "pinned": true}

Each offset names its history (`changelog.history`): the topic's id, and the leader epoch and the
incarnation that wrote the record before it. So a topic that was deleted and made anew, a log that
lost its tail, and one that was restored from a backup are told from the one that the query read.
Checkpoints of earlier versions have no incarnation. An offset that has none is written without it.
`holder` is in whose name the query pins what it reads (`pinning`), `pinned` whether what leads up to
here was pinned. `since`, of the same form as `topics`, is where the first batch of a query began: Spark
keeps where a batch ends, and asks anew where a query begins as long as its first one is not committed. Spark compares offsets as text, so topics and partitions are always in the same order.
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
"""How far one partition has been read, in which history."""

Positions = Mapping[TopicPartition, Position]


class QueryProgress(NamedTuple):
    """How far a query has read."""

    positions: Positions
    holder: str = ""
    """In whose name it pins; empty if it has not said."""
    pinned: bool = False
    """Whether what leads up to here was pinned."""
    since: Positions | None = None
    """Of a query's first batch: where it begins."""


def to_json(reached: QueryProgress) -> dict[str, Any]:
    """How far a query has read, as Spark stores it.

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
    """What `to_json` made. Raises FutureFormat, or CorruptLog for what it cannot have made."""
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
