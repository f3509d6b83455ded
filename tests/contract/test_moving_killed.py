"""`strandline move` as a process, killed again and again: each record is there once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from strandline import changelog
from strandline.changelog.log import Log
from strandline.changelog.move_target import JOURNAL_TOPIC
from strandline.changelog.records import CommittedOffset, TopicPartition
from strandline.framework.cli.reading import partitions_of, read

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 20
"""Number of partitions, more than are read at once."""
RECORDS = 2_000
READ = 7
"""Offset in the first partition of the last topic to which a group has read."""
KILLS = 1
"""Number of kills, each after something was copied."""
BOUND = 60.0


def filled(folder: Path, topics: list[str], group: str) -> None:
    with changelog.open(folder) as log:
        for topic in topics:
            log.create_topic(topic, PARTITIONS)
            log.append(topic, [{"key": b"%d" % n, "value": b"%d" % n} for n in range(RECORDS)])
        tp = TopicPartition(topics[-1], 0)
        log.broker.commit_offsets(group, {tp: CommittedOffset(READ)})


def moving(source: Path, target: str, topics: list[str]) -> subprocess.Popen[str]:
    words = ["move", str(source), target, "--topics", ",".join(topics), "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "strandline", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def copied(target: Log, topics: list[str]) -> int:
    """Return the number of copied partitions in the journal. A killed move may have left it
    open."""
    if JOURNAL_TOPIC not in [info.name for info in target.topics(internal=True)]:
        return 0
    ids: set[str] = set()
    found: set[tuple[str, int]] = set()
    for batch in read(target.broker, {TopicPartition(JOURNAL_TOPIC, 0): 0}):
        for kind, source_id, *rest in map(
            msgspec.msgpack.decode, batch.columns.column("value").to_pylist()
        ):
            if kind == "begun" and rest[0] in topics:
                ids.add(source_id)
            if kind == "copied" and source_id in ids:
                found.add((source_id, rest[0]))
    return len(found)


def was_caught(target: Log, topics: list[str], before: int, process: subprocess.Popen[str]) -> bool:
    """Wait until more was copied. Return False if the move has finished by then."""
    deadline = time.monotonic() + BOUND
    while process.poll() is None:
        assert time.monotonic() < deadline, "it copies nothing"
        if copied(target, topics) > before:
            return process.poll() is None
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    assert process.returncode == 0, process.communicate()
    return False


def content(log: Log, topic: str) -> dict[int, list[tuple[int, bytes | None, bytes]]]:
    """Return time, key and value of each record, by partition. All partitions are read at once."""
    found: dict[int, list[tuple[int, bytes | None, bytes]]] = {}
    for batch in read(log.broker, dict.fromkeys(partitions_of(log.broker, topic), 0)):
        rows = [(record.timestamp, record.key, record.value) for record in batch.records()]
        found.setdefault(batch.partition, []).extend(rows)
    return found


@pytest.mark.long
def test_a_move_killed_at_several_moments_and_run_again_copies_each_record_once(
    kafka: str, name: str, tmp_path: Path
) -> None:
    topics = [f"{name}-{letter}" for letter in "ab"]
    source = tmp_path / "log"
    filled(source, topics, name)
    with changelog.open(kafka) as target:
        caught = 0
        for _ in range(KILLS):
            before = copied(target, topics)
            process = moving(source, kafka, topics)
            try:
                caught += was_caught(target, topics, before, process)
            finally:
                process.kill()
                process.communicate(timeout=BOUND)
        assert caught
        process = moving(source, kafka, topics)
        out, err = process.communicate(timeout=BOUND)
        assert process.returncode == 0, err
        assert msgspec.json.decode(out)["copied"] < RECORDS * len(topics)
        with changelog.open(source) as here:
            for topic in topics:
                assert content(target, topic) == content(here, topic)
            tp = TopicPartition(topics[-1], 0)
            whole = content(here, tp.topic)[0]
        # after the last record that a killed move had begun
        position = target.broker.committed(name)[tp].offset
        left = [r.value for b in read(target.broker, {tp: position}) for r in b.records()]
        assert left == [row[2] for row in whole[READ:]]
