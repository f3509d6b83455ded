"""Run the standard job on one Kafka broker, against Kafka Streams and other frameworks.

The job reads 1,000,000 records of 100,000 users in 4 partitions, keeps a count per user in a
RocksDB store with a changelog, and writes out every update. Each system runs in a process of its
own, one after the other, round by round, on the same broker and the same input. The limit for
Python is measured too: a bare loop over confluent-kafka with transactions and a dict
(kafka_peers/bare_loop.py). A restore after a lost disk is compared with that of Kafka Streams.

The same job as a stream, by columns, in a folder without Kafka is compared with all of them. Spark
writes at least once; Bytewax counts in memory, without Kafka, state on disk or recovery.

Kafka Streams and Quix run with their default settings. Kafka Streams may leave out updates (its
cache keeps the last one between commits), ours may not. Theirs is timed until the last record was
handled, ours until the last commit is done.

Needs Java (a JDK), Maven, and pip for Quix, Bytewax and Spark, which get environments of their own
in the user's cache: `make bench-kafka`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import struct
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import standard_job
from benchmarks import streams as streams_by_columns
from benchmarks.harness import Figure, folder, of_pairs, report
from benchmarks.kafka_broker import ALONE, VERSION, cluster
from benchmarks.servers import cached, copy_jars, java
from strandline import changelog
from strandline.changelog.clock import SystemClock

PARTITIONS = 4
USERS = 100_000
STREAM_RECORDS = 10_000_000
"""Number of records of the stream in a folder, whose start is part of its time."""
QUIX = "quixstreams==3.28.1"
BYTEWAX = "bytewax==0.21.1"
SPARK = "pyspark==4.1.1"
SPARK_JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.1",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
THREADS = "2"
"""Number of threads of Kafka Streams: one for each core."""
OLDEST_JAVA = 17
BOUND_S = 900.0
PEERS = Path(__file__).parent / "kafka_peers"
SETTINGS = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
}
_names = itertools.count()


def main() -> int:
    """Run the comparison. Return 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="benchmarks.kafka_job", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON line a figure")
    asked = parser.parse_args()
    return report(run(asked.records, asked.rounds), asked.json)


def run(records: int, rounds: int) -> Iterator[Figure]:
    """Yield the figures as they are measured."""
    with _broker() as servers, folder() as log:
        _fill(servers, records)
        standard_job.fill(log, STREAM_RECORDS)
        ours = _ours(servers, records)
        streams = _streams(servers, records)
        peers = {
            "Kafka Streams exactly_once_v2": (streams("count"), 2.0, 50.0),
            "Quix Streams exactly-once": (_quix(servers, records), 5.0, None),
            "Spark Structured Streaming": (_spark(servers, records), None, None),
            "Bytewax in memory": (_bytewax(records), None, None),
            "a bare loop over confluent-kafka": (_bare(servers, records), 0.65, None),
        }
        rounds_of = {name: list[tuple[float, float, float]]() for name in peers}
        for _ in range(rounds):
            on_kafka = ours("count")
            as_stream = streams_by_columns.standard_rate(log, STREAM_RECORDS)
            for name, (peer, *_) in peers.items():
                rounds_of[name].append((on_kafka, as_stream, peer()))
        for name, (_, least_on_kafka, least_as_stream) in peers.items():
            measured = rounds_of[name]
            yield of_pairs(
                f"standard job on Kafka, {records:,} records",
                [(on_kafka, theirs) for on_kafka, _, theirs in measured],
                peer_name=name,
                unit="records/s",
                target=least_on_kafka,
            )
            yield of_pairs(
                f"standard job as a stream in a folder, {STREAM_RECORDS:,} records",
                [(as_stream, theirs) for _, as_stream, theirs in measured],
                peer_name=name,
                unit="records/s",
                target=least_as_stream,
            )
        restores = [(ours("restore"), streams("restore")()) for _ in range(rounds)]
        yield of_pairs(
            "restore from Kafka",
            restores,
            peer_name="Kafka Streams",
            unit="records/s",
            target=1.0,
        )


@contextmanager
def _broker() -> Iterator[str]:
    with folder() as place, cluster(place / "kafka", 1, SETTINGS, jvm=ALONE) as [only]:
        yield only.address


