"""The body of a Spark task that runs a worker, without Spark: what the driver sees and decides."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strandline.changelog.clock import ManualClock
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.hosts import HostPort
from strandline.framework.spark import slot_listener, slot_messages, worker_slot
from strandline.framework.spark.slot_link import MAX_WAITING_MESSAGES, DriverLink
from strandline.framework.spark.slot_listener import SlotListener
from strandline.framework.spark.slot_messages import (
    MAX_MESSAGE_BYTES,
    SlotEnd,
    SlotHello,
    SlotMessage,
    SlotNotes,
    SlotOutput,
    SlotStatus,
    encoded_message,
    proof,
)
from strandline.framework.spark.worker_board import WorkerBoard
from strandline.framework.spark.worker_slot import (
    SlotFailed,
    SlotTask,
    run_slot,
    state_folder,
    variables_of,
)
from strandline.framework.supervisor.slots import WorkerRow
from tests.systems import System
from tests.workers.pipeline import judge, pipeline, some
from tests.workers.processes import ROOT

Eventually = Callable[..., None]
SECRET = "secret"
on_a_folder = pytest.mark.parametrize("system", ["embedded"], indirect=True)


@pytest.fixture
def listener() -> Iterator[SlotListener]:
    made = SlotListener("127.0.0.1", 0, SECRET, 2)
    yield made
    made.close()


def task_for(listener: SlotListener, target: str, **changes: Any) -> SlotTask:
    made = SlotTask(
        target=target,
        options=[],
        bounded=False,
        driver=("127.0.0.1", listener.port),
        secret=SECRET,
        variables={},
        state_dir=None,
        has_scratch_state=False,
    )
    return msgspec.structs.replace(made, **changes)


def link_to(listener: SlotListener, worker: int = 0, secret: str = SECRET) -> DriverLink:
    return DriverLink.connected(HostPort("127.0.0.1", listener.port), secret, worker, 0, "here")


def next_of(listener: SlotListener, kind: type[SlotMessage | None]) -> Any:
    """Wait for the next message of a kind, and return it."""
    while True:
        message = listener.events.get(timeout=60).message
        if isinstance(message, kind):
            return message


class RunningSlot:
    """A slot in a thread, and the error with which it has ended."""

    def __init__(self, task: SlotTask, worker: int = 0) -> None:
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(task, worker), daemon=True)
        self._thread.start()

    def _run(self, task: SlotTask, worker: int) -> None:
        try:
            run_slot(msgspec.json.encode(task), worker, 0)
        except BaseException as error:
            self.error = error

    def ended(self) -> BaseException | None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.error


@pytest.fixture
def shipped_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-in for Spark's list of shipped files, which exists only in a task."""
    monkeypatch.setattr(worker_slot, "shipped", lambda path: [])


