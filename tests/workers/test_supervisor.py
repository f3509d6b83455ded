"""`strandline run --workers`: workers are restarted, nothing is lost, and no process is left
behind."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest
from rich.console import Console

from strandline import changelog
from strandline.changelog.clock import SystemClock
from strandline.changelog.flight import endpoint as endpoints
from strandline.changelog.flight.background import ask_to_leave
from strandline.changelog.flight.serve import serve
from strandline.changelog.log import Log
from strandline.changelog.metrics import exposition
from strandline.framework.supervisor.backoff import Backoff
from strandline.framework.supervisor.logs import LogFiles
from strandline.framework.supervisor.metrics import Workers
from strandline.framework.supervisor.process import WorkerProcess
from strandline.framework.supervisor.report import RestoringStatus, WorkerReport
from strandline.framework.supervisor.reporter import Reporter
from strandline.framework.supervisor.slots import RecordRate, WorkerRow, worker_slots
from strandline.framework.supervisor.supervisor import Outcome, Supervisor
from strandline.framework.supervisor.view import LiveTable, SummaryView
from tests.metrics.scraping import parsed
from tests.systems import System
from tests.workers.pipeline import PARTITIONS
from tests.workers.processes import ROOT, Process, ending, is_alive
from tests.workers.running import TARGET, Eventually, RunningPipeline

on_a_folder = pytest.mark.parametrize("system", ["embedded"], indirect=True)
"""Mark for tests about the log's owner, or about things that do not depend on the log."""


class Supervised(RunningPipeline):
    """A supervisor as a process, its workers, and their log."""

    def start(self, *options: str, target: str = TARGET) -> Process:
        """Start the supervisor, and wait until it has the log."""
        return self.run(target, *options)


@pytest.fixture
def supervised(system: System, tmp_path: Path, eventually: Eventually) -> Iterator[Supervised]:
    made = Supervised(system, tmp_path, eventually)
    with ending(made.processes):
        yield made
        made.close()


