"""A look at the records of inputs, because other producers may not do what Strandline's do.

State is kept by partition, so the records of a key must be in the partition that Kafka's default
partitioner chooses for it; librdkafka chooses another one unless it is told otherwise. Windows and
timers go by the times of records; another producer does not take them from a column.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.client.columns import in_ms
from strandline.changelog.client.partitioner import partitions_for
from strandline.changelog.clock import Clock
from strandline.changelog.errors import StrandlineError
from strandline.changelog.records import Batch, TopicPartition
from strandline.framework.container.container_context import ContainerContext
from strandline.framework.topic import Topic

_log = logging.getLogger("strandline")

LOOK_S = 60.0
"""Minimum seconds between two looks at a partition."""
LOOK_RECORDS = 256
"""Maximum number of records of a look."""
PARTITIONERS = (
    "State is kept by partition, so that of a key may be in several parts; "
    'with confluent-kafka set "partitioner": "murmur2_random", or begin with app.repartition: '
    "docs/guide/kafka.md"
)
TIMES = (
    "Windows and timers go by the time of the record, which timestamp= gives only to what Strandline "
    "appends; pass it where the records are produced: docs/guide/kafka.md"
)


class ForeignRecords:
    """Warns once for each topic and fault of the inputs of tasks with state. Not thread-safe."""

    def __init__(self, context: ContainerContext) -> None:
        self._clock: Clock = context.clock
        self._partitions = {
            topic.name: context.infos[topic.name].partitions
            for task in context.tasks
            if task.stores
            for topic in task.inputs
            if not topic.is_internal
        }
        """Number of partitions of each topic that is looked at."""
        self._look_at: dict[TopicPartition, float] = {}
        """Monotonic time of the next look."""
        self._named: set[tuple[str, str]] = set()
        """Topics and faults that a warning has named."""

    def look(self, tp: TopicPartition, topic: Topic[Any, Any], new: Iterable[Batch]) -> None:
        """Look at some of the records that were fetched, if it is time."""
        if tp.topic not in self._partitions:
            return
        now = self._clock.monotonic()
        if now < self._look_at.get(tp, now):
            return
        for batch in new:
            self._look_at[tp] = now + LOOK_S
            some = batch.slice(0, min(len(batch), LOOK_RECORDS))
            self._check_keys(tp, topic, some)
            self._check_times(tp, topic, some)
            return

    def _check_keys(self, tp: TopicPartition, topic: Topic[Any, Any], batch: Batch) -> None:
        keys = batch.columns.column(1)
        chosen = partitions_for(keys, self._partitions[tp.topic])
        wrong = np.flatnonzero((chosen >= 0) & (chosen != tp.partition))
        if len(wrong):
            at = int(wrong[0])
            what = (
                f"has the key {keys[at].as_py()!r:.80}, which belongs into partition {chosen[at]}"
            )
            self._warn(tp, batch, at, what, PARTITIONERS)
        elif topic.key_column is not None and keys.null_count:
            what = f"has no key, but the topic is declared with key={topic.key_column!r}"
            self._warn(tp, batch, int(np.flatnonzero(chosen < 0)[0]), what, PARTITIONERS)

    def _check_times(self, tp: TopicPartition, topic: Topic[Any, Any], batch: Batch) -> None:
        name = topic.timestamp_column
        if name is None:
            return
        try:
            values = topic.typed.to_columns(batch.columns.column("value"))
            own = in_ms(pc.struct_field(values, name))
        except (StrandlineError, pa.ArrowException):
            return  # records whose values cannot be decoded fail when they are handled
        times = batch.columns.column("timestamp")
        at = pc.index(pc.not_equal(times, own), True).as_py()
        if at >= 0:
            what = f"has the time {times[at]} (ms), but its column {name!r} has {own[at]}"
            self._warn(tp, batch, at, what, TIMES)

    def _warn(self, tp: TopicPartition, batch: Batch, at: int, what: str, fix: str) -> None:
        if (tp.topic, fix) in self._named:
            return
        self._named.add((tp.topic, fix))
        offset = int(batch.offsets[at].as_py())
        _log.warning(
            "topic %r: the record at offset %d of partition %d %s. %s",
            *(tp.topic, offset, tp.partition, what, fix),
            extra={"topic": tp.topic, "partition": str(tp), "offset": offset},
        )
