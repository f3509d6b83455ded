"""Spark's interface for writing: the objects that write in tasks and commit in the driver.

Spark creates them in the driver's planner, pickles them into tasks, and creates another one to
commit each batch of a stream. They hold no connections, and what a commit needs to know is in the
messages of the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from strandline.changelog.errors import InvalidConfig
from strandline.changelog.records import TopicInfo
from strandline.framework.spark import open_logs, versions
from strandline.framework.spark.columns import to_sized_batches
from strandline.framework.spark.writing import staging
from strandline.framework.spark.writing.commit import SinkBatch, SinkCommit
from strandline.framework.spark.writing.options import SinkOptions
from strandline.framework.spark.writing.staging import SinkName, StagedTopic, Stager
from strandline.framework.spark.writing.target import prepare

STAGED_ROWS = 1 << 16
"""Number of rows that a task appends at a time; Spark's batches are smaller."""

QUERY_ID = "sql.streaming.queryId"
"""Local property in which Spark tells a task the id of its query."""

NO_BATCHES = (
    "this query has no micro-batches, which the sink commits; use a trigger that makes them "
    "(processingTime, availableNow), not a continuous or real-time one"
)


@dataclass
class StagedRows(WriterCommitMessage):
    """Rows that one task has staged."""

    topics: list[StagedTopic]
    query: str
    """Id of the query; empty for a batch write."""


Messages = Sequence[WriterCommitMessage | None]
"""Messages of the tasks, in their order; None for a task that failed."""


class BatchWriter(DataSourceArrowWriter):
    """One batch write."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options.of_batch()
        self._name = SinkName.of_job()
        self._topic = _prepared(options, schema, self._name, overwrite=overwrite)
        self._replaces = self._topic if overwrite else None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        return _staged(iterator, self._options, self._name, self._topic, "")

    def commit(self, messages: Messages) -> None:
        """Commit the rows of all tasks, unless the sink has committed a batch of that number."""
        options = self._options
        sink_id = options.sink_id or self._name.prefix
        batch = SinkBatch(sink_id, options.batch_id, "", self._replaces)
        _commit(options, self._name, batch, _topics(messages))

    def abort(self, messages: Messages) -> None:
        """Delete the rows that the tasks have staged."""
        with open_logs.opened(self._options.path) as log:
            SinkCommit(log.broker, self._options.path, self._name).abort()


class StreamWriter(DataSourceStreamArrowWriter):
    """Micro-batches of one query."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options.of_stream()
        self._topic = _prepared(options, schema, None, overwrite=overwrite)
        self._replaces = self._topic if overwrite else None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        query = _query_id()
        name = SinkName.of_stream(self._options.sink_id or query)
        return _staged(iterator, self._options, name, self._topic, query)

    def commit(self, messages: Messages, batchId: int) -> None:
        """Commit the rows of all tasks, unless the sink has committed this batch before."""
        query = next((each.query for each in messages if isinstance(each, StagedRows)), None)
        if query is None:
            raise InvalidConfig(NO_BATCHES)
        sink_id = self._options.sink_id or query
        batch = SinkBatch(sink_id, batchId, query, self._replaces)
        _commit(self._options, SinkName.of_stream(sink_id), batch, _topics(messages))

    def abort(self, messages: Messages, batchId: int) -> None:
        """Leave the rows to the next commit of the query, which deletes them."""


def _prepared(
    options: SinkOptions, schema: StructType, job: SinkName | None, *, overwrite: bool
) -> TopicInfo | None:
    """Return the topic to write; None if rows name theirs. A job's staging topic is created."""
    with open_logs.opened(options.path) as log:
        frame = versions.to_arrow(schema)
        topic = prepare(log.broker, options, frame, overwrite=overwrite)
        if job is not None and topic is not None:
            staging.create(log.broker, job, topic)
        return topic


def _staged(
    rows: Iterator[pa.RecordBatch],
    options: SinkOptions,
    name: SinkName,
    topic: TopicInfo | None,
    query: str,
) -> StagedRows:
    with open_logs.opened(options.path) as log:
        stager = Stager(log.broker, options, name, topic)
        for batch in to_sized_batches(rows, STAGED_ROWS):
            stager.write(batch)
        return StagedRows(stager.finish(), query)


def _commit(
    options: SinkOptions, name: SinkName, batch: SinkBatch, staged: list[StagedTopic]
) -> None:
    with open_logs.opened(options.path) as log:
        commit = SinkCommit(
            log.broker, options.path, name, fail_on_data_loss=options.fail_on_data_loss
        )
        commit.commit(batch, staged)


def _topics(messages: Messages) -> list[StagedTopic]:
    return [topic for each in messages if isinstance(each, StagedRows) for topic in each.topics]


def _query_id() -> str:
    """Return the id of the query whose task this is.

    Raises InvalidConfig in a mode without batches that could be committed.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    found = None if context is None else context.getLocalProperty(QUERY_ID)
    if not found:
        raise InvalidConfig(NO_BATCHES)
    return str(found)