def check(system: System) -> str:
    """Return the output of `strandline check` on the folder."""
    done = subprocess.run(
        [sys.executable, "-m", "strandline", "check", system.url],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return done.stdout + done.stderr


@pytest.mark.long_on_kafka
def test_a_killed_worker_is_started_again_and_a_signal_ends_all_in_order(
    supervised: Supervised, eventually: Eventually
) -> None:
    supervisor = supervised.start("--workers", "2")
    first, second = supervised.at_work(2)
    groups = {os.getpgid(pid) for pid in (supervisor.pid, first, second)}
    assert len(groups) == 3, "Ctrl-C in a terminal is the supervisor's alone"
    supervised.write(2_000)
    os.kill(first, signal.SIGKILL)
    supervised.write(2_000)
    pids = supervised.at_work(2, but=first)
    assert second in pids
    assert re.search(
        rf"worker \d \(pid {first}\) was killed by SIGKILL; it starts again in 0.\d s",
        supervised.text(),
    )
    eventually(supervised.all_right, what="all records counted once")
    supervised.close()  # otherwise this process would take the log over
    assert supervisor.end() == 0
    assert not any(map(is_alive, pids))
    assert re.search(r"\n1[12],\d{3} records handled in .* by 2 workers", supervised.text())
    if not supervised.system.is_kafka:
        said = check(supervised.system)
        assert "closed in order" in said
        assert "nothing is wrong" in said


@pytest.mark.long_on_kafka
def test_workers_end_in_order_when_their_supervisor_is_killed(
    supervised: Supervised, eventually: Eventually
) -> None:
    supervisor = supervised.start("--workers", "2")
    pids = supervised.at_work(2)
    supervised.write(3_000)
    supervised.close()
    supervisor.kill()
    eventually(lambda: not any(map(is_alive, pids)), what="the end of the workers")
    supervised.start("--workers", "2", "--until", "idle")
    eventually(lambda: not supervised.processes[-1].is_running, timeout=60, what="idle")
    assert supervised.all_right()


@pytest.mark.long
@on_a_folder  # the test above covers Kafka
def test_until_idle_ends_with_the_work_done_and_logs_in_files(
    supervised: Supervised, eventually: Eventually, tmp_path: Path
) -> None:
    supervised.write(2_000)
    supervised.close()
    logs = tmp_path / "logs"
    run = supervised.start("--workers", "2", "--until", "idle", "--json", "--log-dir", str(logs))
    eventually(lambda: not run.is_running, timeout=60, what="the end")
    assert run.end() == 0
    assert supervised.all_right()
    assert sorted(path.name for path in logs.iterdir()) == ["worker-0.log", "worker-1.log"]
    assert "[0]" not in supervised.text()
    assert "6,000 records handled" in supervised.text(), "2,000, each by three tasks"


@on_a_folder
def test_no_worker_makes_a_new_log_at_the_path_of_one_that_was_moved(
    supervised: Supervised, eventually: Eventually, tmp_path: Path
) -> None:
    supervised.start("--workers", "2")
    supervised.at_work(2)
    supervised.close()
    log = Path(supervised.system.url)
    log.rename(tmp_path / "moved")
    eventually(lambda: "nothing is made at its path" in supervised.text(), what="an error")
    assert not log.exists()


@pytest.mark.long_on_kafka
def test_each_second_is_a_line_of_json(supervised: Supervised, eventually: Eventually) -> None:
    supervised.start("--workers", "2", "--json", "--timeout", "60")
    supervised.at_work(2)  # otherwise the first might finish before the second has joined
    supervised.write(1_000)

    def last() -> dict[str, Any]:
        lines = [line for line in supervised.text().splitlines() if line.startswith("{")]
        found: dict[str, Any] = msgspec.json.decode(lines[-1]) if lines else {"workers": []}
        return found

    def all_shown() -> bool:
        workers = last()["workers"]
        return sum(worker["records"] for worker in workers) == 3_000 and all(
            worker["state"] == "running" and worker["commits"] > 0 for worker in workers
        )

    eventually(all_shown, timeout=60, what="all records, and commits of both, in a line")
    eventually(lambda: set(last()["lag"].values()) == {0}, what="no lag")
    shown = last()
    made = supervised.made
    assert (shown["app"], shown["records"]) == (made.app.name, 3_000)
    assert sorted(tp for worker in shown["workers"] for tp in worker["partitions"]) == sorted(
        f"{topic}-{n}" for topic in made.inputs for n in range(PARTITIONS)
    )
    assert {worker["pid"] for worker in shown["workers"]} == set(supervised.pids())
    assert shown["lag"].keys() == set(made.inputs)


@pytest.mark.long
@on_a_folder
def test_a_background_owner_gives_way_to_a_supervisor(
    supervised: Supervised, eventually: Eventually
) -> None:
    """Attached clients need not leave: they continue with the new owner."""
    with changelog.open(supervised.system.url, role="attach_or_spawn") as staying:
        staying.create_topic("ours")
        supervisor = supervised.start("--workers", "1")
        endpoint = endpoints.read(Path(supervised.system.url))
        assert endpoint is not None
        assert endpoint.pid == supervisor.pid
        assert "does not own" not in supervised.text()
        staying.append("ours", [{"value": b"after"}])
        assert staying.read("ours").column("value").to_pylist() == [b"after"]
        supervised.at_work(1)


def test_only_a_background_owner_is_asked_to_leave(tmp_path: Path) -> None:
    with changelog.open(tmp_path / "log", role="own"):
        assert not ask_to_leave(tmp_path / "log"), "and this process lives"
    assert not ask_to_leave(tmp_path / "log")


@pytest.fixture
def app_file(tmp_path: Path) -> Callable[[str], str]:
    """Function that writes an app with a handler of these lines. Returns the argument for `run`."""

    def write(handler: str, *, on_error: str = "fail", top: str = "") -> str:
        path = tmp_path / "some_app.py"
        path.write_text(
            textwrap.dedent(f"""
            import os
            import time
            import strandline as sl
            {top}
            app = sl.App("some", durability="os", commit_interval_ms=20)
            words = app.topic(os.environ.get("PREFIX", "") + "words", value=int, partitions=4)
            done = app.topic("done", value=int)

            @app.task(words, on_error={on_error!r})
            def handle(record):
                {handler}
            """)
        )
        return f"{path}:app"

    return write


def ran(folder: Path, target: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "strandline", "run", target, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.long
def test_an_app_that_cannot_be_imported_is_reported(
    tmp_path: Path, app_file: Callable[..., str]
) -> None:
    for target in ("nowhere.at_all:app", app_file("pass", top="1 / 0")):
        alone, together = ran(tmp_path, target), ran(tmp_path, target, "--workers", "2")
        assert together.returncode == alone.returncode == 1
        assert together.stderr.splitlines()[-1] == alone.stderr.splitlines()[-1]
    assert "ZeroDivisionError" in together.stderr
    refused = ran(tmp_path, app_file("pass"), "--workers", "2", "--count", "5")
    assert (refused.returncode, "--count is of one" in refused.stderr) == (2, True)
    assert ran(tmp_path, app_file("pass"), "--log-dir", "logs").returncode == 2
    assert not (tmp_path / "data").exists()


def test_a_crash_of_the_process_prints_its_stack(
    tmp_path: Path, app_file: Callable[..., str]
) -> None:
    crashed = ran(tmp_path, app_file("pass", top="import faulthandler; faulthandler._sigsegv()"))
    assert crashed.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in crashed.stderr
    assert "some_app.py" in crashed.stderr


@pytest.mark.long
def test_a_wrong_token_is_reported_once(tmp_path: Path, app_file: Callable[..., str]) -> None:
    served = serve(tmp_path / "log", listen="127.0.0.1:0", token="sixteen-or-more-characters")
    with contextlib.closing(served):
        log = ["--log", f"{served.url}?token=none-that-is-accepted"]
        run = ran(tmp_path, app_file("pass"), "--workers", "2", *log)
    assert run.returncode == 1
    assert run.stderr.count("does not accept this token") == 1
    assert "starts again" not in run.stderr
    assert f"runs on {served.url} in" in run.stderr
    assert "none-that-is-accepted" not in run.stderr


@pytest.mark.long
@on_a_folder
def test_a_handler_may_print_when_the_supervisor_is_gone(
    supervised: Supervised, eventually: Eventually, app_file: Callable[..., str]
) -> None:
    """Otherwise a task that skips failing records would skip those it could not print."""
    handler = "time.sleep(0.002); print('handling'); done.send(record.key, record.value)"
    target = app_file(handler, on_error="skip")
    supervised.write(1_000)  # this process has the log from now on
    supervisor = supervised.start("--workers", "1", target=target)
    assert re.search(
        rf"this supervisor does not own the log: .*pid {os.getpid()}", supervised.text()
    )
    eventually(lambda: "[0] handling" in supervised.text(), timeout=60, what="work")
    supervisor.kill()
    last = supervised.start("--workers", "1", "--until", "idle", target=target)
    eventually(lambda: not last.is_running, timeout=60, what="the rest")
    done = Log(supervised.made.app.broker()).to_polars("done")
    assert done.height == len(supervised.given)


# The supervisor in this process, with pauses that a test can wait for --------------------------


class Silent(SummaryView):
    """Keeps the lines of the view."""

    def __init__(self) -> None:
        super().__init__("some")
        self.told: list[str] = []

    def lines(self, lines: Any) -> None:
        self.told += lines


DEAF = """
import signal, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('deaf', flush=True)
threading.Event().wait()
"""


def supervise(
    *program: str, workers: int = 2, backoff: Backoff | None = None, **options: Any
) -> tuple[Outcome, list[str]]:
    """Supervise workers that run a program of these lines."""
    view = Silent()
    command = [sys.executable, "-c", "\n".join(program)]
    clock = SystemClock()
    slots = worker_slots(
        workers,
        lambda number: WorkerProcess(command, {**os.environ, "NUMBER": str(number)}),
        clock,
        backoff,
    )
    return Supervisor(slots, view, clock, **options).run(SimpleQueue()), view.told


def test_workers_that_die_at_once_are_restarted_ever_more_slowly_and_then_abandoned() -> None:
    outcome, told = supervise(
        "import sys; sys.exit('no such database')", backoff=Backoff(first=0.05)
    )
    assert "5 times in a row" in outcome.failure
    assert outcome.failure.endswith("ended with status 1, saying: no such database")
    said = [line for line in told if line.startswith("worker 0 ")]
    assert len(said) >= 4
    pauses = [float(line.split()[-2]) for line in said]
    assert pauses == sorted(pauses)


def test_the_state_of_workers_is_exported_as_metrics() -> None:
    seen = Workers("some", 2)
    supervise("import sys; sys.exit(3)", backoff=Backoff(first=0.01), note=seen.note)
    told = parsed(exposition(seen.metrics()))
    assert [
        told("strandline_workers", app="some", state=state)
        for state in ("wanted", "alive", "running")
    ] == [2, 0, 0]
    for worker in (0, 1):
        assert told("strandline_worker_restarts_total", app="some", worker=worker) >= 3
    assert told("strandline_workers_records_total", app="some") == 0


FAILING = """
import os, sys
from strandline.changelog.errors import InvalidConfig
from strandline.framework.supervisor.report import WorkerReport, encoded
from strandline.framework.supervisor.reporter import Reporter
with Reporter(int(sys.argv[-1])) as reporter:
    if FIRST and not os.path.exists(FIRST):
        open(FIRST, 'x').close()
        reporter._send(WorkerReport('running'))
        sys.exit(3)
    reporter.failed(InvalidConfig('no such setting'))
    sys.exit(1)
"""


def test_an_error_that_no_restart_can_fix_ends_all_workers_and_is_reported_once() -> None:
    outcome, told = supervise("FIRST = ''", FAILING, workers=3)
    assert outcome.failure == "InvalidConfig: no such setting"
    assert told == []


def test_the_same_error_is_retried_once_a_worker_has_run(tmp_path: Path) -> None:
    first = f"FIRST = {str(tmp_path / 'first')!r}"
    outcome, told = supervise(first, FAILING, workers=1, backoff=Backoff(first=0.01))
    assert "5 times in a row" in outcome.failure
    assert "ended with status 3; it starts again" in told[0]
    assert "saying: InvalidConfig: no such setting; it starts again" in told[1]


def test_the_last_line_of_a_worker_that_ends_is_quoted() -> None:
    def said(end: str) -> str:
        return supervise(
            "import os, sys",
            "print('handled 5 records', file=sys.stderr, flush=True)",
            end,
            workers=1,
            backoff=Backoff(first=0.01, give_up=1),
        )[0].failure

    assert said("os.kill(os.getpid(), 9)").endswith("was killed by SIGKILL")
    assert said("os.abort()").endswith("was killed by SIGABRT, saying: handled 5 records")


def test_a_running_worker_keeps_the_others_from_being_abandoned() -> None:
    outcome, told = supervise(
        "import os, sys, time",
        "time.sleep(30) if os.environ['NUMBER'] == '0' else sys.exit(3)",
        backoff=Backoff(first=0.01, longest=0.01),
        timeout=3.0,
    )
    # A worker may be about to die when the time is over, and is reported then.
    assert outcome.failure == "" or outcome.failure.endswith("ended with status 3")
    assert sum("worker 1 " in line for line in told) > 5


def test_a_worker_that_does_not_leave_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.framework.supervisor.supervisor.LEAVE_SECONDS", 0.3)
    outcome, told = supervise(DEAF, workers=1, timeout=2.0)
    assert "was killed by SIGKILL" in outcome.failure
    assert any("has not left within 0.3 s; it is killed" in line for line in told)
    assert "[0] deaf" in told


def test_a_second_signal_kills_them_unless_it_comes_with_the_first() -> None:
    came: SimpleQueue[int] = SimpleQueue()
    shown = 0

    class Pressing(Silent):
        every = 0.25

        def show(self, rows: Any) -> None:
            nonlocal shown
            shown += 1
            came.put(signal.SIGINT)

    command = [sys.executable, "-c", DEAF]
    start = partial(WorkerProcess, command, os.environ)
    clock = SystemClock()
    slots = worker_slots(1, lambda _: start(), clock)
    outcome = Supervisor(slots, Pressing(), clock).run(came)
    assert outcome.killed
    assert shown >= 4, "the first and those within a second are one"


def test_a_program_that_cannot_be_started_is_reported() -> None:
    clock = SystemClock()
    start = partial(WorkerProcess, ["/nowhere/at/all"], {})
    slots = worker_slots(1, lambda _: start(), clock, Backoff(first=0.01))
    outcome = Supervisor(slots, Silent(), clock).run(SimpleQueue())
    assert "worker 0 cannot be started: No such file or directory" in outcome.failure


def test_a_worker_whose_handler_never_returns_does_not_outlive_its_supervisor(
    eventually: Eventually, tmp_path: Path
) -> None:
    program = (
        "import logging, sys, threading; from strandline.framework.supervisor import reporter",
        f"logging.basicConfig(filename={str(tmp_path / 'its.log')!r})",
        "reporter.ORPHAN_SECONDS = 0.2",
        "with reporter.Reporter(int(sys.argv[-1])): threading.Event().wait()",
    )
    command = [sys.executable, "-c", "\n".join(program)]
    process = WorkerProcess(command, {**os.environ, "PYTHONPATH": str(ROOT)})
    eventually(process.reports.read_available, what="a report")
    process.reports.close()  # as when the supervisor is gone
    eventually(lambda: process.status is not None, what="its end")
    assert process.status == 70
    (line,) = (tmp_path / "its.log").read_text().splitlines()
    assert f"supervisor of this worker, pid {os.getpid()}, is gone; it commits and ends" in line
    process.close()


def test_a_stopped_supervisor_does_not_block_its_workers() -> None:
    supervisors, workers = socket.socketpair()
    workers.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    ended = threading.Event()

    def work() -> None:
        reporter = Reporter(workers.detach())
        for _ in range(10_000):
            assert reporter._send(WorkerReport())
        ended.set()

    threading.Thread(target=work, daemon=True).start()
    assert ended.wait(30)
    supervisors.close()


# Display ---------------------------------------------------------------------------------------

ROWS = [
    WorkerRow(0, 41, "running", ("sales-0", "sales-2"), 1_200, 240.4, 9, {"sales": 3}, 0, None),
    WorkerRow(
        1, 42, "restoring", ("sales-1",), 300, 0.0, 2, {"sales": 4}, 2, RestoringStatus(10, 90)
    ),
    WorkerRow(2, None, "starts in 4 s", (), 0, 0.0, 0, {}, 5, None),
]


def test_the_table_shows_each_worker_and_the_lines_stay_above() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    table = LiveTable("shop", console)
    table.show(ROWS)
    table.lines(["[1] [bold]as it is[/bold] :smile:"])
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "app shop: 1,500 records, 240 a second, lag sales 7" in said
    for row in (
        r"0 +41 +running +2 +240 +3 +0",
        r"1 +42 +restoring 10 of 100 +1 +0 +4 +2",
        r"2 +– +starts in 4 s +0 +0 +0 +5",
    ):
        assert re.search(row, said), said
    assert "[1] [bold]as it is[/bold] :smile:" in said
    table.close()


def test_without_a_terminal_the_summary_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    SummaryView("shop").show(ROWS)
    said = (
        "app shop: 1 of 3 workers running, 1 restoring, 1 starts in 4 s, 1,500 records, 240 a "
        "second, lag sales 7\n"
    )
    assert capsys.readouterr().err == said


def test_a_log_that_does_not_answer_is_shown_without_a_lag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    silent = [
        WorkerRow(n, 41 + n, "waiting for the log", (), 0, 0.0, 0, {}, 0, None, 12.0)
        for n in range(2)
    ]
    SummaryView("shop").show(silent)
    SummaryView("shop").show([ROWS[0], silent[0]])
    waiting, one = capsys.readouterr().err.splitlines()
    assert "0 of 2 workers running, 2 waiting for the log (12 s), " in waiting
    assert waiting.endswith("lag not known for 12 s")
    assert "1 of 2 workers running, 1 waiting for the log (12 s), " in one
    assert one.endswith("lag not known for 12 s")
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    table = LiveTable("shop", console)
    table.show(silent)
    assert re.search(r"42 +waiting for the log \(12 s\) +0 +0 +– ", console.file.getvalue())  # type: ignore[attr-defined]
    table.close()


def test_a_log_file_is_rotated_and_one_old_file_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.framework.supervisor.logs.FILE_BYTES", 1_000)
    files = LogFiles(tmp_path / "logs", 1)
    for number in range(100):
        files.take(0, [f"line {number} of 100 %s"])
    files.close()
    kept = sorted((tmp_path / "logs").iterdir())
    assert [path.name for path in kept] == ["worker-0.log", "worker-0.log.1"]
    assert all(path.stat().st_size <= 1_000 for path in kept)
    assert kept[0].read_text().endswith("line 99 of 100 %s\n")


def test_a_rate_is_that_of_the_last_seconds() -> None:
    rate = RecordRate()
    for second in range(10):
        rate.note(second, 1_000 * second)
    assert rate.at(9) == 5_000 / 5
    rate.note(12, 9_000)
    assert 0 < rate.at(13) < 1_000
    assert rate.at(60) == 0
