"""Workers of an app on a Spark cluster: Spark is the scheduler, and the driver shows and ends them.

    spark_job.py       the Spark job, one task for each worker
    worker_slot.py     the body of a task: keeps one worker process running
    slot_messages.py   messages between driver and slots; slot_listener.py, slot_link.py: the ends
    worker_board.py    the workers as the driver knows them
    job_settings.py    decisions about settings, masters, files and logs

The driver needs to do nothing for a worker that is lost: Spark starts its task again, and the group
of the app assigns its partitions meanwhile.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal

import msgspec

from strandline.changelog import signals
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.errors import InvalidConfig, TaskFailed
from strandline.changelog.location import is_url
from strandline.framework.metrics import served
from strandline.framework.spark import job_settings
from strandline.framework.spark.job_settings import SparkPlace
from strandline.framework.spark.slot_listener import MAX_EVENTS, SlotEvent, SlotListener
from strandline.framework.spark.slot_messages import (
    SlotEnd,
    SlotHello,
    SlotNotes,
    SlotOutput,
    SlotStatus,
)
from strandline.framework.spark.spark_job import SparkJob, spark_context
from strandline.framework.spark.worker_board import WorkerBoard
from strandline.framework.spark.worker_slot import SlotTask
from strandline.framework.supervisor.logs import WorkerOutput
from strandline.framework.supervisor.metrics import Workers
from strandline.framework.supervisor.slots import WorkerRow
from strandline.framework.supervisor.supervisor import (
    IMPATIENT_SECONDS,
    LEAVE_SECONDS,
    Outcome,
    ends,
)
from strandline.framework.supervisor.view import SilentView, StatusView, SummaryView

if TYPE_CHECKING:
    from pyspark import SparkContext

    from strandline.framework.app import App

TICK_S = 0.1
"""Maximum seconds between two looks at signals and at the job."""
WATCH_S = 1.0
"""Seconds between two questions to Spark about failed tasks."""
SPARE_S = 5.0
"""Seconds beyond LEAVE_SECONDS for slots to report the end of their workers."""
MAX_EARLY_FAILURES = 4
"""Number of failed tasks after which the job is hopeless, if no worker had a slot before."""
PASSED_ON = "STRANDLINE_"
"""Prefix of environment variables that workers get from the driver."""


@dataclass(frozen=True)
class WorkersRun:
    """App, limits and output of a run of workers on Spark."""

    app: str
    """Name of the app."""
    target: str
    """The app as module:app, or its file."""
    log: str | None
    """Folder or URL of the log; None if the module opens its log itself."""
    until: str | None = None
    timeout: float | None = None
    """Seconds after which all workers are stopped; None for no limit."""
    options: Sequence[str] = ()
    """Further options of `strandline run` for each worker."""
    has_state_dir: bool = False
    """True if the app names the folder of its state."""
    view: StatusView = field(default_factory=SilentView)
    output: WorkerOutput | None = None
    """Destination of the workers' output; None to show it in the view."""
    note: Callable[[Sequence[WorkerRow]], None] = lambda _rows: None
    """Called at every tick with the status of all workers."""

    def say(self, line: str) -> None:
        """Show a line."""
        self.view.lines([line])


def run(
    app: App,
    *,
    workers: int,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    py_files: Iterable[str] = (),
    archives: Iterable[str] = (),
    state_dir: str | None = None,
    until: Literal["idle", "end"] | None = None,
    timeout: float | None = None,
    metrics: str | None = None,
) -> int:
    """Run workers of an app in the executor slots of Spark until a signal or a limit ends them.

    Executors import the app's module themselves. Lines of the workers and a summary every ten
    seconds go to stderr. The running Spark session is used if there is one; else one is made, and
    stopped at the end.

    Args:
        app: The app. It must be a variable of a module that executors can import.
        workers: Number of workers; each takes one slot (`spark.task.cpus` cores).
        master: Spark's master, such as "spark://host:7077" or "local[4]". None, the default, leaves
            it to Spark's own configuration, which without one uses every core of this machine.
        config: Spark settings, by name.
        py_files: Modules (.py) and zipped packages that executors get.
        archives: Archives that executors unpack, as "path#folder".
        state_dir: Folder for the state of apps on each executor. The default is that of the app, or
            a folder of the executor that Spark removes with the application.
        until: "idle" or "end" to end when the app has handled everything (see `App.run`); None, the
            default, for no such end.
        timeout: Seconds after which the workers are stopped in order; None for no limit.
        metrics: Address at which the driver serves metrics of all workers; None for none.

    Returns:
        Number of records handled and committed by all workers.

    Raises:
        InvalidConfig: Settings, the app or its log do not fit a run on Spark.
        MissingDependency: PySpark or a suitable Java is missing.
        TaskFailed: No worker can be kept alive, or Spark has ended the job.
    """
    place = SparkPlace(
        master, workers, dict(config or {}), tuple(py_files), tuple(archives), state_dir
    )
    app.declared.check_tasks()
    log = app.log
    if not isinstance(log, str | os.PathLike):
        raise InvalidConfig(
            f"app {app.name!r} has an open log, which executors cannot use; give App(log=…) its "
            "folder or URL"
        )
    if not is_url(log):
        app.broker()  # the driver owns the log, so that it lasts as long as the workers
    seen = Workers(app.name, workers)
    described = WorkersRun(
        *(app.name, target_of(app), os.fspath(log), until, timeout),
        has_state_dir=app.session.state_dir is not None,
        view=SummaryView(app.name),
        note=seen.note,
    )
    with served(metrics, seen.metrics):
        outcome = run_workers(described, place)
    if outcome.failure:
        raise TaskFailed(outcome.failure)
    return outcome.records


