"""How far the restore of a worker's stores has come, several at once, and how that is shown."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from strandline.changelog.clock import Clock
from strandline.changelog.records import TopicPartition
from strandline.statestore.restore import ReplayProgress


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """How far the restore of all stores has come."""

    records: int
    """Replayed so far, over all stores."""
    remaining: int
    """Still to come; known for the stores that have begun."""
    partitions: int
    """Of how many store partitions."""
    seconds: float
    done: bool = False

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.seconds if self.seconds > 0 else 0.0


OnRestore = Callable[[RestoreProgress], None]


class RestoreMonitor:
    """Adds up how far the stores of a worker have come, from several threads, and tells of it.

    One restore is all that is under way at a time, whenever it was begun: `done` is told when
    nothing is left. Whoever is told is not told two things at once.
    """

    def __init__(self, clock: Clock, on_restore: OnRestore | None) -> None:
        self._clock = clock
        self._on_restore = on_restore
        self._telling = threading.Lock()
        self._lock = threading.Lock()
        """Of what follows; not held while somebody is told, who may ask for `remaining`."""
        self._units = 0
        self._partitions = 0
        self._begun: float | None = None
        self._latest: dict[TopicPartition, ReplayProgress] = {}

    @property
    def remaining(self) -> int:
        """Offsets that are still to be replayed."""
        with self._lock:
            return self._sum().remaining if self._units else 0

    def add(self, partitions: int) -> None:
        """One more unit, of so many partitions of stores."""
        with self._lock:
            if not self._units:
                self._partitions, self._begun, self._latest = 0, None, {}
            self._units += 1
            self._partitions += partitions

    def report(self, progress: ReplayProgress) -> None:
        """How far one of the stores has come."""
        with self._lock:
            self._latest[progress.partition] = progress
            if self._begun is None:
                self._begun = self._clock.monotonic() - progress.seconds
        with self._telling:
            with self._lock:
                total = self._sum()
            self._tell(total)

    def ended(self, not_back: Collection[TopicPartition] = ()) -> RestoreProgress | None:
        """A unit is back, but for these; what there was in all, if it is the last."""
        with self._telling:
            with self._lock:
                self._units -= 1
                self._partitions -= len(not_back)
                for changelog in not_back:
                    self._latest.pop(changelog, None)
                if self._units:
                    return None
                total = self._sum(done=True)
            self._tell(total)
            return total

    def _tell(self, progress: RestoreProgress) -> None:
        if self._on_restore is not None:
            self._on_restore(progress)

    def _sum(self, done: bool = False) -> RestoreProgress:
        latest = self._latest.values()
        return RestoreProgress(
            sum(progress.records for progress in latest),
            sum(progress.remaining for progress in latest),
            self._partitions,
            0.0 if self._begun is None else self._clock.monotonic() - self._begun,
            done,
        )


class RestoreBar:
    """Draws a bar with records, rate and time left on standard error, if that is a terminal.

    A restore that is over before `after_seconds` draws none.
    """

    def __init__(self, after_seconds: float = 0.5) -> None:
        self._after_seconds = after_seconds
        self._shown: Any = None
        self._task: Any = None

    def __call__(self, progress: RestoreProgress) -> None:
        if self._shown is None:
            early = progress.done or progress.seconds < self._after_seconds
            if early or not sys.stderr.isatty():
                return
            self._show(progress.partitions)
        total = progress.records + progress.remaining
        self._shown.update(
            self._task, completed=progress.records, total=total, rate=f"{progress.rate:,.0f}/s"
        )
        if progress.done:
            self._shown.stop()
            self._shown = None

    def _show(self, partitions: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._shown = Progress(
            TextColumn(f"restoring {partitions} store partitions", markup=False),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} records", markup=False),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeRemainingColumn(),
            console=Console(stderr=True, markup=False, highlight=False, emoji=False),
        )
        self._task = self._shown.add_task("restore", rate="")
        self._shown.start()
