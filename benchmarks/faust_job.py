"""Run the standard job as a Faust app, exactly once, against Faust's own transport and store.

The app (faust_count.py) counts the records of each user in a table and sends every count on. It
runs with Strandline's transport on a log in a folder, with the same on a Kafka broker, and with
Faust's own transport and RocksDB on that broker, one after the other, round by round. A reader of
committed records measures all of them: from the first counts that it sees until all have come.

Needs Faust, Java and Maven: `make bench-faust`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Figure, folder, of_pairs, report
from benchmarks.kafka_broker import ALONE, cluster
from benchmarks.kafka_job import SETTINGS
from strandline import changelog
from strandline.changelog.clock import SystemClock
from strandline.changelog.log import Log

PARTITIONS = 4
USERS = 10_000
BOUND_S = 300.0
"""Maximum seconds of one run."""
STOCK_STORE = "rocksdb://?driver=rocksdict"
OURS = "strandline://"
APP = ("-A", "benchmarks.faust_count")
_names = itertools.count()


@dataclass(frozen=True)
class FaustSetup:
    """A log, and the URLs with which Faust uses it."""

    log: Log
    broker: str
    store: str


def main() -> int:
    """Print the figures. Return 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="benchmarks.faust_job", description=__doc__)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON line a figure")
    given = parser.parse_args()
    return report(run(given.records, given.rounds), given.json)


def run(records: int, rounds: int) -> Iterator[Figure]:
    """Measure committed counts per second (target: 5 × Faust's own transport)."""
    with (
        folder() as place,
        cluster(place / "kafka", 1, SETTINGS, jvm=ALONE) as [only],
        changelog.open(place / "log") as embedded,
        changelog.open(f"kafka://{only.address}") as kafka,
    ):
        for log in (embedded, kafka):
            _fill(log, records)
        in_folder = FaustSetup(embedded, f"strandline://{place / 'log'}", OURS)
        on_kafka = FaustSetup(kafka, f"strandline+kafka://{only.address}", OURS)
        stock = FaustSetup(kafka, f"kafka://{only.address}", STOCK_STORE)
        rates = [
            [_rate(setup, records, place) for setup in (in_folder, on_kafka, stock)]
            for _ in range(rounds)
        ]
    for number, where in enumerate(("in a folder", "on Kafka")):
        yield of_pairs(
            f"Faust app {where}, exactly once, {records:,} records",
            [(of_round[number], of_round[-1]) for of_round in rates],
            peer_name="Faust's own transport on Kafka",
            unit="records/s",
            target=5.0 if number == 0 else None,
        )


def _fill(log: Log, records: int) -> None:
    chance, now = random.Random(0), SystemClock().now_ms()
    log.create_topic("views", PARTITIONS)
    with log.producer() as producer:
        keys = [b"user-%05d" % chance.randrange(USERS) for _ in range(records)]
        producer.append_columns("views", keys, [b"1"] * records, [now] * records)


def _rate(setup: FaustSetup, records: int, place: Path) -> float:
    """Run the app over all records; return committed counts per second."""
    name = f"counting-{next(_names)}"
    setup.log.create_topic(f"{name}-counts", PARTITIONS)
    settings = {
        "FAUST_APP": name,
        "FAUST_BROKER": setup.broker,
        "FAUST_STORE": setup.store,
        "FAUST_DATA": str(place / name),
    }
    output = place / f"{name}.out"
    with output.open("wb") as written:
        worker = subprocess.Popen(
            [sys.executable, "-m", "faust", *APP, "worker", "-l", "warn", "--without-web"],
            env=_environment(settings),
            stdout=written,
            stderr=subprocess.STDOUT,
        )
        try:
            return _counted(setup.log, f"{name}-counts", records, worker)
        except BaseException:
            print(output.read_text(errors="replace")[-3000:], file=sys.stderr)
            raise
        finally:
            worker.terminate()
            try:
                worker.wait(30)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, **settings, "PYTHONPATH": str(Path(__file__).parents[1])}


def _counted(log: Log, topic: str, records: int, worker: subprocess.Popen[bytes]) -> float:
    """Read the committed counts until there are as many as records; return counts per second."""
    deadline = time.monotonic() + BOUND_S
    seen = first = 0
    begun = 0.0
    with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.subscribe(topic)
        while seen < records:
            assert worker.poll() is None, f"the worker ended with {worker.returncode}"
            assert time.monotonic() < deadline, f"{seen} of {records} counts after {BOUND_S} s"
            seen += sum(map(len, consumer.poll(0.1)))
            if seen and not begun:
                begun, first = time.monotonic(), seen
    assert seen == records, f"{seen} counts of {records} records"
    return (records - first) / (time.monotonic() - begun)


if __name__ == "__main__":
    sys.exit(main())
