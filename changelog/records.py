"""Records, batches, topics and positions: the values that clients exchange with a log.

A batch is an Arrow RecordBatch with these columns, on every kind of log:

    timestamp   int64            milliseconds since the epoch
    key         binary           null for a keyless record
    value       binary           null for a tombstone; on a typed topic a struct of its columns
    headers     list<struct<key: string, value: binary>>     only if any record has some
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.arrays import as_numpy, int64_range
from strandline.changelog.config import TopicConfig
from strandline.changelog.history import (
    LOST,
    UNKNOWN_EPOCH,
    Epochs,
    HistoryEpoch,
    LogPosition,
    epoch_before,
    follows,
    is_cut_short,
    is_listed,
    joined_epochs,
    shared_end,
)
from strandline.changelog.settings import Setting

Isolation = Literal["read_committed", "read_uncommitted"]
Headers = Sequence[tuple[str, bytes | None]]

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def columns_schema(value: pa.DataType, *, headers: bool) -> pa.Schema:
    """Return the schema of a batch whose values have the Arrow type `value`.

    >>> columns_schema(pa.binary(), headers=False).names
    ['timestamp', 'key', 'value']
    """
    fields = [
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", value),
    ]
    if headers:
        fields.append(pa.field("headers", HEADERS_TYPE))
    return pa.schema(fields)


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """A record as a consumer receives it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since the epoch."""
    key: bytes | None
    value: Any
    """Bytes, or a dict of columns on a typed topic; None is a tombstone."""
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive records of one partition, as columns."""

    topic: str
    partition: int
    base_offset: int
    """Offset of the first record."""
    columns: pa.RecordBatch
    """The records; the docstring of `changelog.records` describes the columns."""
    leader_epoch: int = 0
    sparse_offsets: pa.Int64Array | None = field(default=None, repr=False)
    """Offset of each record if they have gaps (after compaction); None if they are consecutive."""

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    @property
    def offsets(self) -> pa.Int64Array:
        """Offset of each record."""
        if self.sparse_offsets is not None:
            return self.sparse_offsets
        return int64_range(self.base_offset, self.base_offset + len(self))

    @property
    def headers(self) -> pa.ListArray:
        """Headers of each record; null, never an empty list, for a record that has none."""
        at = self.columns.schema.get_field_index("headers")
        if at < 0:
            return pa.nulls(len(self), HEADERS_TYPE)
        headers = self.columns.column(at)
        has_some = pc.greater(pc.list_value_length(headers), 0)
        return pc.if_else(has_some, headers, pa.scalar(None, HEADERS_TYPE))

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        if self.sparse_offsets is not None:
            return int(self.sparse_offsets[-1].as_py())
        return self.base_offset + len(self) - 1

    def slice(self, start: int, length: int | None = None) -> Batch:
        """Return some of the records, without copying.

        Args:
            start: Index of the first one in the batch.
            length: Maximum number of records; None, the default, for all that follow.
        """
        sparse = self.sparse_offsets
        base = self.base_offset + start if sparse is None else int(sparse[start].as_py())
        return Batch(
            self.topic,
            self.partition,
            base,
            self.columns.slice(start, length),
            self.leader_epoch,
            None if sparse is None else sparse.slice(start, length),
        )

    def clip(self, start: int, end: int) -> Batch:
        """Return the records of a range of offsets, without copying.

        Args:
            start: First offset.
            end: End of the range (exclusive).
        """
        if start <= self.base_offset and self.last_offset < end:
            return self
        first, stop = np.searchsorted(as_numpy(self.offsets), [start, end])
        if first >= stop:
            return Batch(self.topic, self.partition, start, self.columns.slice(0, 0))
        return self.slice(int(first), int(stop - first))

    def offset_for_time(self, timestamp: int) -> int | None:
        """Return the offset of the first record of a time or later; None if there is none.

        Args:
            timestamp: The time, in milliseconds since 1970.
        """
        index = pc.index(pc.greater_equal(self.columns.column(0), timestamp), True).as_py()
        return int(self.offsets[index].as_py()) if index >= 0 else None

    def records(self) -> Iterator[ConsumerRecord]:
        """Yield the records of the batch one by one."""
        columns = self.columns
        rows = zip(
            self.offsets.to_pylist(),
            columns.column("timestamp").to_pylist(),
            columns.column("key").to_pylist(),
            columns.column("value").to_pylist(),
            self.headers.to_pylist(),
            strict=True,
        )
        for offset, timestamp, key, value, heads in rows:
            pairs = tuple((h["key"], h["value"]) for h in heads or ())
            yield ConsumerRecord(self.topic, self.partition, offset, timestamp, key, value, pairs)


