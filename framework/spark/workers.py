"""Workers of an app on a Spark cluster: Spark is the scheduler, and the driver shows and ends them.

    spark_job.py       the Spark job, one task for each worker
    worker_slot.py     the body of a task: keeps one worker process running
    slot_messages.py   messages between driver and slots; slot_listener.py, slot_link.py: the ends
    job_driver.py      the driver's loop; worker_board.py: the workers as it knows them
    job_settings.py    decisions about settings, masters, files and logs

The driver needs to do nothing for a worker that is lost: Spark starts its task again, and the group
of the app assigns its partitions meanwhile.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Literal

import msgspec

from strandline.changelog import signals
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidConfig, TaskFailed
from strandline.changelog.location import is_url
from strandline.framework.metrics import served
from strandline.framework.spark import job_settings
from strandline.framework.spark.job_driver import JobDriver, WorkersRun
from strandline.framework.spark.job_settings import SparkPlace
from strandline.framework.spark.slot_listener import SlotListener
from strandline.framework.spark.spark_job import SparkJob, spark_context
from strandline.framework.spark.worker_slot import SlotTask
from strandline.framework.supervisor.metrics import Workers
from strandline.framework.supervisor.supervisor import (
    Outcome,
    ends,
)
from strandline.framework.supervisor.view import SummaryView

if TYPE_CHECKING:
    from pyspark import SparkContext

    from strandline.framework.app import App

PASSED_ON = "STRANDLINE_"
"""Prefix of environment variables that workers get from the driver."""


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
        made = JobDriver(described, listener, job, place.workers, SystemClock())
        made.note_slots(str(context.master), int(conf.get("spark.task.cpus") or 1))
        return made.run(received)
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