@pytest.fixture
def work(system: System, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The pipeline as the work of a slot."""
    monkeypatch.setenv("STATE", str(system.state))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return {
        "target": "tests.workers.supervised:app",
        "variables": {"STRANDLINE_LOG": system.url, "PREFIX": ""},
    }


# The worker of a slot ------------------------------------------------------------------------


@on_a_folder
@pytest.mark.slow
def test_a_slot_reports_its_worker_and_ends_it_in_order_when_asked(
    system: System, listener: SlotListener, work: dict[str, Any], shipped_nothing: None
) -> None:
    given = some(40)
    made = pipeline(system.url, durability="os")
    made.words.append(given)
    slot = RunningSlot(task_for(listener, **work), worker=1)
    assert next_of(listener, SlotHello).worker == 1
    while next_of(listener, SlotStatus).row.records < 3 * len(given):
        pass
    listener.stop_workers()
    end = next_of(listener, SlotEnd)
    assert (end.failure, end.records) == ("", 3 * len(given))
    assert next_of(listener, type(None)) is None
    assert slot.ended() is None
    assert judge(made, given) == []
    made.app.close()


@on_a_folder
@pytest.mark.slow
def test_a_worker_ends_in_order_when_the_driver_is_gone(
    system: System, listener: SlotListener, work: dict[str, Any], shipped_nothing: None
) -> None:
    made = pipeline(system.url, durability="os")
    made.app.prepare()
    slot = RunningSlot(task_for(listener, **work))
    while next_of(listener, SlotStatus).row.state != "running":
        pass
    listener.close()
    assert isinstance(slot.ended(), SlotFailed)
    assert "the driver is gone" in str(slot.error)
    assert made.app.broker().describe_group(made.app.name).members == []
    made.app.close()


@pytest.mark.slow
def test_an_app_that_cannot_be_imported_is_a_permanent_failure(
    listener: SlotListener, shipped_nothing: None
) -> None:
    slot = RunningSlot(task_for(listener, "no_module_of_that_name:app"))
    end = next_of(listener, SlotEnd)
    assert end.is_permanent
    assert "there is no module 'no_module_of_that_name'" in end.failure
    listener.stop_workers()  # the driver gives up, so the task does not fail once more
    assert slot.ended() is None


def test_a_driver_that_cannot_be_reached_is_named_with_the_settings(
    listener: SlotListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener.close()
    monkeypatch.setattr(worker_slot.Backoff, "pause", lambda *_: 0.0)
    with pytest.raises(SlotFailed, match=r"cannot reach the driver .*spark\.driver\.host"):
        run_slot(msgspec.json.encode(task_for(listener, "shop:app")), 0, 0)


def test_state_is_where_it_was_asked_for_or_survives_the_executor(
    listener: SlotListener,
) -> None:
    plain = task_for(listener, "shop:app")
    scratch = task_for(listener, "shop:app", has_scratch_state=True)
    named = task_for(listener, "shop:app", state_dir="/state", has_scratch_state=True)
    executor = {"SPARK_EXECUTOR_DIRS": "/a:/b", "SPARK_LOCAL_DIRS": "/gone"}
    assert state_folder(plain, executor) is None
    assert state_folder(scratch, executor) == "/a/strandline-state"
    assert state_folder(scratch, {"LOCAL_DIRS": "/y,/z"}) == "/y/strandline-state"
    assert state_folder(scratch, {"SPARK_LOCAL_DIRS": "/gone"}) is None
    assert state_folder(named, executor) == "/state"


def test_a_worker_has_the_drivers_variables_and_the_executors_secrets(
    listener: SlotListener, shipped_nothing: None
) -> None:
    driver = {"STRANDLINE_LOG": "a", "STRANDLINE_TOKEN": "driver", "STRANDLINE_INSTANCE": "shop"}
    task = task_for(listener, "shop:app", variables=driver)
    found = {"STRANDLINE_LOG": "b", "STRANDLINE_TOKEN": "executor", "PYTHONPATH": "/x", "HOME": "/"}
    made = variables_of(task, 2, found)
    assert (made["STRANDLINE_LOG"], made["STRANDLINE_TOKEN"]) == ("a", "executor")
    assert (made["STRANDLINE_INSTANCE"], made["PYTHONPATH"], made["HOME"]) == ("shop-2", "/x", "/")
    assert variables_of(task, 0, {})["STRANDLINE_TOKEN"] == "driver"


# Connections ---------------------------------------------------------------------------------


def test_messages_arrive_in_order_with_their_end(listener: SlotListener) -> None:
    with link_to(listener, worker=1) as link:
        link.output(["one", "two\n\x1b"])
        link.notes(["three"])
        link.end(row(1), SlotEnd(7, "", is_permanent=False))
    assert next_of(listener, SlotHello).host == "here"
    assert next_of(listener, SlotOutput).lines == ["one", "two\n\x1b"]
    assert next_of(listener, SlotNotes).lines == ["three"]
    assert next_of(listener, SlotStatus).row == row(1)
    assert next_of(listener, SlotEnd).records == 7
    assert next_of(listener, type(None)) is None


def test_a_peer_without_the_secret_is_refused(
    listener: SlotListener, eventually: Eventually
) -> None:
    with link_to(listener, secret="another") as link:
        eventually(lambda: link.is_lost, what="a refusal")
    assert listener.connected == 0
    assert listener.events.empty()


@pytest.mark.parametrize(
    "sent",
    [
        b"x" * (MAX_MESSAGE_BYTES + 2),
        b"GET / HTTP/1.1\r\n\r\n",
        encoded_message(SlotHello(0, 0, "here", proof(SECRET, "another challenge"))),
    ],
)
def test_anything_else_than_a_hello_is_refused(listener: SlotListener, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", listener.port), timeout=30) as peer:
        received = b""
        with contextlib.suppress(ConnectionError):  # it may be reset
            peer.sendall(sent)
            while data := peer.recv(4096):
                received += data
    assert received.count(b"\n") <= 1  # the challenge, and nothing else
    assert listener.events.empty()


def test_a_driver_that_does_not_read_blocks_no_worker(listener: SlotListener) -> None:
    line = "x" * 60_000
    with link_to(listener) as link:
        for _ in range(3 * MAX_WAITING_MESSAGES):
            link.output([line])  # returns at once, whether there is room or not
        while not isinstance(message := listener.events.get(timeout=60).message, SlotNotes):
            link.output(["y"])
        assert "messages were dropped" in message.lines[0]


def test_the_driver_is_lost_when_its_end_is_closed(listener: SlotListener) -> None:
    with link_to(listener) as link:
        next_of(listener, SlotHello)
        listener.stop_workers()
        assert link.stops.get(timeout=30) == signal.SIGTERM
        assert not link.is_lost
        listener.close()
        assert link.stops.get(timeout=30) == signal.SIGTERM
        assert link.is_lost


def test_a_driver_that_vanished_without_closing_is_lost_too(
    monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(slot_messages, "SILENT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        peers: list[socket.socket] = []

        def challenge() -> None:
            peers.append(listening.accept()[0])
            peers[0].sendall(b"challenge\n")  # and nothing after that

        threading.Thread(target=challenge, daemon=True).start()
        address = HostPort("127.0.0.1", listening.getsockname()[1])
        with DriverLink.connected(address, SECRET, 0, 0, "here") as link:
            eventually(lambda: link.is_lost, what="a loss")
        peers[0].close()


def test_the_driver_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_messages, "SILENT_S", 2.0)
    monkeypatch.setattr(slot_listener, "HEARTBEAT_S", 0.1)
    listener = SlotListener("127.0.0.1", 0, SECRET, 1)
    with link_to(listener) as link:
        for _ in range(9):  # longer than SILENT_S; the notes are the slot's own signs of life
            link.notes(["here"])
            assert not link.is_stopped(within_s=0.3)
    listener.close()


def test_a_port_in_use_is_named_with_the_setting(listener: SlotListener) -> None:
    with pytest.raises(InvalidConfig, match=r"spark\.strandline\.port"):
        SlotListener("127.0.0.1", listener.port, SECRET, 1)


# The workers as the driver knows them --------------------------------------------------------


def row(worker: int, state: str = "running", records: int = 0, restarts: int = 0) -> WorkerRow:
    return WorkerRow(worker, 7, state, ("t-0",), records, 1.0, 0, {"t": 2}, restarts, None)


def hello(worker: int, attempt: int = 0) -> SlotHello:
    return SlotHello(worker, attempt, "here", "")


def states(board: WorkerBoard) -> list[str]:
    return [row.state for row in board.rows()]


def test_an_attempt_and_its_successor_both_count(clock: ManualClock) -> None:
    board = WorkerBoard(1, clock)
    assert states(board) == ["waiting for a slot"]
    board.joined("old", hello(0))
    board.reported("old", 0, row(0, records=5, restarts=1))
    board.joined("new", hello(0, 1))
    board.reported("new", 0, row(0, "restoring", records=2))
    board.reported("old", 0, row(0, records=6, restarts=1))  # it is still alive
    [shown] = board.rows()
    assert (shown.state, shown.records, shown.restarts) == ("restoring", 8, 2)
    board.left("old", 0)
    assert board.rows()[0].records == 8
    board.left("new", 0)
    [shown] = board.rows()
    assert (shown.state, shown.records, shown.pid) == ("lost, starting again", 8, None)
    assert shown.partitions == ()


def test_a_worker_of_another_job_is_refused(clock: ManualClock) -> None:
    assert not WorkerBoard(1, clock).joined("it", hello(1))


def test_a_worker_without_reports_is_silent(clock: ManualClock) -> None:
    board = WorkerBoard(1, clock)
    board.joined("it", hello(0))
    board.reported("it", 0, row(0))
    clock.advance(5_000)
    assert states(board) == ["silent for 5 s"]
    board.reported("it", 0, row(0))
    assert states(board) == ["running"]


def test_workers_that_wait_for_a_slot_are_named_once_a_minute(clock: ManualClock) -> None:
    board = WorkerBoard(3, clock)
    board.joined("it", hello(1))
    assert board.waiting() == []
    clock.advance(15_000)
    assert board.waiting() == [0, 2]
    clock.advance(30_000)
    assert board.waiting() == []
    clock.advance(30_000)
    assert board.waiting() == [0, 2]
    board.ended(1, SlotEnd(0, "", is_permanent=False))
    board.left("it", 1)
    clock.advance(60_000)
    assert board.waiting() == [0, 2]  # worker 1 has done its work


def test_a_job_is_hopeless_when_no_worker_can_be_kept_alive(clock: ManualClock) -> None:
    board = WorkerBoard(2, clock)
    for worker in (0, 1):
        board.joined(worker, hello(worker))
        board.ended(worker, SlotEnd(0, f"no {worker}", is_permanent=False))
    assert board.are_hopeless == "no 1"
    board.joined("again", hello(0, 1))
    board.reported("again", 0, row(0))
    assert board.are_hopeless == ""


# The function of the tasks -------------------------------------------------------------------


def run_task_elsewhere(tmp_path: Path, prelude: str) -> str:
    """Run the pickled function of a task in another interpreter; return its last line of stderr."""
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    from strandline.framework.spark import spark_job

    function = spark_job.task_function(b"{}", "9.9.9")
    (tmp_path / "task").write_bytes(cloudpickle.dumps(function))
    code = (
        f"import pickle, sys, threading\n{prelude}\n"
        "threading.Event.wait = lambda *_: True\n"
        f"list(pickle.load(open({str(tmp_path / 'task')!r}, 'rb'))(0, []))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_an_executor_without_strandline_says_so(tmp_path: Path) -> None:
    said = run_task_elsewhere(tmp_path, "sys.modules['strandline'] = None")
    assert "Strandline cannot be imported" in said
    assert "the driver has Strandline 9.9.9" in said
    assert "--archives" in said


def test_an_executor_with_another_version_says_so(tmp_path: Path) -> None:
    said = run_task_elsewhere(tmp_path, "")
    assert "is installed on" in said
    assert "the driver has Strandline 9.9.9" in said
