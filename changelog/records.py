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

from changelog.arrays import int64_range
from changelog.config import TopicConfig
from changelog.settings import Setting

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
    epochs: tuple[tuple[int, int], ...] = ()
    """(leader epoch, its first offset), in order: what KIP-320 checks for divergence."""
    purged_end: int = 0
    """Below it tombstones may be gone: see `must_start_over`."""
    clean_end: int = 0
    """Below it no key has two records."""
    superseding_end: int = 0
    """Who stops before it may lack values that later ones have replaced: read on to here."""
    committed_end: int = 0
    """Below it is all that was committed by now. An open transaction may hide some of it: then the
    last stable offset is lower, and comes here once that has ended. On Kafka the high watermark."""

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

        >>> offsets = PartitionOffsets(0, 50, 50, "t", 2, epochs=((0, 0), (2, 40)))
        >>> offsets.epoch_end(0), offsets.epoch_end(2)
        (40, 50)
        """
        later = [start for epoch, start in self.epochs if epoch > leader_epoch]
        return later[0] if later else self.high_watermark


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
