"""Data that the members of an app share, in partition 0 of the topic of its units.

There is a record for each member: its slot, its topics and copartition groups, its query URLs. The
topic is compacted; a member that joins deletes the records of members that no longer exist.

A member takes a slot by writing a record with it, and then reading the records of all members. If
two have written the same slot, the one whose record came first keeps it. So no two members have the
same slot at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, count

import msgspec
import pyarrow as pa

from strandline.changelog.arrays import of_items
from strandline.changelog.decoding import json_decoder
from strandline.changelog.errors import TopicExists, UnknownTopic
from strandline.changelog.kafka.connection import KafkaConnection
from strandline.changelog.kafka.copartitioning import members_topic
from strandline.changelog.kafka.fetching import KafkaConsumers
from strandline.changelog.kafka.offsets import KafkaOffsets
from strandline.changelog.kafka.producing import KafkaBatch, Outcome
from strandline.changelog.kafka.topics import KafkaTopics
from strandline.changelog.records import Appended, TopicPartition, columns_schema
from strandline.changelog.scan import scan_by

CONFIG = {"cleanup.policy": "compact"}


class MemberEntry(msgspec.Struct, frozen=True):
    """The record of a member."""

    slot: int
    topics: tuple[str, ...]
    together: tuple[tuple[str, ...], ...]
    standby_replicas: int = 0
    servers: tuple[str, ...] = ()
    instance: str | None = None
    """Name of a static member; None for others."""
    topics_differ: bool = False
    """True if members with other topics are accepted (`Subscription.topics_differ`)."""
    tasks: tuple[tuple[str, ...], ...] | None = None
    """Tasks of the member (`Subscription.tasks`); None if it does not tell."""


_decode = json_decoder(MemberEntry).decode

MemberEntries = Mapping[str, MemberEntry]
"""Records by member id, in the order in which they were written."""
Write = Callable[[list[KafkaBatch]], list[Outcome]]
"""Function that appends batches."""


class MemberDirectory:
    """The records of members of all groups of one cluster. Thread-safe."""

    def __init__(
        self,
        connection: KafkaConnection,
        topics: KafkaTopics,
        offsets: KafkaOffsets,
        fetching: KafkaConsumers,
        append: Write,
    ) -> None:
        self._connection = connection
        self._topics = topics
        self._offsets = offsets
        self._fetching = fetching
        self._append = append

    def ensure_partitions(self, group: str, units: int) -> None:
        """Create or extend the topic so that it has at least `units` partitions."""
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

    def read(self, group: str) -> MemberEntries:
        """Return the records of all members, also of ended ones; none if there is no topic."""
        where = TopicPartition(members_topic(group), 0)
        entries: dict[str, MemberEntry] = {}
        try:
            for key, value in self._records(where):
                entries.pop(key, None)  # a later record moves the member to the end
                if value is not None:
                    entries[key] = _decode(value)
        except UnknownTopic:
            return {}
        return entries

    def _records(self, where: TopicPartition) -> Iterator[tuple[str, bytes | None]]:
        ends = self._offsets.of([where])[where]
        fetched = scan_by(
            lambda at, timeout: self._fetching.fetch(at, "read_uncommitted", timeout),
            *({where: ends.log_start}, {where: ends.high_watermark}),
        )
        for batch in chain.from_iterable(one[where].batches for one in fetched):
            keys, values = (batch.columns.column(name).to_pylist() for name in ("key", "value"))
            yield from ((key.decode(), value) for key, value in zip(keys, values, strict=True))

    def write(self, group: str, entries: Mapping[str, MemberEntry | None]) -> None:
        """Write the records of these members; None deletes one."""
        if not entries:
            return
        now = self._connection.clock.now_ms()
        values = [None if e is None else msgspec.json.encode(e) for e in entries.values()]
        columns = pa.RecordBatch.from_arrays(
            [
                of_items([now] * len(values), pa.int64()),
                of_items([member.encode() for member in entries], pa.binary()),
                of_items(values, pa.binary()),
            ],
            schema=columns_schema(pa.binary(), headers=False),
        )
        [outcome] = self._append([KafkaBatch(TopicPartition(members_topic(group), 0), columns)])
        if not isinstance(outcome, Appended):
            raise outcome


def lowest_free(entries: MemberEntries, alive: Collection[str], member_id: str) -> int:
    """Return the lowest slot that no other live member has."""
    taken = {
        entry.slot for other, entry in entries.items() if other in alive and other != member_id
    }
    return next(slot for slot in count() if slot not in taken)


def is_mine(entries: MemberEntries, alive: Collection[str], member_id: str) -> bool:
    """Return True if a member may keep its slot, because no other live member took it before."""
    slot = entries[member_id].slot
    before: list[str] = []
    for other, entry in entries.items():
        if other == member_id:
            break
        if other in alive and entry.slot == slot:
            before.append(other)
    return not before


def holders(entries: MemberEntries, alive: Collection[str], unit: int, owner: str) -> Sequence[str]:
    """Return the members that keep copies of a unit: those with the highest hash of slot and unit.

    All members compute the same result, and a member that joins or leaves moves few copies
    (rendezvous hashing, Thaler and Ravishankar 1998). The owner of the unit is left out.
    """
    replicas = max((entries[one].standby_replicas for one in alive if one in entries), default=0)
    others = [one for one in alive if one in entries and one != owner]
    return sorted(others, key=lambda one: _weight(entries[one].slot, unit), reverse=True)[:replicas]


def _weight(slot: int, unit: int) -> int:
    mixed = (slot * 0x9E3779B97F4A7C15 + unit * 0xC2B2AE3D27D4EB4F) & _WORD
    mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93 & _WORD
    return mixed ^ mixed >> 32


_WORD = (1 << 64) - 1