def joined(batches: Sequence[Batch]) -> Batch:
    """Return consecutive batches of one partition, which have the same columns, as one batch."""
    first = batches[0]
    if len(batches) == 1:
        return first
    return Batch(
        first.topic,
        first.partition,
        first.base_offset,
        pa.concat_batches([batch.columns for batch in batches]),
        first.leader_epoch,
        pa.concat_arrays([batch.offsets for batch in batches]),
    )


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of a fetch from one partition."""

    batches: list[Batch]
    next_offset: int
    """Offset to fetch next. It may be beyond the last record of `batches`, because transaction
    markers and aborted records are skipped."""
    log_start: int
    high_watermark: int
    last_stable_offset: int
    epochs: Epochs = ()
    """Epochs that name the positions from the fetched one to `next_offset`; later epochs may
    follow. See `changelog.history.continues`. Empty if the log lists none (Kafka, a pin)."""
    topic_id: str = ""
    """Id of the topic; empty if the log does not tell it (a pin). On Kafka it may be some seconds
    old."""

    def is_continued_by(self, later: Fetched) -> bool:
        """Return True if a fetch at `next_offset` found the same history of the partition."""
        return later.continues(self.topic_id, self.epochs, self.next_offset)

    def continues(self, topic_id: str, epochs: Epochs, offset: int) -> bool:
        """Return True if this fetch at `offset` found the topic and history read before it.

        Args:
            topic_id: Id of the topic read before; an id that is not known is not compared.
            epochs: Epochs that name the positions read before; empty if there are none.
            offset: Offset that was fetched.
        """
        is_same_topic = "" in (topic_id, self.topic_id) or topic_id == self.topic_id
        return is_same_topic and follows(epochs, offset, self.epochs)

    def joined(self, later: Fetched) -> Fetched:
        """Return the result of this fetch and of `later`, which continues it, as of one fetch.

        >>> epochs = (HistoryEpoch(0, 0, "a"), HistoryEpoch(1, 40, "b"))
        >>> markers = Fetched([], 60, 0, 60, 60, epochs)
        >>> markers.joined(Fetched([], 60, 0, 60, 60, epochs[1:])).epochs == epochs
        True
        """
        epochs = joined_epochs(self.epochs, later.epochs)
        return replace(later, batches=[*self.batches, *later.batches], epochs=epochs)


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The bounds of one partition: its ends, how far it was cleaned, and its history."""

    log_start: int
    """Offset of the first record that the partition still has."""
    high_watermark: int
    """End (exclusive) of the records visible with read_uncommitted."""
    last_stable_offset: int
    """End (exclusive) of the records visible with read_committed."""
    topic_id: str
    leader_epoch: int
    epochs: Epochs = ()
    """Epochs of the partition: the opening of the log that wrote each range of offsets (KIP-320).
    `divergence` compares positions with them. Empty on Kafka, which does not list them."""
    purged_end: int = 0
    """Offset below which tombstones may have been removed: see `must_start_over`."""
    clean_end: int = 0
    """Offset below which no key has two records."""
    superseding_end: int = 0
    """Offset up to which a reader must read to have a value for every key.

    A reader that stops before this offset may miss keys whose older records were already removed
    because of a newer record below this offset."""
    committed_end: int = 0
    """End (exclusive) of all transactions committed so far; on Kafka the high watermark.

    An open transaction may hide some of them: then the last stable offset is lower, and reaches
    this offset once that transaction has ended."""
    cluster_id: str = ""
    """Id of the Kafka cluster, which positions name instead of an incarnation; else empty."""

    def visible_end(self, isolation: Isolation) -> int:
        """Return the end (exclusive) of the records that a reader sees.

        Args:
            isolation: Isolation level of the reader.
        """
        return self.last_stable_offset if isolation == "read_committed" else self.high_watermark

    @property
    def settled_end(self) -> int:
        """Offset below which a reader that starts without state needs no tombstones.

        Below it the partition has no older record that a tombstone would delete.
        """
        # purged_end exceeds clean_end after a pass that was interrupted: it is the offset that
        # pass had reached. It also does after a lost manifest was rebuilt, which cannot know
        # better.
        return max(self.clean_end, self.purged_end)

    def must_start_over(self, position: int, settled_end: int = 0) -> bool:
        """Return True if a reader may have missed a deletion and must rebuild its state.

        Call it *after* each fetch, with the position from *before* the fetch, because tombstones
        may be removed in between; and before any fetched record is applied.

        A tombstone below `settled_end` deletes no record that the reader can have seen. Any other
        tombstone can be missing only below `purged_end`, and the reader has missed it only if it
        was at or after `position`. Tombstones are kept for `delete.retention.ms` after the
        records that they delete were removed, so a reader that catches up within that time never
        has to start over.

        Args:
            position: Offset up to which (exclusive) the reader's state is complete.
            settled_end: The partition's `settled_end` when the reader started without state;
                0 if it is not known.

        >>> offsets = PartitionOffsets(0, 50, 50, "t", 0, purged_end=20, clean_end=30)
        >>> offsets.must_start_over(20), offsets.must_start_over(19)
        (False, True)
        >>> offsets.must_start_over(0, settled_end=20), offsets.must_start_over(0, settled_end=15)
        (False, True)
        """
        return self.purged_end > max(position, settled_end)

    def epoch_end(self, leader_epoch: int) -> int:
        """Return the end (exclusive) of the records of an epoch, as OffsetForLeaderEpoch.

        A reader that reached a higher offset in that epoch has seen records that no longer exist.

        Args:
            leader_epoch: The epoch, as stored with a position.

        >>> epochs = (HistoryEpoch(0, 0), HistoryEpoch(2, 40))
        >>> offsets = PartitionOffsets(0, 50, 50, "t", 2, epochs=epochs)
        >>> offsets.epoch_end(0), offsets.epoch_end(2)
        (40, 50)
        """
        later = [epoch.start for epoch in self.epochs if epoch.number > leader_epoch]
        return later[0] if later else self.high_watermark

    def epoch_before(self, offset: int) -> HistoryEpoch:
        """Return the epoch that names a position.

        Args:
            offset: Offset of the position: that of the next record.

        >>> epochs = (HistoryEpoch(0, 0, "a"), HistoryEpoch(2, 40, "b"))
        >>> offsets = PartitionOffsets(0, 50, 50, "t", 2, epochs=epochs)
        >>> offsets.epoch_before(40).incarnation
        'a'
        """
        if not self.epochs:
            return HistoryEpoch(self.leader_epoch, 0, self.cluster_id)
        return epoch_before(self.epochs, offset)

    def shared_end(self, position: LogPosition) -> int:
        """Return the offset up to which this partition shares the history of a position.

        The offset is exact if the partition lists the position's incarnation; otherwise it is an
        upper bound.

        Args:
            position: Stored position, with its topic id and leader epoch.
        """
        if self._other_log(position):
            return self.log_start
        return min(position.offset, shared_end(self.epochs, self.high_watermark, position))

    def divergence(self, position: LogPosition) -> str:
        """Return why a position belongs to another history than this partition; empty if not.

        A position of another history may be at any offset, even at one that this partition has.
        State built up to it must be rebuilt, and reading must not continue from it. Call this
        before using a stored position again.

        Args:
            position: Stored position up to which a state was built.

        >>> epochs = (HistoryEpoch(0, 0, "a"), HistoryEpoch(1, 40, "b"))
        >>> log = PartitionOffsets(0, 90, 90, "t", 1, epochs=epochs)
        >>> log.divergence(ReadPosition(40, "t", 0, "a"))
        ''
        >>> log.divergence(ReadPosition(60, "t", 1, "b"))
        ''
        >>> log.divergence(ReadPosition(60, "t", 0, "a"))
        'it reaches to offset 60 of leader epoch 0, which the log has only to 40'
        >>> log.divergence(ReadPosition(60, "t", 1, "c"))
        'it is of another history of the log: incarnation c, leader epoch 1, wrote what is before
        offset 60'
        """
        if other := self._other_log(position):
            return other
        by_number = not (self.epochs and position.incarnation)
        if by_number and position.leader_epoch > self.leader_epoch:
            return f"it is of leader epoch {position.leader_epoch}, the log only of {self.leader_epoch}"
        if position.offset == 0:
            return ""
        if not is_listed(self.epochs, position):
            return self._not_listed(position)
        if position.offset > self.high_watermark:
            return f"it reaches to offset {position.offset}, the log only to {self.high_watermark}"
        end = self.shared_end(position)
        if position.offset > end:
            return (
                f"it reaches to offset {position.offset} of leader epoch {position.leader_epoch}, "
                f"which the log has only to {end}"
            )
        return ""

    def reading_divergence(self, position: LogPosition) -> str:
        """Return why a reader must not continue at a position; empty if it may.

        Unlike state built from the records, a reader may continue within a range of offsets that
        a repair found lost, because it skips no record there.

        Args:
            position: Stored position of the reader.

        >>> epochs = (HistoryEpoch(0, 0, "a"), HistoryEpoch(1, 40, LOST), HistoryEpoch(2, 90, "b"))
        >>> log = PartitionOffsets(0, 95, 95, "t", 2, epochs=epochs)
        >>> log.divergence(ReadPosition(60, "t", 0, "a"))
        'it reaches to offset 60 of leader epoch 0, which the log has only to 40'
        >>> log.reading_divergence(ReadPosition(60, "t", 0, "a"))
        ''
        """
        problem = self.divergence(position)
        if not problem or not self.epochs or position.offset > self.high_watermark:
            return problem
        epoch = epoch_before(self.epochs, position.offset)
        # Compare numbers, because an incarnation without remaining records is no longer listed.
        is_before = epoch.incarnation == LOST and position.leader_epoch < epoch.number
        return "" if is_before else problem

    def _other_log(self, position: LogPosition) -> str:
        """Return why a position belongs to another topic or cluster; empty if it does not."""
        if position.topic_id != self.topic_id:
            return f"it is of topic id {position.topic_id}, the topic's id is {self.topic_id}"
        if self.cluster_id and position.incarnation not in ("", self.cluster_id):
            return f"it is of cluster {position.incarnation}, this is cluster {self.cluster_id}"
        return ""

    def _not_listed(self, position: LogPosition) -> str:
        what = (
            f"incarnation {position.incarnation}, leader epoch {position.leader_epoch}, wrote what "
            f"is before offset {position.offset}"
        )
        if is_cut_short(self.epochs) and position.offset <= self.epochs[0].start:
            return (
                f"it is older than the {len(self.epochs)} openings that the log remembers: {what}"
            )
        return f"it is of another history of the log: {what}"