def _fill(servers: str, records: int) -> None:
    chance = random.Random(0)
    now = SystemClock().now_ms()
    with changelog.open(f"kafka://{servers}") as log:
        log.create_topic("views", PARTITIONS)
        with log.producer() as producer:
            for start in range(0, records, 100_000):
                numbers = range(start, min(start + 100_000, records))
                keys = [b"user-%05d" % chance.randrange(USERS) for _ in numbers]
                values = [struct.pack(">q", n % 1000) for n in numbers]
                producer.append_columns("views", keys, values, [now] * len(numbers))


def _topics(servers: str, *names: str) -> None:
    with changelog.open(f"kafka://{servers}") as log:
        for name in names:
            log.create_topic(name, PARTITIONS)


def _ours(servers: str, records: int) -> Callable[[str], float]:
    def measure(what: str) -> float:
        program = [sys.executable, "-m", "benchmarks.kafka_process"]
        return _rate([*program, what, servers, _name("ours"), str(records)])

    return measure


def _bare(servers: str, records: int) -> Callable[[], float]:
    def measure() -> float:
        name = _name("bare")
        _topics(servers, f"{name}-counts", f"{name}-changelog")
        program = [sys.executable, "-m", "benchmarks.kafka_peers.bare_loop"]
        return _rate([*program, servers, name, str(records)])

    return measure


def _streams(servers: str, records: int) -> Callable[[str], Callable[[], float]]:
    jars = cached(f"kafka-streams-{VERSION}", _copy_streams)
    program = [
        *java(OLDEST_JAVA, "Kafka Streams"),
        "-cp",
        f"{jars}/*",
        str(PEERS / "Counting.java"),
    ]

    def measure(what: str) -> float:
        name = _name("streams")
        _topics(servers, f"{name}-counts")
        return _rate([*program, servers, name, str(records), THREADS, what])

    return lambda what: lambda: measure(what)


def _quix(servers: str, records: int) -> Callable[[], float]:
    python = _environment(QUIX)

    def measure() -> float:
        name = _name("quix")
        _topics(servers, f"{name}-counts")
        return _rate([python, str(PEERS / "quix_count.py"), servers, name, str(records)])

    return measure


def _spark(servers: str, records: int) -> Callable[[], float]:
    jars = cached(f"spark-kafka-{SPARK_JARS[0].rpartition(':')[2]}", _copy_spark)
    python = _environment(SPARK)

    def measure() -> float:
        name = _name("spark")
        _topics(servers, f"{name}-counts")
        program = [python, str(PEERS / "spark_count.py")]
        return _rate([*program, servers, name, str(records), str(jars)])

    return measure


def _bytewax(records: int) -> Callable[[], float]:
    python = _environment(BYTEWAX)
    return lambda: _rate(
        [python, str(PEERS / "bytewax_count.py"), str(records), str(USERS)],
    )


def _copy_spark(place: Path) -> None:
    copy_jars(place, *SPARK_JARS, otherwise="leave Spark out")


def _copy_streams(place: Path) -> None:
    copy_jars(
        place,
        f"org.apache.kafka:kafka-streams:{VERSION}",
        "org.slf4j:slf4j-nop:1.7.36",
        otherwise="leave Kafka Streams out",
    )


def _environment(package: str) -> str:
    """Return the Python of an environment with a package."""

    def install(place: Path) -> None:
        venv.create(place, with_pip=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", package]
        subprocess.run(pip, check=True, timeout=BOUND_S)

    return str(cached(package.replace("==", "-"), install) / "bin" / "python")


def _name(who: str) -> str:
    """Return a name that nothing on the broker has."""
    return f"{who}-{next(_names)}"


def _rate(command: list[str]) -> float:
    """Run a program and return the number it prints after `rate`.

    Raises ChildProcessError with the rest of its output.
    """
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
        cwd=PEERS.parents[1],
        env={**os.environ, "PYTHONPATH": str(PEERS.parents[1]), "PYSPARK_PYTHON": command[0]},
    )
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("rate "):
            return float(line.removeprefix("rate "))
    raise ChildProcessError(
        f"{command[0]} gave no rate:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
    )


if __name__ == "__main__":
    sys.exit(main())
