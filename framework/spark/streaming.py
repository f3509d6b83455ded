"""`readStream`: following topics, micro-batch by micro-batch.

A micro-batch is a pair of offsets that Spark writes to its checkpoint before it reads the records
between them. The records are pinned, so the same pair always gives the same records, even in a
repeated batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from strandline.changelog.broker import Broker
from strandline.changelog.errors import (
    InvalidConfig,
    OffsetOutOfRange,
    StrandlineError,
    UnknownPartition,
)
from strandline.changelog.pins import PinName, there
from strandline.changelog.records import TopicInfo
from strandline.framework.spark import (
    changes,
    open_logs,
    pinning,
    planning,
    reading,
    tables,
    versions,
)
from strandline.framework.spark.columns import check_names
from strandline.framework.spark.offsets import Positions, QueryProgress, from_json, to_json
from strandline.framework.spark.options import SourceOptions
from strandline.framework.spark.planning import OffsetRange
from strandline.framework.spark.range_reader import RangePartition, RecordReader
from strandline.framework.spark.tasks import ends_within, extents_of, tasks_of
from strandline.framework.spark.versions import BatchLimit

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

    from strandline.changelog.log import Log

_log = logging.getLogger(__name__)


class StreamReader(RecordReader, DataSourceStreamReader, versions.AvailableNow):
    """Follows topics. One instance lives as long as its query; tasks use copies of another."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._open: Log | None = None
        self._reached: Positions | None = None
        self._last: Positions | None = None
        self._initial: Positions | None = None
        """Start of the query's first batch, if this is its first run."""
        self._refused: StrandlineError | None = None
        """Error of a start that the options name and the topic does not have; None if it fits."""
        self._holder = pinning.new_holder()
        """Name under which the query pins, unless the checkpoint has one."""

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query.

        Spark calls this again after a restart, until the first batch is committed. The batch has its
        own start in the checkpoint then, and the options may not fit the topic any more: it may have
        new partitions, which they do not name. So a start that cannot be used is an error only when
        it is used.
        """
        start = self._options.start_of_stream()
        try:
            self._initial = reading.resolve(self._broker(), start, self._ends(), "startingOffsets")
        except (InvalidConfig, UnknownPartition) as error:
            self._refused = error
        self._reached = self._initial
        holder = self._holder if versions.HAS_ADMISSION_CONTROL else ""
        return to_json(QueryProgress(self._initial or {}, holder))

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of the next micro-batch. Its records are pinned before Spark stores it.

        Spark 4.1 passes neither argument. The reader then uses its own position, which it does not
        know before the first batch of a run, so that batch has no limit. It cannot store the holder
        of its pins in the checkpoint either: batches are pinned when they are planned, and a later
        run does not find these pins.
        """
        self._check_start()
        if start is None or limit is None:
            before, self._reached = self._reached, self._next(self._reached, self._limit)
            return to_json(QueryProgress(self._reached, since=self._since(before)))
        known = from_json(start)
        before = known.positions
        self._reached = self._next(before, versions.allowed(limit, self._limit))
        if self._reached == before:
            return start
        holder = known.holder or self._holder
        until = QueryProgress(self._reached, holder, self._pins, self._since(before))
        if self._pins:
            self._planned(before, until)
        return to_json(until)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of `maxOffsetsPerTrigger`, else that of `maxBytesPerTrigger`."""
        return versions.read_limit(self._limit)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end of the log, for the query's progress."""
        return to_json(QueryProgress(planning.latest(self._ends())))

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query at the current end of the log."""
        self._last = planning.latest(self._ends())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks that read the records between `start` and `end`."""
        until = from_json(end)
        if until.since is None:
            self._check_start()
            before = from_json(start).positions
        else:
            before, self._refused = until.since, None
        self._reached = until.positions
        if before == until.positions:
            return []
        name = self._pin(before, until)
        ranges = pinning.known(self._broker(), name) if self._pins else None
        if ranges is None:
            if self._pins and until.pinned:
                reading.report([_gone(name)], fail=self._options.fail_on_data_loss)
            ranges = self._planned(before, until)
        return self._tasks(ranges, before)

    def commit(self, end: dict[str, Any]) -> None:
        """Release the pin of the batch that ends at `end`, because Spark will not read it again."""
        until = from_json(end)
        self._reached = until.positions
        if self._pins:
            self._release(until)

    def stop(self) -> None:
        """Close the log."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _check_start(self) -> None:
        """Raise the error of an unusable starting position."""
        if self._refused is not None:
            raise self._refused

    @property
    def _pins(self) -> bool:
        return self._options.stream_pin_ms > 0 and self._broker().pins is not None

    def _since(self, before: Positions | None) -> Positions | None:
        """Return the start of the query's first batch, if that is the one that begins here."""
        return before if before is not None and before == self._initial else None

    def _pin(self, before: Positions, until: QueryProgress) -> PinName:
        """Return the pin name of a micro-batch, the same each time it is planned."""
        ends = pinning.position_name(before), pinning.position_name(until.positions)
        return PinName(until.holder or self._holder, *ends)

    def _release(self, until: QueryProgress) -> None:
        """Release the pins of the batches that end at `until`."""
        holder = until.holder or self._holder
        there(self._broker().pins).release(holder, pinning.position_name(until.positions))

    def _tasks(self, ranges: list[OffsetRange], _before: Positions) -> Sequence[InputPartition]:
        metadata = self._metadata(self._topics())
        tasks = tasks_of(self._broker(), self._options, ranges)
        return [RangePartition(task, metadata=metadata) for task in tasks]

    def _plan(self, before: Positions, until: Positions) -> planning.ReadPlan:
        return planning.plan(before, until, self._ends())

    def _planned(self, before: Positions, until: QueryProgress) -> list[OffsetRange]:
        """Return the ranges between two positions, pinned."""

        def look() -> planning.ReadPlan:
            return self._plan(before, until.positions)

        options, name = self._options, self._pin(before, until)
        return pinning.planned(self._broker(), options, name, options.stream_pin_ms, look)

    @property
    def _limit(self) -> BatchLimit:
        return BatchLimit(self._options.max_offsets, self._options.max_bytes)

    def _next(self, before: Positions | None, limit: BatchLimit) -> Positions:
        ends = self._ends()
        available = planning.latest(ends) if self._last is None else self._last
        if before is None:
            if limit != BatchLimit():
                _log.warning("on Spark 4.1 a limit begins with the second batch of a run")
            return available
        losses = planning.lost_since(before, ends)
        reading.report(losses, fail=self._options.fail_on_data_loss)
        if limit.rows is not None:
            available = planning.admit(before, available, ends, limit.rows)
        if limit.size is not None:
            available = self._admit_bytes(before, available, ends, limit.size)
        return planning.advance(before, available, ends)

    def _admit_bytes(
        self, before: Positions, available: Positions, ends: planning.Ends, limit: int
    ) -> Positions:
        waiting = planning.backlog(before, available, ends)
        ranges = [OffsetRange(*tp, ends[tp].topic_id, *span) for tp, span in waiting.items()]
        extents = extents_of(self._broker(), ranges, limit // 8)
        return planning.admit_until(available, ends, ends_within(ranges, extents, limit))

    def _ends(self) -> planning.Ends:
        return reading.ends_of(self._broker(), self._topics())

    def _topics(self) -> list[TopicInfo]:
        return self._described(self._broker())

    def _broker(self) -> Broker:
        """Return the log, which is opened by the first call."""
        if self._open is None:
            self._open = open_logs.open_log(self._options.path)
        return self._open.broker


@dataclass
class ChangesPartition(InputPartition):
    """Changes of one partition that one task reads."""

    range: OffsetRange
    """Range that holds the changes and everything before them."""
    since: int
    """Offset of the first change."""


class ChangesReader(StreamReader):
    """Follows the changes of a store; `changes` explains how old values are found."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        check_names("a change feed", self._target, changes.COLUMNS)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of one partition in a micro-batch."""
        if not isinstance(partition, ChangesPartition):
            return
        with open_logs.opened(self._options.path) as log:
            yield from changes.read_changes(
                log.broker, partition.range, partition.since, self._target, self._options
            )

    def _topics(self) -> list[TopicInfo]:
        topic = tables.table_topic(self._broker(), self._options)
        changes.check_columns(topic, self._target)
        return [topic]

    def _ends(self) -> planning.Ends:
        only = self._options.partition
        found = super()._ends()
        return {tp: end for tp, end in found.items() if only in (None, tp.partition)}

    def _plan(self, before: Positions, until: Positions) -> planning.ReadPlan:
        ends = self._ends()
        return changes.widened(planning.plan(before, until, ends), ends)

    def _planned(self, before: Positions, until: QueryProgress) -> list[OffsetRange]:
        ranges = super()._planned(before, until)
        # After the pin, because the log may have been cleaned between the plan and the pin.
        now = self._ends()
        losses = [
            loss
            for each in ranges
            for loss in changes.compacted(
                each, _first_change(each, before), now.get(each.topic_partition)
            )
        ]
        try:
            reading.report(losses, fail=self._options.fail_on_data_loss)
        except OffsetOutOfRange:
            if self._pins:
                self._release(until)
            raise
        return ranges

    def _tasks(self, ranges: list[OffsetRange], before: Positions) -> Sequence[InputPartition]:
        stored = tables.stored_values(self._broker(), self._topics()[0], self._options)
        return [
            ChangesPartition(replace(each, stored=stored), _first_change(each, before))
            for each in ranges
        ]


def _first_change(range_: OffsetRange, before: Positions) -> int:
    """Return the first offset of a range that the query has not read."""
    position = before.get(range_.topic_partition)
    known = position is not None and position.topic_id == range_.topic_id
    return max(range_.start, position.offset) if position is not None and known else range_.start


def _gone(name: PinName) -> str:
    return (
        f"the records of a batch were pinned ({name}), but the pin is gone: it was not used for "
        "pinTimeoutMs, or removed, and records may have been compacted or deleted since"
    )
