"""Offsets as they stand in Spark's checkpoint.

    {"version": 1,
     "topics": {"flights": {"id": "0f3a…", "partitions": {"0": {"offset": 120, "leader_epoch": 3}}}}}

Besides the offset, the topic's id and the partition's leader epoch are kept, so that a topic
that was deleted and made anew, or a log that lost its tail, is told from the one the query read.
Spark compares offsets as text, so topics and partitions are always in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from changelog.errors import CorruptLog, FutureFormat
from changelog.records import TopicPartition

VERSION = 1


class Position(NamedTuple):
    """How far one partition has been read."""

    offset: int
    """The next offset to read."""
    topic_id: str
    leader_epoch: int
    """Of the partition when the position was taken."""


Positions = Mapping[TopicPartition, Position]


def to_json(positions: Positions) -> dict[str, Any]:
    """Positions as Spark stores them.

    >>> to_json({TopicPartition("flights", 0): Position(120, "0f3a", 3)})
    {'version': 1, 'topics': {'flights': {'id': '0f3a', 'partitions': {'0': {'offset': 120, 'leader_epoch': 3}}}}}
    """
    topics: dict[str, Any] = {}
    for (topic, partition), position in sorted(positions.items()):
        entry = topics.setdefault(topic, {"id": position.topic_id, "partitions": {}})
        entry["partitions"][str(partition)] = {
            "offset": position.offset,
            "leader_epoch": position.leader_epoch,
        }
    return {"version": VERSION, "topics": topics}


def from_json(stored: Mapping[str, Any]) -> dict[TopicPartition, Position]:
    """What `to_json` made. Raises FutureFormat, or CorruptLog for what it cannot have made."""
    if isinstance(version := stored.get("version"), int) and version > VERSION:
        raise FutureFormat(
            f"the query's checkpoint has offsets of version {version}; this Strandline knows "
            f"{VERSION}: upgrade it"
        )
    try:
        document = msgspec.convert(stored, _Document, strict=False)
    except msgspec.ValidationError as error:
        raise CorruptLog(
            f"the query's checkpoint holds offsets that Strandline did not write ({error}); if "
            "another source wrote them, use a new checkpointLocation"
        ) from error
    return {
        TopicPartition(name, partition): Position(at.offset, topic.id, at.leader_epoch)
        for name, topic in document.topics.items()
        for partition, at in topic.partitions.items()
    }


class _At(msgspec.Struct):
    offset: int
    leader_epoch: int


class _Topic(msgspec.Struct):
    id: str
    partitions: dict[int, _At]


class _Document(msgspec.Struct):
    version: int
    topics: dict[str, _Topic]
