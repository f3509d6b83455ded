"""Partitions added to an input while the app runs are read, or refused with a message; never
ignored."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.log import Log
from tests.systems import System
from tests.workers.threads import InThread

Eventually = Callable[..., None]


@pytest.fixture
def log(system: System) -> Log:
    return system.open(durability="os")


class Made:
    """An app with one task, which reads one topic or two that are copartitioned."""

    def __init__(
        self, system: System, log: Log, *, keeps: bool = False, pair: bool = False
    ) -> None:
        self.log = log
        self.app = sl.App(
            system.prefix + "app", log=log, state_dir=system.state, commit_interval_ms=10
        )
        names = ["words", "more"] if pair else ["words"]
        present = {info.name for info in log.broker.topics()}
        for name in {system.prefix + name for name in names} - present:
            log.broker.create_topic(name, 2)
        self.inputs = [self.app.topic(system.prefix + name, key=str, value=int) for name in names]
        self.counts: Any = self.app.counter("counts")
        self.seen: list[tuple[str, int, Any]] = []

        @self.app.task(self.inputs, stores=[self.counts] if keeps else (), name="note")
        def note(record: sl.Record[str, int]) -> None:
            if keeps:
                self.counts.add(record.key)
            self.seen.append((record.topic, record.partition, record.value))

    @property
    def name(self) -> str:
        return self.inputs[0].name

    def grow(self, topic: str, partitions: int) -> None:
        self.log.broker.alter_topic(topic, partitions=partitions)

    def put(self, topic: str, partition: int, value: int) -> None:
        """Append one record to that partition."""
        with self.log.producer() as producer:
            producer.send(topic, _packed(value), key="k", partition=partition).result(30)


def _packed(value: int) -> bytes:
    return bytes([value])  # MessagePack of a small int


@pytest.mark.long_on_kafka
def test_a_task_without_state_reads_added_partitions_from_their_first_record(
    system: System, log: Log, eventually: Eventually
) -> None:
    made = Made(system, log)
    worker = InThread(made.app, "note")
    eventually(lambda: worker.numbers == [0, 1], what="the start")
    made.grow(made.name, 4)
    made.put(made.name, 3, 7)
    eventually(lambda: worker.numbers == [0, 1, 2, 3], what="taking them up")
    eventually(lambda: (made.name, 3, 7) in made.seen, what="reading")
    worker.stop()
    assert made.app.run(until="idle") == 0, "it is committed"


@pytest.mark.long_on_kafka
def test_two_workers_share_added_partitions(
    system: System, log: Log, eventually: Eventually
) -> None:
    one, two = Made(system, log), Made(system, log)
    first, second = InThread(one.app, "note"), InThread(two.app, "note")
    eventually(lambda: len(first.numbers) == len(second.numbers) == 1, what="sharing")
    one.grow(one.name, 4)
    eventually(lambda: len(first.numbers) == len(second.numbers) == 2, what="sharing the new ones")
    assert sorted(first.numbers + second.numbers) == [0, 1, 2, 3]
    first.stop()
    second.stop()


@pytest.mark.long_on_kafka
def test_copartitioned_topics_wait_for_each_other(
    system: System, log: Log, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    made = Made(system, log, pair=True)
    other = made.inputs[1].name
    worker = InThread(made.app, "note")
    eventually(lambda: worker.numbers == [0, 1], what="the start")
    made.grow(made.name, 3)
    eventually(lambda: "different numbers" in caplog.text, what="saying so")
    assert worker.numbers == [0, 1]
    made.put(made.name, 2, 5)
    made.grow(other, 3)
    eventually(lambda: (made.name, 2, 5) in made.seen, what="reading")
    worker.stop()


@pytest.mark.long_on_kafka
def test_a_task_with_stores_refuses_added_partitions_in_logs_metrics_and_at_its_next_start(
    system: System, log: Log, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    made = Made(system, log, keeps=True)
    worker = InThread(made.app, "note")
    eventually(lambda: worker.numbers == [0, 1], what="the start")
    made.grow(made.name, 4)
    eventually(lambda: "does not read partitions 2 to 3" in caplog.text, what="refusing")
    [said] = [one for one in caplog.records if "does not read" in one.getMessage()]
    assert said.levelno == logging.ERROR
    assert "'note'" in said.getMessage()
    assert "reset" in said.getMessage()
    running = made.app.runner.worker
    assert running is not None
    [unread] = [one for one in running.metrics() if one.metric.name.endswith("unread_partitions")]
    assert (unread.labels, unread.value) == ((made.app.name, made.name), 2)
    made.put(made.name, 1, 9)
    eventually(lambda: (made.name, 1, 9) in made.seen, what="going on with the others")
    assert worker.numbers == [0, 1]
    worker.stop()
    with pytest.raises(sl.InvalidConfig, match="changelog.*2 partitions.*4"):
        made.app.run(until="idle")
