"""Commit of staged rows: one transaction, once for each batch of a sink.

The package's docstring lists the steps. A crash between any two of them leaves a transaction that
the next commit of the sink completes or aborts (step 2), staged rows that no task reads, or both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, takewhile

from strandline.changelog.broker import Broker
from strandline.changelog.client.asking_again import commit_until_known
from strandline.changelog.client.producer import Producer
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.errors import (
    InvalidConfig,
    OffsetOutOfRange,
    ProducerFenced,
    UnknownTopic,
)
from strandline.changelog.records import Batch, TopicInfo, TopicPartition
from strandline.changelog.scan import scan
from strandline.changelog.schema import upgrade, value_type
from strandline.framework.spark.columns import to_sized_batches
from strandline.framework.spark.reading import report
from strandline.framework.spark.writing import staging
from strandline.framework.spark.writing.replacement import Replacement
from strandline.framework.spark.writing.sinks import Sinks, transactional_id
from strandline.framework.spark.writing.staging import (
    SinkName,
    StagedRange,
    StagedTopic,
    span_of,
)

FETCH_BYTES = 16 << 20
"""Maximum of bytes of staged rows that are read at a time, and less for short ranges."""
APPEND_ROWS = 1 << 17
"""Number of rows from which staged batches are appended; smaller ones are combined."""
MIN_TIMEOUT_MS = 30_000
"""Minimum of the time after which the log aborts the transaction, in milliseconds."""
MAX_TIMEOUT_MS = 900_000
"""Maximum of that time, which is Kafka's default of transaction.max.timeout.ms."""
BYTES_PER_MS = 2_000
"""Bytes of rows for each further millisecond of that time: less than any disk writes."""
MS_PER_RANGE = 20
"""Further milliseconds of that time for each range of staged rows, which takes a fetch or more."""
KEPT_BYTES = 256 << 10
"""Bytes of staged rows in a partition up to which a later commit deletes them.

The log would free no file for so few (`embedded/retention.py`), and sync its manifest twice.
"""

NONE_WRITTEN = -1
"""Number before that of the first batch of a query."""


@dataclass(frozen=True)
class SinkBatch:
    """Batch of a sink that is to be committed."""

    sink_id: str
    number: int | None
    """Number of the batch; None for a batch write without one, which is committed once only."""
    query: str
    """Id of the query; empty for a batch write."""
    replaces: TopicInfo | None = None
    """Compacted topic whose other keys get tombstones; None to append."""


