"""The Spark job that runs an app's workers: one task for each, in a thread of its own.

The tasks are plain ones, not a barrier stage, because a barrier stage starts all its tasks again
when one is lost. The function of the tasks is pickled by value and imports Strandline only when it
runs, so that an executor without it reports that instead of failing to read the task.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidConfig, StrandlineError
from strandline.changelog.printable import shortened
from strandline.framework.spark.job_settings import (
    SparkPlace,
    check_running,
    settings_for,
    with_retries,
)
from strandline.framework.spark.packages import require_pyspark
from strandline.framework.spark.sessions import prepare_environment

if TYPE_CHECKING:
    from pyspark import SparkContext

PYTHON_SETTING = "spark.pyspark.python"
"""Setting for the Python of executors, which PySpark itself reads in spark-submit only."""
MAX_SHOWN_CHARS = 600
"""Maximum number of characters of an error of Spark that are shown."""
RETURNING_S = 0.5
"""Seconds in which tasks that have ended their workers may return before they are cancelled."""
PACKAGE_MISSING_S = 5.0
"""Seconds that a task waits before it fails because its executor lacks Strandline."""


@contextlib.contextmanager
def spark_context(
    place: SparkPlace, name: str, warn: Callable[[str], object]
) -> Iterator[SparkContext]:
    """Yield the running Spark context, or a new one with the job's settings, stopped at the end.

    `warn` gets a warning if the running one ends the job after few failures.

    Raises:
        InvalidConfig: The settings do not fit the job, or Spark does not start with them.
        MissingDependency: PySpark or a suitable Java is missing.
    """
    require_pyspark("Workers on Spark need")
    from pyspark import SparkContext

    running = SparkContext._active_spark_context
    if running is not None:
        config = dict(running.getConf().getAll())
        if warning := check_running(config, str(running.master), place):
            warn(warning)
        yield _ship(running, place)
        return
    context = _started(place, name)
    try:
        yield _ship(context, place)
    finally:
        with contextlib.suppress(Exception):  # the JVM may have ended
            context.stop()


def _started(place: SparkPlace, name: str) -> SparkContext:
    from pyspark import SparkConf, SparkContext

    if python := place.config.get(PYTHON_SETTING):
        os.environ["PYSPARK_PYTHON"] = python
    prepare_environment()
    conf = SparkConf().setAppName(name).setAll(list(settings_for(place).items()))
    master = place.master or conf.get("spark.master")
    conf.setMaster(with_retries(master or "local[*]"))
    try:
        return SparkContext.getOrCreate(conf)
    except Exception as error:
        raise InvalidConfig(
            f"Spark does not start with master {conf.get('spark.master')!r}: {reason_of(error)}"
        ) from error


def _ship(context: SparkContext, place: SparkPlace) -> SparkContext:
    for paths, add in ((place.py_files, context.addPyFile), (place.archives, context.addArchive)):
        for path in paths:
            try:
                add(path)
            except Exception as error:
                raise InvalidConfig(f"{path} cannot be shipped: {reason_of(error)}") from error
    return context


class SparkJob:
    """The job, from construction until `close`.

    Args:
        context: Spark's context.
        name: Description of the job in Spark's user interface.
        workers: Number of tasks.
        document: Work of the tasks, a `SlotTask` as JSON.
    """

    def __init__(self, context: SparkContext, name: str, workers: int, document: bytes) -> None:
        from pyspark import InheritableThread

        self._context = context
        self._name = name
        self._workers = workers
        self._document = document
        self._group = f"strandline-{SystemClock().new_id()}"
        self._failed_tasks = 0
        self._ended = threading.Event()
        self.failure = ""
        """Reason why Spark has ended the job; "" if all tasks have returned."""
        self._thread = InheritableThread(target=self._run, name="strandline-job", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """True if the job has ended."""
        return self._ended.is_set()

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._group, self._name)
            numbers = self._context.parallelize(range(self._workers), self._workers)
            numbers.mapPartitionsWithIndex(task_function(self._document, version())).collect()
        except Exception as error:
            self.failure = reason_of(error)
        finally:
            self._ended.set()

    def cancel(self, seconds: float) -> None:
        """End the tasks that are left, and wait for the end of the job, at most so long."""
        if not self._ended.wait(RETURNING_S):
            with contextlib.suppress(Exception):  # the JVM may have ended
                self._context.cancelJobGroup(self._group)
            self._ended.wait(seconds)

    def new_failures(self) -> list[str]:
        """Return a line for each task that has failed since the last call."""
        try:
            return self._new_failures()
        except Exception:
            return []  # the JVM has ended, or this version keeps no such list

    @property
    def failed_tasks(self) -> int:
        """Number of failed tasks that `new_failures` has returned."""
        return self._failed_tasks

    def _new_failures(self) -> list[str]:
        tracker, found = self._context.statusTracker(), list[str]()
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info else ():
                details = tracker.getStageInfo(stage)
                if details is not None and details.numFailedTasks > self._failed_tasks:
                    new = details.numFailedTasks - self._failed_tasks
                    self._failed_tasks = details.numFailedTasks
                    found += self._described(stage)[-new:]
        return found

    def _described(self, stage: int) -> list[str]:
        """Return a line for each failed task of a stage, in the order of their starts."""
        tasks = self._context._jsc.sc().statusStore().taskList(stage, 0, 10 * self._workers + 1000)
        all_tasks = [tasks.apply(number) for number in range(tasks.size())]
        failed = [task for task in all_tasks if task.errorMessage().isDefined()]
        return [
            f"Spark's attempt {task.attempt()} at worker {task.index()}, on {task.host()}, has "
            f"failed: {short(task.errorMessage().get())}"
            for task in sorted(failed, key=lambda task: int(task.taskId()))
        ]


def task_function(document: bytes, wanted: str) -> Callable[[int, Iterable[int]], Iterable[int]]:
    """Return the function of the tasks. It refers to nothing of Strandline until it runs."""
    pause_s = PACKAGE_MISSING_S

    def run_worker(worker: int, _numbers: Iterable[int]) -> Iterable[int]:
        import socket
        import sys
        import threading

        from pyspark import TaskContext

        def refuse(what: str) -> NoReturn:
            threading.Event().wait(pause_s)
            raise ImportError(
                f"{what} on {socket.gethostname()}, in {sys.executable}; the driver has "
                f"Strandline {wanted}. Install it there, or ship it with --archives (a packed "
                "environment) or --py-files"
            )

        try:
            from strandline.framework.spark.spark_job import version
            from strandline.framework.spark.worker_slot import run_slot
        except ImportError as error:
            refuse(f"Strandline cannot be imported ({error})")
        if version() != wanted:
            refuse(f"Strandline {version()} is installed")
        attempt = TaskContext.get()
        run_slot(document, worker, attempt.attemptNumber() if attempt else 0)
        return ()

    return run_worker


def version() -> str:
    """Return the installed version of Strandline; "from source" for a checkout on the path."""
    from importlib import metadata

    try:
        return metadata.version("strandline")
    except metadata.PackageNotFoundError:
        return "from source"


def reason_of(error: Exception) -> str:
    """Return an error of Spark in one line."""
    if isinstance(error, StrandlineError):
        return str(error)
    if isinstance(error, OSError) or type(error).__name__ == "Py4JNetworkError":
        return f"the JVM of Spark's driver has ended, or does not answer ({short(str(error))})"
    java: Any = getattr(error, "java_exception", None)
    return short(str(java.getMessage()) if java is not None else str(error))


def short(text: str) -> str:
    r"""Return the last cause in an error of Spark: of a Python traceback, its last line.

    >>> short("Task 0 failed: PythonException: Traceback (most recent call last):\n  File x\nOops: no\n")
    'Oops: no'
    >>> short("ExecutorLostFailure (executor 1 exited)\nDriver stacktrace:")
    'ExecutorLostFailure (executor 1 exited)'
    """
    _, python, trace = text.rpartition("Traceback (most recent call last):")
    lines = [line for line in (trace if python else text).splitlines() if line.strip()]
    raised = [line for line in lines if not line.startswith((" ", "\t"))] if python else lines
    first = re.sub(r"^(?:\w+\.)+(\w+: )", r"\1", (raised or lines or ["unknown"])[0].strip())
    return shortened(first, MAX_SHOWN_CHARS)
