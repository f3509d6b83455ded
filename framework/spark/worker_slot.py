"""One worker of an app in an executor slot: the body of its Spark task.

The Spark task is the supervisor of one worker, as `strandline run --workers` is of several. It runs
`strandline run` in a process of its own, restarts it when it ends, and forwards its output and
reports to the driver. So user code never runs in Spark's Python process, and a worker commits and
leaves in order even if Spark kills that process: the worker notices the end of its supervisor.

    the driver asks, or is gone     the worker commits and leaves; the task ends
    Spark kills the task            the worker commits and leaves, within 30 seconds
    the worker's process ends       it is started again here, after a pause
    it cannot be kept alive here    the task fails, and Spark runs it again, perhaps elsewhere
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from strandline.changelog.clock import SystemClock
from strandline.changelog.decoding import CheckedDecoder, known_json_decoder
from strandline.changelog.flight.background import environment
from strandline.changelog.hosts import HostPort
from strandline.framework.spark.slot_link import DriverLink
from strandline.framework.spark.slot_messages import ConnectionRefused, SlotEnd
from strandline.framework.supervisor.backoff import Backoff
from strandline.framework.supervisor.process import COMMAND, WorkerProcess
from strandline.framework.supervisor.slots import WorkerRow, WorkerSlot
from strandline.framework.supervisor.supervisor import Supervisor
from strandline.framework.supervisor.view import SUMMARY_SECONDS

SCRATCH_VARIABLES = ("SPARK_EXECUTOR_DIRS", "LOCAL_DIRS")
"""Folders of an executor that survive its restart on the same machine: of Spark's own cluster
manager, and of YARN. SPARK_LOCAL_DIRS is not among them, because in a task it is a folder that is
removed with the executor."""
SECRET_VARIABLES = ("STRANDLINE_TOKEN", "STRANDLINE_TOKEN_FILE", "STRANDLINE_KAFKA")
"""Variables for which an executor's own value precedes the driver's, as its files may differ."""


class SlotFailed(Exception):
    """The worker of this slot cannot be kept alive here; Spark runs the task again."""


class SlotTask(msgspec.Struct, frozen=True):
    """Work of the slots of a job, the same for each worker."""

    target: str
    """The app as module:app, importable on executors."""
    options: list[str]
    """Options of `strandline run` for each worker."""
    bounded: bool
    """True if a worker that exits with 0 has done its work."""
    driver: tuple[str, int]
    """Host and port at which the driver listens."""
    secret: str
    """Proof that a slot belongs to the job."""
    variables: dict[str, str]
    """Environment variables of the driver for workers."""
    state_dir: str | None
    """Folder for the state of apps on each executor; None for the default."""
    has_scratch_state: bool
    """True if the default is a folder of the executor."""

    def __repr__(self) -> str:
        """Return the app only, because variables and options may contain secrets."""
        return f"SlotTask({self.target!r})"


def run_slot(document: bytes, worker: int, attempt: int) -> None:
    """Run a worker until it has ended in order.

    Args:
        document: A `SlotTask` as JSON.
        worker: Number of the worker, from 0.
        attempt: Number of Spark's attempt, from 0.

    Raises:
        SlotFailed: The worker cannot be kept alive here, or the driver is gone.
    """
    decoder: CheckedDecoder[SlotTask] = known_json_decoder(SlotTask)
    task, host = decoder.decode(document), socket.gethostname()
    # A pause before a failure, which grows because Spark starts the next attempt at once.
    pause = Backoff().pause(attempt + 1, 0.5)
    with _link(task, worker, attempt, host, pause) as link:
        failure = _supervise(task, worker, link)
        if failure and not link.is_stopped(within_s=pause):
            raise SlotFailed(f"worker {worker}: {failure}")
        if link.is_lost:
            raise SlotFailed(f"worker {worker} has ended, because the driver is gone")


def _link(task: SlotTask, worker: int, attempt: int, host: str, pause: float) -> DriverLink:
    driver = HostPort(*task.driver)
    try:
        return DriverLink.connected(driver, task.secret, worker, attempt, host)
    except (OSError, ConnectionRefused) as error:
        threading.Event().wait(pause)
        raise SlotFailed(
            f"the executor on {host} cannot reach the driver at {driver}: {error}; "
            "spark.driver.host is to be a name of the driver's machine that executors can reach, "
            "and spark.strandline.port a port that is open to them"
        ) from error


def _supervise(task: SlotTask, worker: int, link: DriverLink) -> str:
    """Keep the worker running until it has ended; return its failure, "" for an orderly end."""
    clock = SystemClock()
    slot = WorkerSlot(worker, partial(_start, task), clock, Backoff())
    supervisor = Supervisor(
        [slot],
        LinkView(link),
        clock,
        until_idle=task.bounded,
        logs=LinkOutput(link),
        note=link.status,
    )
    outcome = supervisor.run(link.stops)
    is_permanent = bool(slot.error) and not slot.has_run
    link.end(slot.row(), SlotEnd(outcome.records, outcome.failure, is_permanent))
    return outcome.failure


class LinkView:
    """View of a supervisor whose lines go to the driver. The status goes there as a report."""

    every = SUMMARY_SECONDS

    def __init__(self, link: DriverLink) -> None:
        self._link = link

    def show(self, rows: Sequence[WorkerRow]) -> None:
        """Do nothing: reports are sent more often."""

    def lines(self, lines: Sequence[str]) -> None:
        if lines:
            self._link.notes(lines)

    def close(self) -> None:
        """Do nothing: the link is closed after the last message."""


class LinkOutput:
    """Output of a worker that goes to the driver."""

    def __init__(self, link: DriverLink) -> None:
        self._link = link

    def take(self, worker: int, lines: Sequence[str]) -> None:
        """Send lines."""
        if lines:
            self._link.output(lines)


# The worker's process ------------------------------------------------------------------------


def _start(task: SlotTask, worker: int) -> WorkerProcess:
    command = [*COMMAND, "run", task.target, *task.options]
    state = state_folder(task, os.environ)
    return WorkerProcess(
        [*command, *(["--state-dir", state] if state else [])],
        variables_of(task, worker, environment()),
    )


def state_folder(task: SlotTask, found: Mapping[str, str]) -> str | None:
    """Return the folder for the state of apps on this executor; None for the app's own default."""
    if task.state_dir is not None:
        return task.state_dir
    if not task.has_scratch_state:
        return None
    for name in SCRATCH_VARIABLES:
        first = found.get(name, "").replace(",", os.pathsep).partition(os.pathsep)[0]
        if first:
            return str(Path(first) / "strandline-state")
    return None


def variables_of(task: SlotTask, worker: int, found: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker on an executor whose environment is `found`.

    It has the driver's variables, the path on which Spark has put the shipped code, and, for a
    static member, a name of its own.
    """
    own = {name: value for name in SECRET_VARIABLES if (value := found.get(name))}
    made = {**found, **task.variables, **own}
    if instance := made.get("STRANDLINE_INSTANCE"):
        made["STRANDLINE_INSTANCE"] = f"{instance}-{worker}"
    made["PYTHONPATH"] = os.pathsep.join(
        dict.fromkeys([*shipped(sys.path), *filter(None, [made.get("PYTHONPATH")])])
    )
    return made


def shipped(path: Sequence[str]) -> list[str]:
    """Return the entries of a module path at which Spark keeps files that were shipped."""
    from pyspark import SparkFiles

    root = Path(SparkFiles.getRootDirectory()).absolute()
    entries = [Path(entry).absolute() for entry in path if entry]
    return [str(entry) for entry in entries if entry.is_relative_to(root)]
