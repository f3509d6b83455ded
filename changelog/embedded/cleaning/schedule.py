"""Which partition is cleaned when (Kafka's LogCleaner and LogCleanerManager).

Every `log.cleaner.backoff.ms` all compacted partitions are looked at, and again after each pass; those that are
due are cleaned, the dirtiest first, but none waits for ever, on as many threads as `log.cleaner.threads` says. A partition whose
pass failed waits, twice as long each time; the others go on.
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

NEVER = -(1 << 62)
LONGEST_WAIT_MS = 60 * 60 * 1000
"""Between two tries of a partition whose passes fail."""

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

Doom = Callable[[OpenTopic, Sequence[Segment]], None]
"""Is told of segments that have left the log: their files go in a while."""


@dataclass(slots=True)
class _Course:
    """What is known of the cleaning of one partition since the log was opened."""

    requests: int = 0
    """Number of calls that have asked for it."""
    answered: int = 0
    """Number of the last request that needs no pass any more. A pass answers those that were there
    when it began; one made meanwhile may be for records that the pass does not see."""
    running: PassResult | None = None
    done_bytes: int = 0
    failures: int = 0
    reason: str = ""
    retry_ms: int = 0
    """When it may be tried again, elapsed ms."""
    due_ms: int | None = None
    """Since when it is due, elapsed ms."""
    last: CleanedPartition | None = None
    passes: int = 0
    failed_passes: int = 0
    removed: int = 0
    """Records, in all passes."""
    freed: int = 0
    """Bytes, in all passes."""

    @property
    def wanted(self) -> bool:
        """Whether a request has not been answered."""
        return self.requests > self.answered


class Cleaners:
    """Cleans the partitions of a log. `tick` does what is due, here or, in the background, on threads."""

    def __init__(
        self, environment: LogContext, catalog: TopicCatalog, doom: Doom, background: bool
    ) -> None:
        self._environment = environment
        self._catalog = catalog
        self._doom = doom
        self._background = background
        self._pool: ThreadPoolExecutor | None = None
        self._stopping = threading.Event()
        self._looking = threading.Lock()
        self._lock = threading.Lock()
        self._courses: dict[Partition, _Course] = {}
        self._busy = 0
        self._looked_ms = NEVER
        self._throttle = Throttle(
            environment.clock, self._stopping, lambda: self._settings.io_max_bytes_per_second
        )

    @property
    def _settings(self) -> CleanerConfig:
        """As they are at the moment: they may be changed while a pass is running."""
        return self._environment.config.cleaner

    def tick(self) -> None:
        """Clean what is due by now."""
        with self._looking:
            now = self._environment.steady_ms()
            if now - self._looked_ms < self._settings.backoff_ms or self._stopping.is_set():
                return
            self._looked_ms = now
            while self._busy < self._settings.threads and not self._stopping.is_set():
                found = self._filthiest(now)
                if found is None:
                    return
                self._begin(*found)

    def request(self, topics: Collection[str] | None) -> None:
        """Clean these topics as soon as possible, all compacted ones if None, whatever their ratio.

        Active segments are closed for it. Raises UnknownTopic, InvalidTopic for one that is not compacted.
        """
        wanted = list(self._catalog) if topics is None else [self._named(t) for t in topics]
        for _, partition in _compacted(wanted):
            with partition.lock:
                if partition.segments and partition.segments[-1].size:
                    partition.roll()
            with self._lock:
                course = self._course(partition)
                course.requests, course.retry_ms = course.requests + 1, 0
        self._looked_ms = NEVER
        self.tick()

    def status(self) -> list[CleaningStatus]:
        """How things stand, by topic and partition."""
        now, steady = self._environment.clock.now_ms(), self._environment.steady_ms()
        return [self._status(partition, now, steady) for _, partition in _compacted(self._catalog)]

    def readings(self) -> Iterator[MetricReading]:
        """What it has counted, and how dirty it is, by topic."""
        now = self._environment.clock.now_ms()
        by_topic: dict[str, list[Partition]] = {}
        for topic, partition in _compacted(self._catalog):
            by_topic.setdefault(topic.meta.name, []).append(partition)
        for name, partitions in by_topic.items():
            with self._lock:
                courses = [self._course(partition) for partition in partitions]
            yield MetricReading(PASSES, (name, "done"), sum(c.passes for c in courses))
            yield MetricReading(PASSES, (name, "failed"), sum(c.failed_passes for c in courses))
            yield MetricReading(REMOVED, (name,), sum(c.removed for c in courses))
            yield MetricReading(FREED, (name,), sum(c.freed for c in courses))
            yield MetricReading(FAILING, (name,), sum(c.failures > 0 for c in courses))
            yield MetricReading(DIRTY, (name,), max(bounds_of(p, now).ratio for p in partitions))

    def stop(self) -> None:
        """Return when no pass is running any more; they end soon, with nothing lost."""
        self._stopping.set()
        if self._pool is not None:
            self._pool.shutdown()

    def _filthiest(self, steady_ms: int) -> tuple[OpenTopic, Partition, CleanableRange] | None:
        """What to clean next; None: nothing is due."""
        now = self._environment.clock.now_ms()
        self._forget_retired()
        best: tuple[tuple[bool, float], OpenTopic, Partition, CleanableRange] | None = None
        for topic, partition in _compacted(self._catalog):
            with self._lock:
                course = self._course(partition)
                asked, wanted = course.requests, course.wanted
                if not partition.usable:
                    course.answered = asked
                    continue
                if course.running or steady_ms < course.retry_ms:
                    continue
            if self._settings.enable and active_is_due(partition, now):
                with contextlib.suppress(StrandlineError), partition.lock:
                    partition.roll()
            bounds = bounds_of(partition, now)
            if wanted and not (bounds.dirty_bytes or bounds.expired):
                course.answered, wanted = asked, False
            if not (wanted or (self._settings.enable and bounds.due)):
                course.due_ms = None
            else:
                course.due_ms = steady_ms if course.due_ms is None else course.due_ms
                # Or one that is hardly dirty would wait for ever while others get dirty again.
                patience = (steady_ms - course.due_ms) / self._settings.backoff_ms
                rank = wanted, bounds.ratio + patience
                if best is None or rank > best[0]:
                    best = rank, topic, partition, bounds
        return best and best[1:]

    def _begin(self, topic: OpenTopic, partition: Partition, bounds: CleanableRange) -> None:
        with self._lock:
            self._busy += 1
            course = self._course(partition)
            asked = course.requests
            course.running = done = PassResult(to_do=2 * bounds.dirty_bytes + bounds.clean_bytes)
            course.done_bytes, course.due_ms = 0, None
        if not self._background:
            self._run(topic, partition, course, done, asked)
            return
        if self._pool is None:
            most = 64  # threads begin as they are needed
            self._pool = ThreadPoolExecutor(most, "strandline-cleaner")
        try:
            self._pool.submit(self._run, topic, partition, course, done, asked)
        except RuntimeError:  # no thread can be started once the interpreter is ending
            self._stopping.set()
            with self._lock:
                course.running = None
                self._busy -= 1

    def _run(
        self, topic: OpenTopic, partition: Partition, course: _Course, done: PassResult, asked: int
    ) -> None:
        """Do a pass, which answers the first `asked` requests unless memory ended it early."""
        try:
            self._clean(topic, partition, course, done)
            course.failures, course.reason = 0, ""
        except (UnknownTopic, InvalidTopic, OwnerUnavailable):
            done.whole = True  # deleted, not compacted any more, or closed
        except Exception as error:
            self._failed(partition, course, error)
            done.whole = True
        finally:
            with self._lock:
                course.answered = asked if done.whole else course.answered
                course.running = None
                self._busy -= 1
            self._looked_ms = NEVER  # perhaps there is more to do
            if self._background:
                self.tick()

    def _clean(
        self, topic: OpenTopic, partition: Partition, course: _Course, done: PassResult
    ) -> None:
        clock = self._environment.clock
        begun, started_ms = clock.monotonic(), clock.now_ms()
        waited = self._throttle.waited
        courtesy = BackgroundThrottle(self._environment.traffic, clock, self._stopping)

        def check() -> None:
            if self._stopping.is_set():
                raise OwnerUnavailable("the log is being closed")
            partition.check_usable()
            check_compacted(topic.meta.name, topic.config)

        def pace(nbytes: int) -> None:
            check()
            course.done_bytes += nbytes
            self._throttle.take(nbytes, check)
            courtesy.give_way()

        try:
            with partition.cleaning:
                check()
                settings = self._settings
                memory = settings.dedupe_buffer_size // settings.threads
                clean(partition, memory=memory, pace=pace, now_ms=started_ms, done=done)
        finally:
            self._doom(topic, done.replaced)
        seconds = clock.monotonic() - begun
        course.last = _told(done, started_ms, seconds, self._throttle.waited - waited)
        course.passes += 1
        course.removed += done.tally.read - done.tally.kept
        course.freed += done.bytes_before - done.bytes_after

    def _failed(self, partition: Partition, course: _Course, error: Exception) -> None:
        wait = min(LONGEST_WAIT_MS, self._settings.backoff_ms << min(course.failures, 20))
        course.failures += 1
        course.failed_passes += 1
        course.retry_ms = self._environment.steady_ms() + wait
        course.reason = str(error) or type(error).__name__
        said = {"partition": str(partition.topic_partition), "error": course.reason}
        known = isinstance(error, StrandlineError)
        _log.warning("cleaning %s: %s", *said.values(), extra=said, exc_info=not known)

    def _named(self, name: str) -> OpenTopic:
        topic = self._catalog.get(name)
        check_compacted(topic.meta.name, topic.config)
        return topic

    def _forget_retired(self) -> None:
        with self._lock:  # others look up and add courses meanwhile
            for partition in [one for one in self._courses if one.retired]:
                del self._courses[partition]

    def _course(self, partition: Partition) -> _Course:
        """What is known of a partition. `self._lock` is held."""
        return self._courses.setdefault(partition, _Course())

    def _status(self, partition: Partition, now_ms: int, steady_ms: int) -> CleaningStatus:
        bounds = bounds_of(partition, now_ms)
        with self._lock:
            course = self._course(partition)
            failed = course.failures > 0
            return CleaningStatus(
                *partition.topic_partition,
                bounds.clean_bytes,
                bounds.dirty_bytes,
                bounds.min_ratio,
                bounds.dirty,
                _state(course, bounds),
                course.done_bytes if course.running else 0,
                course.running.to_do if course.running else 0,
                now_ms + max(0, course.retry_ms - steady_ms) if failed else None,
                course.failures,
                course.reason,
                course.last,
                partition.segments[-1].size if partition.segments else 0,
            )


def _state(course: _Course, bounds: CleanableRange) -> CleaningState:
    if course.running:
        return "running"
    if course.wanted:
        return "requested"
    if course.failures:
        return "failed"
    return "waiting" if bounds.due else "idle"


def _compacted(topics: Iterable[OpenTopic]) -> Iterator[tuple[OpenTopic, Partition]]:
    """The partitions of compacted topics that have anything in them."""
    for topic in topics:
        if topic.config.compact:
            for partition in topic.partitions:
                if partition.segments:
                    yield topic, partition


def _told(done: PassResult, started_ms: int, seconds: float, throttled: float) -> CleanedPartition:
    tally = done.tally
    return CleanedPartition(
        started_ms,
        seconds,
        throttled,
        done.start,
        done.end,
        done.whole,
        done.map_use,
        tally.read,
        tally.kept,
        tally.superseded,
        tally.tombstones,
        tally.aborted,
        tally.keyless,
        tally.markers,
        done.bytes_before,
        done.bytes_after,
        done.segments_before,
        done.segments_after,
        done.left_alone,
        done.spilled_bytes,
    )
