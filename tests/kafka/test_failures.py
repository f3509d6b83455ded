"""Failures of a cluster under a running app: it continues without loss or doubles, or raises."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.errors import (
    OwnerUnavailable,
    ProducerFenced,
    RecordTooLarge,
    StrandlineError,
    TaskFailed,
    UnknownTopic,
)
from strandline.changelog.records import TopicPartition
from tests.forms import by_form
from tests.kafka.apps import Totals, totals
from tests.kafka.brokers import Running
from tests.workers.threads import InThread

Eventually = Callable[..., None]
OUTAGE_S = float(os.environ.get("STRANDLINE_OUTAGE_SECONDS", by_form("4", "8")))
BUSY = 0.5
"""Maximum share of a processor for a worker that waits."""


def some(start: int, count: int = 60) -> list[tuple[str, int]]:
    return [(f"k{n % 7}", n) for n in range(start, start + count)]


@contextmanager
def running_app(made: Totals) -> Iterator[InThread]:
    """Run the app during the block."""
    made.app.prepare()
    worker = InThread(made.app, "count")
    try:
        yield worker
    finally:
        worker.stop()


def is_handled(made: Totals, count: int) -> bool:
    """Return True once `count` records have come out."""
    try:
        return len(made.out.to_polars()) >= count
    except StrandlineError:
        return False


@pytest.mark.long
def test_an_app_survives_an_outage_of_all_brokers(
    running: Running, name: str, tmp_path: Path, eventually: Eventually
) -> None:
    """All brokers are killed under a running app, and started again much later."""
    if running.broker is None:
        pytest.skip("the broker is not ours to kill (STRANDLINE_TEST_KAFKA)")
    given = some(0)
    made = totals(name, running.url, tmp_path, session_timeout_ms=3_000)
    with made.app, running_app(made):
        made.words.append(given)
        eventually(lambda: is_handled(made, 30), timeout=60, what="the first records")
        running.broker.kill()
        before = resource.getrusage(resource.RUSAGE_SELF)
        threading.Event().wait(OUTAGE_S)  # the length of the outage
        after = resource.getrusage(resource.RUSAGE_SELF)
        running.broker.start()
        more = some(len(given))
        made.words.append(more)
        eventually(lambda: is_handled(made, len(given + more)), timeout=90, what="the rest")
    made = totals(name, running.url, tmp_path)
    with made.app:
        made.judge([*given, *more])
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < BUSY * OUTAGE_S


def test_an_app_whose_input_is_deleted_raises(
    kafka: str, name: str, tmp_path: Path, eventually: Eventually
) -> None:
    made = totals(name, kafka, tmp_path)
    with made.app:
        made.app.prepare()
        worker = InThread(made.app, "count")
        made.words.append(some(0))
        eventually(lambda: is_handled(made, 60), timeout=60)
        made.app.broker().delete_topic(f"{name}-words")
        eventually(lambda: worker.error is not None, timeout=60, what="the end")
        assert isinstance(worker.error, UnknownTopic)
        assert f"{name}-words" in str(worker.error)


@pytest.mark.long
def test_an_app_continues_after_records_deleted_by_retention_and_logs_it(
    kafka: str, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = totals(name, kafka, tmp_path)
    with made.app:
        made.words.append(some(0))
        made.app.run(until="idle")
        made.words.append(some(60))
        for number in range(2):
            made.app.broker().delete_records(TopicPartition(f"{name}-words", number), -1)
        made.words.append(some(120))
        assert made.app.run(until="idle") == 60
        made.judge([*some(0), *some(120)])
    assert "are gone (retention)" in caplog.text


def test_a_record_that_is_too_large_stops_the_app_and_names_its_topic(
    kafka: str, name: str, tmp_path: Path
) -> None:
    app = sl.App(name, log=kafka, state_dir=tmp_path)
    words = app.topic(f"{name}-words", key=str, value=int)
    out = app.topic(f"{name}-out", key=str, value=str, config={"max.message.bytes": "2000"})

    @app.task(words)
    def grow(record: sl.Record[str, int]) -> None:
        out.send(record.key, "x" * record.value)

    with app:
        words.append([("small", 10), ("large", 5_000)])
        with pytest.raises((RecordTooLarge, TaskFailed), match=f"{name}-out"):
            app.run(until="idle")


def test_an_app_without_a_broker_raises_with_the_address_and_a_remedy(
    name: str, tmp_path: Path, kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strandline.changelog.kafka import connection

    monkeypatch.setattr(connection, "MEET_S", 0.5)
    made = totals(name, "kafka://127.0.0.1:1", tmp_path)
    with pytest.raises(OwnerUnavailable, match=r"kafka://127\.0\.0\.1:1: .*brokers run"):
        made.app.run(until="idle")


def test_a_call_that_never_returns_ends_the_producer_and_another_one_continues(
    kafka: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strandline.changelog.kafka import transactions

    released = threading.Event()
    with changelog.open(kafka) as log:
        log.create_topic(name)
        with monkeypatch.context() as patched:
            producer = log.producer(transactional_id=name)
            producer.begin_transaction()
            producer.append(name, [{"value": b"lost"}])
            patched.setattr(transactions, "DEADLINE_S", 0.1)
            patched.setattr(transactions, "GRACE_S", 0.1)
            one = log.broker._producers.transactions(producer.identity)
            patched.setattr(one._sending, "producer", _Hanging(released))
            with pytest.raises(ProducerFenced, match="begin with a new producer"):
                producer.commit_transaction()
        with log.producer(transactional_id=name) as other, other.transaction():
            other.send(name, b"kept")
        released.set()
        assert log.read(name)["value"].to_pylist() == [b"kept"]


class _Hanging:
    """A producer like librdkafka's when it has lost its broker."""

    def __init__(self, released: threading.Event) -> None:
        self._released = released

    def commit_transaction(self, _timeout: float) -> None:
        self._released.wait(60)
