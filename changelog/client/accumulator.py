"""Collects records into batches: one by one, by partition, up to a size.

Sizes are estimated from the records themselves, before any column is built.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from strandline.changelog.client.columns import as_mapping, batch_of, required
from strandline.changelog.client.items import check_names
from strandline.changelog.client.partitioner import (
    StickyPartitioner,
    partition_for,
    partitions_for,
    split,
)
from strandline.changelog.errors import InvalidRecord, RecordTooLarge, UnknownPartition
from strandline.changelog.records import Headers, TopicInfo, TopicPartition

MAX_FRAME_BYTES = 16 << 20
"""Maximum bytes of a frame with several records; a single record may be larger."""

_RECORD_OVERHEAD_BYTES = 24
"""Bytes of a record besides key and value: timestamp, two Arrow offsets, validity."""


class RecordMetadata(NamedTuple):
    """Partition, offset and timestamp of an appended record."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since the epoch; -1 if the log sets it (LogAppendTime)."""


@dataclass(slots=True)
class OpenBatch:
    """Unsent records for one partition."""

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
        """Return the records as columns, in pieces that each fit a frame. Raises InvalidRecord."""
        info = self.target.info
        columns = batch_of(info, self.keys, self.values, self.timestamps, self.headers)
        return list(self.target.frames(columns))

    def halves(self) -> tuple[OpenBatch, OpenBatch]:
        """Return two batches with the first and second half of the records."""
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
        """Complete the futures of `count` records from index `first` on.

        `base_offset` is the offset of the first of them.
        """
        topic, partition = self.topic_partition
        stamped = self.target.config.message_timestamp_type == "LogAppendTime"
        for index in range(first, first + count):
            timestamp = -1 if stamped else self.timestamps[index]
            offset = base_offset + index - first
            # The caller may have cancelled the future; the record is in the log all the same.
            with contextlib.suppress(InvalidStateError):
                self.futures[index].set_result(RecordMetadata(topic, partition, offset, timestamp))

    def fail(self, error: BaseException, first: int = 0, count: int | None = None) -> None:
        """Fail the futures of `count` records (default: all) from index `first` on."""
        end = len(self.futures) if count is None else first + count
        for future in self.futures[first:end]:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(error)


class TopicTarget:
    """A topic as a producer sees it: description, limits, partitioning of keyless records."""

    def __init__(
        self, info: TopicInfo, batch_bytes: int, seed: str, *, earliest_ms: int = 0
    ) -> None:
        self.info = info
        self.earliest_ms = earliest_ms
        """Earliest timestamp of a record that the log accepts, in ms since the epoch."""
        self.config = info.effective
        self._uses_append_time = self.config.message_timestamp_type == "LogAppendTime"
        self._required = [] if info.schema is None else required(info.schema)
        self.frame_bytes = min(MAX_FRAME_BYTES, self.config.max_message_bytes)
        self.sticky = StickyPartitioner(info.partitions, batch_bytes, f"{seed}/{info.name}")

    def choose(self, partition: int | None, key: bytes | None, size: int) -> int:
        """Return the partition of a record of `size` bytes. Raises UnknownPartition."""
        if partition is not None:
            return self.checked(partition)
        if key is None:
            return self.sticky.take(size)
        return partition_for(key, self.info.partitions)

    def checked(self, partition: int) -> int:
        """Return `partition` if the topic has it. Raises UnknownPartition."""
        if not 0 <= partition < self.info.partitions:
            raise UnknownPartition(
                f"topic {self.info.name!r} has partitions 0 to {self.info.partitions - 1}, got "
                f"{partition}"
            )
        return partition

    def content(self, value: Any) -> Any:
        """Return a value as `OpenBatch` keeps it. Raises InvalidRecord, SchemaMismatch."""
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
        """Raise the error with which the log would reject a batch of one record.

        `now_ms` approximates the log's time. Raises InvalidRecord, RecordTooLarge.
        """
        timestamp = columns.column(0)[0].as_py()
        self.check_record(columns.column(1)[0].as_py(), timestamp, columns.nbytes)
        self.check_time(timestamp, now_ms)

    def check_time(self, timestamp: int, now_ms: int) -> None:
        """Raise InvalidRecord for a time that the log would reject; `now_ms` is about its time."""
        before = self.config.message_timestamp_before_max_ms
        after = self.config.message_timestamp_after_max_ms
        if self._uses_append_time or -after <= now_ms - timestamp <= before:
            return
        raise InvalidRecord(
            f"topic {self.info.name!r}: the timestamp {timestamp} is outside of"
            f" message.timestamp.before.max.ms = {before} and after.max.ms = {after} around {now_ms}"
        )

    def check_record(self, key: bytes | None, timestamp: int, size: int) -> None:
        """Reject a record that would make the log reject its whole batch.

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
        """Split a batch by partition, keeping the order within each partition."""
        chosen = partitions_for(columns.column(1), self.info.partitions)
        keyless = chosen < 0
        if keyless.any():
            count = int(keyless.sum())
            total_bytes = columns.nbytes * count // len(chosen)
            chosen[keyless] = self.sticky.take_many(count, total_bytes)
        return split(columns, chosen)

    def frames(self, columns: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Split a batch into pieces that each fit a frame. Raises RecordTooLarge."""
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
    """A record that a producer has accepted and not sent yet."""

    target: TopicTarget
    partition: int | None
    """Partition given by the caller; None: selected by the key, or sticky without a key."""
    key: bytes | None
    value: Any
    timestamp: int
    headers: Headers
    size: int


