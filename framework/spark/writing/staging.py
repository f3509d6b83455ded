"""Staging topics: rows of tasks, until the driver commits or drops them.

The staging topic of a sink and its target has as many partitions as the target, the same columns
and limits, and no time limit. A stream keeps it, and deletes records up to a captured end after each
commit. A batch write has one of its own, which is deleted when the job ends. Its name begins with
the time of its creation, so that what a lost driver has left can be deleted later:

    __strandline_staging-<sink>-<target>            of a stream, by hashes of both
    __strandline_staging-job<ms>-<job>-<target>     of a batch write
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.broker import Broker
from strandline.changelog.client.producer import BatchMetadata, Producer
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidConfig, StrandlineError, TopicExists, UnknownTopic
from strandline.changelog.records import TopicInfo, TopicPartition
from strandline.changelog.sinks import JOB_STAGING, STAGING, digest_of, staging_prefix
from strandline.framework.spark.writing.options import SinkOptions
from strandline.framework.spark.writing.rows import RowLayout

PREFIX = STAGING

JOB_LIFETIME_MS = 7 * 24 * 60 * 60 * 1000
"""Milliseconds after which the staging topic of a batch write is taken for abandoned."""

_log = logging.getLogger(__name__)


class SinkName(NamedTuple):
    """Sink whose rows are staged."""

    prefix: str
    """Beginning of the names of its staging topics."""
    is_job: bool
    """True for a batch write, whose staging topics end with it."""

    @classmethod
    def of_stream(cls, sink_id: str) -> SinkName:
        """Return the name of a stream's sink."""
        return cls(staging_prefix(sink_id), is_job=False)

    @classmethod
    def of_job(cls) -> SinkName:
        """Return a new name, for one batch write."""
        clock = SystemClock()
        return cls(f"{JOB_STAGING}{clock.now_ms()}-{clock.new_id()[:12]}-", is_job=True)

    def topic(self, target: TopicInfo) -> str:
        """Return the name of the staging topic for a target, by its topic id."""
        return self.prefix + digest_of(target.topic_id)


class StagedRange(NamedTuple):
    """Consecutive offsets of a partition of a staging topic."""

    start: int
    end: int
    """End (exclusive)."""

    @property
    def rows(self) -> int:
        """Number of its offsets."""
        return self.end - self.start


def span_of(ranges: Collection[StagedRange]) -> StagedRange:
    """Return the offsets from the first to the last one of some ranges.

    >>> span_of([StagedRange(3, 5), StagedRange(0, 2)])
    StagedRange(start=0, end=5)
    """
    return StagedRange(min(each.start for each in ranges), max(each.end for each in ranges))


