"""A worker whose topic, or table, is deleted and created again while the worker is suspended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline import changelog
from strandline.changelog.log import Log
from tests.faust.faust_workers import (
    FaustLog,
    append,
    eventually,
    in_folder,
    latest,
    worker,
)
from tests.systems import System

OLD, NEW = 40, 60
ERRORS = ("deleted and created again", "there is no topic")
TABLE = "wordcount-word_counts-changelog"


@contextmanager
def old_posts(folder: Path) -> Iterator[Log]:
    """Open a log with the input of the app."""
    with changelog.open(folder / "log") as log:
        log.create_topic("posts", partitions=1)
        append(log, "posts", ["old"] * OLD)
        yield log


def test_no_record_of_the_new_topic_is_skipped(tmp_path: Path) -> None:
    """The worker stops with an error, and the next one reads the new topic from its start."""
    system = in_folder(tmp_path)
    with old_posts(tmp_path) as log:
        with worker("sample_word_count", system, tmp_path) as running:
            eventually(lambda: latest(log, TABLE) == {"old": OLD})
            running.freeze()
            log.delete_topic("posts")
            log.create_topic("posts", partitions=1)
            append(log, "posts", ["new"] * NEW)
            running.thaw()
            assert running.ended() != 0
            assert any(error in running.text() for error in ERRORS)
        with worker("sample_word_count", system, tmp_path) as running:
            eventually(lambda: latest(log, TABLE) == {"old": OLD, "new": NEW})
            assert running.stop() == 0


def test_a_worker_whose_table_was_replaced_ends_and_does_not_start(tmp_path: Path) -> None:
    system = in_folder(tmp_path)
    with old_posts(tmp_path) as log:
        with worker("sample_word_count", system, tmp_path) as running:
            eventually(lambda: latest(log, TABLE) == {"old": OLD})
            running.freeze()
            partitions = log.broker.topic(TABLE).partitions
            log.delete_topic(TABLE)
            log.create_topic(TABLE, partitions, config={"cleanup.policy": "compact"})
            append(log, "posts", ["new"] * NEW)
            running.thaw()
            assert running.ended() != 0
            assert "strandline reset wordcount" in running.text()
        assert latest(log, TABLE) == {}
        with worker("sample_word_count", system, tmp_path) as running:
            assert running.ended() != 0
            assert "strandline reset wordcount" in running.text()


SLOW = """
import asyncio, faust
from sample_settings import BROKER, SESSION_S, STORE, named

app = faust.App(
    named("slow"), broker=BROKER, store=STORE, broker_session_timeout=SESSION_S,
    processing_guarantee="exactly_once", topic_partitions=1, broker_commit_interval=0.1,
)
source = app.topic(named("source"), key_type=str, value_type=str)
copies = app.topic(named("copies"), key_type=str, value_type=str)

@app.agent(source)
async def copy(stream):
    async for key, value in stream.items():
        await asyncio.sleep(0.02)
        await copies.send(key=key, value=value)
"""


def test_records_in_hand_are_of_their_own_topic(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    """A late commit of the old topic's records is no offset of the new topic."""
    (tmp_path / "slow.py").write_text(SLOW)
    source, opened = f"{system.prefix}source", log.log
    old, new = ([f"{kind} {n}" for n in range(200)] for kind in ("old", "new"))
    opened.create_topic(source, partitions=1)
    append(opened, source, old)

    def copied() -> list[str]:
        return [value for _, _, _, value in log.rows("copies")]

    with worker("slow", system, tmp_path) as running:
        eventually(lambda: len(copied()) >= 20)
        running.freeze()
        opened.delete_topic(source)
        opened.create_topic(source, partitions=1)
        append(opened, source, new)
        running.thaw()
        assert running.ended() != 0
    with worker("slow", system, tmp_path) as running:
        eventually(lambda: set(copied()) >= set(new))
        assert running.stop() == 0
    if not system.is_kafka:  # there the old worker has handled some records of the new topic
        assert [value for value in copied() if value in set(new)] == new


@pytest.mark.parametrize("later", [0, 60])
def test_a_new_topic_that_is_shorter_at_first_is_read_from_its_start(
    system: System, log: FaustLog, tmp_path: Path, later: int
) -> None:
    """It ends where the worker looks for more, with a marker instead of the last record read."""
    (tmp_path / "slow.py").write_text(SLOW.replace("0.02", "0"))
    source, opened = f"{system.prefix}source", log.log
    old, new = ([f"{kind} {n}" for n in range(count)] for kind, count in (("old", 50), ("new", 49)))
    last = [f"last {n}" for n in range(later)]
    opened.create_topic(source, partitions=1)
    append(opened, source, old)

    def copied() -> list[str]:
        return [value for _, _, _, value in log.rows("copies")]

    with worker("slow", system, tmp_path) as running:
        eventually(lambda: len(copied()) == len(old))
        running.freeze()
        opened.delete_topic(source)
        opened.create_topic(source, partitions=1)
        with opened.producer(transactional_id=f"{system.prefix}writer") as producer:
            with producer.transaction():
                for value in new[: 49 if later else 20]:
                    producer.send(source, json.dumps(value).encode(), b"k")
            if later:
                with producer.transaction():
                    for value in last:
                        producer.send(source, json.dumps(value).encode(), b"k")
        running.thaw()
        assert running.ended() != 0
        assert any(error in running.text() for error in ERRORS)
    with worker("slow", system, tmp_path) as running:
        expected = [*new, *last] if later else new[:20]
        eventually(lambda: set(copied()) >= set(expected))
        assert running.stop() == 0
    if not (system.is_kafka and later):  # there the old worker may have handled some of the last
        assert copied() == [*old, *expected]
