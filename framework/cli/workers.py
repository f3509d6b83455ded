"""`strandline run module:app --workers N`: own the log, and keep N workers at it.

The app's module is imported by workers only, and by a process that says what the app needs: user
code in this one could stop the log for everybody.
"""

from __future__ import annotations

import contextlib
import time
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import typer

from strandline.changelog import signals
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import LogLocked
from strandline.changelog.flight.attach import attach_or_own
from strandline.changelog.flight.background import environment
from strandline.changelog.location import is_url, shown
from strandline.changelog.metrics import measured
from strandline.framework.cli import logs, output
from strandline.framework.cli.application import FAILED, INTERRUPTED, debug_option
from strandline.framework.cli.metrics import options_behind, serving_metrics
from strandline.framework.cli.needs import COMMAND, AppNeeds, ask
from strandline.framework.cli.offline import in_place_of
from strandline.framework.supervisor.logs import LogFiles
from strandline.framework.supervisor.metrics import Workers
from strandline.framework.supervisor.process import WorkerProcess
from strandline.framework.supervisor.supervisor import Outcome, Supervisor, ends
from strandline.framework.supervisor.view import view_for

BACKGROUND_PATIENCE = 10.0
"""Seconds for which an owner in the background is waited for, which is asked to leave."""
PATIENCE = 2.0
"""Seconds for which an owner is waited for: workers left by a supervisor that died own it as they end."""


def run_workers(
    target: str,
    workers: int,
    until: str | None,
    timeout: float | None,
    log_dir: Path | None,
    metrics: str | None,
    *,
    json: bool,
) -> None:
    """Run the app in `workers` processes, until Ctrl-C or as long as the limits say."""
    begun = time.perf_counter()
    needs = ask(target, debug_option())
    limits = ["--until", until] if until else []
    command = [*COMMAND, "run", target, *limits, *debug_option()]
    behind = options_behind(metrics, workers)
    clock, seen = SystemClock(), Workers(needs.app, workers)
    with (
        signals.awaited(*ends()) as came,
        _log_of(needs) as log,
        serving_metrics(metrics, lambda: [*seen.metrics(), *measured(log)]),
        _files(log_dir, workers) as files,
    ):
        where = shown(needs.log) if needs.log else "a log of its own"
        output.note(
            f"app {needs.app} runs on {where} in {workers} workers; Ctrl-C commits and ends them"
        )
        outcome = Supervisor(
            workers,
            lambda number: WorkerProcess([*command, *behind[number]], _environment(number)),
            view_for(
                needs.app, json=json, clock=clock, out=logs.pass_on if logs.are_json() else None
            ),
            clock,
            until_idle=until is not None,
            timeout=timeout,
            logs=files,
            note=seen.note,
        ).run(came)
    _conclude(outcome, workers, time.perf_counter() - begun)


def _log_of(needs: AppNeeds) -> AbstractContextManager[object]:
    """The log, if it is a folder: owned by this process, or kept open if another has it."""
    if needs.log is None or is_url(needs.log):
        return contextlib.nullcontext()
    open_log = partial(attach_or_own, needs.log, durability=needs.durability)
    own = partial(open_log, role="own")
    try:
        return contextlib.closing(
            in_place_of(Path(needs.log), own, seconds=BACKGROUND_PATIENCE, others=PATIENCE)
        )
    except LogLocked as error:
        broker = open_log()
        if not broker.owning:
            output.note(
                f"this supervisor does not own the log: {error}; when that process ends, "
                "a worker takes it over"
            )
        return contextlib.closing(broker)


def _files(folder: Path | None, workers: int) -> AbstractContextManager[LogFiles | None]:
    if folder is None:
        return contextlib.nullcontext()
    return contextlib.closing(LogFiles(folder, workers))


def _environment(worker: int) -> dict[str, str]:
    """That of one worker; as static members they have names of their own."""
    found = environment()
    if instance := found.get("STRANDLINE_INSTANCE"):
        found["STRANDLINE_INSTANCE"] = f"{instance}-{worker}"
    return found


def _conclude(outcome: Outcome, workers: int, seconds: float) -> None:
    if outcome.failure:
        output.note(outcome.failure)
    output.note(f"{outcome.records:,} records handled in {seconds:.1f} s by {workers} workers")
    if outcome.killed:
        raise typer.Exit(INTERRUPTED)
    if outcome.failure:
        raise typer.Exit(FAILED)
