"""One of the supervisor's N workers: its current process, and totals over its former ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from strandline.changelog.clock import Clock
from strandline.framework.supervisor.backoff import Backoff
from strandline.framework.supervisor.process import WorkerProcess, ending
from strandline.framework.supervisor.report import RestoringStatus, WorkerReport, decoded

RATE_SECONDS = 5.0
"""Length in seconds of the window over which records per second are measured."""

Start = Callable[[int], WorkerProcess]
"""Starts the process of worker n."""


class WorkerRow(msgspec.Struct, frozen=True):
    """Status of a worker for views and metrics."""

    worker: int
    """Number of the worker, from 0."""
    pid: int | None
    """Process id; None if no process runs."""
    state: str
    partitions: tuple[str, ...]
    """Owned input partitions, such as `orders-3`."""
    records: int
    """Number of records handled and committed by all processes of the worker."""
    records_per_s: float
    commits: int
    """Number of commits by all processes of the worker."""
    lag: dict[str, int]
    """Offsets from the worker's commits to the last stable offset, by input topic."""
    restarts: int
    restoring: RestoringStatus | None
    silent_s: float = 0.0
    """Seconds for which the log has not answered; 0 if it answers. Otherwise the lag is unknown."""


def lag_of(rows: Sequence[WorkerRow]) -> dict[str, int]:
    """Return the total lag of all workers by topic."""
    total: dict[str, int] = {}
    for row in rows:
        for topic, lag in row.lag.items():
            total[topic] = total.get(topic, 0) + lag
    return dict(sorted(total.items()))


class WorkerSlot:
    """One of N workers, by number: its process, its restarts and its totals."""

    def __init__(self, number: int, start: Start, clock: Clock, backoff: Backoff) -> None:
        self.number = number
        self.process: WorkerProcess | None = None
        self.done = False
        """True if its work is done, so that it is not restarted."""
        self.has_run = False
        """True once any of its processes was in the state "running"."""
        self.error = ""
        """Error of its last process that a restart does not fix; "" if there is none."""
        self._start = start
        self._clock = clock
        self._backoff = backoff
        self._begun = 0.0
        self._again = 0.0
        """Monotonic time from which on it may be started."""
        self._deaths = self._starts = 0
        self._report = WorkerReport()
        self._handled_before = self._commits_before = 0
        self._last_line = ""
        self._rate = RecordRate()

    # Life -----------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """True if a process must be started now."""
        waits = self._clock.monotonic() < self._again
        return self.process is None and not self.done and not waits

    @property
    def give_up(self) -> int:
        """Number of quick deaths in a row after which it is hopeless."""
        return self._backoff.give_up

    @property
    def is_hopeless(self) -> bool:
        """True if no process runs and the last ones all died soon after their start."""
        return self.process is None and self._deaths >= self._backoff.give_up

    def start(self) -> None:
        """Start a process. Raises OSError, FolderLost."""
        self._begun = self._clock.monotonic()
        self._starts += 1
        self.process = self._start(self.number)

    def reap(self, status: int) -> str:
        """Release the process, which has ended with `status`; return a description of its end."""
        process, self.process = self.process, None
        assert process is not None
        process.close()
        self._handled_before, self._commits_before = self.records, self.commits
        self.error, self._report = self._report.error, WorkerReport()
        last, self._last_line = self.error or self._last_line, ""
        return f"worker {self.number} (pid {process.pid}) {ending(status, last)}"

    def schedule_restart(self) -> float:
        """Schedule a restart after a pause, and return the pause in seconds."""
        now = self._clock.monotonic()
        self._deaths = self._backoff.deaths_in_a_row(self._deaths, now - self._begun)
        chance = int(self._clock.new_id()[:8], 16) / 0xFFFFFFFF
        pause = self._backoff.pause(self._deaths, chance)
        self._again = now + pause
        return pause

    # Output of the process ------------------------------------------------------------

    def note_stderr(self, lines: Sequence[str]) -> None:
        """Record lines of its standard error."""
        for line in lines:
            self._last_line = line.strip() or self._last_line

    def note_reports(self, lines: Sequence[str]) -> None:
        """Record its reports."""
        for line in lines:
            self._report = decoded(line) or self._report
            self.has_run |= self._report.state == "running"
            self._rate.note(self._clock.monotonic(), self.records)

    # Figures --------------------------------------------------------------------------

    @property
    def records(self) -> int:
        """Number of records handled and committed by all its processes."""
        return self._handled_before + self._report.handled

    @property
    def commits(self) -> int:
        """Number of commits by all its processes."""
        return self._commits_before + self._report.commits

    def row(self) -> WorkerRow:
        """Return its current status."""
        process, report = self.process, self._report
        return WorkerRow(
            self.number,
            process.pid if process is not None else None,
            self._state,
            report.partitions,
            self.records,
            self._rate.at(self._clock.monotonic()),
            self.commits,
            report.lag,
            max(0, self._starts - 1),
            report.restoring,
            report.silent,
        )

    @property
    def _state(self) -> str:
        if self.done:
            return "ended"
        if self.process is not None:
            return self._report.state
        return f"starts in {max(0.0, self._again - self._clock.monotonic()):.0f} s"


def worker_slots(
    workers: int, start: Start, clock: Clock, backoff: Backoff | None = None
) -> list[WorkerSlot]:
    """Return the slots of so many workers; without `backoff` they have its defaults."""
    backoff = backoff or Backoff()
    return [WorkerSlot(number, start, clock, backoff) for number in range(workers)]


class RecordRate:
    """Records per second over the last RATE_SECONDS."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, now: float, records: int) -> None:
        """Record the total number of records at a time."""
        self._seen.append((now, records))

    def at(self, now: float) -> float:
        """Return the records per second at a time; 0 if it is not known."""
        while self._seen and now - self._seen[0][0] > RATE_SECONDS:
            self._seen.popleft()
        if not self._seen or now <= self._seen[0][0]:
            return 0.0
        (since, before), (_, records) = self._seen[0], self._seen[-1]
        return max(0, records - before) / (now - since)
