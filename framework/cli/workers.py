"""`strandline run module:app --workers N`: own the log, and keep N workers running.

The app's module is imported by the workers, and by a process that reports the app's needs. It is
not imported here, because user code in this process could stop the log for all of them.
"""

from __future__ import annotations

import contextlib
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import typer

from strandline.changelog import signals
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import LogLocked
from strandline.changelog.flight.attach import attach_or_own
from strandline.changelog.flight.background import environment
from strandline.changelog.location import check_present, is_url
from strandline.changelog.metrics import measured
from strandline.framework.cli import logs, output
from strandline.framework.cli.loading import announced
from strandline.framework.cli.metrics import metrics_options_of_workers, serving_metrics
from strandline.framework.cli.needs import AppNeeds, ask
from strandline.framework.cli.offline import taking_over
from strandline.framework.cli.reporting import FAILED, INTERRUPTED, debug_option
from strandline.framework.supervisor.logs import LogFiles
from strandline.framework.supervisor.metrics import Workers
from strandline.framework.supervisor.process import COMMAND, WorkerProcess
from strandline.framework.supervisor.slots import worker_slots
from strandline.framework.supervisor.supervisor import Outcome, Supervisor, ends
from strandline.framework.supervisor.view import view_for

BACKGROUND_OWNER_TIMEOUT_S = 10.0
"""Seconds to wait for a background owner after the request to leave."""
OWNER_TIMEOUT_S = 2.0
"""Seconds to wait for another owner. Workers left by a dead supervisor own the log while they end.
"""


@dataclass(frozen=True)
class RunEnds:
    """Limits of several workers, as given on the command line. Raises a usage error for --count."""

    until: str | None
    timeout: float | None
    count: int | None = None

    def __post_init__(self) -> None:
        if self.count is not None:
            raise typer.BadParameter(
                "--count is of one process, and --workers runs several; end them with --until idle "
                "or --timeout, or leave out --workers"
            )


def run_workers(
    target: str,
    workers: int,
    ends_at: RunEnds,
    log_dir: Path | None,
    metrics: str | None,
    state_dir: str | None = None,
    *,
    json: bool,
) -> None:
    """Run the app in `workers` processes until Ctrl-C or until the limits."""
    begun = time.perf_counter()
    needs = ask(target, debug_option())
    limits = ["--until", ends_at.until] if ends_at.until else []
    state = ["--state-dir", state_dir] if state_dir else []
    command = [*COMMAND, "run", target, *limits, *state, *debug_option()]
    metrics_options = metrics_options_of_workers(metrics, workers)
    clock, seen = SystemClock(), Workers(needs.app, workers)
    where = announced(needs.log) if needs.log else "a log of its own"
    with (
        signals.awaited(*ends()) as came,
        log_of(needs) as log,
        serving_metrics(metrics, lambda: [*seen.metrics(), *measured(log)]),
        files_in(log_dir, workers) as files,
    ):
        output.note(
            f"app {needs.app} runs on {where} in {workers} workers; Ctrl-C commits and ends them"
        )

        def start(number: int) -> WorkerProcess:
            if needs.log and not is_url(needs.log):
                check_present(Path(needs.log))
            return WorkerProcess([*command, *metrics_options[number]], _environment(number))

        slots = worker_slots(workers, start, clock)
        outcome = Supervisor(
            slots,
            view_for(
                needs.app,
                json=json,
                clock=clock,
                out=logs.forward_worker_lines if logs.are_json() else None,
            ),
            clock,
            until_idle=ends_at.until is not None,
            timeout=ends_at.timeout,
            logs=files,
            note=seen.note,
        ).run(came)
    conclude(outcome, workers, time.perf_counter() - begun)


def log_of(needs: AppNeeds) -> AbstractContextManager[object]:
    """Return the log, if it is a folder: owned by this process, or attached to its owner."""
    if needs.log is None or is_url(needs.log):
        return contextlib.nullcontext()
    open_log = partial(attach_or_own, needs.log, durability=needs.durability)
    own = partial(open_log, role="own")
    try:
        return contextlib.closing(
            taking_over(
                Path(needs.log), own, seconds=BACKGROUND_OWNER_TIMEOUT_S, others=OWNER_TIMEOUT_S
            )
        )
    except LogLocked as error:
        broker = open_log()
        if not broker.owning:
            output.note(
                f"this supervisor does not own the log: {error}; when that process ends, "
                "a worker takes it over"
            )
        return contextlib.closing(broker)


def files_in(folder: Path | None, workers: int) -> AbstractContextManager[LogFiles | None]:
    """Return the files of `--log-dir`; None without it."""
    if folder is None:
        return contextlib.nullcontext()
    return contextlib.closing(LogFiles(folder, workers))


def _environment(worker: int) -> dict[str, str]:
    """Return the environment of one worker; as a static member each has its own name."""
    found = environment()
    if instance := found.get("STRANDLINE_INSTANCE"):
        found["STRANDLINE_INSTANCE"] = f"{instance}-{worker}"
    return found


def conclude(outcome: Outcome, workers: int, seconds: float) -> None:
    """Print the result of a run, and exit with 1 or 130 if it is a failure or was killed."""
    if outcome.failure:
        output.note(outcome.failure)
    output.note(f"{outcome.records:,} records handled in {seconds:.1f} s by {workers} workers")
    if outcome.killed:
        raise typer.Exit(INTERRUPTED)
    if outcome.failure:
        raise typer.Exit(FAILED)
