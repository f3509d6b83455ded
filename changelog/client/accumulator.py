"""Records on their way into batches: collected one by one, partitioned, cut to size.

Sizes are counted from the records themselves before any column is built.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from strandline.changelog.client.columns import as_mapping, batch_of, check_names, required
from strandline.changelog.client.partitioner import (
    Partitions,
    StickyPartitioner,
    partition_for,
    partitions_for,
)
from strandline.changelog.errors import InvalidRecord, RecordTooLarge, UnknownPartition
from strandline.changelog.records import Headers, TopicInfo, TopicPartition

MAX_FRAME_BYTES = 16 << 20
"""A batch of several records is cut below this; a single record may be larger."""

_RECORD_OVERHEAD = 24
"""Timestamp, two Arrow offsets, validity: what a record takes besides key and value."""


class RecordMetadata(NamedTuple):
    """Where a record went."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds; -1 where the log gives its own (message.timestamp.type=LogAppendTime)."""


@dataclass(slots=True)
class OpenBatch:
    """Records for one partition that have not been sent."""

    target: TopicTarget
    partition: int
    keys: list[bytes | None] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)
    futures: list[Future[RecordMetadata]] = field(default_factory=list)
    size: int = 0

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.target.info.name, self.partition)

    def frames(self) -> list[pa.RecordBatch]:
        """As columns, in pieces that fit a frame each. Raises InvalidRecord."""
        info = self.target.info
        columns = batch_of(info, self.keys, self.values, self.timestamps, self.headers)
        return list(self.target.frames(columns))

    def halves(self) -> tuple[OpenBatch, OpenBatch]:
        """The same records in two batches."""
        middle = len(self.keys) // 2
        return self._part(0, middle), self._part(middle, len(self.keys))

    def _part(self, start: int, end: int) -> OpenBatch:
        return OpenBatch(
            self.target,
            self.partition,
            self.keys[start:end],
            self.values[start:end],
            self.timestamps[start:end],
            self.headers[start:end],
            self.futures[start:end],
        )

    def succeed(self, first: int, count: int, base_offset: int) -> None:
        """Records `first` … of this batch are in the log from `base_offset` on."""
        topic, partition = self.topic_partition
        stamped = self.target.config.message_timestamp_type == "LogAppendTime"
        for index in range(first, first + count):
            timestamp = -1 if stamped else self.timestamps[index]
            offset = base_offset + index - first
            # Who cancelled the future does not want to know; the record is in the log even so.
            with contextlib.suppress(InvalidStateError):
                self.futures[index].set_result(RecordMetadata(topic, partition, offset, timestamp))

    def fail(self, error: BaseException, first: int = 0, count: int | None = None) -> None:
        """Records `first` … are not in the log, or not known to be."""
        end = len(self.futures) if count is None else first + count
        for future in self.futures[first:end]:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(error)


