"""A Kafka broker that does not answer for a while: nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from strandline import changelog
from strandline.changelog.errors import (
    OutOfOrderSequence,
    RequestTimedOut,
    Retriable,
    TransactionAborted,
)
from strandline.changelog.records import Append, TopicPartition
from tests.contract.test_records import batch
from tests.kafka.brokers import Running

IMPATIENT = "message.timeout.ms=2000&socket.timeout.ms=1000"


@contextmanager
def stopped(running: Running) -> Iterator[None]:
    """Stop the broker's process during the test."""
    if running.broker is None:
        pytest.skip("the broker is not ours to stop (STRANDLINE_TEST_KAFKA)")
    running.broker.freeze()
    try:
        yield
    finally:
        running.broker.thaw()


def test_records_without_an_answer_are_not_written_twice(
    running: Running, name: str, now: int, eventually: Callable[..., None]
) -> None:
    with changelog.open(running.url) as patient:  # a new broker needs time for the first answer
        patient.create_topic(name + "-first")
        patient.append(name + "-first", [{"value": b"x"}])
    with changelog.open(f"{running.url}?{IMPATIENT}") as log:
        log.create_topic(name)
        me = log.broker.init_producer()
        a, b, c = (
            Append(name, 0, batch(value, time=now), me, n)
            for n, value in enumerate([b"a", b"b", b"c"])
        )
        log.broker.append([a])
        with stopped(running), pytest.raises(RequestTimedOut):
            log.broker.append([b])
        with pytest.raises(RequestTimedOut):
            log.broker.append([b])
        with pytest.raises(OutOfOrderSequence):
            log.broker.append([c])
        assert log.broker.append([a])[0].duplicate
        other = log.broker.init_producer()
        (answer,) = log.broker.append([Append(name, 0, batch(b"d", time=now), other, 0)])

        def values() -> list[bytes]:
            table = log.read(name)["value"].to_pylist()
            assert len(table) == answer.last_offset + 1
            return [bytes(value) for value in table]

        eventually(lambda: values()[-1] == b"d")
        assert values() in ([b"a", b"d"], [b"a", b"b", b"d"])


def test_a_pause_that_is_short_enough_is_not_noticed(running: Running, name: str, now: int) -> None:
    with changelog.open(running.url) as log:
        log.create_topic(name)
        with log.producer(linger_ms=0) as producer:
            producer.send(name, b"0").result(10)
            with stopped(running):
                later = producer.send(name, b"1")
                assert not later.done()
            assert later.result(30).offset == 1
        assert log.read(name)["value"].to_pylist() == [b"0", b"1"]


def test_a_commit_without_an_answer_can_be_repeated(
    running: Running, name: str, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
) -> None:
    from strandline.changelog.kafka import transactions

    with changelog.open(running.url) as log:
        log.create_topic(name)
        producer = log.producer(transactional_id=name, delivery_timeout_ms=500)
        producer.begin_transaction()
        producer.append(name, [{"value": b"x"}])
        monkeypatch.setattr(transactions, "DEADLINE_S", 0.3)
        with stopped(running), pytest.raises(Retriable):
            producer.commit_transaction()
        monkeypatch.undo()
        producer.commit_transaction()
        eventually(lambda: log.read(name)["value"].to_pylist() == [b"x"])
        with producer.transaction():
            producer.send(name, b"y")
        eventually(lambda: log.read(name)["value"].to_pylist() == [b"x", b"y"])
        producer.close()


def test_an_interrupted_call_is_abandoned_and_the_next_one_works(
    kafka: str, name: str, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strandline.changelog.kafka.producing import KafkaProducer

    with changelog.open(kafka) as log:
        log.create_topic(name)
        flush = KafkaProducer._flush
        interrupts = iter([KeyboardInterrupt()])

        def interrupted(sending: KafkaProducer) -> int:
            for one in interrupts:
                raise one
            return flush(sending)

        monkeypatch.setattr(KafkaProducer, "_flush", interrupted)
        me, partition = log.broker.init_producer(), TopicPartition(name, 0)
        with pytest.raises(KeyboardInterrupt):
            log.broker.append([Append(*partition, batch(b"never", time=now), me, 0)])
        other = log.broker.init_producer()
        log.broker.append([Append(*partition, batch(b"kept", time=now), other, 0)])
        assert log.read(name)["value"].to_pylist() == [b"kept"]


def test_a_transaction_that_was_interrupted_can_only_be_aborted(
    kafka: str,
    name: str,
    now: int,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., None],
) -> None:
    from strandline.changelog.kafka.producing import KafkaProducer

    with changelog.open(kafka) as log:
        log.create_topic(name)
        me = log.broker.init_producer(name)
        log.broker.append([Append(name, 0, batch(b"never", time=now), me, 0, transactional=True)])
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(KafkaProducer, "_enqueue", _interrupted)
            log.broker.append(
                [Append(name, 0, batch(b"lost", time=now), me, 1, transactional=True)]
            )
        with pytest.raises(TransactionAborted):
            log.broker.end_transaction(me, commit=True)
        me = log.broker.end_transaction(me, commit=False)
        log.broker.append([Append(name, 0, batch(b"kept", time=now), me, 0, transactional=True)])
        log.broker.end_transaction(me, commit=True)
        eventually(lambda: log.read(name)["value"].to_pylist() == [b"kept"])


def _interrupted(sending: object, batch: object) -> None:
    raise KeyboardInterrupt
