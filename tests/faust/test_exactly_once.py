"""Kills of Faust workers under load: each record counts once, by a per-record oracle.

This is the 1:1 app of faust-streaming #517, which has duplicates under kill -9 there.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tests.faust.faust_workers import FaustLog, FaustProcess, eventually, worker
from tests.systems import System
from tests.workers.processes import ending

KEYS = [f"k{n}" for n in range(20)]
CHANGELOG = "copier-totals-changelog"


class Source:
    """Input of the app, and what its output must be."""

    def __init__(self, log: FaustLog, seed: int) -> None:
        self.log = log
        self.chance = random.Random(seed)
        self.appended = 0
        log.create("source", 4)

    def append(self, count: int) -> None:
        """Append records with random keys and values."""
        self.log.append(
            "source",
            [
                {
                    "key": self.chance.choice(KEYS).encode(),
                    "value": str(self.chance.randrange(100)).encode(),
                }
                for _ in range(count)
            ],
            key="key",
        )
        self.appended += count

    def is_copied(self) -> bool:
        """Return True if every record has an output, or more than one."""
        return len({row["from"] for *_, row in self.log.rows("copies")}) >= self.appended

    def check(self) -> None:
        """Compare the outputs and the table with the input, record by record."""
        copies = [(key, row) for _, _, key, row in self.log.rows("copies")]
        places = [row["from"] for _, row in copies]
        assert len(places) == len(set(places)) == self.appended
        running: dict[str, int] = defaultdict(int)
        expected = []
        for partition, offset, key, value in self.log.rows("source"):
            running[key] += value
            expected.append((key, {"from": f"{partition}/{offset}", "total": running[key]}))
        by_place = sorted(copies, key=lambda one: one[1]["from"])
        assert by_place == sorted(expected, key=lambda one: one[1]["from"])
        assert self.log.latest(CHANGELOG) == running


def is_alive(log: FaustLog, appended: int) -> bool:
    """Return True after the app has handled more than `appended` records."""
    return len(log.rows("copies")) > appended


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "count", "standbys"),
    [
        *(("embedded", 1, 0), ("embedded", 2, 0), ("embedded", 2, 1)),
        pytest.param("kafka", 1, 0, marks=pytest.mark.long_on_kafka),
        ("kafka", 2, 1),
    ],
    indirect=["system"],
)
def test_workers_that_are_killed_count_each_record_once(
    system: System, log: FaustLog, count: int, standbys: int, tmp_path: Path
) -> None:
    chance = random.Random(7)
    source = Source(log, seed=count)
    source.append(500)

    def start(number: int) -> FaustProcess:
        settings = {"FAUST_DATA": f"data-{number}", "FAUST_STANDBYS": str(standbys)}
        return FaustProcess("sample_one_to_one", system, tmp_path, **settings)

    workers = [start(number) for number in range(count)]
    try:
        for _ in range(3):
            before = len(log.rows("copies"))
            source.append(400)
            eventually(lambda before=before: is_alive(log, before), within=90)
            time.sleep(chance.random())  # somewhere between two commits, or in one
            victim = chance.randrange(count)
            workers[victim].kill()
            source.append(100)
            workers[victim] = start(victim)
        eventually(source.is_copied, within=120)
        for running in workers:
            assert running.stop() in (0, -signal.SIGTERM)  # the last one may still be starting
    except BaseException:
        for running in workers:
            print(running.text()[-4000:])
        raise
    finally:
        for running in workers:
            running.kill()
    source.check()


@pytest.mark.long_on_kafka
def test_a_worker_whose_producer_was_fenced_joins_again(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    """A frozen worker wakes up when another one has its slot, and so its transactional id."""
    source = Source(log, seed=5)
    source.append(50)
    with worker("sample_one_to_one", system, tmp_path) as running:
        eventually(source.is_copied, within=90)
        log.log.producer(transactional_id=f"{system.prefix}copier-0").close()
        source.append(50)
        eventually(source.is_copied, within=60)
        assert "a commit failed" in running.text()
        assert running.stop() == 0
    source.check()


@pytest.mark.long_on_kafka
def test_lost_state_is_restored_from_the_changelog(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    """faust-streaming #333: the state folder is gone, and nothing of the state is."""
    source = Source(log, seed=3)
    source.append(200)
    for round_ in range(2):
        with worker("sample_one_to_one", system, tmp_path) as running:
            eventually(source.is_copied, within=90)
            assert running.stop() == 0
        if round_ == 0:
            shutil.rmtree(tmp_path / "copier-data")
            source.append(200)
    source.check()


