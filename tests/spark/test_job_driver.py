"""The driver of a Spark job: it ends for the right reason, and after its workers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any, Self

import pytest

from strandline.changelog.clock import SystemClock
from strandline.changelog.hosts import HostPort
from strandline.framework.spark import job_driver
from strandline.framework.spark.job_driver import JobDriver, WorkersRun
from strandline.framework.spark.slot_link import DriverLink
from strandline.framework.spark.slot_listener import SlotListener
from strandline.framework.spark.slot_messages import SlotEnd
from strandline.framework.supervisor.slots import WorkerRow
from strandline.framework.supervisor.supervisor import Outcome

Eventually = Callable[..., None]


class FakeJob:
    """A Spark job whose tasks are the links of a test."""

    def __init__(self) -> None:
        self.failure = ""
        self.is_over = False
        self.failures: list[str] = []
        self.failed_tasks = 0
        self.was_cancelled = False

    def new_failures(self) -> list[str]:
        found, self.failures = self.failures, []
        self.failed_tasks += len(found)
        return found

    def cancel(self, seconds: float) -> None:
        del seconds
        self.was_cancelled = True


class Lines:
    """View that keeps its lines."""

    every = 0.2

    def __init__(self) -> None:
        self.found: list[str] = []
        self.shown: list[Sequence[WorkerRow]] = []
        self.is_closed = False

    def show(self, rows: Sequence[WorkerRow]) -> None:
        self.shown.append(rows)

    def lines(self, lines: Sequence[str]) -> None:
        self.found += lines

    def close(self) -> None:
        self.is_closed = True


class Driven:
    """A driver in a thread, with its slots."""

    def __init__(self, workers: int, stack: ExitStack, **limits: Any) -> None:
        self.listener = SlotListener("127.0.0.1", 0, "secret", workers)
        self.job, self.view = FakeJob(), Lines()
        self.received: SimpleQueue[int] = SimpleQueue()
        self.outcome: Outcome | None = None
        described = WorkersRun("shop", "shop:app", None, view=self.view, **limits)
        self.driver = JobDriver(described, self.listener, self.job, workers, SystemClock())
        self._stack = stack
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.listener.close()

    def _run(self) -> None:
        self.outcome = self.driver.run(self.received)

    def slot(self, worker: int) -> DriverLink:
        """Connect a slot, until the end of the test."""
        driver = HostPort("127.0.0.1", self.listener.port)
        link = DriverLink.connected(driver, "secret", worker, 0, "here")
        return self._stack.enter_context(link)

    def ended(self) -> Outcome:
        self._thread.join(30)
        assert self.outcome is not None
        assert self.view.is_closed
        assert self.job.was_cancelled
        return self.outcome


@pytest.fixture
def driven() -> Iterator[Callable[..., Driven]]:
    """Function that starts a driver for so many workers."""
    with ExitStack() as stack:
        yield lambda workers, **limits: stack.enter_context(Driven(workers, stack, **limits))


Drive = Callable[..., Driven]


def row(worker: int, state: str, records: int = 0) -> WorkerRow:
    return WorkerRow(worker, 7, state, (), records, 0.0, 0, {}, 0, None)


def end(link: DriverLink, worker: int, failure: str = "", *, permanent: bool = False) -> None:
    """End a slot as its task does."""
    state = "starting" if permanent else "running"
    link.end(row(worker, state, 3), SlotEnd(3, failure, permanent))
    link.__exit__()


def test_a_signal_ends_all_slots_and_then_the_job(driven: Drive) -> None:
    made = driven(2)
    links = [made.slot(0), made.slot(1)]
    made.received.put(signal.SIGTERM)
    for worker, link in enumerate(links):
        assert link.is_stopped(within_s=30)
        end(link, worker)
    assert made.ended() == Outcome(6)
    assert sorted(line for line in made.view.found if "has a slot" in line) == [
        "worker 0 has a slot on here",
        "worker 1 has a slot on here",
    ]


def test_a_timeout_does_the_same(driven: Drive) -> None:
    made = driven(1, timeout=0.3)
    link = made.slot(0)
    assert link.is_stopped(within_s=30)
    end(link, 0)
    assert made.ended() == Outcome(3)


def test_a_job_whose_tasks_have_no_slot_is_cancelled(driven: Drive) -> None:
    made = driven(2)
    made.received.put(signal.SIGINT)
    assert made.ended() == Outcome(0)


def test_a_second_signal_after_a_while_does_not_wait_for_slots(
    driven: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_driver, "IMPATIENT_SECONDS", 0.0)
    monkeypatch.setattr(job_driver, "SPARE_S", 0.2)
    made = driven(1)
    link = made.slot(0)
    made.received.put(signal.SIGTERM)
    assert link.is_stopped(within_s=30)
    made.received.put(signal.SIGTERM)
    assert link.is_stopped(within_s=30)
    assert made.ended() == Outcome(0, killed=True)


def test_slots_that_do_not_answer_are_given_up(
    driven: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_driver, "LEAVE_SECONDS", 0.1)
    monkeypatch.setattr(job_driver, "SPARE_S", 0.1)
    made = driven(1)
    link = made.slot(0)
    made.received.put(signal.SIGTERM)
    assert link.is_stopped(within_s=30)
    assert made.ended().failure == "1 workers have not reported that they have left"


def test_a_worker_that_does_not_leave_in_order_is_a_failure(driven: Drive) -> None:
    made = driven(1)
    link = made.slot(0)
    made.received.put(signal.SIGTERM)
    assert link.is_stopped(within_s=30)
    end(link, 0, "worker 0 (pid 7) was killed by SIGKILL")
    assert made.ended().failure == "worker 0 (pid 7) was killed by SIGKILL (on here)"


def test_a_permanent_error_before_any_worker_has_run_ends_all(driven: Drive) -> None:
    made = driven(2)
    first, second = made.slot(0), made.slot(1)
    end(first, 0, "InvalidConfig: no module", permanent=True)
    assert second.is_stopped(within_s=30)
    end(second, 1)
    assert made.ended().failure.startswith("InvalidConfig: no module (on here); executors import")


def test_the_same_error_later_is_left_to_spark(driven: Drive, eventually: Eventually) -> None:
    made = driven(2)
    first, second = made.slot(0), made.slot(1)
    second.status([row(1, "running")])
    eventually(lambda: any(r[1].state == "running" for r in made.view.shown), what="a report")
    end(first, 0, "InvalidConfig: no module", permanent=True)
    eventually(lambda: made.view.shown[-1][0].state == "lost, starting again", what="a loss")
    assert not second.is_stopped(within_s=0.1)
    made.received.put(signal.SIGTERM)
    assert second.is_stopped(within_s=30)
    end(second, 1)
    assert made.ended() == Outcome(6)


def test_a_job_ends_when_no_worker_can_be_kept_alive(driven: Drive) -> None:
    made = driven(2)
    for worker, link in enumerate([made.slot(0), made.slot(1)]):
        end(link, worker, f"every worker {worker} died")
    assert made.ended().failure.startswith("every worker ")


def test_tasks_that_fail_without_a_slot_end_the_job_with_their_reason(driven: Drive) -> None:
    made = driven(1)
    made.job.failures += ["attempt 0: no Strandline"] * 3
    made.job.failures.append("attempt 3: no Strandline")
    assert made.ended().failure == "attempt 3: no Strandline"


def test_an_end_of_the_job_by_spark_is_a_failure(driven: Drive) -> None:
    made = driven(1)
    made.slot(0)
    made.job.failure, made.job.is_over = "Job 0 was cancelled", True
    assert made.ended().failure == "Job 0 was cancelled"


def test_more_workers_than_slots_of_this_machine_are_reported_at_once(driven: Drive) -> None:
    made = driven(3)
    made.driver.note_slots("local[2,1000]", 1)
    made.received.put(signal.SIGTERM)
    made.ended()
    assert made.view.found[0].startswith("3 workers, but local[2,1000] has slots for 2: the others")
