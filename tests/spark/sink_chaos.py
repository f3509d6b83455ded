"""Kill a streaming query, its workers and the owner of its log at random, then count every row.

    python -m tests.spark.sink_chaos [--seconds S] [--seed N] [--url kafka://host:port]

A driver copies topic `in` to topic `out` by `tests.spark.sink_driver`, whose tasks also fail and are
run twice by chance. Meanwhile a producer appends numbers. At the end the query runs to the end of
`in`, and every number must be in `out` once. The exit status is 1 if one is not.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from examples.flights.weather.processes import end, python_processes
from strandline import changelog
from strandline.changelog.flight.endpoint import read as read_endpoint
from strandline.changelog.location import is_url
from strandline.changelog.log import Log
from tests.spark.sinks import values

PATIENCE_S = 180
"""Seconds for the query to reach the end of its input."""


@dataclass
class Blows:
    """Number of blows of each kind."""

    drivers: int = 0
    workers: int = 0
    owners: int = 0
    starts: int = 0
    kinds: list[str] = field(default_factory=lambda: ["driver", "worker", "worker", "owner"])


class Feeder(threading.Thread):
    """Appends numbers to topic `in` until it is told to stop; `count` are acknowledged."""

    def __init__(self, url: str, suffix: str) -> None:
        super().__init__()
        self.count = 0
        self.doubtful: set[int] = set()
        self._url = url
        self._topic = f"in{suffix}"
        self._ending = threading.Event()

    def run(self) -> None:
        with open_log(self._url) as log, log.producer() as producer:
            number = 0
            while not self._ending.wait(0.05):
                batch = range(number, number + 20)
                sent = [
                    producer.send(self._topic, b"%d" % each, key=b"%d" % (each % 97))
                    for each in batch
                ]
                producer.flush()
                for each, future in zip(batch, sent, strict=True):
                    if future.exception() is None:
                        self.count += 1
                    else:
                        self.doubtful.add(each)
                number += 20

    def end(self) -> None:
        self._ending.set()
        self.join()


def open_log(url: str) -> Log:
    """Open the log; a folder's owner runs in the background, where it can be killed."""
    return changelog.open(url, role="attach_or_spawn", create=False)


def strike(seconds: float, seed: int, url: str, suffix: str = "") -> tuple[Blows, list[str]]:
    """Run the query under blows for some seconds; return the blows, and what is wrong."""
    chance = random.Random(seed)
    blows = Blows()
    with tempfile.TemporaryDirectory(prefix="strandline-sink-") as checkpoint:
        arguments = (url, f"{checkpoint}/checkpoint", suffix)
        feeder = Feeder(url, suffix)
        feeder.start()
        until = time.monotonic() + seconds
        driver = start(*arguments, "follow")
        blows.starts += 1
        try:
            while time.monotonic() < until:
                time.sleep(chance.uniform(0.5, 12))
                driver = _blow(chance.choice(blows.kinds), blows, driver, arguments, chance)
        finally:
            end(driver)
            feeder.end()
        _finish(arguments, blows)
    return blows, list(_wrong(url, feeder, suffix))


def start(url: str, checkpoint: str, suffix: str, mode: str) -> subprocess.Popen[bytes]:
    """Start the driver in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.sink_driver", url, checkpoint, mode, suffix],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=Path(f"{checkpoint}.log").open("ab"),
    )


def _blow(
    kind: str,
    blows: Blows,
    driver: subprocess.Popen[bytes],
    arguments: tuple[str, str, str],
    chance: random.Random,
) -> subprocess.Popen[bytes]:
    """Strike once, and return the driver that runs then."""
    if kind == "worker" and (workers := list(python_processes(driver))):
        blows.workers += 1
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)
    elif kind == "owner" and (owner := _owner(arguments[0])) is not None:
        blows.owners += 1
        with contextlib.suppress(ProcessLookupError):
            os.kill(owner, signal.SIGKILL)
    elif kind == "driver":
        blows.drivers += 1
        end(driver)
    if driver.poll() is not None:  # killed, or its query has failed
        end(driver)
        blows.starts += 1
        return start(*arguments, "follow")
    return driver


def _finish(arguments: tuple[str, str, str], blows: Blows) -> None:
    """Run the query to the end of its input; a failure by chance is repeated."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        driver = start(*arguments, "end")
        blows.starts += 1
        try:
            if driver.wait(max(1, until - time.monotonic())) == 0:
                return
        except subprocess.TimeoutExpired:
            break
        finally:
            end(driver)
    said = Path(f"{arguments[1]}.log").read_text(errors="replace")[-4000:]
    raise TimeoutError(f"the query has not come to its end in {PATIENCE_S} s; it said {said}")


def _wrong(url: str, feeder: Feeder, suffix: str) -> Iterator[str]:
    with open_log(url) as log:
        given, found = values(log.broker, f"in{suffix}"), values(log.broker, f"out{suffix}")
    if len(given) < feeder.count:
        yield f"{feeder.count} records were acknowledged, the input has {len(given)}"
    if lost := given - found:
        yield f"{len(lost)} rows are lost: {sorted(lost)[:5]}"
    if doubled := found - given:
        yield f"{len(doubled)} rows are doubled: {sorted(doubled)[:5]}"
    if any(count > 1 for count in Counter(given).values()):
        yield "the input has a record twice"


def _owner(url: str) -> int | None:
    """Return the process id of the owner of a folder's log; None if there is none."""
    found = None if is_url(url) else read_endpoint(Path(url))
    return None if found is None else found.pid


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--url", help="a Kafka cluster; default: a log in a temporary folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="strandline-sink-") as folder:
        suffix = f"-{time.time_ns()}" if given.url else ""
        url = given.url or f"{folder}/log"
        make_topics(url, suffix)
        blows, wrong = strike(given.seconds, given.seed, url, suffix)
    print(f"seed {given.seed}: {blows}")
    for each in wrong or ["every row is there once"]:
        print(each)
    return 1 if wrong else 0


def make_topics(url: str, suffix: str = "") -> None:
    """Create the topics of the query."""
    with changelog.open(url) as log:
        log.create_topic(f"in{suffix}", 4)
        log.create_topic(f"out{suffix}", 3)


if __name__ == "__main__":
    sys.exit(main())