class ReadPosition(NamedTuple):
    """A reader's position in one partition, and the history in which it was reached."""

    offset: int
    """Next offset to read."""
    topic_id: str
    leader_epoch: int
    """Leader epoch of the record before `offset`."""
    incarnation: str = ""
    """Opening of the log that wrote that record; on Kafka the cluster's id. Empty if unknown."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """Description of a topic."""

    name: str
    topic_id: str
    partitions: int
    config: Mapping[str, str]
    """Settings that were set on the topic itself, by Kafka's names; see `effective` for all."""
    schema: pa.Schema | None = None
    """Latest schema of a typed topic's values; None if values are bytes."""
    schema_id: int = 0
    """Version of the schema, counted from 1; 0 if values are bytes."""
    internal: bool = False
    """True for topics that the log keeps for itself."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Settings of the whole log, by the topic's names. They apply where `config` has no value.
    On a Kafka cluster they include its built-in values."""
    told: tuple[Setting, ...] = ()
    """Settings as a Kafka cluster reports them, because its values and built-in defaults differ
    from those of this package. Empty on other logs."""

    @property
    def effective(self) -> TopicConfig:
        """Effective settings: the topic's own, then the log's, then the built-in defaults."""
        return TopicConfig.parse({**self.defaults, **self.config})

    @property
    def topic_partitions(self) -> list[TopicPartition]:
        """All partitions of the topic, by number."""
        return [TopicPartition(self.name, number) for number in range(self.partitions)]

    def settings(self) -> list[Setting]:
        """Return every setting with its effective value and the source of that value."""
        return list(self.told) or [
            Setting(
                name,
                value,
                "topic" if name in self.config else "log" if name in self.defaults else "default",
            )
            for name, value in self.effective.as_strings().items()
        ]


