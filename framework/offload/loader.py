"""The run of a load: rounds, each of which ends with one commit of the target.

1. Look up the bounds of all partitions, and compare them with the progress of the target.
2. Load the next offsets of each partition, as many partitions at a time as there are tasks.
3. Look up the bounds again: all that was read must be of the history that is there now.
4. Commit the files and the positions.

Nothing is in the target before step 4. What a run that fails or crashes has left in staging is removed
by that run or by the next one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import OffsetOutOfRange, StrandlineError
from strandline.changelog.records import TopicInfo, TopicPartition
from strandline.framework.offload.files import FileLimits
from strandline.framework.offload.folder import TargetFolder
from strandline.framework.offload.plan import (
    Bounds,
    Gap,
    Round,
    begun,
    check_history,
    find_gaps,
    lost,
    plan_round,
)
from strandline.framework.offload.progress import PartitionProgress, Progress
from strandline.framework.offload.rows import RowForm
from strandline.framework.offload.target import DataFile, Target
from strandline.framework.offload.tasks import Loaded, SpanLoader, TaskCancelled

MAX_REPLANS = 100
"""Maximum number of times that a round begins again because retention was faster."""


@dataclass(frozen=True)
class LoadSettings:
    """Settings of a run."""

    limits: FileLimits
    commit_records: int
    """Maximum number of offsets of a partition in one commit."""
    tasks: int
    """Number of partitions that are loaded at a time."""
    accepts_gaps: bool
    """True: go on after records that were removed before they were loaded."""


@dataclass(frozen=True)
class OffloadReport:
    """Summary of a load: rows, files and commits that it has added to its target."""

    topic: str
    rows: int = 0
    files: int = 0
    bytes: int = 0
    """Bytes of the files."""
    commits: int = 0
    gaps: tuple[Gap, ...] = ()
    """Records that were removed before they could be loaded, and were left out."""

    def added(self, files: list[DataFile], gaps: list[Gap]) -> OffloadReport:
        """Return the report after one more commit.

        Args:
            files: Files that the commit added.
            gaps: Offsets that the topic did not have any more.
        """
        return replace(
            self,
            rows=self.rows + sum(file.rows for file in files),
            files=self.files + len(files),
            bytes=self.bytes + sum(file.size for file in files),
            commits=self.commits + 1,
            gaps=(*self.gaps, *gaps),
        )


@dataclass(frozen=True)
class Loading:
    """A run: a topic, its rows, and the target that gets them."""

    broker: Broker
    info: TopicInfo
    form: RowForm
    folder: TargetFolder
    target: Target
    settings: LoadSettings


def load(
    loading: Loading, ends: Bounds, clock: Clock, shown: Callable[[int, int], object]
) -> OffloadReport:
    """Load a topic up to its last stable offsets, and return what was added to the target.

    Args:
        loading: The topic and the target.
        ends: Bounds of all partitions at the start of the run.
        clock: Source of the identifier of the run.
        shown: Called with the number of records read so far, and of offsets to be read.
    """
    progress = loading.target.progress()
    rounds = _Rounds(loading, ends, clock.new_id()[:12], shown)
    try:
        rounds.begin(progress)
        while rounds.step.spans:
            progress = rounds.commit_next(progress)
            rounds.plan_next(progress)
    except Exception:
        with contextlib.suppress(StrandlineError):  # the first error is the one to report
            loading.folder.drop_staged()
        raise
    return rounds.report


class _Rounds:
    """The rounds of a run."""

    def __init__(
        self, loading: Loading, ends: Bounds, run: str, shown: Callable[[int, int], object]
    ) -> None:
        self._loading = loading
        self._settings = loading.settings
        self._now = ends
        self._stop = {number: bounds.last_stable_offset for number, bounds in ends.items()}
        self._run = run
        self._shown = shown
        self._replans = 0
        self.step = Round([], [])
        """Spans that the next commit loads, and accepted gaps."""
        self.report = OffloadReport(loading.info.name)

    def begin(self, progress: Progress | None) -> None:
        """Plan the first round, and look at all that could be refused."""
        self._plan(progress)
        columns = self._loading.target.columns(self._loading.form.schema)
        count = sum(max(0, self._stop[span.partition] - span.start) for span in self.step.spans)
        self._counter = _Counter(count, self._shown)
        self._spans = SpanLoader(
            self._loading.broker,
            self._loading.info.name,
            self._loading.form,
            columns,
            self._loading.folder,
            self._settings.limits,
            self._run,
            self._counter,
        )

    def plan_next(self, progress: Progress | None) -> None:
        """Plan the next round, by the present bounds of the partitions."""
        self._now = self._bounds()
        self._plan(progress)

    def _plan(self, progress: Progress | None) -> None:
        limit = self._settings.commit_records
        self.step = plan_round(progress, self._now, self._stop, limit)
        self._accept(self.step.gaps)

    def _accept(self, gaps: list[Gap]) -> None:
        if gaps and not self._settings.accepts_gaps:
            raise lost(self._loading.info.name, gaps)

    def commit_next(self, progress: Progress | None) -> Progress | None:
        """Load and commit the planned round, and return the progress after it.

        If records of the round were removed meanwhile, nothing is committed, and the next plan
        decides how to go on.
        """
        try:
            loaded = self._loaded()
        except OffsetOutOfRange:
            self._replans += 1
            if self._replans > MAX_REPLANS:
                raise
            self._loading.folder.sweep()
            return progress
        before = progress or self._empty()
        started = {
            span.partition: begun(before, span, self._now[span.partition])
            for span in self.step.spans
        }
        after = before.advanced(self._reached(before.advanced(started), loaded))
        files = [file for one in loaded for file in one.files]
        self._loading.target.commit(files, after)
        self.report = self.report.added(files, self.step.gaps)
        return after

    def _empty(self) -> Progress:
        return Progress(topic=self._loading.info.name, topic_id=self._loading.info.topic_id)

    def _reached(self, started: Progress, loaded: list[Loaded]) -> dict[int, PartitionProgress]:
        """Return the positions after the round. Raise if its records are not those of the log now.

        Tombstones that were removed while the round was read may have been missed.
        """
        now = self._bounds()
        gaps: list[Gap] = []
        reached = {}
        for span, _, epoch in loaded:
            partition, bounds = span.partition, now[span.partition]
            gaps += [gap for gap in find_gaps(started, partition, bounds) if gap.tombstones]
            end = epoch or bounds.epoch_before(span.end)
            settled = started.settled_end(partition)
            reached[partition] = PartitionProgress(span.end, end.number, end.incarnation, settled)
            check_history(started.advanced(reached), partition, bounds)
        self._accept(gaps)
        self.step.gaps.extend(gaps)
        return reached

    def _bounds(self) -> Bounds:
        """Return the present bounds of the partitions of the run."""
        topic = self._loading.info.name
        asked = [TopicPartition(topic, number) for number in self._stop]
        return {tp.partition: bounds for tp, bounds in self._loading.broker.offsets(asked).items()}

    # Tasks ----------------------------------------------------------------------------

    def _loaded(self) -> list[Loaded]:
        """Run the tasks of the round, and return their results. Raise the first of their errors."""
        self._counter.begin()
        with ThreadPoolExecutor(self._settings.tasks, "strandline-offload") as pool:
            tasks = [pool.submit(self._spans.load, span) for span in self.step.spans]
            try:
                wait(tasks, return_when=FIRST_EXCEPTION)
            finally:
                if any(task.done() and task.exception() for task in tasks) or not all(
                    task.done() for task in tasks
                ):
                    self._counter.cancel()
        return _results(tasks)


def _results(tasks: list[Future[Loaded]]) -> list[Loaded]:
    """Return the results of all tasks; raise the first error that is not a cancellation."""
    errors = [error for task in tasks if (error := task.exception()) is not None]
    for error in errors:
        if not isinstance(error, TaskCancelled):
            raise error
    return [task.result() for task in tasks]


class _Counter:
    """Counts the records that the tasks read, and tells them to stop when one has failed."""

    def __init__(self, total: int, shown: Callable[[int, int], object]) -> None:
        self._total = total
        self._shown = shown
        self._lock = threading.Lock()
        self._done = 0
        self._cancelled = False

    def __call__(self, count: int) -> bool:
        with self._lock:
            self._done += count
            self._shown(self._done, max(self._total, self._done))
            return not self._cancelled

    def begin(self) -> None:
        """Begin a round, which is not cancelled even if the last one was."""
        self._cancelled = False

    def cancel(self) -> None:
        """Make every task stop at its next batch."""
        self._cancelled = True
