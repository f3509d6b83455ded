"""`strandline run module:app --workers N`: own the log, and keep N workers at it.

The app's module is imported by workers only, and by a process that says what the app needs: user
code in this one could stop the log for everybody.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import typer

from changelog.clock import SystemClock
from changelog.errors import LogLocked
from changelog.flight.attach import attach_or_own
from changelog.flight.background import environment
from framework.cli import output
from framework.cli.application import FAILED, INTERRUPTED, debug_option
from framework.cli.needs import COMMAND, Needs, ask
from framework.cli.offline import once_left
from framework.supervisor.logs import LogFiles
from framework.supervisor.process import WorkerProcess
from framework.supervisor.supervisor import Outcome, Supervisor
from framework.supervisor.view import view_for


def run_workers(
    target: str,
    workers: int,
    until_idle: bool,
    timeout: float | None,
    log_dir: Path | None,
    *,
    json: bool,
) -> None:
    """Run the app in `workers` processes, until Ctrl-C or as long as the limits say."""
    begun = time.perf_counter()
    needs = ask(target, debug_option())
    logs = LogFiles(log_dir, workers) if log_dir is not None else None
    clock = SystemClock()
    with _log_of(needs), contextlib.ExitStack() as closing:
        if logs is not None:
            closing.callback(logs.close)
        output.note(
            f"app {needs.app} runs on {needs.log or 'a log of its own'} in {workers} workers; "
            "Ctrl-C commits and ends them"
        )
        limits = ["--until", "idle"] if until_idle else []
        command = [*COMMAND, "run", target, *limits, *debug_option()]
        outcome = Supervisor(
            workers,
            lambda number: WorkerProcess(command, _environment(number)),
            view_for(needs.app, json=json, clock=clock),
            clock,
            until_idle=until_idle,
            timeout=timeout,
            logs=logs,
        ).run()
    _conclude(outcome, workers, time.perf_counter() - begun)


@contextmanager
def _log_of(needs: Needs) -> Iterator[None]:
    """The log, if it is a folder: owned by this process, or kept open if another has it."""
    if needs.log is None or "://" in needs.log:
        yield
        return
    own = partial(attach_or_own, needs.log, durability=needs.durability)
    try:
        broker = once_left(partial(own, role="own"))
    except LogLocked as error:
        broker = own()
        if not broker.owning:
            output.note(f"attached to the log's owner, which is another process: {error}")
    with contextlib.closing(broker):
        yield


def _environment(worker: int) -> dict[str, str]:
    """That of one worker; as static members they have names of their own."""
    found = environment()
    if instance := found.get("STRANDLINE_INSTANCE"):
        found["STRANDLINE_INSTANCE"] = f"{instance}-{worker}"
    return found


def _conclude(outcome: Outcome, workers: int, seconds: float) -> None:
    records = f"{outcome.records:,} records handled in {seconds:.1f} s by {workers} workers"
    output.note(f"{records}: {outcome.failure}" if outcome.failure else records)
    if outcome.killed:
        raise typer.Exit(INTERRUPTED)
    if outcome.failure:
        raise typer.Exit(FAILED)
