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

from strandline.changelog.location import shown
from strandline.framework.cli import logs, output
from strandline.framework.cli.loading import load_app
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
    supervised: Annotated[int | None, typer.Option("--supervised", hidden=True)] = None,
) -> None:
    """Run an app until Ctrl-C or until the given limits. It commits before it ends."""
    _enable_crash_traces()
    if log is not None:
        os.environ["STRANDLINE_LOG"] = log  # the constructor of App reads it
    if supervised is not None:
        _run_supervised(target, until, metrics, supervised)
    elif workers is not None:
        if count is not None:
            raise typer.BadParameter(
                "--count is of one process, and --workers runs several; end them with --until idle "
                "or --timeout, or leave out --workers"
            )
        from strandline.framework.cli.workers import run_workers

        run_workers(target, workers, until and until.value, timeout, log_dir, metrics, json=json)
    elif log_dir is not None or json:
        raise typer.BadParameter("--log-dir and --json need --workers N")
    else:
        run_app(load_app(target), until, count, timeout, metrics)


def _run_supervised(
    target: str, until: RunBound | None, metrics: str | None, descriptor: int
) -> None:
    """Run a worker for the supervisor at the other end of the socket `descriptor`."""
    from strandline.framework.cli.reporting import FAILED, debug_option
    from strandline.framework.container.outage import patiently
    from strandline.framework.supervisor.reporter import FOR_GOOD, Reporter

    with Reporter(descriptor) as reporter:
        try:
            app = load_app(target)
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
    with serving_metrics(metrics, app.runner.metrics), app:
        output.note(f"app {app.name} runs on {shown(str(app.log))}; Ctrl-C commits and ends it")
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
