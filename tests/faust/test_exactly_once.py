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

from strandline import changelog
from strandline.changelog.log import Log
from tests.faust.faust_workers import FaustProcess, eventually, latest, rows

KEYS = [f"k{n}" for n in range(20)]
CHANGELOG = "copier-totals-changelog"


class Source:
    """Input of the app, and what its output must be."""

    def __init__(self, log: Log, seed: int) -> None:
        self.log = log
        self.chance = random.Random(seed)
        self.appended = 0
        log.create_topic("source", 4)

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
        return len({row["from"] for *_, row in rows(self.log, "copies")}) >= self.appended

    def check(self) -> None:
        """Compare the outputs and the table with the input, record by record."""
        copies = [(key, row) for _, _, key, row in rows(self.log, "copies")]
        places = [row["from"] for _, row in copies]
        assert len(places) == len(set(places)) == self.appended
        running: dict[str, int] = defaultdict(int)
        expected = []
        for partition, offset, key, value in rows(self.log, "source"):
            running[key] += value
            expected.append((key, {"from": f"{partition}/{offset}", "total": running[key]}))
        by_place = sorted(copies, key=lambda one: one[1]["from"])
        assert by_place == sorted(expected, key=lambda one: one[1]["from"])
        assert latest(self.log, CHANGELOG) == running


def is_alive(log: Log, appended: int) -> bool:
    """Return True after the app has handled more than `appended` records."""
    return len(rows(log, "copies")) > appended


@pytest.mark.slow
@pytest.mark.parametrize(("count", "standbys"), [(1, 0), (2, 0), (2, 1)])
def test_workers_that_are_killed_count_each_record_once(
    count: int, standbys: int, tmp_path: Path
) -> None:
    chance = random.Random(7)
    with changelog.open(tmp_path / "log") as log:
        source = Source(log, seed=count)
        source.append(500)

        def start(number: int) -> FaustProcess:
            settings = {"FAUST_DATA": f"data-{number}", "FAUST_STANDBYS": str(standbys)}
            return FaustProcess("sample_one_to_one", tmp_path, **settings)

        workers = [start(number) for number in range(count)]
        try:
            for _ in range(3):
                before = len(rows(log, "copies"))
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


def test_lost_state_is_restored_from_the_changelog(tmp_path: Path) -> None:
    """faust-streaming #333: the state folder is gone, and nothing of the state is."""
    with changelog.open(tmp_path / "log") as log:
        source = Source(log, seed=3)
        source.append(200)
        for round_ in range(2):
            running = FaustProcess("sample_one_to_one", tmp_path)
            try:
                eventually(source.is_copied, within=90)
                assert running.stop() == 0
            finally:
                running.kill()
            if round_ == 0:
                shutil.rmtree(tmp_path / "copier-data")
                source.append(200)
        source.check()


def test_a_changelog_whose_end_was_cleaned_or_aborted_stalls_no_worker(tmp_path: Path) -> None:
    """faust-streaming #176 and #432: the last offsets of the changelog have no record any more."""
    with changelog.open(tmp_path / "log") as log:
        source = Source(log, seed=4)
        source.append(50)
        log.create_topic(CHANGELOG, 4, config={"cleanup.policy": "compact"})
        producer = log.producer(transactional_id="somebody else's")
        for partition in range(4):
            ghost = [{"key": b'"ghost"', "value": json.dumps(partition).encode()}]
            log.append(CHANGELOG, ghost, partition=partition)
            log.append(CHANGELOG, [{"key": b'"ghost"', "value": None}], partition=partition)
            producer.begin_transaction()
            producer.append(CHANGELOG, ghost, partition=partition)
            producer.abort_transaction()
        log.broker.clean([CHANGELOG])
        running = FaustProcess("sample_one_to_one", tmp_path)
        try:
            eventually(source.is_copied, within=60)
            assert running.stop() == 0
        finally:
            running.kill()
        source.check()
