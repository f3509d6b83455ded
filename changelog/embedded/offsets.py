"""Committed offsets of consumer groups: a compacted topic, and its cache.

A record's key is [group, topic, partition], its value an `OffsetValue`, both in MessagePack. A
tombstone deletes the offset. The cache equals the result of reading the topic from the start. Of a
plain and a transactional commit the later *record* wins, even if it became visible first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeGuard

import msgspec

from strandline.changelog.decoding import msgpack_decoder
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.transaction_log import append_pairs, read_records
from strandline.changelog.errors import (
    REPAIR,
    UNREADABLE,
    CoordinatorLoading,
    CorruptLog,
    OffsetOutOfRange,
)
from strandline.changelog.history import UNKNOWN_EPOCH
from strandline.changelog.layout import CONSUMER_OFFSETS
from strandline.changelog.records import (
    CommittedOffset,
    ConsumerRecord,
    PartitionOffsets,
    ProducerIdentity,
    TopicPartition,
)

GroupPartition = tuple[str, TopicPartition]


class OffsetValue(msgspec.Struct, array_like=True, frozen=True):
    """A committed offset as it is stored."""

    offset: int
    metadata: str
    topic_id: str
    committed_ms: int
    leader_epoch: int = UNKNOWN_EPOCH
    """With `incarnation`, the history that the offset belongs to: see `changelog.history`."""
    incarnation: str = ""

    @property
    def committed(self) -> CommittedOffset:
        """The offset as clients receive it."""
        return CommittedOffset(
            self.offset, self.metadata, self.topic_id, self.leader_epoch, self.incarnation
        )


_encode = msgspec.msgpack.Encoder().encode
_decode_key = msgpack_decoder(tuple[str, str, int]).decode
_decode_value = msgpack_decoder(OffsetValue).decode

Change = tuple[int, OffsetValue | None]
"""Offset of a record in the topic, and the record's value; None deletes."""
Changes = list[tuple[GroupPartition, Change]]