class TopicTarget:
    """A topic as a producer sees it: its description, limits and keyless records' partition."""

    def __init__(
        self, info: TopicInfo, batch_bytes: int, seed: str, *, earliest_ms: int = 0
    ) -> None:
        self.info = info
        self.earliest_ms = earliest_ms
        """The first time that a record may have."""
        self.config = info.effective
        self._stamps = self.config.message_timestamp_type == "LogAppendTime"
        self._required = [] if info.schema is None else required(info.schema)
        self.frame_bytes = min(MAX_FRAME_BYTES, self.config.max_message_bytes)
        self.sticky = StickyPartitioner(info.partitions, batch_bytes, f"{seed}/{info.name}")

    def choose(self, partition: int | None, key: bytes | None, size: int) -> int:
        """The partition of one record. Raises UnknownPartition."""
        if partition is not None:
            return self.checked(partition)
        if key is None:
            return self.sticky.take(size)
        return partition_for(key, self.info.partitions)

    def checked(self, partition: int) -> int:
        """`partition`, if there is one of that number. Raises UnknownPartition."""
        if not 0 <= partition < self.info.partitions:
            raise UnknownPartition(
                f"topic {self.info.name!r} has partitions 0 to {self.info.partitions - 1}, got "
                f"{partition}"
            )
        return partition

    def content(self, value: Any) -> Any:
        """A value as it is kept until its batch is built. Raises InvalidRecord, SchemaMismatch."""
        where, schema = f"topic {self.info.name!r}", self.info.schema
        if value is None:
            return None
        if schema is not None:
            row = as_mapping(value, where)
            check_names(row.keys(), schema.names, self._required, where)
            return row
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        raise InvalidRecord(
            f"{where}: a value is bytes or None, got {type(value).__name__}; encode it first, or "
            f"create the topic with a schema"
        )

    def check_one(self, columns: pa.RecordBatch, now_ms: int) -> None:
        """Refuse a batch of one record if the log would. Raises InvalidRecord, RecordTooLarge.

        `now_ms` is about the log's time.
        """
        timestamp = columns.column(0)[0].as_py()
        self.check_record(columns.column(1)[0].as_py(), timestamp, columns.nbytes)
        before = self.config.message_timestamp_before_max_ms
        after = self.config.message_timestamp_after_max_ms
        if self._stamps or -after <= now_ms - timestamp <= before:
            return
        raise InvalidRecord(
            f"topic {self.info.name!r}: the timestamp {timestamp} is outside of"
            f" message.timestamp.before.max.ms = {before} and after.max.ms = {after} around {now_ms}"
        )

    def check_record(self, key: bytes | None, timestamp: int, size: int) -> None:
        """Refuse a record that would make the log refuse the whole batch it is in.

        Raises InvalidRecord, RecordTooLarge.
        """
        where = f"topic {self.info.name!r}"
        if key is None and self.config.compact:
            raise InvalidRecord(f"{where} is compacted, so every record needs a key, got None")
        if timestamp < self.earliest_ms:
            raise InvalidRecord(
                f"{where}: a timestamp is ms since 1970, from {self.earliest_ms} on, got {timestamp}"
            )
        if size > self.config.max_message_bytes:
            raise _too_large(where, size, self.config.max_message_bytes)

    def partitioned(self, columns: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """A batch cut up by partition; the order within each is kept."""
        chosen = partitions_for(columns.column(1), self.info.partitions)
        keyless = chosen < 0
        if keyless.any():
            count = int(keyless.sum())
            total_bytes = columns.nbytes * count // len(chosen)
            chosen[keyless] = self.sticky.take_many(count, total_bytes)
        return _by_partition(columns, chosen)

    def frames(self, columns: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """A batch cut into pieces that fit a frame each. Raises RecordTooLarge."""
        if columns.num_rows == 1:
            size = columns.nbytes
            if size > self.config.max_message_bytes:
                where = f"topic {self.info.name!r}"
                raise _too_large(where, size, self.config.max_message_bytes)
            yield columns
        elif _frame_bytes(columns) <= self.frame_bytes:
            yield columns
        else:
            middle = columns.num_rows // 2
            yield from self.frames(columns.slice(0, middle))
            yield from self.frames(columns.slice(middle))


class PendingRecord(NamedTuple):
    """A record that a producer has taken in."""

    target: TopicTarget
    partition: int | None
    """None: by the key, or sticky without one."""
    key: bytes | None
    value: Any
    timestamp: int
    headers: Headers
    size: int


class Accumulator:
    """Records waiting to be sent, by partition, in batches of about `batch_bytes`."""

    def __init__(self, batch_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._batches: dict[TopicPartition, list[OpenBatch]] = {}
        self.size = 0
        """Bytes of all records."""

    def add(self, record: PendingRecord) -> tuple[Future[RecordMetadata], bool]:
        """Take in a record; its future, and whether its batch is full. Raises UnknownPartition."""
        target, partition, key, value, timestamp, headers, size = record
        partition = target.choose(partition, key, size)
        batches = self._batches.setdefault(TopicPartition(target.info.name, partition), [])
        last = batches[-1] if batches else None
        # Another target is another version of the topic, with another schema perhaps.
        if last is None or last.size >= self._batch_bytes or last.target is not target:
            batches.append(OpenBatch(target, partition))
        batch = batches[-1]
        future: Future[RecordMetadata] = Future()
        batch.keys.append(key)
        batch.values.append(value)
        batch.timestamps.append(timestamp)
        batch.headers.append(headers)
        batch.futures.append(future)
        batch.size += size
        self.size += size
        return future, batch.size >= self._batch_bytes

    @property
    def count(self) -> int:
        """Number of records that wait."""
        return sum(len(batch.keys) for batches in self._batches.values() for batch in batches)

    def take(self) -> list[OpenBatch]:
        """All batches, in order for each partition; none are left."""
        taken = [batch for batches in self._batches.values() for batch in batches]
        self._batches = {}
        self.size = 0
        return taken


def record_size(key: bytes | None, value: Any, headers: Headers) -> int:
    """About how many bytes a record takes."""
    size = _RECORD_OVERHEAD + len(key or b"")
    if isinstance(value, bytes):
        size += len(value)
    elif value is not None:
        size += sum(_field_size(item) for item in value.values())
    for name, content in headers:
        size += len(name) + len(content or b"") + 8
    return size


def checked_headers(headers: Sequence[Any], topic: str) -> Headers:
    """Headers as pairs of str and bytes or None. Raises InvalidRecord."""
    for header in headers:
        good = isinstance(header, (tuple, list)) and len(header) == 2 and isinstance(header[0], str)
        if not good or not isinstance(header[1], (bytes, type(None))):
            raise InvalidRecord(
                f"topic {topic!r}: a header is a pair of str and bytes or None, got {header!r}"
            )
        if not _is_utf8(header[0]):
            raise InvalidRecord(
                f"topic {topic!r}: the name of a header is text without lone surrogates, got {header!r}"
            )
    return [(name, content) for name, content in headers]


def _is_utf8(text: str) -> bool:
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _field_size(value: Any) -> int:
    return len(value) + 8 if isinstance(value, (str, bytes, list, dict)) else 8


def _by_partition(
    columns: pa.RecordBatch, chosen: Partitions
) -> Iterator[tuple[int, pa.RecordBatch]]:
    counts = np.bincount(chosen)
    present = np.flatnonzero(counts)
    if len(present) == 1:
        yield int(present[0]), columns
        return
    small = chosen.astype(np.int16) if len(counts) < 1 << 15 else chosen  # sorted by radix
    ordered = columns.take(pa.array(np.argsort(small, kind="stable")))
    start = 0
    for partition in present.tolist():
        count = int(counts[partition])
        yield partition, ordered.slice(start, count)
        start += count


def _frame_bytes(columns: pa.RecordBatch) -> int:
    """A bound for the frame of a batch: its buffers, their padding, Arrow's description of them."""
    leaves = sum(_leaves(kind) for kind in columns.schema.types)
    return int(columns.nbytes + columns.num_rows // 2) + 512 + 256 * leaves


def _leaves(kind: pa.DataType) -> int:
    """How many arrays a column of this type is made of."""
    arrays = 1
    for index in range(kind.num_fields):
        arrays += _leaves(kind.field(index).type)
    return arrays


def _too_large(where: str, size: int, limit: int) -> RecordTooLarge:
    return RecordTooLarge(
        f"{where}: a record of {size} bytes is over max.message.bytes = {limit}; raise it, or "
        f"keep large values elsewhere and send where they are"
    )
