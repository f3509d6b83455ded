"""Offsets as they stand in Spark's checkpoint.

    {"version": 1,
     "topics": {"flights": {"id": "0f3a…", "partitions": {"0": {"offset": 120, "leader_epoch": 3}}}},
     "holder": "77ab…", "pinned": true}

Besides the offset, the topic's id and the partition's leader epoch are kept, so that a topic
that was deleted and made anew, or a log that lost its tail, is told from the one the query read.
`holder` is in whose name the query pins what it reads (`pinning`), `pinned` whether what leads up to
here was pinned. `since`, of the same form as `topics`, is where the first batch of a query began: Spark
keeps where a batch ends, and asks anew where a query begins as long as its first one is not committed. Spark compares offsets as text, so topics and partitions are always in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from changelog.decoding import converter
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


class Reached(NamedTuple):
    """How far a query has read."""

    positions: Positions
    holder: str = ""
    """In whose name it pins; empty if it has not said."""
    pinned: bool = False
    """Whether what leads up to here was pinned."""
    since: Positions | None = None
    """Of a query's first batch: where it begins."""


def to_json(reached: Reached) -> dict[str, Any]:
    """How far a query has read, as Spark stores it.

    >>> to_json(Reached({TopicPartition("flights", 0): Position(120, "0f3a", 3)}, "77ab"))
    {'version': 1, 'topics': {'flights': {'id': '0f3a', 'partitions': {'0': {'offset': 120, 'leader_epoch': 3}}}}, 'holder': '77ab', 'pinned': False}
    """
    stored = {
        "version": VERSION,
        "topics": _topics(reached.positions),
        "holder": reached.holder,
        "pinned": reached.pinned,
    }
    return stored if reached.since is None else stored | {"since": _topics(reached.since)}


def from_json(stored: Mapping[str, Any]) -> Reached:
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
    return Reached(_positions(document.topics), document.holder, document.pinned, since)


def _topics(positions: Positions) -> dict[str, Any]:
    topics: dict[str, Any] = {}
    for (topic, partition), position in sorted(positions.items()):
        entry = topics.setdefault(topic, {"id": position.topic_id, "partitions": {}})
        entry["partitions"][str(partition)] = {
            "offset": position.offset,
            "leader_epoch": position.leader_epoch,
        }
    return topics


def _positions(topics: Mapping[str, _Topic]) -> dict[TopicPartition, Position]:
    return {
        TopicPartition(name, partition): Position(at.offset, topic.id, at.leader_epoch)
        for name, topic in topics.items()
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
    holder: str = ""
    pinned: bool = False
    since: dict[str, _Topic] | None = None


_converted = converter(_Document, strict=False)
