"""A machine whose clock is ahead of the broker's by more than a topic of Kafka takes by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import Unauthenticated
from strandline.changelog.kafka.topics import KafkaTopics
from strandline.changelog.moving import MovedLog, Selection, move
from strandline.framework.positions import translated

AHEAD_MS = 3 * 3_600_000
AFTER_MAX = "message.timestamp.after.max.ms"


class ClockAhead(SystemClock):
    def now_ms(self) -> int:
        return super().now_ms() + AHEAD_MS


def count(log: str, name: str, state: Path) -> dict[str, int]:
    """Count words with a worker whose clock is ahead, and return the counts."""
    app = sl.App(name, log=log, state_dir=state, clock=ClockAhead())
    words = app.topic(f"{name}-words", value=int)
    seen = app.store("seen", value=int, default=0, ttl_ms=10 * AHEAD_MS)
    once = app.store("once", value=int, default=0)

    @app.task(words, stores=[seen, once], on_error="skip")
    def add(record: sl.Record[str, int]) -> None:
        seen[record.key] += 1
        once[record.key] = 1

    with app:
        with changelog.open(log) as owner, owner.producer() as producer:
            app.prepare()
            for n in range(30):
                producer.send(words.name, b"\x01", f"word {n % 3}")
        app.run(until="idle", timeout=60, progress=False)
        assert app.query(once).to_dict() == dict.fromkeys(app.query(seen).to_dict(), 1)
        return app.query(seen).to_dict()


@pytest.mark.long
def test_a_worker_whose_clock_is_ahead_skips_no_record(
    kafka: str, name: str, tmp_path: Path
) -> None:
    assert count(kafka, name, tmp_path) == dict.fromkeys(["word 0", "word 1", "word 2"], 10)


@pytest.mark.long
def test_a_changelog_that_was_created_otherwise_is_altered(
    kafka: str, name: str, tmp_path: Path
) -> None:
    with changelog.open(kafka) as log:
        for store in ("seen", "once"):
            config = {"cleanup.policy": "compact", AFTER_MAX: "3600000"}
            log.create_topic(f"{name}-{store}-changelog", 1, config=config)
        assert sum(count(kafka, name, tmp_path).values()) == 30
        effective = log.broker.topic(f"{name}-once-changelog").effective
        assert effective.message_timestamp_after_max_ms == 2**63 - 1


def test_a_changelog_that_may_not_be_altered_is_named(
    kafka: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(self: KafkaTopics, *given: Any) -> None:
        raise Unauthenticated("no right to alter")

    app = sl.App(name, log=kafka, state_dir=tmp_path)
    seen = app.store("seen", value=int, default=0)

    @app.task(app.topic(f"{name}-words", value=int), stores=[seen])
    def add(record: sl.Record[str, int]) -> None:
        seen[record.key] += 1

    with changelog.open(kafka) as log:
        config = {"cleanup.policy": "compact", AFTER_MAX: "3600000"}
        log.create_topic(f"{name}-seen-changelog", 1, config=config)
    monkeypatch.setattr(KafkaTopics, "alter", refuse)
    with app:
        app.prepare()
    assert f"changelog '{name}-seen-changelog' refuses times far ahead" in caplog.text
    assert "no right to alter" in caplog.text


def test_a_moved_topic_takes_the_times_that_it_took(kafka: str, name: str, tmp_path: Path) -> None:
    """In a folder that is every time, by default."""
    with changelog.open(tmp_path / "log") as here, changelog.open(kafka) as there:
        here.create_topic(name, 1)
        with here.producer() as producer:
            producer.send(name, b"x", "key")
        move(
            MovedLog("here", here.broker),
            MovedLog(kafka, there.broker),
            Selection([name], [], translated),
        )
        assert there.topic(name).effective.message_timestamp_after_max_ms == 2**63 - 1