class Accumulator:
    """Unsent records by partition, in batches of about `batch_bytes`."""

    def __init__(self, batch_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._batches: dict[TopicPartition, list[OpenBatch]] = {}
        self.size = 0
        """Estimated bytes of all records."""

    def add(self, record: PendingRecord) -> tuple[Future[RecordMetadata], bool]:
        """Add a record; return its future, and True if its batch is full.

        Raises UnknownPartition.
        """
        target, partition, key, value, timestamp, headers, size = record
        partition = target.choose(partition, key, size)
        batches = self._batches.setdefault(TopicPartition(target.info.name, partition), [])
        last = batches[-1] if batches else None
        # Another target is another version of the topic, whose schema may differ.
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
        """Number of unsent records."""
        return sum(len(batch.keys) for batches in self._batches.values() for batch in batches)

    def take(self) -> list[OpenBatch]:
        """Remove and return all batches, in order for each partition."""
        taken = [batch for batches in self._batches.values() for batch in batches]
        self._batches = {}
        self.size = 0
        return taken


def record_size(key: bytes | None, value: Any, headers: Headers) -> int:
    """Return the estimated bytes of a record."""
    size = _RECORD_OVERHEAD_BYTES + len(key or b"")
    if isinstance(value, bytes):
        size += len(value)
    elif value is not None:
        size += sum(_field_size(item) for item in value.values())
    for name, content in headers:
        size += len(name) + len(content or b"") + 8
    return size


def checked_headers(headers: Sequence[Any], topic: str) -> Headers:
    """Return headers as pairs of str and bytes (or None). Raises InvalidRecord."""
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


def _frame_bytes(columns: pa.RecordBatch) -> int:
    """Return an upper bound for a batch's frame: buffers, padding, and Arrow's metadata."""
    leaves = sum(_leaves(kind) for kind in columns.schema.types)
    return int(columns.nbytes + columns.num_rows // 2) + 512 + 256 * leaves


def _leaves(kind: pa.DataType) -> int:
    """Return the number of arrays that a column of this type consists of."""
    arrays = 1
    for index in range(kind.num_fields):
        arrays += _leaves(kind.field(index).type)
    return arrays


def _too_large(where: str, size: int, limit: int) -> RecordTooLarge:
    return RecordTooLarge(
        f"{where}: a record of {size} bytes is over max.message.bytes = {limit}; raise it, or "
        f"keep large values elsewhere and send where they are"
    )