class SinkCommit:
    """Commits and drops batches of one sink.

    Args:
        broker: The log.
        path: Path or URL of the log.
        name: Name of the sink, for its staging topics.
        fail_on_data_loss: True to raise if the log lacks batches that the query has written.
        clock: Source of time.
    """

    def __init__(
        self,
        broker: Broker,
        path: str,
        name: SinkName,
        *,
        fail_on_data_loss: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._broker = broker
        self._name = name
        self._fail_on_data_loss = fail_on_data_loss
        self._clock = clock or SystemClock()
        self._sinks = Sinks(broker, path, self._clock)

    def commit(self, batch: SinkBatch, staged: list[StagedTopic]) -> bool:
        """Copy staged rows to their topics in one transaction; return False if that was done before.

        Args:
            batch: The batch.
            staged: Rows of its tasks, in the order of the tasks.

        Raises:
            ProducerFenced: Another program commits for this sink at the same time.
            InvalidConfig: Another query has used this sink id.
            OffsetOutOfRange: The log lacks earlier batches of the query, or staged rows are gone.
            UnknownTopic: The topic of some rows was deleted, or deleted and created again.
        """
        if batch.number is not None:
            self._sinks.create()
        producer = Producer(
            self._broker,
            transactional_id=transactional_id(batch.sink_id),
            transaction_timeout_ms=_timeout_ms(staged),
            clock=self._clock,
        )
        try:
            is_new = self._is_new(batch)
            ends = self._staged_ends(staged) if is_new else self._own_ends(staged)
            if is_new:
                self._write(producer, batch, staged)
        finally:
            producer.close()
        self._clean(staged, ends)
        return is_new

    def abort(self) -> None:
        """Delete the staging topics of a batch write. The rows of a stream wait for its next commit.

        Nothing that was committed is touched. In a stream's staging topic rows of another attempt
        may be among those of this one, so its rows are deleted when a commit makes all of them
        unnecessary.
        """
        if self._name.is_job:
            staging.remove(self._broker, staging.names(self._broker, self._name))

    def _is_new(self, batch: SinkBatch) -> bool:
        """Return True if a batch was not committed yet. The sink's transactional id is ours now."""
        if batch.number is None:
            return True
        last = self._sinks.last(batch.sink_id)
        if last is not None and last.query != batch.query:
            raise InvalidConfig(_other_query(batch, last.query, last.batch))
        written = NONE_WRITTEN if last is None else last.batch
        if batch.number <= written:
            return False
        if batch.query and batch.number > written + 1:
            self._report_gap(batch, written)
        return True

    def _report_gap(self, batch: SinkBatch, last: int) -> None:
        before = "no batch" if last == NONE_WRITTEN else f"batch {last}"
        problem = (
            f"batch {batch.number} of query {batch.query} follows {before} of sink "
            f"{batch.sink_id!r} in this log, so the log lacks batches that the query has written: "
            "it was restored from a backup, is another log, or the sink was forgotten"
        )
        report([problem], fail=self._fail_on_data_loss)

    def _staged_ends(self, staged: list[StagedTopic]) -> dict[TopicPartition, int]:
        """Return ends up to which staging partitions are to be deleted, where that is worth it.

        All rows before the present end are of this batch or older, because a later batch is staged
        only after this commit has returned.
        """
        row_bytes = {each.staging: each.bytes_per_row for each in staged}
        if not row_bytes or self._name.is_job:
            return {}
        topics = [topic for name in sorted(row_bytes) if (topic := self._found(name)) is not None]
        found = self._broker.offsets(
            [TopicPartition(t.name, number) for t in topics for number in range(t.partitions)]
        )
        return {
            tp: now.high_watermark
            for tp, now in found.items()
            if (now.high_watermark - now.log_start) * row_bytes[tp.topic] > KEPT_BYTES
        }

    def _own_ends(self, staged: list[StagedTopic]) -> dict[TopicPartition, int]:
        """Return the ends of the rows of a batch that was committed before.

        Another driver may stage the next batch after them, if this one was lost to Spark.
        """
        ends: dict[TopicPartition, int] = {}
        for each in [] if self._name.is_job else staged:
            for number, ranges in each.ranges.items():
                tp = TopicPartition(each.staging, number)
                ends[tp] = max(ends.get(tp, 0), ranges[-1].end)
        return ends

    def _found(self, name: str) -> TopicInfo | None:
        try:
            return self._broker.topic(name)
        except UnknownTopic:
            return None

    def _write(self, producer: Producer, batch: SinkBatch, staged: list[StagedTopic]) -> None:
        """Write rows and the batch's number in one transaction."""
        with_tombstones = Replacement(self._broker, batch.replaces) if batch.replaces else None
        try:
            if with_tombstones is not None:
                with_tombstones.read()
            producer.begin_transaction()
            for each in _by_target(staged):
                self._copy(producer, each, with_tombstones)
            if with_tombstones is not None:
                for appends in with_tombstones.tombstones(self._clock.now_ms()):
                    producer.append_batches(appends)
            if batch.number is not None:
                number = self._sinks.columns(batch.sink_id, batch.number, batch.query)
                producer.append_batches([number])
            commit_until_known(producer)
        except ProducerFenced as error:
            raise ProducerFenced(
                f"sink {batch.sink_id!r}: another program commits for it at the same time, and this "
                f"one has lost; use each sink id, and each checkpoint, in one query only ({error})"
            ) from error

    def _copy(
        self, producer: Producer, staged: StagedTopic, replacement: Replacement | None
    ) -> None:
        target = self._broker.topic(staged.target)
        if target.topic_id != staged.target_id:
            raise UnknownTopic(
                f"topic {target.name!r} was deleted and created again while rows were written to "
                "it; write them again"
            )
        if self._broker.topic(staged.staging).topic_id != staged.staging_id:
            raise OffsetOutOfRange(
                f"the staged rows in {staged.staging} are gone; write them again"
            )
        latest = value_type(target.schema)
        for group in staged.groups(FETCH_BYTES):
            appends = []
            for number, rows in self._rows(staged, group):
                tp = TopicPartition(target.name, number)
                for columns in to_sized_batches((batch.columns for batch in rows), APPEND_ROWS):
                    if replacement is not None:
                        replacement.add(number, columns.column("key"))
                    appends.append((tp, upgrade(columns, latest), target.schema_id))
            producer.append_batches(appends)

    def _rows(
        self, staged: StagedTopic, group: Mapping[int, list[StagedRange]]
    ) -> Iterator[tuple[int, list[Batch]]]:
        """Yield the rows of ranges by partition, in the order of the ranges.

        Raises OffsetOutOfRange unless all of them are there.
        """
        spans = {TopicPartition(staged.staging, n): span_of(found) for n, found in group.items()}
        size = sum(span.rows for span in spans.values()) * staged.bytes_per_row
        fetched: dict[TopicPartition, list[Batch]] = {tp: [] for tp in spans}
        starts = {tp: span.start for tp, span in spans.items()}
        ends = {tp: span.end for tp, span in spans.items()}
        for part in scan(self._broker, starts, ends, max_bytes=min(FETCH_BYTES, size)):
            for tp, new in part.items():
                fetched[tp] += new.batches
        for tp, batches in fetched.items():
            found = [_within(tp, batches, each) for each in group[tp.partition]]
            yield tp.partition, list(chain.from_iterable(found))

    def _clean(self, staged: list[StagedTopic], ends: Mapping[TopicPartition, int]) -> None:
        """Delete staged rows that no commit needs any more."""
        staging.delete_records(self._broker, dict(ends))
        if self._name.is_job or any(each.is_new for each in staged):
            topics = self._broker.topics()
            now = self._clock.now_ms()
            staging.remove(self._broker, staging.abandoned(topics, self._name, now))


def _by_target(staged: list[StagedTopic]) -> Iterable[StagedTopic]:
    """Return the rows of all tasks for each topic, in the order of the tasks."""
    found: dict[tuple[str, str], StagedTopic] = {}
    for each in staged:
        ids = each.target, each.target_id, each.staging, each.staging_id
        whole = found.setdefault((each.target_id, each.staging_id), StagedTopic(*ids))
        whole.size += each.size
        for number, ranges in each.ranges.items():
            whole.ranges.setdefault(number, []).extend(ranges)
    return found.values()


def _within(tp: TopicPartition, batches: list[Batch], each: StagedRange) -> list[Batch]:
    """Return the records of a range, from batches in the order of their offsets.

    Raises OffsetOutOfRange unless all of them are there.
    """
    first = max(0, bisect_right(batches, each.start, key=lambda batch: batch.base_offset) - 1)
    found = takewhile(lambda batch: batch.base_offset < each.end, batches[first:])
    inside = [part for batch in found if len(part := batch.clip(*each))]
    if (rows := sum(map(len, inside))) != each.rows:
        raise OffsetOutOfRange(
            f"{tp} has {rows} of {each.rows} staged rows from offset {each.start} on; write them again"
        )
    return inside


def _timeout_ms(staged: list[StagedTopic]) -> int:
    """Return the time after which the log aborts the transaction, by what is copied."""
    size = sum(each.size for each in staged)
    ranges = sum(len(found) for each in staged for found in each.ranges.values())
    return min(MAX_TIMEOUT_MS, MIN_TIMEOUT_MS + size // BYTES_PER_MS + ranges * MS_PER_RANGE)


def _other_query(batch: SinkBatch, query: str, last: int) -> str:
    used = f"query {query}" if query else "batch writes"
    asked = f"query {batch.query}" if batch.query else "a batch write"
    return (
        f"sink {batch.sink_id!r} is of {used}, which has written batch {last}; the numbers of "
        f"{asked} cannot be compared with it, so its rows could be taken for repeated ones. Use "
        "another sinkId; a query with a new checkpoint needs a new one"
    )
