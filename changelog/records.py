"""What travels through the log: topic partitions, batches of columns, single records.

A batch is an Arrow RecordBatch with these columns, whatever system holds the log:

    timestamp   int64            milliseconds since the epoch
    key         binary           null for a keyless record
    value       binary           null for a tombstone; on a typed topic a struct of its columns
    headers     list<struct<key: string, value: binary>>     only if any record has some
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from strandline.changelog.arrays import int64_range
from strandline.changelog.config import TopicConfig
from strandline.changelog.history import (
    LOST,
    UNKNOWN_EPOCH,
    Epochs,
    HistoryEpoch,
    LogPosition,
    epoch_before,
    is_cut_short,
    is_listed,
    shared_end,
)
from strandline.changelog.settings import Setting

Isolation = Literal["read_committed", "read_uncommitted"]
Headers = Sequence[tuple[str, bytes | None]]

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def columns_schema(value: pa.DataType, *, headers: bool) -> pa.Schema:
    """The schema of a batch whose values have Arrow type `value`.

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
    """One record as a consumer gets it."""

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
    """Consecutive committed records of one partition, as columns."""

    topic: str
    partition: int
    base_offset: int
    """Offset of the first record."""
    columns: pa.RecordBatch
    """See the module's docstring for its schema."""
    leader_epoch: int = 0
    sparse_offsets: pa.Int64Array | None = field(default=None, repr=False)
    """The offset of each record where they do not follow one another (after compaction)."""

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    @property
    def offsets(self) -> pa.Int64Array:
        """The offset of each record."""
        if self.sparse_offsets is not None:
            return self.sparse_offsets
        return int64_range(self.base_offset, self.base_offset + len(self))

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        if self.sparse_offsets is not None:
            return int(self.sparse_offsets[-1].as_py())
        return self.base_offset + len(self) - 1

    def slice(self, start: int, length: int | None = None) -> Batch:
        """Records `start` … of this batch, without copying."""
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
        """The records with offsets in [`start`, `end`), without copying."""
        if start <= self.base_offset and self.last_offset < end:
            return self
        first, behind = np.searchsorted(self.offsets.to_numpy(), [start, end])
        if first >= behind:
            return Batch(self.topic, self.partition, start, self.columns.slice(0, 0))
        return self.slice(int(first), int(behind - first))

    def records(self) -> Iterator[ConsumerRecord]:
        """The same as single records."""
        columns = self.columns
        has_headers = columns.schema.get_field_index("headers") >= 0
        headers = columns.column("headers").to_pylist() if has_headers else [None] * len(self)
        rows = zip(
            self.offsets.to_pylist(),
            columns.column("timestamp").to_pylist(),
            columns.column("key").to_pylist(),
            columns.column("value").to_pylist(),
            headers,
            strict=True,
        )
        for offset, timestamp, key, value, heads in rows:
            pairs = tuple((h["key"], h["value"]) for h in heads or ())
            yield ConsumerRecord(self.topic, self.partition, offset, timestamp, key, value, pairs)


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one partition had to give from a position on."""

    batches: list[Batch]
    next_offset: int
    """Where the next fetch goes on; control and aborted records are behind it, unseen."""
    log_start: int
    high_watermark: int
    last_stable_offset: int
    epochs: Epochs = ()
    """Epochs that name the positions from where was fetched to `next_offset`, and perhaps some
    after it: see `changelog.history.continues`. Empty where the log lists none (Kafka, a pin)."""


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The ends of one partition."""

    log_start: int
    high_watermark: int
    """End of what read_uncommitted sees."""
    last_stable_offset: int
    """End of what read_committed sees."""
    topic_id: str
    leader_epoch: int
    epochs: Epochs = ()
    """Which opening of the log wrote which offsets: what `divergence` looks at (KIP-320). Empty on
    Kafka, which does not list them."""
    purged_end: int = 0
    """Below it tombstones may be gone: see `must_start_over`."""
    clean_end: int = 0
    """Below it no key has two records."""
    superseding_end: int = 0
    """Who stops before it may lack values that later ones have replaced: read on to here."""
    committed_end: int = 0
    """Below it is all that was committed by now. An open transaction may hide some of it: then the
    last stable offset is lower, and comes here once that has ended. On Kafka the high watermark."""
    cluster_id: str = ""
    """On Kafka the cluster's id, which positions name instead of an incarnation."""

    @property
    def settled_end(self) -> int:
        """Who begins with nothing now needs no tombstone below this: nothing older of its key is left."""
        # purged_end is the higher one after a pass that was cut short: up to there it had come.
        # (Or after a lost manifest was made up again: then it has to be taken on trust.)
        return max(self.clean_end, self.purged_end)

    def must_start_over(self, position: int, settled_end: int = 0) -> bool:
        """Whether who builds state from the log may have missed a deletion, and must build it anew.

        The state has all that was there below `position`, and is to go on from there; or has just
        fetched from there: ask *after* the fetch, with the position from *before* it, since
        tombstones may go in between, and before anything of it is kept. `settled_end` is that of
        the log when the state was begun with nothing (0: not known).

        Why that is enough: a tombstone below `settled_end` deletes nothing that was to be read by
        then. Any other is gone only if it is below `purged_end`, and is missed only by who had
        not come to it: if it is not below `position`. Tombstones stay for `delete.retention.ms`
        after what they delete is gone, so whoever builds state in less time never starts over.

        >>> offsets = PartitionOffsets(0, 50, 50, "t", 0, purged_end=20, clean_end=30)
        >>> offsets.must_start_over(20), offsets.must_start_over(19)
        (False, True)
        >>> offsets.must_start_over(0, settled_end=20), offsets.must_start_over(0, settled_end=15)
        (False, True)
        """
        return self.purged_end > max(position, settled_end)

    def epoch_end(self, leader_epoch: int) -> int:
        """Where the records of `leader_epoch` end (Kafka's OffsetForLeaderEpoch).

        A reader that got to a higher offset in that epoch has seen records that are gone.

        >>> offsets = PartitionOffsets(0, 50, 50, "t", 2, epochs=(HistoryEpoch(0, 0), HistoryEpoch(2, 40)))
        >>> offsets.epoch_end(0), offsets.epoch_end(2)
        (40, 50)
        """
        later = [epoch.start for epoch in self.epochs if epoch.number > leader_epoch]
        return later[0] if later else self.high_watermark

    def epoch_before(self, offset: int) -> HistoryEpoch:
        """Return the epoch that names the position at `offset`.

        >>> offsets = PartitionOffsets(0, 50, 50, "t", 2, epochs=(HistoryEpoch(0, 0, "a"), HistoryEpoch(2, 40, "b")))
        >>> offsets.epoch_before(40).incarnation
        'a'
        """
        if not self.epochs:
            return HistoryEpoch(self.leader_epoch, 0, self.cluster_id)
        return epoch_before(self.epochs, offset)

    def shared_end(self, position: LogPosition) -> int:
        """Return the offset up to which this partition can have what `position` has read.

        It is exact if the partition lists the position's incarnation, and else an upper bound.
        """
        if self._other_log(position):
            return self.log_start
        return min(position.offset, shared_end(self.epochs, self.high_watermark, position))

    def divergence(self, position: LogPosition) -> str:
        """Return why `position` is of another history than this partition; empty if it is not.

        A position of another history may be at any offset, also at one that this partition has.
        What was built up to it must be built anew, and reading must not go on from it. Whoever
        keeps a position asks here before using it again.

        >>> log = PartitionOffsets(0, 90, 90, "t", 1, epochs=(HistoryEpoch(0, 0, "a"), HistoryEpoch(1, 40, "b")))
        >>> log.divergence(ReadPosition(40, "t", 0, "a")), log.divergence(ReadPosition(60, "t", 1, "b"))
        ('', '')
        >>> log.divergence(ReadPosition(60, "t", 0, "a"))
        'it reaches to offset 60 of leader epoch 0, which the log has only to 40'
        >>> log.divergence(ReadPosition(60, "t", 1, "c"))
        'it is of another history of the log: incarnation c, leader epoch 1, wrote what is before offset 60'
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
        """Return why a reader must not go on at `position`; empty if it may.

        Unlike what was built from records, a reader may go on among offsets that a repair found
        lost: it passes over no record there.

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
        # Not by incarnation: one of which no record is left is not listed any more.
        is_before = epoch.incarnation == LOST and position.leader_epoch < epoch.number
        return "" if is_before else problem

    def _other_log(self, position: LogPosition) -> str:
        """Why a position is of another topic, or another cluster; empty if it is not."""
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
    """How far one partition has been read, in which history."""

    offset: int
    """The next offset to read."""
    topic_id: str
    leader_epoch: int
    """Leader epoch of the record before `offset`."""
    incarnation: str = ""
    """Which opening of the log wrote that record; of Kafka the cluster's id. Empty if not known."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as it is described."""

    name: str
    topic_id: str
    partitions: int
    config: Mapping[str, str]
    """What was set on it, by Kafka's names; see `effective`."""
    schema: pa.Schema | None = None
    """The latest schema of a typed topic's values; None: values are bytes."""
    schema_id: int = 0
    """1, 2, 3 … for each version of the schema; 0 for bytes."""
    internal: bool = False
    defaults: Mapping[str, str] = field(default_factory=dict)
    """What is set for the log as a whole, by the same names: where `config` says nothing. Of a Kafka
    cluster also its built-in values."""
    told: tuple[Setting, ...] = ()
    """Its settings as the system itself tells them, where that is not this package: a cluster has other
    values, and other built-in ones."""

    @property
    def effective(self) -> TopicConfig:
        """What counts for the topic: its settings, the log's, and built-in ones for the rest."""
        return TopicConfig.parse({**self.defaults, **self.config})

    def settings(self) -> list[Setting]:
        """Every setting, with its value and where that comes from."""
        return list(self.told) or [
            Setting(
                name,
                value,
                "topic" if name in self.config else "log" if name in self.defaults else "default",
            )
            for name, value in self.effective.as_strings().items()
        ]


