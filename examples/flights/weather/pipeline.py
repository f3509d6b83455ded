"""The pipeline, with ten kills: `python -m examples.flights.weather.pipeline`.

    1  the task makes departures from the flights; its worker is killed five times
    2  Spark sums them up by hour, joins the weather and writes the result back; its Python workers
       are killed four times, its driver once
    3  the task keeps the result in a store
    4  Spark SQL reports from the store, with a plot

The report must equal the one that Polars computes from the raw flights and weather.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
from rich.console import Console

from examples.flights.data import read_flights, read_weather
from examples.flights.folder import clean
from examples.flights.weather import app as job
from examples.flights.weather.processes import end, python_processes
from examples.flights.weather.report import by_spark, expected, plot
from examples.flights.worker import ROOT, RunProcess
from strandline import changelog
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import Retriable
from strandline.framework.spark.writing.sinks import Sinks

APP = "examples.flights.weather.app:app"
KILLS_OF_WORKERS = 5
"""Number of times that the worker of the app is killed."""
BLOWS = ("python", "python", "driver", "python", "python")
"""Processes of Spark that are killed, one after each micro-batch that is committed."""
POLL_S = 0.02
"""Seconds between two looks at what a process has committed."""
PATIENCE_S = 180.0
"""Seconds without progress after which something is broken."""


def run(log: str, flights: pl.DataFrame, weather: pl.DataFrame, console: Console) -> list[str]:
    """Run the pipeline on a log that has the flights; return what is wrong."""
    job.app.log = log
    with job.app:
        job.weather.append(weather)
        job.hourly.append([])
    kills = _depart(log, flights.height, console)
    kills += _sum_up(log, console)
    with RunProcess(log, "--until", "idle", app=APP) as worker:
        worker.wait()
    found = by_spark(log)
    file = Path(log).parent / "delays-by-weather.svg"
    plot(found, file)
    console.print(f"{kills} processes were killed on the way; the plot is in {file}")
    raw = expected(flights, weather)
    if found.equals(raw):
        return []
    return [f"the report of Spark\n{found}\nis not the one of Polars\n{raw}"]


def report(wrong: list[str], console: Console) -> bool:
    """Print what is wrong with the result of a run; return True if nothing is."""
    for each in wrong:
        console.print(each, style="red")
    if not wrong:
        console.print("the report equals the one that Polars computes from the raw data")
    return not wrong


def _depart(log: str, total: int, console: Console) -> int:
    """Run the app to the end of the flights, and kill its worker on the way."""
    killed = 0
    while True:
        with RunProcess(log, "--until", "idle", app=APP) as worker:
            for committed in _commits(log, worker):
                if killed < KILLS_OF_WORKERS and committed > total * killed // KILLS_OF_WORKERS:
                    worker.kill()
                    killed += 1
                    console.print(f"killed the worker at flight {committed:,}")
                    break
            else:
                worker.wait()
                return killed


def _commits(log: str, worker: RunProcess) -> Iterator[int]:
    """Yield the number of flights that the app has committed, while its worker runs."""
    with changelog.open(log, role="attach_or_spawn") as opened:
        while worker.is_running(POLL_S):
            with contextlib.suppress(Retriable):
                committed = opened.broker.committed(job.app.name, require_stable=False)
                flights = (at for tp, at in committed.items() if tp.topic == job.flights.name)
                yield sum(at.offset for at in flights)


def _sum_up(log: str, console: Console) -> int:
    """Run the query to the end of the departures, and kill its processes on the way."""
    killed = failures = 0
    checkpoint = str(Path(log).parent / "weather-checkpoint")
    shutil.rmtree(checkpoint, ignore_errors=True)
    while True:
        driver = _started(log, checkpoint)
        try:
            for batch in _batches(log, driver):
                if killed == len(BLOWS):
                    continue
                kind, struck = BLOWS[killed], _strike(BLOWS[killed], driver)
                killed += struck
                if struck:
                    console.print(f"killed Spark's {kind} process after batch {batch}")
                if kind == "driver":
                    break
            if driver.wait(PATIENCE_S) == 0:
                return killed
        finally:
            end(driver)
        # A query fails as well if Spark's planner was the Python process that was killed.
        failures += 1
        if failures > len(BLOWS):
            raise RuntimeError("the query fails although nothing is killed")


def _started(log: str, checkpoint: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "examples.flights.weather.query", os.path.abspath(log)]
    return subprocess.Popen(
        [*command, os.path.abspath(checkpoint)], cwd=ROOT, start_new_session=True
    )


def _batches(log: str, driver: subprocess.Popen[bytes]) -> Iterator[int]:
    """Yield the number of each batch that the query commits while it runs."""
    last, until = None, time.monotonic() + PATIENCE_S
    with changelog.open(log, role="attach_or_spawn") as opened:
        sinks = Sinks(opened.broker, f"{log}#demo", SystemClock())
        while driver.poll() is None:
            with contextlib.suppress(Retriable):
                found = max((each.batch for each in sinks.all().values()), default=None)
                if found != last and found is not None:
                    last, until = found, time.monotonic() + PATIENCE_S
                    yield found
            if time.monotonic() > until:
                raise RuntimeError(f"the query has committed nothing for {PATIENCE_S:g} s")
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(POLL_S)


def _strike(kind: str, driver: subprocess.Popen[bytes]) -> bool:
    """Kill a process of the query; return False if there is none of that kind."""
    if kind == "driver":
        end(driver)
        return True
    for pid in python_processes(driver, "worker"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def main() -> int:
    """Produce the flights and run the pipeline; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", default="data/weather/log", metavar="DIR")
    parser.add_argument("--flights", type=int, metavar="N", help="only the first N flights")
    given = parser.parse_args()
    console = Console(highlight=False)
    clean(given.log, console, fresh=False)
    flights = read_flights(given.flights)
    job.app.log = given.log
    with job.app:
        job.flights.append(flights)
    wrong = run(given.log, flights, read_weather(), console)
    return 0 if report(wrong, console) else 1


if __name__ == "__main__":
    sys.exit(main())
