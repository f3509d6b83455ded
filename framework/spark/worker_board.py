"""The workers of a Spark job as the driver knows them: connections, totals, failures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from strandline.changelog.clock import Clock
from strandline.framework.spark.slot_messages import SlotEnd, SlotHello
from strandline.framework.supervisor.slots import WorkerRow

LATE_S = 5.0
"""Seconds without a report after which a connected worker is shown as silent."""
SLOW_S = 15.0
"""Seconds without a slot after which it is reported that a worker waits for one."""
REPEAT_S = 60.0
"""Seconds after which that is reported again."""


@dataclass
class _WorkerAttempt:
    """One attempt of Spark at a worker's task."""

    row: WorkerRow
    seen_at: float
    is_connected: bool = True


@dataclass
class _Worker:
    """One of the job's workers."""

    number: int
    waits_since: float
    """Monotonic time since which it has had no slot."""
    attempts: dict[object, _WorkerAttempt] = field(default_factory=dict)
    """Attempts that are connected, and the last one, by their connections, in order."""
    records: int = 0
    """Number of records of attempts that are over and forgotten."""
    commits: int = 0
    begun: int = 0
    """Number of attempts."""
    restarts: int = 0
    """Number of restarts within attempts that are over and forgotten."""
    failure: str = ""
    """Failure of its last attempt; "" if it runs, or has ended in order."""
    is_done: bool = False

    @property
    def is_connected(self) -> bool:
        """True if it has a slot."""
        return any(attempt.is_connected for attempt in self.attempts.values())

    def forget(self) -> None:
        """Add up the attempts that are over, except the last."""
        for link in list(self.attempts)[:-1]:
            if not self.attempts[link].is_connected:
                row = self.attempts.pop(link).row
                self.records += row.records
                self.commits += row.commits
                self.restarts += row.restarts


class WorkerBoard:
    """Status of all workers of a job, from the messages of their slots.

    A worker may have two connections for a while: an attempt that Spark has given up, and its
    successor. The later one is shown, and the records of both count.
    """

    def __init__(self, workers: int, clock: Clock) -> None:
        self._clock = clock
        self._workers = [_Worker(number, clock.monotonic()) for number in range(workers)]
        self._reported_at = clock.monotonic()
        self.has_run = False
        """True once any worker was in the state "running"."""

    # Messages -------------------------------------------------------------------------

    def joined(self, link: object, hello: SlotHello) -> bool:
        """Note a connection; return False if the job has no such worker."""
        if not 0 <= hello.worker < len(self._workers):
            return False
        worker = self._workers[hello.worker]
        row = WorkerRow(worker.number, None, "starting", (), 0, 0.0, 0, {}, 0, None)
        worker.attempts[link] = _WorkerAttempt(row, self._clock.monotonic())
        worker.begun += 1
        worker.is_done = False
        worker.forget()
        return True

    def reported(self, link: object, worker: int, row: WorkerRow) -> None:
        """Note a status report."""
        attempt = self._workers[worker].attempts.get(link)
        if attempt is not None:
            attempt.row, attempt.seen_at = row, self._clock.monotonic()
        if row.state == "running":
            self.has_run = True
            self._workers[worker].failure = ""

    def ended(self, worker: int, end: SlotEnd) -> None:
        """Note the result of an attempt."""
        self._workers[worker].failure = end.failure
        self._workers[worker].is_done = not end.failure

    def left(self, link: object, worker: int) -> None:
        """Note the end of a connection."""
        found = self._workers[worker]
        if (attempt := found.attempts.get(link)) is not None:
            attempt.is_connected = False
            found.forget()
        if not found.is_connected:
            found.waits_since = self._clock.monotonic()

    # Conclusions ----------------------------------------------------------------------

    @property
    def are_hopeless(self) -> str:
        """Failure of the last worker if every worker's last attempt has failed; else ""."""
        failures = [worker.failure for worker in self._workers]
        return failures[-1] if all(failures) else ""

    @property
    def records(self) -> int:
        """Number of records handled and committed by all attempts."""
        return sum(row.records for row in self.rows())

    @property
    def were_ever_connected(self) -> bool:
        """True once any worker had a slot."""
        return any(worker.begun for worker in self._workers)

    def waiting(self) -> list[int]:
        """Return the workers that have waited for a slot for long, once a minute."""
        now = self._clock.monotonic()
        late = [w.number for w in self._absent() if now - w.waits_since >= SLOW_S]
        if not late or now < self._reported_at:
            return []
        self._reported_at = now + REPEAT_S
        return late

    def _absent(self) -> Iterator[_Worker]:
        return (w for w in self._workers if not w.is_connected and not w.is_done)

    # Rows -----------------------------------------------------------------------------

    def rows(self) -> list[WorkerRow]:
        """Return the current status of each worker."""
        return [self._row(worker) for worker in self._workers]

    def _row(self, worker: _Worker) -> WorkerRow:
        if not worker.attempts:
            state = "waiting for a slot"
            return WorkerRow(worker.number, None, state, (), 0, 0.0, 0, {}, 0, None)
        attempts = list(worker.attempts.values())
        last, others = attempts[-1], attempts[:-1]
        shown = replace(
            last.row,
            records=worker.records + last.row.records + sum(a.row.records for a in others),
            commits=worker.commits + last.row.commits + sum(a.row.commits for a in others),
            restarts=worker.restarts
            + sum(a.row.restarts for a in attempts)
            + max(0, worker.begun - 1),
        )
        return self._of_the_absent(shown, worker, last)

    def _of_the_absent(self, row: WorkerRow, worker: _Worker, last: _WorkerAttempt) -> WorkerRow:
        now = self._clock.monotonic()
        if worker.is_done:
            return replace(row, pid=None, state="ended", records_per_s=0.0)
        if not last.is_connected:
            return replace(
                row,
                state="lost, starting again",
                pid=None,
                partitions=(),
                records_per_s=0.0,
                lag={},
                restoring=None,
            )
        if now - last.seen_at >= LATE_S:
            return replace(row, state=f"silent for {now - last.seen_at:.0f} s")
        return row
