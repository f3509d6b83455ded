"""What the members of an app tell one another: in partition 0 of the topic of its units.

A record for each member: its slot, what it shares out and how, where it answers queries. The topic is
compacted; the records of members that are gone are deleted by those who come.

Who takes a slot writes so and reads what others have written since: of two with the same slot the one
whose record came first keeps it. So no two members have one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count

import msgspec
import pyarrow as pa

from strandline.changelog.decoding import json_decoder
from strandline.changelog.depth import check_json
from strandline.changelog.errors import TopicExists, UnknownTopic
from strandline.changelog.kafka.connection import KafkaConnection
from strandline.changelog.kafka.copartitioning import members_topic
from strandline.changelog.kafka.fetching import KafkaConsumers
from strandline.changelog.kafka.offsets import KafkaOffsets
from strandline.changelog.kafka.producing import KafkaBatch, Outcome
from strandline.changelog.kafka.topics import KafkaTopics
from strandline.changelog.records import Appended, TopicPartition, columns_schema

CONFIG = {"cleanup.policy": "compact"}


class MemberEntry(msgspec.Struct, frozen=True):
    """What a member says of itself."""

    slot: int
    topics: tuple[str, ...]
    together: tuple[tuple[str, ...], ...]
    standby_replicas: int = 0
    servers: tuple[str, ...] = ()
    instance: str | None = None
    """The name of a static member."""


_decode = json_decoder(MemberEntry).decode

Roll = Mapping[str, MemberEntry]
"""By member id, in the order in which they came."""
Write = Callable[[list[KafkaBatch]], list[Outcome]]


class MemberDirectory:
    """Of the groups of one cluster. Thread-safe."""

    def __init__(
        self,
        connection: KafkaConnection,
        topics: KafkaTopics,
        offsets: KafkaOffsets,
        fetching: KafkaConsumers,
        write: Write,
    ) -> None:
        self._connection = connection
        self._topics = topics
        self._offsets = offsets
        self._fetching = fetching
        self._write = write

    def make_room(self, group: str, units: int) -> None:
        """See that there is a topic with so many partitions at least."""
        name = members_topic(group)
        try:
            present = self._topics.describe(name).partitions
        except UnknownTopic:
            try:
                present = self._topics.create(name, units, CONFIG, None, internal=False).partitions
            except TopicExists:
                present = self._topics.describe(name).partitions
        if present < units:
            self._topics.alter(name, {}, units, None)

    def read(self, group: str) -> Roll:
        """What all have said, the gone ones too; nothing if there is no such topic."""
        where = TopicPartition(members_topic(group), 0)
        said: dict[str, MemberEntry] = {}
        try:
            for key, value in self._records(where):
                said.pop(key, None)  # whoever says something else goes to the end
                if value is not None:
                    check_json(value)
                    said[key] = _decode(value)
        except UnknownTopic:
            return {}
        return said

    def _records(self, where: TopicPartition) -> Iterator[tuple[str, bytes | None]]:
        ends = self._offsets.of([where])[where]
        position = ends.log_start
        while position < ends.high_watermark:
            fetched = self._fetching.fetch({where: position}, "read_uncommitted", 0.0)
            for batch in fetched[where].batches:
                columns = batch.columns
                for key, value in zip(
                    columns.column("key").to_pylist(),
                    columns.column("value").to_pylist(),
                    strict=True,
                ):
                    yield key.decode(), value
            position = fetched[where].next_offset

    def say(self, group: str, entries: Mapping[str, MemberEntry | None]) -> None:
        """Write for these members; None: it is gone."""
        if not entries:
            return
        now = self._connection.clock.now_ms()
        values = [None if e is None else msgspec.json.encode(e) for e in entries.values()]
        columns = pa.RecordBatch.from_arrays(
            [
                pa.array([now] * len(values), pa.int64()),
                pa.array([member.encode() for member in entries], pa.binary()),
                pa.array(values, pa.binary()),
            ],
            schema=columns_schema(pa.binary(), headers=False),
        )
        [outcome] = self._write([KafkaBatch(TopicPartition(members_topic(group), 0), columns)])
        if not isinstance(outcome, Appended):
            raise outcome


def lowest_free(roll: Roll, alive: Collection[str], member_id: str) -> int:
    """The lowest slot that none of the others has."""
    taken = {entry.slot for other, entry in roll.items() if other in alive and other != member_id}
    return next(slot for slot in count() if slot not in taken)


def is_mine(roll: Roll, alive: Collection[str], member_id: str) -> bool:
    """Whether a member may keep the slot that it has taken: no other that is alive took it before."""
    slot = roll[member_id].slot
    before: list[str] = []
    for other, entry in roll.items():
        if other == member_id:
            break
        if other in alive and entry.slot == slot:
            before.append(other)
    return not before


def holders(roll: Roll, alive: Collection[str], unit: int, owner: str) -> Sequence[str]:
    """Who keeps copies of a unit, besides its owner: those of whom a hash of slot and unit is highest.

    So everybody comes to the same answer, and a member that comes or goes moves few copies
    (rendezvous hashing, Thaler and Ravishankar 1998).
    """
    replicas = max((roll[one].standby_replicas for one in alive if one in roll), default=0)
    others = [one for one in alive if one in roll and one != owner]
    return sorted(others, key=lambda one: _weight(roll[one].slot, unit), reverse=True)[:replicas]


def _weight(slot: int, unit: int) -> int:
    mixed = (slot * 0x9E3779B97F4A7C15 + unit * 0xC2B2AE3D27D4EB4F) & _WORD
    mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93 & _WORD
    return mixed ^ mixed >> 32


_WORD = (1 << 64) - 1