class GroupOffsets:
    """Committed offsets by group and partition."""

    def __init__(self, partition: Partition, topic_exists: Callable[[str], bool]) -> None:
        self.partition = partition
        self._topic_exists = topic_exists
        """Return True for the id of an existing topic. Offsets of deleted topics are not shown."""
        self._lock = threading.Lock()
        self._loading = True
        self._committed: dict[GroupPartition, Change] = {}
        self._pending: dict[ProducerIdentity, dict[GroupPartition, Change | None]] = {}
        """Changes that open transactions will commit, by the transaction's producer identity.

        None stands for a partition whose offset stays the same, but is not stable before the
        transaction has ended. Each transaction has an epoch of its own, so the identity names one
        transaction."""

    def load(self) -> None:
        """Fill the cache from the topic. Until then all other calls raise CoordinatorLoading."""
        for record in read_records(self.partition):
            key, value = parsed(record)
            self._apply(key, (record.offset, value))
        self._loading = False

    def write(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset | None]
    ) -> Changes:
        """Write offsets outside a transaction. The caller syncs them, and then calls `apply`."""
        self._check_loaded()
        return self._write(group, offsets, None)

    def apply(self, changes: Changes) -> None:
        """Make durable changes visible."""
        with self._lock:
            for key, change in changes:
                self._apply(key, change)

    def add(
        self,
        producer: ProducerIdentity,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        owned: Collection[TopicPartition] = (),
    ) -> None:
        """Write offsets in the producer's transaction. They become visible when it commits.

        The partitions in `owned` keep their offsets, but these are not stable before the transaction
        has ended. The next owner of such a partition must see the records that the transaction
        wrote.
        """
        self._check_loaded()
        changes = self._write(group, offsets, producer) if offsets else []
        with self._lock:
            pending = self._pending.setdefault(producer, {})
            pending.update(changes)
            for tp in owned:
                pending.setdefault((group, tp), None)

    def ended(self, producer: ProducerIdentity, *, commit: bool) -> None:
        """Apply or drop the changes of a transaction that has ended in every partition.

        Repeated calls are harmless.
        """
        with self._lock:
            for key, change in self._pending.pop(producer, {}).items():
                if commit and change is not None:
                    self._apply(key, change)

    def committed(
        self, group: str, partitions: Collection[TopicPartition] | None, *, require_stable: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group. See Broker.committed."""
        self._check_loaded()
        with self._lock:
            wanted = None if partitions is None else set(partitions)
            if require_stable:
                self._check_stable(group, wanted)
            return {
                tp: value.committed
                for (owner, tp), (_, value) in self._committed.items()
                if owner == group and self._shown(value) and (wanted is None or tp in wanted)
            }

    def groups(self) -> list[str]:
        """Return the groups with at least one committed offset."""
        self._check_loaded()
        with self._lock:
            return sorted(
                {g for (g, _), (_, value) in self._committed.items() if self._shown(value)}
            )

    def of_topic(self, topic: str) -> dict[str, list[TopicPartition]]:
        """Return the partitions of `topic` with a committed offset, by group."""
        found: dict[str, list[TopicPartition]] = {}
        with self._lock:
            for (group, tp), (_, value) in self._committed.items():
                if tp.topic == topic and value is not None:
                    found.setdefault(group, []).append(tp)
        return found

    def _write(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset | None],
        producer: ProducerIdentity | None,
    ) -> Changes:
        now = self.partition.context.clock.now_ms()
        values = {tp: _value(offset, now) for tp, offset in offsets.items()}
        pairs = [
            (_encode((group, *tp)), None if value is None else _encode(value))
            for tp, value in values.items()
        ]
        stamp: dict[str, Any] = {}
        if producer is not None:
            sequence = self.partition.producers.next_sequence(producer)
            stamp = {"producer": producer, "base_sequence": sequence, "transactional": True}
        first = append_pairs(self.partition, pairs, **stamp)
        return [((group, tp), (first + i, value)) for i, (tp, value) in enumerate(values.items())]

    def _apply(self, key: GroupPartition, change: Change) -> None:
        known = self._committed.get(key)
        if known is None or known[0] < change[0]:
            self._committed[key] = change

    def _shown(self, value: OffsetValue | None) -> TypeGuard[OffsetValue]:
        return value is not None and self._topic_exists(value.topic_id)

    def _check_stable(self, group: str, wanted: set[TopicPartition] | None) -> None:
        for changes in self._pending.values():
            for owner, tp in changes:
                if owner == group and (wanted is None or tp in wanted):
                    raise CoordinatorLoading(
                        f"the offset of {tp} in group {group!r} is not stable: a transaction of its "
                        f"owner, or one that changes it, has not ended in every partition; try again"
                    )

    def _check_loaded(self) -> None:
        if self._loading:
            raise CoordinatorLoading("committed offsets are still being read; try again")


def located(tp: TopicPartition, offset: CommittedOffset, ends: PartitionOffsets) -> CommittedOffset:
    """Return an offset of a present topic with the topic's id and the name of its history.

    Raises OffsetOutOfRange for a position of another history of the log.
    """
    offset = offset._replace(topic_id=ends.topic_id)
    if not offset.incarnation:
        if offset.offset > ends.high_watermark:  # no reader can be there, in any history
            return offset
        epoch = ends.epoch_before(offset.offset)
        return offset._replace(leader_epoch=epoch.number, incarnation=epoch.incarnation)
    if problem := ends.divergence(offset):
        raise OffsetOutOfRange(
            f"{tp}: offset {offset.offset} cannot be committed: {problem}; seek to an offset from "
            f"{ends.log_start} to {ends.high_watermark}"
        )
    return offset


def parsed(record: ConsumerRecord) -> tuple[GroupPartition, OffsetValue | None]:
    """Decode a record of the topic: group and partition, and the offset. Raises CorruptLog.

    The offset is None if the record deletes it.
    """
    try:
        group, topic, number = _decode_key(record.key or b"")
        value = None if record.value is None else _decode_value(record.value)
    except UNREADABLE as error:
        raise CorruptLog(
            f"{CONSUMER_OFFSETS} at offset {record.offset}: not an offset record: {error}; {REPAIR}"
        ) from error
    return (group, TopicPartition(topic, number)), value


def _value(offset: CommittedOffset | None, now_ms: int) -> OffsetValue | None:
    if offset is None:
        return None
    at, metadata, topic_id, leader_epoch, incarnation = offset
    return OffsetValue(at, metadata, topic_id, now_ms, leader_epoch, incarnation)
