"""`strandline run module:app`, and `run` of one app."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial
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
    """When a run ends by itself."""

    IDLE = "idle"
    END = "end"


AppArgument = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="Where the app is, as shop.orders:app.")
]
UntilOption = Annotated[
    RunBound | None,
    typer.Option(
        "--until",
        help="idle: end when everything there is has been handled; end: the input is over, so timers in stream time fire before.",
    ),
]
CountOption = Annotated[
    int | None, typer.Option("--count", min=1, metavar="N", help="End after N records.")
]
TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", min=0, metavar="SECONDS", help="End after that time.")
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
            help="In N processes that share the partitions, under a supervisor that owns the log.",
        ),
    ] = None,
    log_dir: Annotated[
        Path | None,
        typer.Option(
            "--log-dir", metavar="DIR", help="With --workers: what they print goes to files there."
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="With --workers: figures as a JSON line a second.")
    ] = False,
    supervised: Annotated[int | None, typer.Option("--supervised", hidden=True)] = None,
) -> None:
    """Run an app: until Ctrl-C, or as long as the options say. It commits before it ends."""
    _tell_where_it_crashes()
    if log is not None:
        os.environ["STRANDLINE_LOG"] = log  # apps read it when they are made
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
    """Be a worker of the supervisor at the other end of this socket."""
    from strandline.framework.cli.application import FAILED, debug_option
    from strandline.framework.container.outage import patiently
    from strandline.framework.container.running import readings
    from strandline.framework.supervisor.reporter import FOR_GOOD, Reporter

    with Reporter(descriptor) as reporter:
        try:
            app = load_app(target)
        except Exception as error:
            reporter.failed(error)
            raise
        try:
            told = serving_metrics(metrics, partial(readings, app))
            with told, app:
                with reporter.opening():
                    patiently(lambda: app.broker)
                with reporter.following(app):
                    app.run(_limit(until), progress=reporter.restoring)
        except FOR_GOOD as error:
            reporter.failed(error)
            if debug_option():
                raise
            raise typer.Exit(FAILED) from error  # the supervisor says it, once for all workers


def _tell_where_it_crashes() -> None:
    """If a library of the app's ends the process, let it leave the stacks of all threads."""
    with contextlib.suppress(RuntimeError, ValueError, AttributeError):  # no stderr, or no file
        faulthandler.enable()


def _limit(until: RunBound | None) -> Literal["idle", "end"] | None:
    return None if until is None else until.value


def command_of(app: App) -> Callable[..., None]:
    """The command `run` of one app."""

    def run(
        until: UntilOption = None,
        count: CountOption = None,
        timeout: TimeoutOption = None,
        log: LogOption = None,
        metrics: MetricsOption = None,
    ) -> None:
        """Run the app: until Ctrl-C, or as long as the options say. It commits before it ends."""
        _tell_where_it_crashes()
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
    """Run an app within limits and say what it did."""
    from strandline.framework.container.running import readings

    begun = time.perf_counter()
    with serving_metrics(metrics, partial(readings, app)), app:
        output.note(f"app {app.name} runs on {shown(str(app.log))}; Ctrl-C commits and ends it")
        handled = app.run(_limit(until), count=count, timeout=timeout, progress=_Restoring())
    seconds = time.perf_counter() - begun
    said = f"{handled:,} records handled in {seconds:.1f} s"
    output.note(said, app=app.name, records=handled, seconds=round(seconds, 3))


class _Restoring:
    """Shows a restore from its first moment, and says at the end what came back."""

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
