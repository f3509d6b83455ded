"""Calls into librdkafka's Python side with any errors, and the release of producers afterwards."""

from __future__ import annotations

import gc
import traceback
import weakref

import pytest
from confluent_kafka import KafkaError, KafkaException

from strandline import changelog
from strandline.changelog.errors import ProducerFenced
from strandline.changelog.kafka.broker import KafkaBroker
from strandline.changelog.kafka.callbacks import called
from strandline.changelog.kafka.deadline import DeadlineCaller
from strandline.changelog.kafka.failures import error_of


def fenced() -> int:
    """Raise like confluent-kafka with Python 3.11 after a producer has been fenced."""
    raise KafkaError(KafkaError._FENCED, "fenced")  # type: ignore[misc]


def test_an_error_that_no_except_catches_becomes_an_exception() -> None:
    with pytest.raises(KafkaException) as caught:
        called(fenced)
    error = error_of(caught.value)
    assert error is not None
    assert error.code() == KafkaError._FENCED
    assert "fenced" in "".join(traceback.format_exception(caught.value))


def test_an_uncatchable_error_in_another_thread_becomes_an_exception_too() -> None:
    caller = DeadlineCaller()
    with pytest.raises(KafkaException):
        caller(fenced, 10)
    assert caller(lambda: 5, 10) == 5
    caller.close()


def test_an_exception_raised_in_a_callback_keeps_no_objects_alive() -> None:
    """confluent-kafka keeps the exception for ever."""
    kept: list[BaseException] = []

    def fails() -> None:
        try:
            fenced()
        except:  # noqa: E722
            kept.append(SystemError("returned a result with an exception set"))
            raise kept[0] from KafkaException(KafkaError(KafkaError._FENCED))

    with pytest.raises(KafkaException) as caught:
        called(fails)
    assert caught.value is not kept[0].__cause__
    assert kept[0].__traceback__ is kept[0].__context__ is None


@pytest.mark.parametrize("step", ["append", "end"])
def test_a_fenced_producer_is_released_with_all_its_threads(
    kafka: str, name: str, step: str
) -> None:
    with changelog.open(kafka) as log, changelog.open(kafka) as other:
        log.create_topic(name, 1)
        gone = []
        for _ in range(3):
            producer = log.producer(transactional_id=name)
            producer.begin_transaction()
            producer.append(name, [{"value": b"a"}] * 10, partition=0)
            assert isinstance(log.broker, KafkaBroker)
            kept = log.broker._producers.transactions(producer.identity)
            gone.append(weakref.ref(kept))
            del kept
            other.producer(transactional_id=name)
            with pytest.raises(ProducerFenced):
                if step == "append":
                    producer.append(name, [{"value": b"b"}] * 10, partition=0)
                else:
                    producer.commit_transaction()
            producer.close()
            del producer
        log.producer(transactional_id=name)  # the new producer replaces the last one
        gc.collect()
        assert [one() for one in gone] == [None] * 3


def test_other_results_and_errors_are_passed_on() -> None:
    assert called(lambda: 5) == 5
    with pytest.raises(KeyboardInterrupt):
        called(_interrupted)
    with pytest.raises(ValueError, match="no"):
        called(lambda: int("no"))


def _interrupted() -> int:
    raise KeyboardInterrupt