def target_of(app: App) -> str:
    """Return an app as module:variable. Raises InvalidConfig if no module that can be imported has it."""
    for name, module in list(sys.modules.items()):
        if name in ("__main__", "__mp_main__"):
            continue
        for variable, value in list(getattr(module, "__dict__", {}).items()):
            if value is app:
                return f"{name}:{variable}"
    raise InvalidConfig(
        f"app {app.name!r} is not a variable of a module, so executors cannot import it; write it "
        "into a module (shop.py), import it (from shop import app), and ship the module with "
        "py_files if executors do not have it"
    )


def run_workers(described: WorkersRun, place: SparkPlace) -> Outcome:
    """Run workers until they end, and return the result. No worker is left after it.

    Raises:
        InvalidConfig: Settings, files, master or log do not fit the job.
        MissingDependency: PySpark or a suitable Java is missing.
    """
    job_settings.check_place(place)
    if place.master is not None:
        job_settings.check_log(described.log, place.master)
    target, py_files = job_settings.shipping(described.target, place.py_files)
    place = replace(place, py_files=py_files)
    with (
        spark_context(place, f"strandline {described.app}", described.say) as context,
        signals.awaited(*ends()) as received,
    ):
        job_settings.check_log(described.log, str(context.master))
        return _listen(context, described, place, target, received)


def _listen(
    context: SparkContext,
    described: WorkersRun,
    place: SparkPlace,
    target: str,
    received: SimpleQueue[int],
) -> Outcome:
    conf, secret = context.getConf(), secrets.token_hex(32)
    host = conf.get("spark.driver.host") or "localhost"
    at = conf.get("spark.driver.bindAddress") or host
    port = int(conf.get(job_settings.PORT_SETTING) or 0)
    listener = SlotListener(at, port, secret, place.workers)
    try:
        task = _task(described, place, target, (host, listener.port), secret, str(context.master))
        name = f"workers of app {described.app}"
        job = SparkJob(context, name, place.workers, msgspec.json.encode(task))
        driver = _Driver(described, listener, job, place, SystemClock())
        driver.note_slots(context)
        return driver.run(received)
    finally:
        listener.close()


def _task(
    described: WorkersRun,
    place: SparkPlace,
    target: str,
    driver: tuple[str, int],
    secret: str,
    master: str,
) -> SlotTask:
    until = ["--until", described.until] if described.until else []
    variables = {name: text for name, text in os.environ.items() if name.startswith(PASSED_ON)}
    on_this_machine = job_settings.is_on_this_machine(master)
    if described.log is not None:
        log = described.log
        variables["STRANDLINE_LOG"] = log if is_url(log) else str(Path(log).absolute())
    return SlotTask(
        target=target,
        options=[*until, *described.options],
        bounded=described.until is not None,
        driver=driver,
        secret=secret,
        variables=variables,
        state_dir=place.state_dir,
        has_scratch_state=not (described.has_state_dir or on_this_machine),
    )


