"""Kill a streaming query, its processes and its log at random, then count every row.

    python -m tests.spark.sink_chaos [--minutes M] [--seed N] [--kafka] [--folder DIR]

A driver copies topic `in` to topic `out` by `tests.spark.sink_driver`, whose tasks also fail and are
run twice by chance. Meanwhile a producer appends numbers. The log is a folder whose owner is killed,
or a Kafka cluster of three brokers, which are killed in turn. At the end the query runs to the end
of `in`. Then every number must be in `out` once, and the numbers of a key in the order in which they
are in `in`. The exit status is 1 if that is not so.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.kafka_broker import BrokerProcess, cluster, servers
from examples.flights.weather.processes import end
from strandline import changelog
from strandline.changelog.errors import StrandlineError
from strandline.changelog.flight.endpoint import read as read_endpoint
from strandline.changelog.location import is_url
from strandline.changelog.log import Log
from tests.chaos.field import wait_for
from tests.chaos.kafka import Replicas
from tests.kafka.brokers import SETTINGS, SOON_NOTICED
from tests.spark.processes import processes_of
from tests.spark.sinks import batches, values

PATIENCE_S = 900
"""Seconds for the query to reach the end of its input."""
PROGRESS_S = 120
"""Seconds for a query to commit its next batch. A driver alone takes half a minute to start."""
KEYS = 97
"""Number of keys of the input."""
KINDS = ("driver", "executor", "executor", "worker", "worker", "daemon", "planner", "log", "log")
"""Kinds of blows, in their frequency."""
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that starts quickly and does not live for long."""


class Feeder(threading.Thread):
    """Appends numbers to topic `in` until it is told to stop; `count` are acknowledged."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.count = 0
        self.errors: Counter[str] = Counter()
        """Number of records that were not acknowledged, by the error's type."""
        self._url = url
        self._ending = threading.Event()

    def run(self) -> None:
        with open_log(self._url) as log, log.producer() as producer:
            number = 0
            while not self._ending.wait(0.05):
                batch = range(number, number + 20)
                number += 20
                try:
                    sent = [
                        producer.send("in", b"%d" % each, key=b"%d" % (each % KEYS))
                        for each in batch
                    ]
                    producer.flush()
                except StrandlineError as error:
                    self.errors[type(error).__name__] += len(batch)
                    continue
                for future in sent:
                    error = future.exception()
                    self.count += error is None
                    self.errors.update([] if error is None else [type(error).__name__])

    def end(self) -> None:
        self._ending.set()
        self.join()


class Chaos:
    """A query under blows.

    Args:
        url: Folder or URL of the log.
        brokers: Brokers of the cluster; none if the log is a folder.
        folder: Folder for the checkpoint, and the output of drivers.
        seed: Seed of the choices.
    """

    def __init__(self, url: str, brokers: Sequence[BrokerProcess], folder: Path, seed: int) -> None:
        self.blows: Counter[str] = Counter()
        """Number of blows by kind, and of starts of the driver."""
        self._url = url
        self._brokers = brokers
        self._replicas = Replicas(brokers) if brokers else None
        self._folder = folder
        self._chance = random.Random(seed)
        self._driver = self._started("follow")

    def run(self, seconds: float) -> None:
        """Strike for some seconds. The query is started again whenever it has ended."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._chance.random() < 0.5:
                self._wait_for_progress(until)
            time.sleep(self._chance.uniform(0.2, 6))
            self._strike(self._chance.choice(KINDS))
            if self._driver.poll() is not None:
                end(self._driver)
                self._driver = self._started("follow")

    def finish(self) -> None:
        """Run the query to the end of its input; a failure by chance is repeated."""
        end(self._driver)
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            self._driver = self._started("end")
            try:
                if self._driver.wait(max(1, until - time.monotonic())) == 0:
                    return
            except subprocess.TimeoutExpired:
                break
            finally:
                end(self._driver)
        raise TimeoutError(f"the query has not come to its end; it said {self.said()[-4000:]}")

    def close(self) -> None:
        """End the query."""
        end(self._driver)

    @property
    def batches(self) -> int:
        """Number of batches that Spark knows to be committed."""
        commits = (self._folder / "checkpoint" / "commits").glob("[0-9]*")
        return max((int(each.name) + 1 for each in commits if each.name.isdigit()), default=0)

    def said(self) -> str:
        """Return the output of all drivers."""
        return (self._folder / "drivers.log").read_text(errors="replace")

    def _wait_for_progress(self, until: float) -> None:
        """Wait until the query has committed a batch, has ended, or the time is over."""
        before = self.batches
        until = min(until, time.monotonic() + PROGRESS_S)
        while time.monotonic() < until and self._driver.poll() is None:
            if self.batches > before:
                return
            time.sleep(0.2)
        if time.monotonic() >= until:
            self.blows["waits without a batch"] += 1

    def _strike(self, kind: str) -> None:
        if kind == "driver":
            end(self._driver)
            self.blows[kind] += 1
        elif kind == "log" and self._replicas is not None:
            self._kill_broker(self._replicas)
        elif pids := self._pids(kind):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chance.choice(pids), signal.SIGKILL)
                self.blows[kind] += 1

    def _pids(self, kind: str) -> list[int]:
        """Return the processes of one kind that run now."""
        if kind == "log":
            owner = None if is_url(self._url) else read_endpoint(Path(self._url))
            return [] if owner is None else [owner.pid]
        found: list[int] = getattr(processes_of(self._driver), f"{kind}s")
        return found

    def _kill_broker(self, replicas: Replicas) -> None:
        """Kill a broker, and start it again while the query goes on."""
        broker = self._chance.choice(self._brokers)
        broker.kill()
        self.blows["broker"] += 1
        time.sleep(self._chance.uniform(0.5, 15))
        broker.start()
        wait_for(replicas.are_in_sync, 90, "replicas that have caught up")

    def _started(self, mode: str) -> subprocess.Popen[bytes]:
        """Start the driver in a session of its own."""
        self.blows["start"] += 1
        checkpoint = str(self._folder / "checkpoint")
        with (self._folder / "drivers.log").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.spark.sink_driver", self._url, checkpoint, mode],
                start_new_session=True,
                stdout=output,
                stderr=output,
                env={
                    **os.environ,
                    "JDK_JAVA_OPTIONS": QUICK_JVM,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_WORKER_DIR": str(self._folder / "work"),
                },
            )


def open_log(url: str) -> Log:
    """Open the log; a folder's owner runs in the background, where it can be killed."""
    return changelog.open(url, role="attach_or_spawn", create=False)


