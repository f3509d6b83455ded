"""Main job, end to end: `make demo`, or `python -m examples.flights.demo`.

    1  produce all flights to topic `flights`
    2  run the app in a process of its own, and kill it with SIGKILL half-way
    3  start it again: it restores its state, continues, and ends when nothing is left
    4  Spark reads topic `carrier-delays` and the latest state of the stores
    5  compare every figure with the raw flights
    6  through Spark and back: delays by hour and weather, while processes are killed
       (examples/flights/weather)

It exits with 1 if anything differs. The log is kept for inspection.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import polars as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.flights import app as job
from examples.flights import checks
from examples.flights.data import read_flights, read_weather
from examples.flights.expected import expect
from examples.flights.folder import clean
from examples.flights.results import FlightResults, read_with_spark, read_without_spark
from examples.flights.weather import pipeline
from examples.flights.worker import RunProcess
from strandline.changelog.errors import StrandlineError

T = TypeVar("T")

APPEND_ROWS = 32_768
"""Number of flights appended at a time."""


def main() -> int:
    """Run the demo; return the exit code."""
    given = _arguments()
    console = Console(highlight=False)
    begun = time.monotonic()
    clean(given.log, console, fresh=given.fresh)
    flights = _step(console, "1  Produce", lambda: _produce(given, console))
    _step(console, "2  Run, and kill half-way", lambda: _kill_half_way(given.log, flights, console))
    _step(console, "3  Start again", lambda: _finish(given.log, flights, console))
    reader = "Strandline" if given.no_spark else "Spark"
    results = _step(console, f"4  Read with {reader}", lambda: _read(given, reader, console))
    expected = expect(flights)
    checks.show_carriers(results, expected, console)
    console.rule("5  Compare with the raw flights", align="left")
    right = checks.report(checks.all_checks(expected, results, flights), console)
    if not given.no_spark and "://" not in given.log:
        wrong = _step(
            *(console, "6  Through Spark and back, and kill ten times"),
            lambda: pipeline.run(given.log, flights, read_weather(), console),
        )
        right = pipeline.report(wrong, console) and right
    console.print(f"{time.monotonic() - begun:.0f} s in all")
    if right:
        _say_how_to_explore(given.log, console)
    return 0 if right else 1


def _produce(given: argparse.Namespace, console: Console) -> pl.DataFrame:
    flights = read_flights(given.flights)
    job.app.log = given.log
    with job.app, _bar(console, "producing flights", flights.height) as advance:
        for start in range(0, flights.height, APPEND_ROWS):
            advance(job.flights.append(flights.slice(start, APPEND_ROWS)))
    return flights


def _kill_half_way(log: str, flights: pl.DataFrame, console: Console) -> None:
    """Run the app, and kill it once the log shows half of the flights committed."""
    half, committed = flights.height // 2, 0
    with RunProcess(log) as worker:
        with closing(_watched(worker, flights, console)) as commits:
            for committed in commits:
                if committed >= half:
                    break
        worker.kill()
    if committed < half:
        raise RuntimeError(f"the worker ended with {committed:,} flights committed")
    share = committed / flights.height
    console.print(f"killed with SIGKILL when {committed:,} flights ({share:.0%}) were committed")


def _finish(log: str, flights: pl.DataFrame, console: Console) -> None:
    """Run the app until it has nothing left to do."""
    with RunProcess(log, "--until", "idle") as worker:
        for _ in _watched(worker, flights, console):
            pass
        worker.wait()


def _read(given: argparse.Namespace, reader: str, console: Console) -> FlightResults:
    with console.status(f"{reader} reads carrier-delays and the stores"):
        return read_without_spark(given.log) if given.no_spark else read_with_spark(given.log)


def _watched(
    worker: RunProcess, flights: pl.DataFrame, console: Console
) -> Generator[int, None, None]:
    """Yield the worker's committed records, with a bar from the first commit on.

    Before the first commit the worker draws on the terminal.
    """
    commits = worker.committed(job.app.name, job.flights.name)
    first = next(commits, None)
    yield from () if first is None else (first,)
    second = next(commits, None)
    if second is None:
        return
    with _bar(console, "flights committed", flights.height) as advance:
        advance(second)
        yield second
        last = second
        for committed in commits:
            advance(committed - last)
            last = committed
            yield committed


@contextmanager
def _bar(console: Console, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar; without a terminal print one line at the end."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)


def _step(console: Console, title: str, do: Callable[[], T]) -> T:
    console.rule(title, align="left")
    begun = time.monotonic()
    done = do()
    console.print(f"{time.monotonic() - begun:.1f} s", style="dim")
    return done


def _say_how_to_explore(log: str, console: Console) -> None:
    console.rule("The log stays; look into it", align="left")
    for command in (
        "topics list",
        "stores scan flights/carriers",
        """stores get flights/origin-carriers '["JFK", "AA"]'""",
        "consume carrier-delays --from -3",
        "groups offsets flights",
        *(() if "://" in log else ("segments carrier-delays --frames --max 5",)),
    ):
        line = f"  {_command()} {command} --log {shlex.quote(log)}"
        console.print(line, markup=False, soft_wrap=True)


def _command() -> str:
    """Return a command that starts `strandline`; a virtual environment may not be on the PATH."""
    beside = Path(sys.executable).with_name("strandline")
    if shutil.which("strandline"):
        return "strandline"
    if beside.exists():
        return shlex.quote(os.path.relpath(beside))
    return f"{shlex.quote(sys.executable)} -m strandline"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.flights.demo", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--log",
        default=os.environ.get("STRANDLINE_LOG") or "data/flights",
        metavar="DIR|URL",
        help="default: STRANDLINE_LOG, or data/flights",
    )
    parser.add_argument("--flights", type=int, metavar="N", help="only the first N flights")
    parser.add_argument("--no-spark", action="store_true", help="read without Spark and Java")
    parser.add_argument("--fresh", action="store_true", help="remove the last run without asking")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, StrandlineError) as error:
        sys.exit(f"the demo failed: {error}")