class _Driver:
    """The loop of the driver: messages of slots, signals, Spark's failures, the view."""

    def __init__(
        self,
        described: WorkersRun,
        listener: SlotListener,
        job: SparkJob,
        place: SparkPlace,
        clock: Clock,
    ) -> None:
        self._described = described
        self._view = described.view
        self._listener = listener
        self._job = job
        self._workers = place.workers
        self._clock = clock
        self._board = WorkerBoard(place.workers, clock)
        self._lines: list[str] = []
        now = clock.monotonic()
        self._show_at = now + self._view.every
        self._watch_at = now + WATCH_S
        self._end_at = math.inf if described.timeout is None else now + described.timeout
        self._leaving = False
        self._give_up_at = math.inf
        self._failure = ""
        self._killed = False
        self._left_at = math.inf

    def note_slots(self, context: SparkContext) -> None:
        """Note at once if a master on this machine has fewer slots than there are workers."""
        cpus = int(context.getConf().get("spark.task.cpus") or 1)
        slots = job_settings.slots_of(str(context.master), cpus)
        if slots is not None and slots < self._workers:
            self._lines.append(
                f"{self._workers} workers, but {context.master} has slots for {slots}: the others "
                "wait; no partition does, because the running workers share all of them"
            )

    def run(self, received: SimpleQueue[int]) -> Outcome:
        """Run until the job has ended. No task is left when it returns."""
        try:
            while not self._is_over:
                self._take_events()
                self._handle_signals(received)
                self._watch()
                self._show()
        finally:
            self._listener.close()
            self._job.cancel(SPARE_S)
        self._take_events(wait=False)
        self._view.close()
        self._view.lines(self._lines)
        if not self._leaving:
            self._failure = self._failure or self._job.failure
        return Outcome(self._board.records, self._failure, self._killed)

    @property
    def _is_over(self) -> bool:
        if self._job.is_over:
            return True
        # Tasks without a slot do not end by themselves, so the job is cancelled after the others.
        return self._leaving and (
            self._listener.connected == 0 or self._clock.monotonic() >= self._give_up_at
        )

    # Messages of slots ----------------------------------------------------------------

    def _take_events(self, *, wait: bool = True) -> None:
        with contextlib.suppress(Empty):
            if wait:
                self._take(self._listener.events.get(timeout=TICK_S))
            for _ in range(MAX_EVENTS):
                self._take(self._listener.events.get_nowait())

    def _take(self, event: SlotEvent) -> None:
        link, worker = event.link, event.link.hello.worker
        match event.message:
            case SlotHello() as hello:
                self._welcome(event, hello)
            case SlotOutput(lines):
                self._add_output(worker, lines)
            case SlotNotes(lines):
                self._lines += [f"{line} (on {link.hello.host})" for line in lines]
            case SlotStatus(row):
                self._board.reported(link, worker, row)
            case SlotEnd() as end:
                self._end_of(event, end)
            case None:
                self._board.left(link, worker)

    def _welcome(self, event: SlotEvent, hello: SlotHello) -> None:
        if not self._board.joined(event.link, hello):
            event.link.close()
            return
        again = f", attempt {hello.attempt}" if hello.attempt else ""
        self._lines.append(f"worker {hello.worker} has a slot on {hello.host}{again}")
        if self._leaving:
            self._listener.stop_workers()

    def _end_of(self, event: SlotEvent, end: SlotEnd) -> None:
        self._board.ended(event.link.hello.worker, end)
        if self._leaving or not end.failure:
            return
        where = f"{end.failure} (on {event.link.hello.host})"
        if end.is_permanent and not self._board.has_run:
            self._fail(
                f"{where}; executors import the app themselves: code and packages reach them by "
                "--py-files and --archives"
            )
        elif self._board.are_hopeless:
            self._fail(where)

    def _add_output(self, worker: int, lines: Sequence[str]) -> None:
        if self._described.output is not None:
            self._described.output.take(worker, lines)
        else:
            self._lines += [f"[{worker}] {line}" for line in lines]

    # Ending ---------------------------------------------------------------------------

    def _handle_signals(self, received: SimpleQueue[int]) -> None:
        while not received.empty():
            received.get()
            if self._leaving and self._clock.monotonic() >= self._left_at + IMPATIENT_SECONDS:
                self._killed = True
                self._give_up_at = self._clock.monotonic() + SPARE_S
            self._end()
        if self._clock.monotonic() >= self._end_at:
            self._end_at = math.inf
            self._end()

    def _fail(self, failure: str) -> None:
        self._failure = self._failure or failure
        self._end()

    def _end(self) -> None:
        """Ask all workers to commit and leave; a second time, to end at once."""
        if not self._leaving:
            self._leaving = True
            self._left_at = self._clock.monotonic()
            self._give_up_at = self._clock.monotonic() + LEAVE_SECONDS + SPARE_S
        self._listener.stop_workers()

    # Spark ----------------------------------------------------------------------------

    def _watch(self) -> None:
        """Note tasks that have failed, and workers that wait for a slot."""
        if self._leaving or self._clock.monotonic() < self._watch_at:
            return
        self._watch_at = self._clock.monotonic() + WATCH_S
        new = self._job.new_failures()
        self._lines += new
        are_many = self._job.failed_tasks >= MAX_EARLY_FAILURES
        if new and are_many and not self._board.were_ever_connected:
            self._fail(new[-1])
        if waiting := self._board.waiting():
            self._lines.append(_about_slots(waiting, self._workers))

    # Showing --------------------------------------------------------------------------

    def _show(self) -> None:
        rows = self._board.rows()
        self._described.note(rows)
        lines, self._lines = self._lines, []
        try:
            if lines:
                self._view.lines(lines)
            if self._clock.monotonic() >= self._show_at:
                self._show_at = self._clock.monotonic() + self._view.every
                self._view.show(rows)
        except BrokenPipeError:  # the output's reader is gone (`| head`)
            self._view = SilentView()
            self._end()
        except OSError:
            return  # output that cannot be written is dropped


def _about_slots(waiting: Sequence[int], workers: int) -> str:
    """Return a line about workers that wait for a slot.

    >>> _about_slots([1, 2], 3)
    'workers 1, 2 of 3 wait for a slot: ... the running workers share all partitions meanwhile'
    """
    numbers = ", ".join(map(str, waiting))
    who = f"workers {numbers}" if len(waiting) > 1 else f"worker {numbers}"
    wait = "wait" if len(waiting) > 1 else "waits"
    there = (
        "the running workers share all partitions meanwhile"
        if len(waiting) < workers
        else "no partition is worked on"
    )
    return (
        f"{who} of {workers} {wait} for a slot: the cluster has too few free cores, its executors "
        f"are still starting, or they are lost; {there}"
    )
