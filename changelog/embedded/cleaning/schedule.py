"""Schedule the passes over all partitions (Kafka's LogCleaner and LogCleanerManager).

Every `log.cleaner.backoff.ms`, and after each pass, all compacted partitions are inspected.
Partitions that are due are cleaned on `log.cleaner.threads` threads, the dirtiest first. The rank
of a waiting partition grows with time, so that none starves. A partition whose pass failed is
retried after a wait that doubles each time; other partitions are not affected.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from strandline.changelog.cleaning import (
    CleanedPartition,
    CleaningState,
    CleaningStatus,
    check_compacted,
)
from strandline.changelog.embedded.cleaning.bounds import CleanableRange, active_is_due, bounds_of
from strandline.changelog.embedded.cleaning.cleaner import clean
from strandline.changelog.embedded.cleaning.passes import PassResult
from strandline.changelog.embedded.cleaning.throttle import Throttle
from strandline.changelog.embedded.context import LogContext
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.segment import Segment
from strandline.changelog.embedded.topic import OpenTopic, TopicCatalog
from strandline.changelog.embedded.traffic import BackgroundThrottle
from strandline.changelog.errors import (
    InvalidTopic,
    OwnerUnavailable,
    StrandlineError,
    UnknownTopic,
)
from strandline.changelog.log_config import CleanerConfig
from strandline.changelog.metrics import Metric, MetricReading

_log = logging.getLogger("strandline")

BEFORE_ALL_TIMES_MS = -(1 << 62)
"""Time of the last inspection if there was none, elapsed ms."""
MAX_RETRY_WAIT_MS = 60 * 60 * 1000
"""Maximum wait before a partition whose passes fail is tried again."""

PASSES = Metric(
    "strandline_log_cleaner_passes_total",
    "counter",
    "Passes of the cleaner over a partition.",
    ("topic", "outcome"),
)
REMOVED = Metric(
    "strandline_log_cleaner_removed_records_total",
    "counter",
    "Records that cleaning has removed.",
    ("topic",),
)
FREED = Metric(
    "strandline_log_cleaner_freed_bytes_total",
    "counter",
    "Bytes by which cleaning has made segments smaller.",
    ("topic",),
)
FAILING = Metric(
    "strandline_log_cleaner_failing_partitions",
    "gauge",
    "Partitions whose last pass failed.",
    ("topic",),
)
DIRTY = Metric(
    "strandline_log_dirty_ratio",
    "gauge",
    "Dirty bytes / all bytes of the topic's dirtiest partition.",
    ("topic",),
)
METRICS = (PASSES, REMOVED, FREED, FAILING, DIRTY)

ScheduleDelete = Callable[[OpenTopic, Sequence[Segment]], None]
"""Called with segments that left the log; deletes their files later."""


@dataclass(slots=True)
class _CleaningProgress:
    """The cleaning of one partition since the log was opened."""

    requests: int = 0
    """Number of requests to clean the partition."""
    answered: int = 0
    """Number of requests that are done.

    A pass answers the requests made before it began. A request made during a pass needs another
    one, because it may be for records that the running pass does not see.
    """
    tried: int = 0
    """Number of requests made before the last failed pass began. It is tried again for them."""
    running: PassResult | None = None
    """Progress of the running pass; None if there is none."""
    done_bytes: int = 0
    """Bytes read and written by the running pass."""
    failures: int = 0
    """Number of consecutive failed passes."""
    reason: str = ""
    """Error message of the last pass; empty if it succeeded."""
    retry_ms: int = 0
    """Earliest time of the next try, elapsed ms."""
    due_ms: int | None = None
    """Time since which the partition is due, elapsed ms; None if it is not due."""
    last: CleanedPartition | None = None
    """Result of the last successful pass."""
    passes: int = 0
    """Number of successful passes."""
    failed_passes: int = 0
    """Number of failed passes."""
    removed: int = 0
    """Number of records removed by all passes."""
    freed: int = 0
    """Number of bytes freed by all passes."""

    @property
    def requested(self) -> bool:
        """True if a request is pending."""
        return self.requests > self.answered


class Cleaners:
    """Cleans the partitions of a log.

    `tick` starts the passes that are due: on threads if `background`, else in the caller's thread.
    """

    def __init__(
        self,
        context: LogContext,
        catalog: TopicCatalog,
        schedule_delete: ScheduleDelete,
        background: bool,
    ) -> None:
        self._context = context
        self._catalog = catalog
        self._schedule_delete = schedule_delete
        self._background = background
        self._pool: ThreadPoolExecutor | None = None
        self._stopping = threading.Event()
        self._inspecting = threading.Lock()
        self._lock = threading.Lock()
        self._progresses: dict[Partition, _CleaningProgress] = {}
        self._busy = 0
        self._inspected_ms = BEFORE_ALL_TIMES_MS
        self._throttle = Throttle(
            context.clock, self._stopping, lambda: self._settings.io_max_bytes_per_second
        )

    @property
    def _settings(self) -> CleanerConfig:
        """Current settings; they may change during a pass."""
        return self._context.config.cleaner

    def tick(self) -> None:
        """Start passes over the partitions that are due, as far as threads are free."""
        with self._inspecting:
            now = self._context.steady_ms()
            if now - self._inspected_ms < self._settings.backoff_ms or self._stopping.is_set():
                return
            self._inspected_ms = now
            while self._busy < self._settings.threads and not self._stopping.is_set():
                found = self._dirtiest(now)
                if found is None:
                    return
                self._begin(*found)

    def request(self, topics: Collection[str] | None) -> None:
        """Clean topics as soon as possible, whatever their dirty ratio; all compacted ones if None.

        Active segments are closed, so that they are cleaned too. Raises UnknownTopic, and
        InvalidTopic for a topic that is not compacted.
        """
        requested = (
            list(self._catalog) if topics is None else [self._compacted_topic(t) for t in topics]
        )
        for _, partition in _compacted(requested):
            with partition.lock:
                if partition.segments and partition.segments[-1].size:
                    partition.roll()
            with self._lock:
                progress = self._progress_of(partition)
                progress.requests, progress.retry_ms = progress.requests + 1, 0
        self._inspected_ms = BEFORE_ALL_TIMES_MS
        self.tick()

    def status(self) -> list[CleaningStatus]:
        """Return the cleaning status of every compacted partition that has segments."""
        now, steady = self._context.clock.now_ms(), self._context.steady_ms()
        return [self._status(partition, now, steady) for _, partition in _compacted(self._catalog)]

    def readings(self) -> Iterator[MetricReading]:
        """Yield the cleaner's metrics by topic."""
        now = self._context.clock.now_ms()
        by_topic: dict[str, list[Partition]] = {}
        for topic, partition in _compacted(self._catalog):
            by_topic.setdefault(topic.meta.name, []).append(partition)
        for name, partitions in by_topic.items():
            with self._lock:
                progresses = [self._progress_of(partition) for partition in partitions]
            yield MetricReading(PASSES, (name, "done"), sum(c.passes for c in progresses))
            yield MetricReading(PASSES, (name, "failed"), sum(c.failed_passes for c in progresses))
            yield MetricReading(REMOVED, (name,), sum(c.removed for c in progresses))
            yield MetricReading(FREED, (name,), sum(c.freed for c in progresses))
            yield MetricReading(FAILING, (name,), sum(c.failures > 0 for c in progresses))
            yield MetricReading(DIRTY, (name,), max(bounds_of(p, now).ratio for p in partitions))

    def stop(self) -> None:
        """End running passes and wait for them; a later pass repeats unfinished work."""
        self._stopping.set()
        if self._pool is not None:
            self._pool.shutdown()

    def _dirtiest(self, steady_ms: int) -> tuple[OpenTopic, Partition, CleanableRange] | None:
        """Return the dirtiest partition that is due; None if none is."""
        now = self._context.clock.now_ms()
        self._forget_retired()
        best: tuple[tuple[bool, float], OpenTopic, Partition, CleanableRange] | None = None
        for topic, partition in _compacted(self._catalog):
            with self._lock:
                progress = self._progress_of(partition)
                requests, requested = progress.requests, progress.requested
                if not partition.gate.usable:
                    progress.answered = requests
                    continue
                if progress.running or steady_ms < progress.retry_ms:
                    continue
            if self._settings.enable and active_is_due(partition, now):
                with contextlib.suppress(StrandlineError), partition.lock:
                    partition.roll()
            bounds = bounds_of(partition, now)
            if requested and not (bounds.dirty_bytes or bounds.expired):
                progress.answered, requested = requests, False
            if not (requested or (self._settings.enable and bounds.due)):
                progress.due_ms = None
            else:
                progress.due_ms = steady_ms if progress.due_ms is None else progress.due_ms
                # Without the waiting time a hardly dirty partition would starve while others get
                # dirty again and again.
                waited_rounds = (steady_ms - progress.due_ms) / self._settings.backoff_ms
                rank = requested, bounds.ratio + waited_rounds
                if best is None or rank > best[0]:
                    best = rank, topic, partition, bounds
        return best and best[1:]

    def _begin(self, topic: OpenTopic, partition: Partition, bounds: CleanableRange) -> None:
        with self._lock:
            self._busy += 1
            progress = self._progress_of(partition)
            requests = progress.requests
            progress.running = result = PassResult(
                to_do=2 * bounds.dirty_bytes + bounds.clean_bytes
            )
            progress.done_bytes, progress.due_ms = 0, None
        if not self._background:
            self._run(topic, partition, progress, result, requests)
            return
        if self._pool is None:
            max_threads = 64  # the largest log.cleaner.threads; threads start as they are needed
            self._pool = ThreadPoolExecutor(max_threads, "strandline-cleaner")
        try:
            self._pool.submit(self._run, topic, partition, progress, result, requests)
        except RuntimeError:  # the interpreter is shutting down and starts no more threads
            self._stopping.set()
            with self._lock:
                progress.running = None
                self._busy -= 1

    def _run(
        self,
        topic: OpenTopic,
        partition: Partition,
        progress: _CleaningProgress,
        result: PassResult,
        requests: int,
    ) -> None:
        """Run a pass, which answers the first `requests` requests if it does all its work."""
        is_answered = True
        try:
            self._clean(topic, partition, progress, result)
            progress.failures, progress.reason = 0, ""
            is_answered = result.whole
        except (UnknownTopic, InvalidTopic, OwnerUnavailable):
            pass  # topic deleted or no longer compacted, or log closed: requests are moot
        except Exception as error:
            self._failed(partition, progress, error)
            progress.tried, is_answered = requests, False
        finally:
            with self._lock:
                if is_answered:
                    progress.answered = requests
                progress.running = None
                self._busy -= 1
            # Inspect again at once, because other partitions may be due.
            self._inspected_ms = BEFORE_ALL_TIMES_MS
            if self._background:
                self.tick()  # this thread is free again

    def _clean(
        self,
        topic: OpenTopic,
        partition: Partition,
        progress: _CleaningProgress,
        result: PassResult,
    ) -> None:
        """Run one pass and record its result; `result` is filled in."""
        clock = self._context.clock
        begun, started_ms = clock.monotonic(), clock.now_ms()
        waited = self._throttle.waited
        background_throttle = BackgroundThrottle(self._context.traffic, clock, self._stopping)

        def check() -> None:
            if self._stopping.is_set():
                raise OwnerUnavailable("the log is being closed")
            partition.gate.check()
            check_compacted(topic.meta.name, topic.config)

        def pace(nbytes: int) -> None:
            check()
            progress.done_bytes += nbytes
            self._throttle.take(nbytes, check)
            background_throttle.give_way()

        try:
            with partition.cleaning:
                check()
                settings = self._settings
                memory = settings.dedupe_buffer_size // settings.threads
                clean(partition, memory=memory, pace=pace, now_ms=started_ms, result=result)
        finally:
            self._schedule_delete(topic, result.replaced)
        seconds = clock.monotonic() - begun
        progress.last = _summary(result, started_ms, seconds, self._throttle.waited - waited)
        progress.passes += 1
        progress.removed += result.tally.read - result.tally.kept
        progress.freed += result.bytes_before - result.bytes_after

    def _failed(self, partition: Partition, progress: _CleaningProgress, error: Exception) -> None:
        """Record a failed pass, schedule the retry, and log a warning."""
        wait = min(MAX_RETRY_WAIT_MS, self._settings.backoff_ms << min(progress.failures, 20))
        progress.failures += 1
        progress.failed_passes += 1
        progress.retry_ms = self._context.steady_ms() + wait
        progress.reason = str(error) or type(error).__name__
        fields = {"partition": str(partition.topic_partition), "error": progress.reason}
        known = isinstance(error, StrandlineError)
        _log.warning("cleaning %s: %s", *fields.values(), extra=fields, exc_info=not known)

    def _compacted_topic(self, name: str) -> OpenTopic:
        topic = self._catalog.get(name)
        check_compacted(topic.meta.name, topic.config)
        return topic

    def _forget_retired(self) -> None:
        with self._lock:  # because other threads look up and add entries
            for partition in [one for one in self._progresses if one.gate.retired]:
                del self._progresses[partition]

    def _progress_of(self, partition: Partition) -> _CleaningProgress:
        """Return the progress of a partition; the caller holds `self._lock`."""
        return self._progresses.setdefault(partition, _CleaningProgress())

    def _status(self, partition: Partition, now_ms: int, steady_ms: int) -> CleaningStatus:
        bounds = bounds_of(partition, now_ms)
        with self._lock:
            progress = self._progress_of(partition)
            failed = progress.failures > 0
            return CleaningStatus(
                *partition.topic_partition,
                bounds.clean_bytes,
                bounds.dirty_bytes,
                bounds.min_ratio,
                bounds.first_dirty,
                _state(progress, bounds),
                progress.done_bytes if progress.running else 0,
                progress.running.to_do if progress.running else 0,
                now_ms + max(0, progress.retry_ms - steady_ms) if failed else None,
                progress.failures,
                progress.reason,
                progress.last,
                partition.segments[-1].size if partition.segments else 0,
            )


def _state(progress: _CleaningProgress, bounds: CleanableRange) -> CleaningState:
    """Return the public state of a partition's cleaning."""
    if progress.running:
        return "running"
    if progress.requests > max(progress.answered, progress.tried):
        return "requested"
    if progress.failures:
        return "failed"
    return "waiting" if bounds.due else "idle"


def _compacted(topics: Iterable[OpenTopic]) -> Iterator[tuple[OpenTopic, Partition]]:
    """Yield the partitions of compacted topics that have segments."""
    for topic in topics:
        if topic.config.compact:
            for partition in topic.partitions:
                if partition.segments:
                    yield topic, partition


def _summary(
    result: PassResult, started_ms: int, seconds: float, throttled: float
) -> CleanedPartition:
    """Return the public result of a pass; times in seconds."""
    tally = result.tally
    return CleanedPartition(
        started_ms,
        seconds,
        throttled,
        result.start,
        result.end,
        result.whole,
        result.map_use,
        tally.read,
        tally.kept,
        tally.superseded,
        tally.tombstones,
        tally.aborted,
        tally.keyless,
        tally.markers,
        result.bytes_before,
        result.bytes_after,
        result.segments_before,
        result.segments_after,
        result.left_alone,
        result.spilled_bytes,
    )
