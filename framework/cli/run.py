"""`strandline run module:app`, and `run` of one app."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from strandline.framework.cli import logs, output
from strandline.framework.cli.loading import announced, load_app
from strandline.framework.cli.metrics import MetricsOption, serving_metrics
from strandline.framework.cli.options import LogOption
from strandline.framework.container.restore import RestoreBar, RestoreProgress

if TYPE_CHECKING:
    from strandline.framework.app import App


class RunBound(StrEnum):
    """Condition that ends a run."""

    IDLE = "idle"
    END = "end"


AppArgument = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="Module and variable, as shop.orders:app.")
]
UntilOption = Annotated[
    RunBound | None,
    typer.Option(
        "--until",
        help="idle: end when all records are handled; end: also fire all timers in stream time.",
    ),
]
CountOption = Annotated[
    int | None, typer.Option("--count", min=1, metavar="N", help="End after N records.")
]
TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", min=0, metavar="SECONDS", help="End after this time.")
]
SparkOption = Annotated[
    str | None,
    typer.Option(
        "--spark",
        metavar="MASTER",
        help="With --workers: run them in the executors of a Spark cluster, as spark://host:7077.",
    ),
]
PyFilesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--py-files",
        metavar="FILES",
        help="With --spark: modules and zipped packages for executors, separated by commas.",
    ),
]
ArchivesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--archives",
        metavar="FILES",
        help="With --spark: archives that executors unpack, as env.tar.gz#environment.",
    ),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="With --spark: a setting of Spark."),
]
StateDirOption = Annotated[
    str | None,
    typer.Option(
        "--state-dir",
        metavar="DIR",
        help="Folder for the state of apps, instead of that of the app. With --spark: on executors.",
    ),
]


def run(
    target: AppArgument,
    until: UntilOption = None,
    count: CountOption = None,
    timeout: TimeoutOption = None,
    log: LogOption = None,
    metrics: MetricsOption = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=1,
            metavar="N",
            help="Run N processes that share the partitions, under a supervisor that owns the log.",
        ),
    ] = None,
    log_dir: Annotated[
        Path | None,
        typer.Option(
            "--log-dir", metavar="DIR", help="With --workers: folder for files of their output."
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="With --workers: figures as one JSON line per second.")
    ] = False,
    spark: SparkOption = None,
    py_files: PyFilesOption = None,
    archives: ArchivesOption = None,
    conf: ConfOption = None,
    state_dir: StateDirOption = None,
    supervised: Annotated[int | None, typer.Option("--supervised", hidden=True)] = None,
) -> None:
    """Run an app until Ctrl-C or until the given limits. It commits before it ends."""
    _enable_crash_traces()
    if log is not None:
        os.environ["STRANDLINE_LOG"] = log  # the constructor of App reads it
    if supervised is not None:
        _run_supervised(target, until, metrics, supervised, state_dir)
    elif spark is not None:
        from strandline.framework.cli.spark_workers import place_of, run_on_spark
        from strandline.framework.cli.workers import RunEnds

        place = place_of(spark, workers, state_dir, (py_files, archives, conf))
        ends = RunEnds(until and until.value, timeout, count)
        run_on_spark(target, place, ends, log_dir, metrics, json=json)
    elif py_files or archives or conf:
        raise typer.BadParameter("--py-files, --archives and --conf need --spark MASTER")
    elif workers is not None:
        from strandline.framework.cli.workers import RunEnds, run_workers

        ends = RunEnds(until and until.value, timeout, count)
        run_workers(target, workers, ends, log_dir, metrics, state_dir, json=json)
    elif log_dir is not None or json:
        raise typer.BadParameter("--log-dir and --json need --workers N")
    else:
        run_app(_loaded(target, state_dir), until, count, timeout, metrics)


def _loaded(target: str, state_dir: str | None) -> App:
    app = load_app(target)
    app.session.state_dir = state_dir or app.session.state_dir
    return app


def _run_supervised(
    target: str,
    until: RunBound | None,
    metrics: str | None,
    descriptor: int,
    state_dir: str | None,
) -> None:
    """Run a worker for the supervisor at the other end of the socket `descriptor`."""
    from strandline.framework.cli.reporting import FAILED, debug_option
    from strandline.framework.container.outage import patiently
    from strandline.framework.supervisor.reporter import FOR_GOOD, Reporter

    with Reporter(descriptor) as reporter:
        try:
            app = _loaded(target, state_dir)
        except Exception as error:
            reporter.failed(error)
            raise
        try:
            serving = serving_metrics(metrics, app.runner.metrics)
            with serving, app:
                with reporter.opening():
                    patiently(app.broker)
                with reporter.following(app.runner):
                    app.run(_limit(until), progress=reporter.restoring)
        except FOR_GOOD as error:
            reporter.failed(error)
            if debug_option():
                raise
            raise typer.Exit(FAILED) from error  # the supervisor reports it once for all workers


def _enable_crash_traces() -> None:
    """Print the stacks of all threads if a native library ends the process."""
    with contextlib.suppress(RuntimeError, ValueError, AttributeError):  # no stderr, or no file
        faulthandler.enable()


def _limit(until: RunBound | None) -> Literal["idle", "end"] | None:
    return None if until is None else until.value


def command_of(app: App) -> Callable[..., None]:
    """Return the command `run` of one app."""

    def run(
        until: UntilOption = None,
        count: CountOption = None,
        timeout: TimeoutOption = None,
        log: LogOption = None,
        metrics: MetricsOption = None,
    ) -> None:
        """Run the app until Ctrl-C or until the given limits. It commits before it ends."""
        _enable_crash_traces()
        app.log = log or app.log
        run_app(app, until, count, timeout, metrics)

    return run


def run_app(
    app: App,
    until: RunBound | None,
    count: int | None,
    timeout: float | None,
    metrics: str | None,
) -> None:
    """Run an app within limits and print how many records it handled."""
    begun = time.perf_counter()
    where = announced(app.log)
    with serving_metrics(metrics, app.runner.metrics), app:
        output.note(f"app {app.name} runs on {where}; Ctrl-C commits and ends it")
        handled = app.run(_limit(until), count=count, timeout=timeout, progress=_Restoring())
    seconds = time.perf_counter() - begun
    text = f"{handled:,} records handled in {seconds:.1f} s"
    output.note(text, app=app.name, records=handled, seconds=round(seconds, 3))


class _Restoring:
    """Progress of a restore: a bar from its first moment, and a summary at the end."""

    def __init__(self) -> None:
        self._bar = RestoreBar(after_seconds=0.0)

    def __call__(self, progress: RestoreProgress) -> None:
        if not logs.are_json():
            self._bar(progress)
        if progress.done and progress.records:
            output.note(
                f"restored {progress.records:,} records into {progress.partitions} store"
                f" partitions in {progress.seconds:.1f} s"
            )