def test_a_changelog_whose_end_was_cleaned_or_aborted_stalls_no_worker(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    """faust-streaming #176 and #432: the last offsets of the changelog have no record any more."""
    source = Source(log, seed=4)
    source.append(50)
    log.create(CHANGELOG, 4, config={"cleanup.policy": "compact"})
    producer = log.log.producer(transactional_id=f"{system.prefix}somebody else's")
    for partition in range(4):
        ghost = [{"key": b'"ghost"', "value": json.dumps(partition).encode()}]
        log.append(CHANGELOG, ghost, partition=partition)
        log.append(CHANGELOG, [{"key": b'"ghost"', "value": None}], partition=partition)
        producer.begin_transaction()
        producer.append(log.prefix + CHANGELOG, ghost, partition=partition)
        producer.abort_transaction()
    if not system.is_kafka:  # a cluster cleans when it likes
        log.log.broker.clean([log.prefix + CHANGELOG])
    with worker("sample_one_to_one", system, tmp_path) as running:
        eventually(source.is_copied, within=60)
        assert running.stop() == 0
    source.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "fate"),
    [("embedded", "frozen"), ("kafka", "killed"), ("kafka", "frozen")],
    indirect=["system"],
)
def test_another_worker_takes_over(
    system: System, log: FaustLog, fate: str, tmp_path: Path
) -> None:
    """A worker dies, or is suspended until it has lost its partitions, and commits nothing then."""
    source = Source(log, seed=5)
    source.append(300)
    workers = [
        FaustProcess("sample_one_to_one", system, tmp_path, FAUST_DATA=f"data-{number}")
        for number in range(2)
    ]
    with ending(workers):
        eventually(lambda: log.owned("copier", "source") == [2, 2])
        before = len(log.rows("copies"))
        source.append(400)
        eventually(lambda: is_alive(log, before))
        workers[0].kill() if fate == "killed" else workers[0].freeze()
        source.append(200)
        eventually(source.is_copied, within=60)
        if fate == "frozen":
            assert log.owned("copier", "source") == [4]
            workers[0].thaw()
            eventually(lambda: log.owned("copier", "source") == [2, 2])
            source.append(200)
            eventually(source.is_copied)
        for running in workers[1 if fate == "killed" else 0 :]:
            assert running.stop() == 0
    source.check()


@pytest.mark.parametrize("system", ["kafka"], indirect=True)
def test_a_worker_may_read_more_topics_than_the_others(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    """A rolling upgrade: the added topic is read at the latest when the last old worker is gone."""
    source = Source(log, seed=6)
    log.create("later", 4)
    more = [{"key": b"k%d" % number, "value": b"1"} for number in range(40)]
    log.append("later", more, key="key")
    old = FaustProcess("sample_one_to_one", system, tmp_path, FAUST_DATA="old")
    with ending([old]):
        source.append(100)
        eventually(source.is_copied)
        new = FaustProcess("sample_one_to_one", system, tmp_path, FAUST_DATA="new", FAUST_LATER="1")
        with ending([new]):
            eventually(lambda: log.owned("copier", "source") == [2, 2])
            source.append(100)
            eventually(source.is_copied)
            assert old.stop() == 0
            eventually(lambda: len(log.rows("copies")) == source.appended + len(more))
            assert new.stop() == 0
    assert log.committed("copier", "later").keys() == {0, 1, 2, 3}