class CommittedOffset(NamedTuple):
    """Where a consumer group goes on in one partition."""

    offset: int
    """The next offset to read."""
    metadata: str = ""
    topic_id: str = ""
    """Id of the topic the offset belongs to; filled in by the log when empty."""
    leader_epoch: int = UNKNOWN_EPOCH
    """Leader epoch of the record before `offset`; filled in by the log with `incarnation`."""
    incarnation: str = ""
    """Which opening of the log wrote that record; filled in by the log when empty. Not on Kafka."""


class ProducerIdentity(NamedTuple):
    """Who a producer is to the log (KIP-98): the pair that fences."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Append:
    """One batch to be appended to one partition."""

    topic: str
    partition: int
    columns: pa.RecordBatch
    """See the module's docstring; timestamps must be set."""
    producer: ProducerIdentity | None = None
    """From `Broker.init_producer`; the log refuses a batch without."""
    base_sequence: int = -1
    transactional: bool = False
    schema_id: int = 0
    """Of the struct in `value`; 0 for bytes."""


class Appended(NamedTuple):
    """Where an appended batch went."""

    base_offset: int
    last_offset: int
    duplicate: bool = False
    """True when the log had this batch already and wrote nothing."""
    leader_epoch: int | None = None
    """Of the log when it wrote the batch (KIP-320), where it says so."""
    incarnation: str = ""
    """Which opening of the log wrote the batch."""