@dataclass
class StagedTopic:
    """Rows that one task has staged for one topic."""

    target: str
    """Name of the topic that the rows are for."""
    target_id: str
    staging: str
    """Name of the staging topic."""
    staging_id: str
    is_new: bool = False
    """True if the task created the staging topic."""
    size: int = 0
    """Bytes of the rows in memory."""
    ranges: dict[int, list[StagedRange]] = field(default_factory=dict)
    """Offsets of the rows, by partition, in their order."""

    @property
    def bytes_per_row(self) -> int:
        """Average bytes of a row in memory, at least 1."""
        rows = sum(each.rows for ranges in self.ranges.values() for each in ranges)
        return 1 + self.size // max(1, rows)

    def add(self, appended: Iterable[BatchMetadata]) -> None:
        """Add acknowledged batches, in their order."""
        for batch in appended:
            ranges = self.ranges.setdefault(batch.partition, [])
            start, end = batch.base_offset, batch.last_offset + 1
            if ranges and ranges[-1].end == start:
                start = ranges.pop().start
            ranges.append(StagedRange(start, end))

    def groups(self, max_bytes: int) -> Iterator[dict[int, list[StagedRange]]]:
        """Yield all ranges by partition, in groups of which each is read at once.

        A group has the ranges of a partition in their order. It covers about `max_bytes`, with the
        offsets between its ranges: tasks that stage at the same time have ranges next to each
        other, so many small ranges are one group. A range of more bytes is divided.

        >>> ranges = {0: [StagedRange(3, 5), StagedRange(0, 3)], 1: [StagedRange(0, 7)]}
        >>> found = StagedTopic("t", "id", "staging", "id", size=12 * 9, ranges=ranges)
        >>> [[(n, *each) for n in group for each in group[n]] for group in found.groups(50)]
        [[(0, 3, 5), (0, 0, 3)], [(1, 0, 5)], [(1, 5, 7)]]
        """
        limit = max(1, max_bytes // self.bytes_per_row)
        group: dict[int, list[StagedRange]] = {}
        spans: dict[int, StagedRange] = {}
        covered = 0
        for number, each in self._pieces(limit):
            span = spans.get(number)
            wider = each if span is None else span_of([span, each])
            growth = wider.rows - (0 if span is None else span.rows)
            if group and covered + growth > limit:
                yield group
                group, spans, covered, wider, growth = {}, {}, 0, each, each.rows
            group.setdefault(number, []).append(each)
            spans[number] = wider
            covered += growth
        if group:
            yield group

    def _pieces(self, limit: int) -> Iterator[tuple[int, StagedRange]]:
        for number, ranges in self.ranges.items():
            for whole in ranges:
                for start in range(whole.start, whole.end, limit):
                    yield number, StagedRange(start, min(start + limit, whole.end))


class Stager:
    """Writes the rows of one task to staging topics.

    Args:
        broker: The log.
        options: Options of the write.
        sink: Sink that the rows are for.
        topic: Topic of all rows; None if each row names its own.
    """

    def __init__(
        self, broker: Broker, options: SinkOptions, sink: SinkName, topic: TopicInfo | None
    ) -> None:
        self._broker = broker
        self._options = options
        self._sink = sink
        self._topic = topic
        self._clock = SystemClock()
        self._producer = Producer(broker)
        self._writes: dict[str, _TopicWrite] = {}

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows. Raises what `RowLayout.parts` raises, and the producer's errors."""
        now = self._clock.now_ms()
        appends = []
        for write, part in self._by_topic(rows):
            for partition, columns in write.layout.parts(part, now):
                appends.append((write, self._placed(write, partition, columns)))
        for write, batches in appends:
            write.staged.size += sum(columns.nbytes for _, columns, _ in batches)
            write.staged.add(self._producer.append_batches(batches))

    def finish(self) -> list[StagedTopic]:
        """Return everything that was staged, after it was acknowledged."""
        self._producer.close()
        return [write.staged for write in self._writes.values()]

    def _placed(
        self, write: _TopicWrite, partition: int | None, columns: pa.RecordBatch
    ) -> list[tuple[TopicPartition, pa.RecordBatch, int]]:
        """Return records as appends to the partitions of the staging topic."""
        name, schema_id = write.staged.staging, write.schema_id
        if partition is not None:
            return [(TopicPartition(name, partition), columns, schema_id)]
        return [
            (TopicPartition(name, tp.partition), part, schema_id)
            for tp, part in self._producer.partitioned(write.staged.target, columns)
        ]

    def _by_topic(self, rows: pa.RecordBatch) -> Iterator[tuple[_TopicWrite, pa.RecordBatch]]:
        if self._topic is not None:
            yield self._write_to(self._target(self._topic.name)), rows
            return
        for name, part in _split_by_topic(rows):
            yield self._write_to(self._target(name)), part

    def _write_to(self, target: TopicInfo) -> _TopicWrite:
        if target.name not in self._writes:
            staging, is_new = self._staging_topic(target)
            ids = (target.name, target.topic_id, staging.name, staging.topic_id)
            layout = RowLayout(target, self._options)
            write = _TopicWrite(StagedTopic(*ids, is_new), layout, staging.schema_id)
            self._writes[target.name] = write
        return self._writes[target.name]

    def _staging_topic(self, target: TopicInfo) -> tuple[TopicInfo, bool]:
        """Return the staging topic, and True if it was created.

        For a batch write to one topic the driver has created it, and a task never does: a task that
        outlives its job would leave a topic that no commit reads.
        """
        if self._sink.is_job and self._topic is not None:
            found = self._broker.topic(self._sink.topic(target))
            return _extended(self._broker, found, target), False
        return create(self._broker, self._sink, target)

    def _target(self, name: str) -> TopicInfo:
        """Return a topic as it is when the task begins: it may have got partitions since planning."""
        known = self._writes.get(name)
        return self._broker.topic(name) if known is None else known.layout.topic


def create(broker: Broker, sink: SinkName, target: TopicInfo) -> tuple[TopicInfo, bool]:
    """Return the staging topic of a target, and True if it was created; it has what that has."""
    name, is_new = sink.topic(target), False
    try:
        staging = broker.topic(name)
    except UnknownTopic:
        try:
            broker.create_topic(
                name, target.partitions, config=_config(target), schema=target.schema, internal=True
            )
            is_new = True
        except TopicExists:
            is_new = False
        staging = broker.topic(name)
    return _extended(broker, staging, target), is_new


def names(broker: Broker, sink: SinkName) -> list[str]:
    """Return the names of the staging topics that a sink has."""
    return [topic.name for topic in broker.topics() if topic.name.startswith(sink.prefix)]


def remove(broker: Broker, names: Iterable[str]) -> None:
    """Delete staging topics. A failure is only logged, because a later commit deletes them."""
    for name in names:
        try:
            broker.delete_topic(name)
        except UnknownTopic:
            continue
        except StrandlineError as error:
            _log.warning("staging topic %s is left, and deleted by a later write: %s", name, error)


def delete_records(broker: Broker, ends: dict[TopicPartition, int]) -> None:
    """Delete staged rows before some offsets. A failure is logged: the next commit repeats it."""
    for tp, end in ends.items():
        try:
            broker.delete_records(tp, end)
        except UnknownTopic:
            continue
        except StrandlineError as error:
            _log.warning("rows in %s are left, and deleted by the next commit: %s", tp, error)


def abandoned(topics: Collection[TopicInfo], sink: SinkName, now_ms: int) -> list[str]:
    """Return the names of staging topics that nothing will be read from.

    They are those of this sink for topics that do not exist any more (of a batch write, which has
    ended, all of them), and those of batch writes that began long ago.
    """
    wanted = set() if sink.is_job else {sink.topic(topic) for topic in topics}
    found = [topic.name for topic in topics if topic.name.startswith(PREFIX)]
    orphans = [name for name in found if name.startswith(sink.prefix) and name not in wanted]
    return orphans + [name for name in found if _is_old_job(name, now_ms)]


class _TopicWrite(NamedTuple):
    staged: StagedTopic
    layout: RowLayout
    schema_id: int


def _extended(broker: Broker, staging: TopicInfo, target: TopicInfo) -> TopicInfo:
    """Return a staging topic with what its target got after it was created."""
    name = staging.name
    if staging.partitions < target.partitions:
        staging = broker.alter_topic(name, partitions=target.partitions)
    if target.schema is not None and not _has(staging, target.schema):
        staging = broker.alter_topic(name, schema=target.schema)
    if staging.effective.max_message_bytes < target.effective.max_message_bytes:
        staging = broker.alter_topic(name, _config(target))
    return staging


def _config(target: TopicInfo) -> dict[str, str]:
    """Return the settings of a staging topic: rows are kept whatever their times are."""
    limit = str(target.effective.max_message_bytes)
    return {"retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": limit}


def _has(staging: TopicInfo, schema: pa.Schema) -> bool:
    return staging.schema is not None and staging.schema.equals(schema)


def _split_by_topic(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each topic that the column `topic` names."""
    column = rows["topic"]
    if column.null_count:
        raise InvalidConfig(
            "a row has no topic: fill the column `topic`, or name one topic by .option('topic', …)"
        )
    for name in column.unique().to_pylist():
        yield name, rows.filter(pc.equal(column, name))


def _is_old_job(name: str, now_ms: int) -> bool:
    """Return True for the staging topic of a batch write that began long ago."""
    began = _JOB.match(name)
    return began is not None and int(began[1]) < now_ms - JOB_LIFETIME_MS


_JOB = re.compile(rf"{JOB_STAGING}(\d+)-")
