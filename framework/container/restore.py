"""Restoring the stores of a worker, several at once, with progress to show."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from changelog.broker import Broker
from changelog.records import TopicPartition
from statestore.restore import Progress, restore_all
from statestore.store import PartitionStore


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


def restore_stores(
    stores: Sequence[tuple[PartitionStore[Any, Any], TopicPartition]],
    broker: Broker,
    *,
    threads: int,
    on_restore: OnRestore | None = None,
) -> RestoreProgress:
    """Bring stores up to the ends of their changelog partitions, which stand beside them."""
    total = _Total(len(stores), on_restore)
    if stores:
        restore_all(stores, broker, total.report, threads=threads)
    return total.finish()


class _Total:
    """Adds up what the stores report, from several threads."""

    def __init__(self, partitions: int, on_restore: OnRestore | None) -> None:
        self._partitions = partitions
        self._on_restore = on_restore
        self._lock = threading.Lock()
        self._latest: dict[TopicPartition, Progress] = {}

    def report(self, progress: Progress) -> None:
        with self._lock:
            self._latest[progress.partition] = progress
            if self._on_restore is not None:
                self._on_restore(self._sum())

    def finish(self) -> RestoreProgress:
        with self._lock:
            total = self._sum(done=True)
            if self._on_restore is not None:
                self._on_restore(total)
            return total

    def _sum(self, done: bool = False) -> RestoreProgress:
        latest = self._latest.values()
        return RestoreProgress(
            sum(progress.records for progress in latest),
            sum(progress.remaining for progress in latest),
            self._partitions,
            max((progress.seconds for progress in latest), default=0.0),
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
            TextColumn(f"restoring {partitions} store partitions"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} records"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._shown.add_task("restore", rate="")
        self._shown.start()
