"""A look at the keys of inputs: other producers may put records into partitions of their own choice.

State is kept by partition, so the records of a key must be in the partition that Kafka's default
partitioner chooses for it. librdkafka chooses another one unless it is told otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np

from strandline.changelog.client.partitioner import partitions_for
from strandline.changelog.clock import Clock
from strandline.changelog.records import Batch, TopicPartition
from strandline.framework.container.container_context import ContainerContext
from strandline.framework.topic import Topic

_log = logging.getLogger("strandline")

LOOK_S = 60.0
"""Minimum seconds between two looks at a partition."""
LOOK_RECORDS = 256
"""Maximum number of records of a look."""
PARTITIONERS = (
    'with confluent-kafka set "partitioner": "murmur2_random", or begin with app.repartition: '
    "docs/guide/kafka.md"
)


class KeyPlacement:
    """Warns once for each topic that a task with state reads. Not thread-safe."""

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

    def look(self, tp: TopicPartition, topic: Topic[object, object], new: Iterable[Batch]) -> None:
        """Look at some of the records that were fetched, if it is time."""
        if tp.topic not in self._partitions:
            return
        now = self._clock.monotonic()
        if now < self._look_at.get(tp, now):
            return
        for batch in new:
            self._look_at[tp] = now + LOOK_S
            self._check(tp, topic, batch.slice(0, min(len(batch), LOOK_RECORDS)))
            return

    def _check(self, tp: TopicPartition, topic: Topic[object, object], batch: Batch) -> None:
        keys = batch.columns.column(1)
        chosen = partitions_for(keys, self._partitions[tp.topic])
        wrong = np.flatnonzero((chosen >= 0) & (chosen != tp.partition))
        if len(wrong):
            at = int(wrong[0])
            self._warn(
                tp,
                int(batch.offsets[at].as_py()),
                f"has the key {keys[at].as_py()!r:.80}, which belongs into partition {chosen[at]}",
            )
        elif topic.key_column is not None and keys.null_count:
            at = int(np.flatnonzero(chosen < 0)[0])
            self._warn(
                tp,
                int(batch.offsets[at].as_py()),
                f"has no key, but the topic is declared with key={topic.key_column!r}",
            )

    def _warn(self, tp: TopicPartition, offset: int, what: str) -> None:
        del self._partitions[tp.topic]
        _log.warning(
            "topic %r: the record at offset %d of partition %d %s. State is kept by partition, so "
            "that of a key may be in several parts; %s",
            *(tp.topic, offset, tp.partition, what, PARTITIONERS),
            extra={"topic": tp.topic, "partition": str(tp), "offset": offset},
        )
