"""Counters of a worker and their metrics (docs/guide/operating.md, Metrics).

Events are counted once for a slice, a commit or a restore, never for a single record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from strandline.changelog.errors import Fenced, MemberFenced
from strandline.changelog.metrics import (
    SECONDS,
    Histogram,
    Latency,
    Metric,
    MetricReading,
    MonotonicCounter,
)
from strandline.statestore.counters import StoreCounters

TASK = ("app", "task")
STORE = ("app", "store")
PARTITION = ("app", "store", "partition")

HANDLED = Metric(
    "strandline_records_handled_total", "counter", "Records handled and committed.", TASK
)
SKIPPED = Metric(
    "strandline_records_skipped_total",
    "counter",
    "Records skipped because their handler raised.",
    TASK,
)
DEAD_LETTERED = Metric(
    "strandline_records_dead_lettered_total",
    "counter",
    "Records sent to the dead-letter topic because their handler raised.",
    TASK,
)
LATE = Metric(
    "strandline_late_records_total",
    "counter",
    "Rows of streams that came after their windows were closed.",
    TASK,
)
HANDLER = Metric(
    "strandline_handler_seconds", "histogram", "How long handling a record took.", TASK
)
REPEATED = Metric(
    "strandline_handlers_repeated_total",
    "counter",
    "Async handlers called again because an earlier record had changed what they had read.",
    TASK,
)
COMMITS = Metric("strandline_commits_total", "counter", "Commits that took effect.", ("app",))
ABORTED = Metric(
    "strandline_commits_aborted_total", "counter", "Commits that did not take effect.", ("app",)
)
COMMIT = Metric("strandline_commit_seconds", "histogram", "How long commits took.", ("app",))
RECENT = Metric(
    "strandline_commit_recent_seconds", "summary", "How long the last commits took.", ("app",)
)
FENCES = Metric(
    "strandline_fences_total",
    "counter",
    "Times another worker had fenced this one.",
    ("app", "kind"),
)
REBALANCES = Metric(
    "strandline_rebalances_total",
    "counter",
    "Times partitions were assigned to this worker or revoked from it.",
    ("app", "change"),
)
RESTORE = Metric(
    "strandline_restore_seconds",
    "histogram",
    "How long restoring a store's partition took.",
    ("app",),
)
RESTORED = Metric(
    "strandline_restore_records_total", "counter", "Changelog records replayed.", ("app",)
)
CHANGES = Metric("strandline_store_changes_total", "counter", "Keys changed by commits.", STORE)
MISSES = Metric(
    "strandline_store_cache_misses_total",
    "counter",
    "Look-ups of keys that were not in the cache.",
    STORE,
)
SAMPLED_HITS = Metric(
    "strandline_store_sampled_hits_total",
    "counter",
    "Look-ups of keys that were in the cache, in a sample of the records.",
    STORE,
)
SAMPLED_MISSES = Metric(
    "strandline_store_sampled_misses_total",
    "counter",
    "Look-ups of keys that were not in the cache, in the same sample.",
    STORE,
)
CHECKPOINT = Metric(
    "strandline_store_checkpoint_seconds", "histogram", "How long checkpoints took.", STORE
)
METRICS = (
    *(HANDLED, SKIPPED, DEAD_LETTERED, LATE, HANDLER, REPEATED),
    *(COMMITS, ABORTED, COMMIT, RECENT),
    *(FENCES, REBALANCES, RESTORE, RESTORED, CHANGES, MISSES),
    *(SAMPLED_HITS, SAMPLED_MISSES, CHECKPOINT),
)

PER_RECORD = (1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, *SECONDS)
"""Histogram bounds in seconds, for handlers that take from a microsecond to ten seconds."""


class TaskCounters:
    """Counters of one task over all its partitions. Written by the worker's thread only."""

    def __init__(self) -> None:
        self.handled = 0
        self.skipped = 0
        self.dead_lettered = 0
        self.late = 0
        self.repeated = 0
        self.handler = Histogram(PER_RECORD)

    def took(self, seconds: float, records: int) -> None:
        """Note that a slice of `records` records took `seconds`."""
        if records:
            self.handler.observe(seconds / records, times=records)


class WorkerCounters:
    """Counters of one worker. `stores` has the counters of its stores, by name."""

    def __init__(self, app: str, stores: Mapping[str, StoreCounters]) -> None:
        self.app = app
        self.commits = Latency()
        self.aborted = MonotonicCounter()
        self.fences = {"member": MonotonicCounter(), "producer": MonotonicCounter()}
        self.rebalances = {"assigned": MonotonicCounter(), "revoked": MonotonicCounter()}
        self.restores = Histogram()
        self.restored = MonotonicCounter()
        self._tasks: dict[str, TaskCounters] = {}
        self._stores = stores

    def task(self, name: str) -> TaskCounters:
        """Return the counters of one task; create them at the first call."""
        return self._tasks.setdefault(name, TaskCounters())

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Time the block as a commit, and count it as committed or aborted."""
        try:
            with self.commits.timed():
                yield
        except Exception:
            self.aborted.add()
            raise

    def fenced(self, error: Fenced) -> None:
        """Count a fencing by another worker, of the member or of the producer."""
        self.fences["member" if isinstance(error, MemberFenced) else "producer"].add()

    def readings(self) -> Iterator[MetricReading]:
        """Return all counters and histograms as metric readings."""
        app, commits = (self.app,), self.commits.read()
        for name, task in list(self._tasks.items()):
            yield from _of_task((*app, name), task)
        yield MetricReading(COMMITS, app, commits.count)
        yield MetricReading(ABORTED, app, self.aborted.value)
        yield MetricReading(COMMIT, app, commits)
        yield MetricReading(RECENT, app, self.commits.recent())
        for kind, counter in self.fences.items():
            yield MetricReading(FENCES, (*app, kind), counter.value)
        for change, counter in self.rebalances.items():
            yield MetricReading(REBALANCES, (*app, change), counter.value)
        yield MetricReading(RESTORE, app, self.restores.read())
        yield MetricReading(RESTORED, app, self.restored.value)
        for name, store in list(self._stores.items()):
            yield MetricReading(CHANGES, (*app, name), store.changes)
            yield MetricReading(MISSES, (*app, name), store.misses)
            yield MetricReading(SAMPLED_HITS, (*app, name), store.sampled_hits)
            yield MetricReading(SAMPLED_MISSES, (*app, name), store.sampled_misses)
            yield MetricReading(CHECKPOINT, (*app, name), store.checkpoints.read())


def _of_task(labels: tuple[str, str], task: TaskCounters) -> Iterator[MetricReading]:
    yield MetricReading(HANDLED, labels, task.handled)
    yield MetricReading(SKIPPED, labels, task.skipped)
    yield MetricReading(DEAD_LETTERED, labels, task.dead_lettered)
    yield MetricReading(LATE, labels, task.late)
    yield MetricReading(HANDLER, labels, task.handler.read())
    yield MetricReading(REPEATED, labels, task.repeated)
