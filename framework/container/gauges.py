"""Gauges of a worker: values that are looked up when metrics are requested, on any thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import StrandlineError
from strandline.changelog.metrics import Metric, MetricReading
from strandline.changelog.records import TopicPartition
from strandline.framework.container.metrics import PARTITION, TASK
from strandline.framework.container.status import lags, positions_of
from strandline.statestore.spec import store_of

if TYPE_CHECKING:
    from strandline.framework.container.instance import TaskInstance
    from strandline.framework.container.manager import TaskManager

PARTITIONS = Metric(
    "strandline_partitions", "gauge", "Input partitions of this worker.", ("app", "state")
)
UNREAD = Metric(
    "strandline_unread_partitions",
    "gauge",
    "Partitions added to an input while the app ran, which its tasks with state cannot read.",
    ("app", "topic"),
)
FAILED = Metric(
    "strandline_failed_partitions", "gauge", "Partitions that have stopped at a record.", TASK
)
RUNNING = Metric(
    "strandline_records_in_flight",
    "gauge",
    "Records whose async handlers have begun, or wait for one of the same key.",
    TASK,
)
WATERMARK = Metric(
    "strandline_watermark_seconds",
    "gauge",
    "Watermark of a stage of streams, in seconds since the epoch.",
    ("app", "task", "partition"),
)
OPEN_WINDOWS = Metric(
    "strandline_open_windows",
    "gauge",
    "Rows of state of open windows: one for each window, or pane of windows that overlap, and group.",
    PARTITION,
)
LAG = Metric(
    "strandline_lag_records",
    "gauge",
    "Offsets from the committed offset to the stable end of the input.",
    ("app", "topic", "partition"),
)
STANDBY_LAG = Metric(
    "strandline_standby_lag_records",
    "gauge",
    "Offsets from the position of a standby copy to the stable end of its changelog.",
    PARTITION,
)
REMAINING = Metric(
    "strandline_restore_remaining_records",
    "gauge",
    "Offsets that a restore still has to replay.",
    ("app",),
)
WAITING = Metric(
    "strandline_waiting_for_disk", "gauge", "1 if the app waits for room on the disk.", ("app",)
)
ENTRIES = Metric("strandline_store_entries", "gauge", "Approximate number of keys.", PARTITION)
DISK = Metric("strandline_store_disk_bytes", "gauge", "Bytes of tables on the disk.", PARTITION)
UNCOMMITTED = Metric(
    "strandline_store_uncommitted_bytes",
    "gauge",
    "Bytes of changes since the last commit.",
    PARTITION,
)
PENDING = Metric(
    "strandline_store_pending_bytes",
    "gauge",
    "Bytes of committed changes that wait for a checkpoint.",
    PARTITION,
)
CACHED = Metric("strandline_store_cache_bytes", "gauge", "Bytes of values in memory.", PARTITION)
MEMORY = Metric(
    "strandline_memory_budget_bytes", "gauge", "Bytes of memory that the app may use.", ("app",)
)
METRICS = (
    *(PARTITIONS, UNREAD, FAILED, RUNNING, WATERMARK, OPEN_WINDOWS),
    *(LAG, STANDBY_LAG, REMAINING, WAITING),
    *(MEMORY, ENTRIES, DISK, UNCOMMITTED, PENDING, CACHED),
)

ASK_SECONDS = 1.0
"""Seconds between requests for the partitions' ends, and most seconds to wait for an answer."""


class StableEnds:
    """Stable ends of partitions for metrics, cached so that a stalled log delays them little."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._ask_at = 0.0
        self._known: dict[TopicPartition, int] = {}
        self._asking: threading.Thread | None = None

    def of(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the ends that the log reported about a second ago at most; none if it is slow."""
        now = self._clock.monotonic()
        is_asking = self._asking is not None and self._asking.is_alive()
        if not is_asking and now >= self._ask_at:
            self._ask_at = now + ASK_SECONDS
            self._known = {}
            self._asking = threading.Thread(target=self._ask, args=(set(partitions),), daemon=True)
            self._asking.start()
        if self._asking is not None:
            self._asking.join(ASK_SECONDS)
        return self._known

    def _ask(self, partitions: set[TopicPartition]) -> None:
        with contextlib.suppress(StrandlineError):  # the worker gets and logs the same error
            ends = self._broker.offsets(partitions)
            self._known = {tp: end.last_stable_offset for tp, end in ends.items()}


def gauges(app: str, tasks: TaskManager, ends: StableEnds) -> Iterator[MetricReading]:
    """Return the gauges of a worker's partitions, tasks, stores and standby copies."""
    instances = list(tasks.instances)
    at_work = {source.partition for i in instances for source in i.inputs}
    for state, count in (
        ("held", len(at_work)),
        ("restoring", len(tasks.owned - at_work)),
        ("standby", len(tasks.standby_partitions)),
    ):
        yield MetricReading(PARTITIONS, (app, state), count)
    for task in {i.spec.name: None for i in instances}:
        failed = sum(i.has_failed() for i in instances if i.spec.name == task)
        running = sum(i.records_in_flight for i in instances if i.spec.name == task)
        yield MetricReading(FAILED, (app, task), failed)
        yield MetricReading(RUNNING, (app, task), running)
    for topic in sorted({tp.topic for tp in tasks.input_partitions}):
        yield MetricReading(UNREAD, (app, topic), tasks.growth.unread.get(topic, 0))
    yield MetricReading(REMAINING, (app,), tasks.remaining)
    yield MetricReading(MEMORY, (app,), tasks.memory.total_bytes)
    yield from _lags(app, tasks, ends)
    for instance in instances:
        yield from _sizes(app, instance)
        if (watermark := instance.context.watermark) is not None:
            labels = (app, instance.spec.name, str(instance.partition))
            yield MetricReading(WATERMARK, labels, watermark / 1_000)
        for name, number in dict(instance.context.step.open_windows).items():
            yield MetricReading(OPEN_WINDOWS, (app, name, str(instance.partition)), number)


def _lags(app: str, tasks: TaskManager, ends: StableEnds) -> Iterator[MetricReading]:
    inputs, copies = positions_of(tasks), tasks.standby_offsets
    known = ends.of({*inputs, *copies})
    for tp, lag in lags(inputs, known).items():
        yield MetricReading(LAG, (app, tp.topic, str(tp.partition)), lag)
    for tp, lag in lags(copies, known).items():
        yield MetricReading(STANDBY_LAG, (app, store_of(app, tp.topic), str(tp.partition)), lag)


def _sizes(app: str, instance: TaskInstance) -> Iterator[MetricReading]:
    for store in instance.all_stores:
        labels = (app, store.spec.name, str(instance.partition))
        with contextlib.suppress(StrandlineError):  # the worker may just have closed the store
            sizes = store.sizes()
            yield MetricReading(ENTRIES, labels, sizes.entries)
            yield MetricReading(DISK, labels, sizes.disk_bytes)
            yield MetricReading(UNCOMMITTED, labels, sizes.uncommitted_bytes)
            yield MetricReading(PENDING, labels, sizes.pending_bytes)
            yield MetricReading(CACHED, labels, sizes.cached_bytes)
