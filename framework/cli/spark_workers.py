"""`strandline run module:app --spark MASTER --workers N`: workers in Spark's executors.

The app is imported by the workers, and by a process that reports its needs. It is not imported
here, because this process may own the log.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import typer

from strandline.changelog.clock import SystemClock
from strandline.changelog.location import shown
from strandline.changelog.metrics import measured
from strandline.framework.cli import logs, output
from strandline.framework.cli.loading import announced
from strandline.framework.cli.metrics import serving_metrics
from strandline.framework.cli.needs import ask
from strandline.framework.cli.options import settings
from strandline.framework.cli.reporting import debug_option
from strandline.framework.cli.workers import RunEnds, conclude, files_in, log_of
from strandline.framework.spark.job_driver import WorkersRun
from strandline.framework.spark.job_settings import SparkPlace, check_log, check_place
from strandline.framework.spark.workers import run_workers
from strandline.framework.supervisor.metrics import Workers
from strandline.framework.supervisor.view import view_for

Lists = tuple[list[str] | None, list[str] | None, list[str] | None]
"""Values of --py-files, --archives and --conf."""


def place_of(master: str, workers: int | None, state_dir: str | None, given: Lists) -> SparkPlace:
    """Return the cluster, the number and the needs of the workers. Raises a usage error."""
    if workers is None:
        raise typer.BadParameter("--spark needs --workers N, the number of executor slots to take")
    py_files, archives, conf = given
    return SparkPlace(
        *(master, workers, settings(conf), _paths(py_files), _paths(archives), state_dir)
    )


def _paths(given: list[str] | None) -> tuple[str, ...]:
    """Return the paths in values that may have several each, as Spark's own options do.

    >>> _paths(["a.py,b.zip", "c.zip"])
    ('a.py', 'b.zip', 'c.zip')
    """
    return tuple(path for text in given or () for path in text.split(",") if path)


def run_on_spark(
    target: str,
    place: SparkPlace,
    ends: RunEnds,
    log_dir: Path | None,
    metrics: str | None,
    *,
    json: bool,
) -> None:
    """Run the app in executor slots until Ctrl-C or until the limits."""
    check_place(place)
    begun, needs = time.perf_counter(), ask(target, debug_option())
    if place.master is not None:
        check_log(needs.log, place.master)
    seen = Workers(needs.app, place.workers)
    where = announced(needs.log) if needs.log else "a log of its own"
    with (
        log_of(needs) as log,
        serving_metrics(metrics, lambda: [*seen.metrics(), *measured(log)]),
        files_in(log_dir, place.workers) as files,
    ):
        output.note(
            f"app {needs.app} runs on {where} in {place.workers} workers on Spark "
            f"({shown(place.master or 'its own master')}); Ctrl-C commits and ends them"
        )
        view = view_for(
            needs.app,
            json=json,
            clock=SystemClock(),
            out=logs.forward_worker_lines if logs.are_json() else None,
        )
        described = WorkersRun(
            *(needs.app, target, needs.log, ends.until, ends.timeout, debug_option()),
            view=view,
            output=files,
            has_state_dir=needs.has_state_dir,
            note=seen.note,
        )
        with contextlib.closing(view):
            outcome = run_workers(described, place)
    conclude(outcome, place.workers, time.perf_counter() - begun)