def wrong(url: str, acknowledged: int) -> Iterator[str]:
    """Yield what is wrong with the output."""
    with open_log(url) as log:
        given, found = values(log.broker, "in"), values(log.broker, "out")
        order = {name: numbers_by_key(log, name) for name in ("in", "out")}
    print(f"{acknowledged} records acknowledged, {given.total()} rows in, {found.total()} rows out")
    if given.total() < acknowledged or not acknowledged:
        yield f"{acknowledged} records were acknowledged, the input has {given.total()}"
    if lost := given - found:
        yield f"{lost.total()} rows are lost: {sorted(lost)[:5]}"
    if doubled := found - given:
        yield f"{doubled.total()} rows are doubled: {sorted(doubled)[:5]}"
    if given.total() > len(given):
        yield "the input has a record twice"
    if order["in"] != order["out"]:
        yield "the rows of a key are in another order"


def numbers_by_key(log: Log, topic: str) -> dict[bytes | None, list[bytes | None]]:
    """Return the values of each key in their order."""
    found: dict[bytes | None, list[bytes | None]] = {}
    for batch in batches(log.broker, topic):
        for record in batch.records():
            found.setdefault(record.key, []).append(record.value)
    return found


def strike(
    url: str, brokers: Sequence[BrokerProcess], folder: Path, seconds: float, seed: int
) -> int:
    """Run the query under blows, count, and return the exit status."""
    with changelog.open(url) as log:
        log.create_topic("in", 4)
        log.create_topic("out", 3)
    chaos, feeder, begun = Chaos(url, brokers, folder, seed), Feeder(url), time.monotonic()
    feeder.start()
    try:
        chaos.run(seconds)
        feeder.end()
        chaos.finish()
    finally:
        feeder.end()
        chaos.close()
    print(f"seed {seed}, {(time.monotonic() - begun) / 60:.1f} minutes: {dict(chaos.blows)}")
    print(f"{chaos.batches} batches; errors of the producer: {dict(feeder.errors)}")
    errors = Counter(re.findall(r"^([\w.]+(?:Error|Exception))\b", chaos.said(), re.MULTILINE))
    print(f"errors in the output of drivers: {dict(errors)}")
    found = list(wrong(url, feeder.count))
    for each in found or ["every row is there once"]:
        print(each)
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--kafka", action="store_true", help="on a cluster of three brokers")
    parser.add_argument("--folder", type=Path, help="an empty folder that stays (default: none)")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="strandline-sink-"))
        )
        url, brokers = str(folder / "log"), list[BrokerProcess]()
        if given.kafka:
            settings = SETTINGS | SOON_NOTICED
            brokers = stack.enter_context(cluster(folder / "kafka", 3, settings))
            url = f"kafka://{servers(brokers)}"
        return strike(url, brokers, folder, given.minutes * 60, given.seed)


if __name__ == "__main__":
    sys.exit(main())
