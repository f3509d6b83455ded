"""Open an old log after `kill -9`, with the cleaner and without.

Each transaction is a record and a group's offset, so the log's own topics of transactions and
offsets grow by a few records each time. Both topics are read at each opening. The killed log is a
copy of the log's folder, taken while it is open and nothing writes or cleans. With durability "os"
opening walks and rewrites each last segment. The peer has `log.cleaner.enable=false`; nothing else
is different. A younger log has a third of the transactions.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from benchmarks.harness import Figure, Stopwatch, compare, folder
from strandline import changelog
from strandline.changelog.log import Log
from strandline.changelog.records import CommittedOffset, TopicPartition

TOPIC = "events"


def run(*, quick: bool = False) -> list[Figure]:
    """Measure seconds to open an old log, against an uncleaned and a younger one (target: 1.5)."""
    count, rounds = (2_000, 1) if quick else (30_000, 5)
    with folder() as path:
        old = _age(path / "old", count, clean=True)
        dirty = _age(path / "dirty", count, clean=False)
        young = _age(path / "young", count // 3, clean=True)
        name = f"open after a kill, {count:,} small transactions"
        return [
            compare(
                name,
                lambda: _opening(old),
                lambda: _opening(dirty),
                peer_name="not cleaned",
                unit="s",
                at_most=True,
                rounds=rounds,
            ),
            compare(
                name,
                lambda: _opening(old),
                lambda: _opening(young),
                peer_name=f"after {count // 3:,}",
                unit="s",
                target=None if quick else 1.5,
                at_most=True,
                rounds=rounds,
            ),
        ]


def _age(path: Path, count: int, *, clean: bool) -> Path:
    """Return a folder as a kill leaves it after `count` transactions."""
    killed = path.with_name(f"{path.name}-killed")
    with changelog.open(path, durability="os") as log:
        log.broker.alter_config({"log.cleaner.enable": str(clean).lower()})
        _write(log, count)
        deadline = Stopwatch()
        while clean and any(status.state != "idle" for status in log.broker.cleaning()):
            assert deadline.seconds < 60, log.broker.cleaning()
            threading.Event().wait(0.1)
        shutil.copytree(path, killed, ignore=shutil.ignore_patterns("*.sock"))
    return killed


def _write(log: Log, count: int) -> None:
    log.create_topic(TOPIC)
    partition = TopicPartition(TOPIC, 0)
    topic_id = log.broker.offsets([partition])[partition].topic_id
    with log.producer(transactional_id="writer") as producer:
        for number in range(count):
            with producer.transaction():
                producer.append_columns(TOPIC, [b"key"], [b"value"], [number])
                offset = CommittedOffset(number, "", topic_id)
                producer.send_offsets_to_transaction({partition: offset}, "readers")


def _opening(killed: Path) -> float:
    """Copy a killed log and open it. Return the seconds of opening."""
    with folder() as path:
        copy = path / "log"
        shutil.copytree(killed, copy)
        watch = Stopwatch()
        log = changelog.open(copy, durability="os")
        seconds = watch.seconds
        log.close()
        return seconds
