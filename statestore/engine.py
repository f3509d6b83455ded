"""What a store asks of the engine under it.

An engine holds committed bytes only, and with them the `StorePosition`: up to where of which
changelog they reach. Both are written together or not at all, so whatever a crash leaves is
the state as of some position, and replaying the changelog from there brings it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import msgspec

from strandline.changelog.errors import UNREADABLE, CorruptLog, FutureFormat
from strandline.changelog.history import HistoryEpoch

FORMAT = 3
"""Version of what an engine holds: key and value encodings, and the position's own. 1 had no
`settled_end` in the position, 2 no `incarnation`."""

POSITION_KEY = b"\x00position"
"""Where an engine keeps its position: below every key of a store."""

Entry = tuple[bytes, bytes]
Item_co = TypeVar("Item_co", covariant=True)


@dataclass(frozen=True, slots=True)
class StorePosition:
    """Up to where an engine holds a changelog partition, and in which history of the log.

    The offset alone would be enough to see that a deletion may be missing: whoever writes a
    position has looked that none is missing up to there. `settled_end` lets a restore that was
    cut short below the log's `purged_end` go on all the same, instead of beginning anew.
    """

    topic_id: str
    leader_epoch: int
    """Leader epoch of the record before `offset`; UNKNOWN_EPOCH after a commit on Kafka."""
    offset: int
    """Everything committed before this offset is in the engine, nothing from it on."""
    settled_end: int = 0
    """`PartitionOffsets.settled_end` of the changelog when the engine was empty; 0: not known."""
    incarnation: str = ""
    """Which opening of the log wrote the record before `offset` (`changelog.history`); on Kafka the
    cluster's id. Empty if the engine was written by a version that did not note it."""

    def to_bytes(self) -> bytes:
        """MessagePack of [format, topic id, leader epoch, offset, settled end, incarnation]."""
        position = [FORMAT, self.topic_id, self.leader_epoch, self.offset]
        return msgspec.msgpack.encode([*position, self.settled_end, self.incarnation])

    def at(self, offset: int, epoch: HistoryEpoch) -> StorePosition:
        """Return the position at another offset, the record before which is of `epoch`."""
        return replace(
            self, offset=offset, leader_epoch=epoch.number, incarnation=epoch.incarnation
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> StorePosition:
        """Raises FutureFormat, CorruptLog.

        >>> StorePosition.from_bytes(StorePosition("t1", 0, 7).to_bytes()).offset
        7
        """
        try:
            version, *rest = msgspec.msgpack.decode(data)
            if version > FORMAT:
                raise FutureFormat(
                    f"a state folder has format {version}, this version reads up to {FORMAT}; "
                    "upgrade, or delete the folder: it is rebuilt from the changelog"
                )
            if version < FORMAT:
                rest += [0, ""][version - FORMAT :]
            topic_id, leader_epoch, offset, settled_end, incarnation = rest
            return cls(
                str(topic_id), int(leader_epoch), int(offset), int(settled_end), str(incarnation)
            )
        except (TypeError, *UNREADABLE) as error:
            raise CorruptLog(f"a state folder's position is damaged: {data!r}") from error


class Column(Protocol[Item_co]):
    """What has a length and is gone through in order: a list, or one made while it is read."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Item_co]: ...


class Engine(Protocol):
    """Sorted bytes, and the position up to which they reach.

    Reads may run on any thread beside one writer. Every call raises CorruptLog when the
    engine turns out to be damaged, StorageFailed and DiskFull as the disk says.
    """

    def position(self) -> StorePosition | None:
        """What the last write said; None if there was none."""
        ...

    def is_empty(self) -> bool:
        """Whether nothing was ever written, so that look-ups can be spared."""
        ...

    def get(self, key: bytes) -> bytes | None:
        """The value of one key; None if it has none."""
        ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key."""
        ...

    def scan(self, lower: bytes, upper: bytes | None, *, reverse: bool) -> Iterator[Entry]:
        """The entries of [lower, upper) as they are at the call, in the order of their keys."""
        ...

    def write(
        self, keys: Column[bytes], values: Column[bytes | None], position: StorePosition
    ) -> None:
        """Set (None: delete) strictly ascending keys and the position, in one durable step."""
        ...

    def wipe(self) -> None:
        """Forget everything, the position too."""
        ...

    def approximate_num_entries(self) -> int:
        """About how many keys there are, without counting."""
        ...

    def disk_bytes(self) -> int:
        """How many bytes its files have; 0 if it has none."""
        ...

    def close(self) -> None:
        """Let go; open scans end. Harmless when repeated."""
        ...
