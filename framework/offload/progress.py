"""The progress of a target: the positions that its commits have reached.

Each commit of a target stores it together with the files of that commit, so that both are there or
neither is. Each position names its history (`changelog.history`): the topic's id, and the leader
epoch and the incarnation that wrote the record before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, cast

import msgspec

from strandline.changelog.decoding import known_json_decoder
from strandline.changelog.errors import UNREADABLE, CorruptLog, FutureFormat
from strandline.changelog.records import ReadPosition

T = TypeVar("T", bound=msgspec.Struct)

VERSION = 1
NEWEST = 2
"""Version of claims of Parquet targets whose folders do not begin with `_`; all else has `VERSION`."""
KEY = "strandline.offload"
"""Name of the progress in the commits of tables."""


class PartitionProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Position that was reached in one partition."""

    offset: int
    """Next offset to load."""
    leader_epoch: int = -1
    """Leader epoch of the record before `offset`; -1 if unknown."""
    incarnation: str = ""
    """Opening of the log that wrote that record; on Kafka the cluster's id. Empty if unknown."""
    settled_end: int = 0
    """Offset below which the target needs no tombstones (`PartitionOffsets.settled_end`)."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Positions of a target in all partitions of its topic, after a commit."""

    version: int = VERSION
    topic: str
    topic_id: str
    commit: int = 0
    """Number of the commit, from 1; 0 before the first."""
    partitions: dict[int, PartitionProgress] = {}

    def position(self, partition: int) -> ReadPosition:
        """Return the position in a partition: its beginning, if none was reached yet."""
        at = self.partitions.get(partition, PartitionProgress(0))
        return ReadPosition(at.offset, self.topic_id, at.leader_epoch, at.incarnation)

    def settled_end(self, partition: int) -> int:
        """Return the offset below which the target needs no tombstones."""
        at = self.partitions.get(partition)
        return 0 if at is None else at.settled_end

    def advanced(self, reached: Mapping[int, PartitionProgress]) -> Progress:
        """Return the progress after one more commit, which has reached new positions."""
        return Progress(
            topic=self.topic,
            topic_id=self.topic_id,
            commit=self.commit + 1,
            partitions={**self.partitions, **reached},
        )

    def reaches(self, other: Progress) -> bool:
        """Return True if this progress is at the offsets of `other`, or after them."""
        return all(
            number in self.partitions and self.partitions[number].offset >= at.offset
            for number, at in other.partitions.items()
        )

    def shown(self) -> str:
        """Return the offsets as messages show them.

        >>> Progress(topic="t", topic_id="0f3a", partitions={3: PartitionProgress(7)}).shown()
        '3: 7 (partition: offset)'
        """
        offsets = ", ".join(f"{number}: {at.offset}" for number, at in self.partitions.items())
        return f"{offsets} (partition: offset)"

    def to_json(self) -> str:
        """Return the progress as tables store it."""
        return msgspec.json.encode(self).decode()


def from_json(text: str, where: str) -> Progress:
    """Return the progress that `to_json` wrote. Raise FutureFormat, CorruptLog.

    >>> progress = Progress(topic="flights", topic_id="0f3a", partitions={3: PartitionProgress(7)})
    >>> from_json(progress.to_json(), "x") == progress
    True
    """
    return decoded(Progress, text.encode(), where)


def decoded(kind: type[T], data: bytes, where: str) -> T:
    """Return a document of a target. Raise FutureFormat, CorruptLog."""
    try:
        version = known_json_decoder(_Versioned).decode(data).version
        if version > NEWEST:
            raise FutureFormat(
                f"{where} has version {version} of offloads; this Strandline knows {NEWEST}: upgrade it"
            )
        return cast("T", known_json_decoder(kind).decode(data))
    except UNREADABLE as error:
        raise CorruptLog(
            f"{where} was not written by an offload, or is damaged: {error}; put it back from a "
            "backup, or load into another folder"
        ) from error


class _Versioned(msgspec.Struct):
    version: int
