"""`readStream`: following topics, micro-batch by micro-batch.

A micro-batch is a pair of offsets that Spark keeps in its checkpoint before it reads between
them; the same pair gives the same records, so a batch that is tried again covers the same.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from changelog.broker import Broker
from framework.spark import planning, reading, versions
from framework.spark.offsets import Positions, from_json, to_json
from framework.spark.options import SourceOptions
from framework.spark.source import RangePartition, RecordReader

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

    from changelog.log import Log

_log = logging.getLogger(__name__)


class StreamReader(RecordReader, DataSourceStreamReader, versions.AvailableNow):
    """Follows topics. One instance lives as long as its query; tasks read with copies of another."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._open: Log | None = None
        self._reached: Positions | None = None
        self._last: Positions | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins."""
        start = self._options.start_of_stream()
        self._reached = planning.resolve(start, self._ends(), "startingOffsets")
        return to_json(self._reached)

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """How far the next micro-batch reads.

        Spark 4.1 gives neither argument. The reader then goes by where it got to itself, which
        it does not know before the first batch of a run: that one has no limit.
        """
        if start is None or limit is None:
            before, allowed = self._reached, self._options.max_offsets
        else:
            before, allowed = from_json(start), versions.rows_allowed(limit)
        if before is None and allowed is not None:
            _log.warning("on Spark 4.1 maxOffsetsPerTrigger begins with the second batch of a run")
        self._reached = self._next(before, allowed)
        return to_json(self._reached)

    def getDefaultReadLimit(self) -> ReadLimit:
        """What `maxOffsetsPerTrigger` says."""
        return versions.read_limit(self._options.max_offsets)

    def reportLatestOffset(self) -> dict[str, Any]:
        """The end of the log, for the query's progress."""
        return to_json(planning.latest(self._ends()))

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on, the query ends where the log ends at this moment."""
        self._last = planning.latest(self._ends())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One task for each partition with something between `start` and `end`."""
        self._reached = until = from_json(end)
        plan = planning.plan(from_json(start), until, self._ends())
        reading.report(plan.losses, fail=self._options.fail_on_data_loss)
        return [RangePartition(each) for each in plan.ranges]

    def commit(self, end: dict[str, Any]) -> None:
        """Spark will not ask for what lies before `end` again."""
        self._reached = from_json(end)

    def stop(self) -> None:
        """Let go of the log."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _next(self, before: Positions | None, allowed: int | None) -> Positions:
        ends = self._ends()
        available = planning.latest(ends) if self._last is None else self._last
        if before is None:
            return available
        losses = planning.lost_since(before, ends)
        reading.report(losses, fail=self._options.fail_on_data_loss)
        if allowed is not None:
            available = planning.admit(before, available, ends, allowed)
        return planning.advance(before, available, ends)

    def _ends(self) -> planning.Ends:
        topics = reading.describe(self._broker, self._options.topics)
        return reading.ends_of(self._broker, topics)

    @property
    def _broker(self) -> Broker:
        if self._open is None:
            self._open = reading.open_log(self._options.path)
        return self._open.broker
