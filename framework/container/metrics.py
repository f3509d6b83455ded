"""What a worker counts, and what it tells of itself (docs/guide/operating.md, Metrics).

Counting is done for a slice, a commit, a restore; never for a single record.
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
    "Records skipped since their handler raised.",
    TASK,
)
DEAD_LETTERED = Metric(
    "strandline_records_dead_lettered_total",
    "counter",
    "Records put aside since their handler raised.",
    TASK,
)
HANDLER = Metric(
    "strandline_handler_seconds", "histogram", "How long handling a record took.", TASK
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
    "Times another worker had taken this one's place.",
    ("app", "kind"),
)
REBALANCES = Metric(
    "strandline_rebalances_total",
    "counter",
    "Times partitions came to this worker, or left it.",
    ("app", "change"),
)
RESTORE = Metric(
    "strandline_restore_seconds",
    "histogram",
    "How long bringing back a store's partition took.",
    ("app",),
)
RESTORED = Metric(
    "strandline_restore_records_total", "counter", "Changelog records replayed.", ("app",)
)
CHANGES = Metric("strandline_store_changes_total", "counter", "Keys changed by commits.", STORE)
MISSES = Metric(
    "strandline_store_cache_misses_total",
    "counter",
    "Look-ups of keys that were not at hand.",
    STORE,
)
SAMPLED_HITS = Metric(
    "strandline_store_sampled_hits_total",
    "counter",
    "Look-ups of keys that were at hand, in a sample of the records.",
    STORE,
)
SAMPLED_MISSES = Metric(
    "strandline_store_sampled_misses_total",
    "counter",
    "Look-ups of keys that were not at hand, in the same sample.",
    STORE,
)
CHECKPOINT = Metric(
    "strandline_store_checkpoint_seconds", "histogram", "How long checkpoints took.", STORE
)
METRICS = (
    *(HANDLED, SKIPPED, DEAD_LETTERED, HANDLER, COMMITS, ABORTED, COMMIT, RECENT),
    *(FENCES, REBALANCES, RESTORE, RESTORED, CHANGES, MISSES),
    *(SAMPLED_HITS, SAMPLED_MISSES, CHECKPOINT),
)

PER_RECORD = (1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, *SECONDS)
"""Bounds for what takes from a microsecond to ten seconds."""


class TaskCounters:
    """Of one task, over all its partitions. Belongs to the worker's thread."""

    def __init__(self) -> None:
        self.handled = 0
        self.skipped = 0
        self.dead_lettered = 0
        self.handler = Histogram(PER_RECORD)

    def took(self, seconds: float, records: int) -> None:
        """A slice of so many records took so long."""
        if records:
            self.handler.observe(seconds / records, times=records)


class WorkerCounters:
    """Of one worker. `stores` are the counters of its stores, by their names."""

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
        """Of one of its tasks."""
        return self._tasks.setdefault(name, TaskCounters())

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Count a commit by what becomes of it."""
        try:
            with self.commits.timed():
                yield
        except Exception:
            self.aborted.add()
            raise

    def fenced(self, error: Fenced) -> None:
        """Another worker has taken its place."""
        self.fences["member" if isinstance(error, MemberFenced) else "producer"].add()

    def readings(self) -> Iterator[MetricReading]:
        """Everything that was counted."""
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
    yield MetricReading(HANDLER, labels, task.handler.read())
