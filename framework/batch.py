"""Batches of records as columns, which batch tasks handle, and the base of their handlers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog import records
from strandline.changelog.arrays import as_numpy, repeated
from strandline.changelog.client.tables import PLACE, flattened, for_polars
from strandline.changelog.errors import InvalidRecord
from strandline.changelog.schema import upgrade
from strandline.framework.decoding import records_of
from strandline.framework.formats.codecs import Codec, as_column
from strandline.framework.record import Record
from strandline.framework.topic_declaration import TopicDeclaration

if TYPE_CHECKING:
    import polars as pl


class TaskBatch:
    """Consecutive records of one partition of an input topic, as columns.

    A batch has at least one record. Its size depends on load and time, so a handler must give the
    same results for any division of the records into batches. Columns are decoded when they are
    first used.

        @app.task(flights, batch=True)
        def forward(batch: sl.Batch) -> None:
            late.send_batch(batch.to_polars().filter(pl.col("dep_delay") > 15))

    Attributes:
        topic: Name of the topic that the records were read from.
        partition: Partition that they were read from.
    """

    def __init__(self, topic: TopicDeclaration, stored: records.Batch) -> None:
        self.topic = stored.topic
        """Name of the topic that the records were read from."""
        self.partition = stored.partition
        """Partition that the records were read from."""
        self._declared = topic
        self._stored = stored

    def __repr__(self) -> str:
        end = self._stored.last_offset + 1
        return f"Batch({self.topic}-{self.partition}, {self._stored.base_offset} to {end})"

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def offsets(self) -> pa.Int64Array:
        """Offset of each record in the partition."""
        return self._stored.offsets

    @property
    def timestamps(self) -> pa.Int64Array:
        """Time of each record in milliseconds since the epoch."""
        return self._stored.columns.column("timestamp")

    @cached_property
    def keys(self) -> pa.Array:
        """Key of each record, as the topic's type; null if the record has none.

        Raises:
            InvalidRecord: A key cannot be decoded, or the keys are of several types.
        """
        return _decoded(self._declared, "keys", self._declared.keys, self._columns.column("key"))

    @cached_property
    def values(self) -> pa.Array:
        """Value of each record, as the topic's type: on a typed topic a struct of its columns.

        A tombstone is null. Batches contain tombstones only if the task is declared with
        `tombstones=True`.

        Raises:
            InvalidRecord: A value cannot be decoded, or the values have no common type.
        """
        topic = self._declared
        return _decoded(topic, "values", topic.values, self._columns.column("value"))

    def records(self) -> Iterator[Record[Any, Any]]:
        """Return an iterator of the records one by one, as a task without `batch=True` gets them.

        Raises:
            InvalidRecord: A record cannot be decoded.
        """
        return iter(records_of(self._declared, self._stored, tombstones=True))

    def to_arrow(self) -> pa.Table:
        """Return the records as an Arrow table.

        The columns are partition, offset, timestamp, key, and those of the value, with the names of
        `Topic.to_polars`.

        Returns:
            The table; `timestamp` has the type timestamp[ms, UTC].

        Raises:
            InvalidRecord: A record cannot be decoded.
        """
        columns = {
            "partition": repeated(self.partition, len(self), np.int32),
            "offset": self.offsets,
            "timestamp": pc.cast(self.timestamps, PLACE["timestamp"]),
            "key": self.keys,
            "value": self.values,
        }
        table = pa.table(columns)
        return table if self._declared.rows is None else flattened(table)

    def to_polars(self) -> pl.DataFrame:
        """Return the records as a Polars data frame, with the columns of `to_arrow`.

        Raises:
            InvalidRecord: A record cannot be decoded.
            SchemaMismatch: Polars does not have the type of a column.
        """
        import polars as pl

        frame = pl.from_arrow(for_polars(self.to_arrow()))
        assert isinstance(frame, pl.DataFrame)
        return frame

    def times(self) -> npt.NDArray[np.int64]:
        """Return the time of each record in milliseconds since the epoch, as a NumPy array."""
        times: npt.NDArray[np.int64] = as_numpy(self.timestamps)
        return times

    @cached_property
    def _columns(self) -> pa.RecordBatch:
        """Stored columns in the topic's latest schema."""
        return upgrade(self._stored.columns, self._declared.values.arrow)


def stored_rows(batch: TaskBatch, numbers: pa.Array) -> pa.RecordBatch:
    """Return records of a batch, by number, in the form in which the log holds them."""
    return batch._columns.take(numbers)


def _decoded(topic: TopicDeclaration, part: str, codec: Codec, stored: pa.Array) -> pa.Array:
    try:
        return as_column(codec, stored)
    except InvalidRecord as error:
        raise type(error)(
            f"topic {topic.name!r}: the {part} of a batch cannot be read: {error}; use "
            "batch.records() for values of several types"
        ) from error


Batch = TaskBatch
"""Name of `TaskBatch` for users: `sl.Batch`."""


class BatchHandler(ABC):
    """Base of handlers of batches that keep facts about their stores in memory."""

    @abstractmethod
    def process(self, batch: TaskBatch) -> None:
        """Handle a batch. If it raises, the facts in memory must be as before."""

    @abstractmethod
    def restored(self) -> None:
        """Forget the facts in memory: the stores have the state of the last commit now."""

    @abstractmethod
    def is_open(self) -> bool:
        """Return True if something is open that the end of the input closes."""

    @abstractmethod
    def advance_watermark(self, watermark: int) -> None:
        """Let the event time of the inputs reach a watermark in ms, without records."""

    @abstractmethod
    def before_commit(self) -> None:
        """Write what belongs to the commit that follows, as part of its transaction."""
