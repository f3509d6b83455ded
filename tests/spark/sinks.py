"""A sink without Spark: tasks that stage rows, a driver that commits, a broker that dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, cast

import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.errors import OwnerUnavailable
from strandline.changelog.records import TopicPartition
from strandline.changelog.scan import scan_batches
from strandline.framework.spark.writing.commit import SinkBatch, SinkCommit
from strandline.framework.spark.writing.options import SinkOptions
from strandline.framework.spark.writing.staging import PREFIX, SinkName, StagedTopic, Stager, create

ROWS = pa.schema([("key", pa.string()), ("value", pa.string())])


class Killed(Exception):
    """The process is dead."""


class MortalBroker:
    """A broker whose process dies before or after one of its calls that change something.

    Args:
        broker: The log, which lives on.
        call: Number of the call, from 0 on.
        after: True if the log carries the call out.
    """

    CHANGING = (
        "append",
        "create_topic",
        "delete_topic",
        "delete_records",
        "alter_topic",
        "init_producer",
        "end_transaction",
    )

    def __init__(self, broker: Broker, call: int, *, after: bool) -> None:
        self._broker = broker
        self._left = call
        self._after = after
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._broker, name)
        return self._dying(attribute) if name in self.CHANGING else attribute

    def _dying(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            if self.is_dead:
                raise Killed
            self.is_dead = self._left == 0
            self._left -= 1
            if not self.is_dead:
                return call(*args, **named)
            if self._after:
                call(*args, **named)
            raise Killed

        return counted


class Sink:
    """One sink of a query, or of batch writes.

    Args:
        broker: The log.
        sink_id: Id of the sink.
        query: Id of the query; empty for batch writes.
        path: Path under which a process remembers what it has read of the log.
        options: Options of the write.
    """

    def __init__(
        self, broker: Broker, sink_id: str = "s", query: str = "q", path: str = "", **options: Any
    ) -> None:
        self.broker = broker
        self.sink_id = sink_id
        self.query = query
        self.path = path or str(id(self))
        self.options = SinkOptions("/log", **{"topic": "t", **options})
        self.name = SinkName.of_stream(sink_id) if query else SinkName.of_job()

    def on(self, broker: Any) -> Sink:
        """Return the sink as another process has it."""
        other = Sink(cast("Broker", broker), self.sink_id, self.query)
        other.options, other.name = self.options, self.name
        return other

    def stage(self, rows: Iterable[tuple[str | None, str]], topic: str = "t") -> list[StagedTopic]:
        """Write rows as one task."""
        target = self.broker.topic(topic)
        if self.name.is_job:
            create(self.broker, self.name, target)
        stager = Stager(self.broker, self.options, self.name, target)
        keys, values = zip(*rows, strict=True)
        stager.write(pa.record_batch([pa.array(keys), pa.array(values)], schema=ROWS))
        return stager.finish()

    def commit(
        self, number: int | None, staged: list[StagedTopic], *, replace: bool = False, **named: Any
    ) -> bool:
        """Commit a batch; return False if that was done before."""
        replaces = self.broker.topic("t") if replace else None
        batch = SinkBatch(self.sink_id, number, self.query, replaces)
        return SinkCommit(self.broker, self.path, self.name, **named).commit(batch, staged)


def values(broker: Broker, topic: str = "t") -> Counter[str]:
    """Return how often each value is in a topic, as a reader of committed records sees it."""
    found = (record.value for batch in batches(broker, topic) for record in batch.records())
    return Counter("" if value is None else value.decode() for value in found)


def batches(broker: Broker, topic: str) -> list[Any]:
    """Return the committed batches of a topic."""
    tps = [TopicPartition(topic, number) for number in range(broker.topic(topic).partitions)]
    now = broker.offsets(tps)
    positions = {tp: now[tp].log_start for tp in tps}
    return list(scan_batches(broker, positions, {tp: now[tp].last_stable_offset for tp in tps}))


def staged_rows(broker: Broker) -> int:
    """Return the number of rows in all staging topics."""
    names = [topic.name for topic in broker.topics() if topic.name.startswith(PREFIX)]
    return sum(len(batch) for name in names for batch in batches(broker, name))


def unavailable(*_: Any, **__: Any) -> Any:
    """Raise as a log whose owner is away."""
    raise OwnerUnavailable("the owner is away")
