"""Progress of restoring a worker's stores, over all restores at once, and a bar that shows it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from strandline.changelog.clock import Clock
from strandline.changelog.records import TopicPartition
from strandline.statestore.replay import ReplayProgress


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """Progress of restoring all stores of a worker."""

    records: int
    """Number of records replayed so far, over all stores."""
    remaining: int
    """Number of offsets still to replay, over the stores whose restore has begun."""
    partitions: int
    """Number of store partitions in the restore."""
    seconds: float
    """Seconds since the first replay began."""
    done: bool = False
    """True in the last report of a restore."""

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.seconds if self.seconds > 0 else 0.0


OnRestore = Callable[[RestoreProgress], None]
"""Callback for the progress of a restore."""


class RestoreMonitor:
    """Sums up the progress of restores on several threads and reports it to a callback.

    Thread-safe. All restores that overlap count as one: `done` is reported when the last has ended.
    The callback is never called by two threads at once.
    """

    def __init__(self, clock: Clock, on_restore: OnRestore | None) -> None:
        self._clock = clock
        self._on_restore = on_restore
        self._reporting = threading.Lock()
        """Held while the callback runs. It is taken before `_lock`."""
        self._lock = threading.Lock()
        """Guards the attributes below. Not held during the callback, which may read `remaining`."""
        self._restores = 0
        """Number of restores under way."""
        self._partitions = 0
        """Number of store partitions in them."""
        self._begun: float | None = None
        """Monotonic time in seconds at which the first replay began."""
        self._latest: dict[TopicPartition, ReplayProgress] = {}
        """Latest progress of each changelog partition."""

    @property
    def remaining(self) -> int:
        """Number of offsets that are still to be replayed."""
        with self._lock:
            return self._sum().remaining if self._restores else 0

    def add(self, partitions: int) -> None:
        """Add a restore of this many store partitions."""
        with self._lock:
            if not self._restores:
                self._partitions, self._begun, self._latest = 0, None, {}
            self._restores += 1
            self._partitions += partitions

    def report(self, progress: ReplayProgress) -> None:
        """Note the progress of one store, and report the sum to the callback."""
        with self._lock:
            self._latest[progress.partition] = progress
            if self._begun is None:
                self._begun = self._clock.monotonic() - progress.seconds
        with self._reporting:
            with self._lock:
                total = self._sum()
            self._call_back(total)

    def ended(self, failed: Collection[TopicPartition] = ()) -> RestoreProgress | None:
        """Note the end of a restore.

        Args:
            failed: Changelog partitions of stores that were not restored.

        Returns:
            The total of all overlapping restores if this was the last one; else None.
        """
        with self._reporting:
            with self._lock:
                self._restores -= 1
                self._partitions -= len(failed)
                for changelog in failed:
                    self._latest.pop(changelog, None)
                if self._restores:
                    return None
                total = self._sum(done=True)
            self._call_back(total)
            return total

    def _call_back(self, progress: RestoreProgress) -> None:
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
    """Draws a progress bar with records, rate and time left on standard error, if it is a terminal.

    No bar is drawn for a restore that ends within `after_seconds`.
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
