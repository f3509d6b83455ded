"""One of the supervisor's N workers: the process in it now, and what became of those before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from strandline.changelog.clock import Clock
from strandline.framework.supervisor.backoff import Backoff
from strandline.framework.supervisor.process import WorkerProcess, ending
from strandline.framework.supervisor.report import RestoringStatus, WorkerReport, decoded

RATE_SECONDS = 5.0
"""Over how long records a second are counted."""

Start = Callable[[int], WorkerProcess]
"""Starts the process of worker n."""


class WorkerRow(msgspec.Struct, frozen=True):
    """What is shown of a worker."""

    worker: int
    pid: int | None
    state: str
    partitions: tuple[str, ...]
    records: int
    """Handled and committed, by all processes that it had."""
    records_per_s: float
    commits: int
    lag: dict[str, int]
    restarts: int
    restoring: RestoringStatus | None
    silent_s: float = 0.0
    """For how long the log has not answered it; its lag is not known then."""


def lag_of(rows: Sequence[WorkerRow]) -> dict[str, int]:
    """What all workers together are behind, by topic."""
    total: dict[str, int] = {}
    for row in rows:
        for topic, lag in row.lag.items():
            total[topic] = total.get(topic, 0) + lag
    return dict(sorted(total.items()))


class WorkerSlot:
    """Worker `number`."""

    def __init__(self, number: int, start: Start, clock: Clock, backoff: Backoff) -> None:
        self.number = number
        self.process: WorkerProcess | None = None
        self.done = False
        """Whether its work is done, so that it is not started again."""
        self.has_run = False
        """Whether any of its processes has come so far."""
        self.error = ""
        """What its last process has ended with, if starting another does not mend that."""
        self._start = start
        self._clock = clock
        self._backoff = backoff
        self._begun = 0.0
        self._again = 0.0
        """When it is to be started (again)."""
        self._deaths = self._starts = 0
        self._report = WorkerReport()
        self._handled_before = self._commits_before = 0
        self._last_line = ""
        self._rate = RecordRate()

    # Life -----------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether a process is to be started."""
        waits = self._clock.monotonic() < self._again
        return self.process is None and not self.done and not waits

    @property
    def is_hopeless(self) -> bool:
        """Whether it is down, and has been again and again after a short life."""
        return self.process is None and self._deaths >= self._backoff.give_up

    def start(self) -> None:
        """Start a process. Raises OSError."""
        self._begun = self._clock.monotonic()
        self._starts += 1
        self.process = self._start(self.number)

    def bury(self, status: int) -> str:
        """Let go of the process, which has ended; how, in words."""
        process, self.process = self.process, None
        assert process is not None
        process.close()
        self._handled_before, self._commits_before = self.records, self.commits
        self.error, self._report = self._report.error, WorkerReport()
        last, self._last_line = self.error or self._last_line, ""
        return f"worker {self.number} (pid {process.pid}) {ending(status, last)}"

    def put_off(self) -> float:
        """Have it started again after a pause, the seconds of which are returned."""
        now = self._clock.monotonic()
        self._deaths = self._backoff.deaths_in_a_row(self._deaths, now - self._begun)
        chance = int(self._clock.new_id()[:8], 16) / 0xFFFFFFFF
        pause = self._backoff.pause(self._deaths, chance)
        self._again = now + pause
        return pause

    # What it says ---------------------------------------------------------------------

    def complained(self, lines: Sequence[str]) -> None:
        """Note lines of its standard error."""
        for line in lines:
            self._last_line = line.strip() or self._last_line

    def reported(self, lines: Sequence[str]) -> None:
        """Note reports."""
        for line in lines:
            self._report = decoded(line) or self._report
            self.has_run |= self._report.state == "running"
            self._rate.note(self._clock.monotonic(), self.records)

    # Figures --------------------------------------------------------------------------

    @property
    def records(self) -> int:
        return self._handled_before + self._report.handled

    @property
    def commits(self) -> int:
        return self._commits_before + self._report.commits

    def row(self) -> WorkerRow:
        """What is to be shown now."""
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


class RecordRate:
    """Records a second, over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, now: float, records: int) -> None:
        """So many there were."""
        self._seen.append((now, records))

    def at(self, now: float) -> float:
        while self._seen and now - self._seen[0][0] > RATE_SECONDS:
            self._seen.popleft()
        if not self._seen or now <= self._seen[0][0]:
            return 0.0
        (since, before), (_, records) = self._seen[0], self._seen[-1]
        return max(0, records - before) / (now - since)
