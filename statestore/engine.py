"""Interface between a store and its engine.

An engine stores only committed bytes, together with their `StorePosition`: the changelog and the
offset that they reach. Both are written atomically, so a crash leaves the state as of some
position, and replaying the changelog from that position restores it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import msgspec

from strandline.changelog.decoding import msgpack_value
from strandline.changelog.errors import UNREADABLE, CorruptLog, FutureFormat
from strandline.changelog.history import HistoryEpoch
from strandline.statestore.ranges import NO_RANGES, DeletedRanges

ENGINE_FORMAT = 4
"""Version of an engine's content: encodings of keys, values and position.

Positions of version 1 have no `settled_end`, those of version 2 no `incarnation`, and those of
version 3 no `partition`.
"""

UNKNOWN_PARTITION = -1
"""Partition of a position that an older version has written."""

POSITION_KEY = b"\x00position"
"""Key under which an engine stores its position. It sorts before every key of a store."""

Entry = tuple[bytes, bytes]
Item_co = TypeVar("Item_co", covariant=True)


@dataclass(frozen=True, slots=True)
class StorePosition:
    """Changelog position that an engine has reached, and the history of the log that it is of.

    A position is written only after a check that no deletion before it is missing. So the offset
    alone shows whether later deletions may be missing. `settled_end` allows a restore that was
    interrupted below the log's `purged_end` to continue instead of starting over.
    """

    topic_id: str
    """Id of the changelog's topic."""
    leader_epoch: int
    """Leader epoch of the record before `offset`; UNKNOWN_EPOCH after a commit on Kafka."""
    offset: int
    """Changelog offset (exclusive) up to which the engine has everything that is committed."""
    settled_end: int = 0
    """`PartitionOffsets.settled_end` of the changelog when the engine was empty; 0 if unknown."""
    incarnation: str = ""
    """Id of the opening of the log that wrote the record before `offset` (`changelog.history`).

    On Kafka it is the id of the cluster. Empty if an older version wrote the position.
    """
    partition: int = UNKNOWN_PARTITION
    """Number of the changelog's partition. A folder that was moved to another partition shows so."""

    def to_bytes(self) -> bytes:
        """Return MessagePack of [format, topic id, epoch, offset, settled end, incarnation,
        partition]."""
        position = [ENGINE_FORMAT, self.topic_id, self.leader_epoch, self.offset]
        rest = [self.settled_end, self.incarnation, self.partition]
        return msgspec.msgpack.encode(position + rest)

    def at(self, offset: int, epoch: HistoryEpoch) -> StorePosition:
        """Return the position at another offset, whose preceding record is of `epoch`."""
        return replace(
            self, offset=offset, leader_epoch=epoch.number, incarnation=epoch.incarnation
        )

    def is_of(self, partition: int) -> bool:
        """Return True unless it is known to be of another partition of the changelog."""
        return self.partition in (partition, UNKNOWN_PARTITION)

    @classmethod
    def from_bytes(cls, data: bytes) -> StorePosition:
        """Decode a position. Raises FutureFormat, CorruptLog.

        >>> StorePosition.from_bytes(StorePosition("t1", 0, 7).to_bytes()).offset
        7
        """
        try:
            version, *rest = msgpack_value(data)
            if version > ENGINE_FORMAT:
                raise FutureFormat(
                    f"a state folder has format {version}, this version reads up to "
                    f"{ENGINE_FORMAT}; upgrade, or delete the folder: it is rebuilt from the "
                    "changelog"
                )
            if version < ENGINE_FORMAT:
                rest += [0, "", UNKNOWN_PARTITION][version - ENGINE_FORMAT :]
            topic_id, leader_epoch, offset, settled_end, incarnation, partition = rest
            history = str(topic_id), int(leader_epoch), int(offset)
            return cls(*history, int(settled_end), str(incarnation), int(partition))
        except (TypeError, *UNREADABLE) as error:
            raise CorruptLog(f"a state folder's position is damaged: {data!r}") from error


class Column(Protocol[Item_co]):
    """Sized iterable, such as a list or an `ArrowColumn`."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Item_co]: ...


class Engine(Protocol):
    """Sorted keys and values as bytes, and the changelog position that they reach.

    Reads may run on any thread beside one writer. Every call may raise CorruptLog for a damaged
    engine, StorageFailed for an error of the disk, and DiskFull.
    """

    def position(self) -> StorePosition | None:
        """Return the position that the content reaches; None if nothing was ever written.

        A write that has failed may be in the content or not. The position says which.
        """
        ...

    def is_empty(self) -> bool:
        """Return True if nothing was ever written, so that look-ups can be skipped."""
        ...

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if it has none."""
        ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key; None for a key that has none."""
        ...

    def scan(self, lower: bytes, upper: bytes | None, /, *, reverse: bool) -> Iterator[Entry]:
        """Return the entries of [lower, upper) as of this call, in the order of their keys."""
        ...

    def write(
        self,
        keys: Column[bytes],
        values: Column[bytes | None],
        position: StorePosition,
        ranges: DeletedRanges = NO_RANGES,
    ) -> None:
        """Write strictly ascending keys and the position atomically and durably.

        A value of None deletes the key. Before that, all keys of `ranges` are deleted.
        """
        ...

    def wipe(self) -> None:
        """Delete all entries and the position."""
        ...

    def approximate_num_entries(self) -> int:
        """Return the approximate number of keys, without counting them."""
        ...

    def disk_bytes(self) -> int:
        """Return the bytes of the engine's files; 0 if it has none."""
        ...

    def close(self) -> None:
        """Close the engine; open scans end. Idempotent."""
        ...