class CommittedOffset(NamedTuple):
    """The committed offset of a consumer group in one partition."""

    offset: int
    """Next offset to read."""
    metadata: str = ""
    topic_id: str = ""
    """Id of the topic; the log fills it in if it is empty."""
    leader_epoch: int = UNKNOWN_EPOCH
    """Leader epoch of the record before `offset`; the log fills it in with `incarnation`."""
    incarnation: str = ""
    """Opening of the partition that wrote that record; filled in if empty. Unused on Kafka."""


def named_offset(offset: int, topic_id: str, epochs: Epochs) -> CommittedOffset:
    """Return an offset to commit, with the topic and the history that it belongs to.

    Args:
        offset: Next offset to read.
        topic_id: Id of the topic; empty if it is not known.
        epochs: Epochs that name the positions around `offset`; empty if the log lists none.
    """
    if not epochs:
        return CommittedOffset(offset, "", topic_id)
    epoch = epoch_before(epochs, offset)
    return CommittedOffset(offset, "", topic_id, epoch.number, epoch.incarnation)


class ProducerIdentity(NamedTuple):
    """Producer id and epoch (KIP-98). A higher epoch fences producers with lower ones."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Append:
    """One batch to be appended to one partition."""

    topic: str
    partition: int
    columns: pa.RecordBatch
    """Records as described in `changelog.records`; timestamps must be set."""
    producer: ProducerIdentity | None = None
    """Identity from `Broker.init_producer`; the log rejects a batch without one."""
    base_sequence: int = -1
    """Sequence number of the first record, counted by producer identity and partition."""
    transactional: bool = False
    schema_id: int = 0
    """Version of the schema of `value`; 0 for bytes."""


class Appended(NamedTuple):
    """Offsets of an appended batch."""

    base_offset: int
    last_offset: int
    duplicate: bool = False
    """True if the log already had this batch and wrote nothing."""
    leader_epoch: int | None = None
    """Leader epoch in which the batch was written (KIP-320); None if the log does not report it."""
    incarnation: str = ""
    """Opening of the log that wrote the batch; empty if the log does not report it."""
