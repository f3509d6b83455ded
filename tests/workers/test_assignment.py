"""Workers of one app, in threads: each partition has one owner while workers join and leave."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import strandline as sl
from strandline.changelog.log import Log
from strandline.framework.cli.reset import carry_out, plan_for
from tests.kafka.apps import Totals, totals
from tests.systems import System
from tests.workers.pipeline import PARTITIONS, Pipeline, judge, pipeline, some
from tests.workers.threads import InThread

Eventually = Callable[..., None]


@pytest.fixture
def log(system: System) -> Log:
    return system.open(durability="os")


class Running(InThread):
    """A worker of the pipeline."""

    def __init__(self, log: Log | str, state: Path, **options: Any) -> None:
        settings = {"commit_interval_ms": 10, "session_timeout_ms": 1_000, **options}
        self.made: Pipeline = pipeline(log, state_dir=state, **settings)
        super().__init__(self.made.app, "tally")


class On(NamedTuple):
    """System and state folder on which workers run."""

    system: System
    log: Log

    def made(self) -> Pipeline:
        return pipeline(self.log, state_dir=self.system.state, prefix=self.system.prefix)

    def running(self, **options: Any) -> Running:
        return Running(self.log, self.system.state, prefix=self.system.prefix, **options)


@pytest.fixture
def on(system: System, log: Log) -> On:
    return On(system, log)


@pytest.mark.long_on_kafka
def test_each_record_counts_once_while_workers_join_and_leave(
    on: On, eventually: Eventually
) -> None:
    one = on.running()
    given = some(2_000)
    one.made.words.append(given)
    eventually(lambda: one.numbers == list(range(PARTITIONS)), what="all at the first")

    two = on.running()
    eventually(lambda: len(one.numbers) == len(two.numbers) == 2, what="sharing")
    assert sorted(one.numbers + two.numbers) == list(range(PARTITIONS))
    more = some(2_000, start=2_000)
    one.made.words.append(more)

    one.stop()
    eventually(lambda: two.numbers == list(range(PARTITIONS)), what="all at the second")
    last = some(500, start=4_000)
    two.made.words.append(last)
    with on.made().app as third:
        third.run(until="idle", progress=False)
    two.stop()
    assert judge(two.made, [*given, *more, *last]) == []


@pytest.mark.long_on_kafka
def test_async_handlers_count_once_while_workers_join_and_leave(
    on: On, eventually: Eventually
) -> None:
    def made() -> Totals:
        settings = {"commit_interval_ms": 10, "session_timeout_ms": 1_000}
        name, state = f"{on.system.prefix}sums", on.system.state
        return totals(name, on.log, state, partitions=4, concurrency=8, **settings)

    first, second, third = made(), made(), made()
    one = InThread(first.app, "count")
    eventually(lambda: one.numbers == [0, 1, 2, 3], what="all at the first")
    given = [(str(n % 50), n) for n in range(3_000)]
    first.words.append(given)
    two = InThread(second.app, "count")
    eventually(lambda: len(one.numbers) == len(two.numbers) == 2, what="sharing")
    first.words.append(given)
    one.stop()
    eventually(lambda: two.numbers == [0, 1, 2, 3], what="all at the second")
    first.words.append(given)
    two.stop()
    third.app.run(until="idle", progress=False)
    third.judge(given * 3)


@pytest.mark.long_on_kafka
def test_until_idle_means_the_whole_app(on: On, eventually: Eventually) -> None:
    """A worker without work waits for those that have some."""
    slow = on.running(commit_records=50)
    eventually(lambda: len(slow.numbers) == PARTITIONS, what="the first one at work")
    given = some(3_000)
    slow.made.words.append(given)
    other = on.made()
    with other.app:
        other.app.run(until="idle", progress=False)
        assert judge(other, given) == []
    slow.stop()


@pytest.mark.long_on_kafka
def test_a_poison_record_stops_its_task_everywhere_and_nothing_else(
    system: System, log: Log
) -> None:
    handled: list[str] = []

    def made() -> sl.App:
        app = sl.App(f"{system.prefix}picky", log=log, state_dir=system.state)
        words = app.topic(f"{system.prefix}words", value=int, partitions=2)

        @app.task(words)
        def pick(record: sl.Record[str, int]) -> None:
            if record.value < 0:
                raise ValueError("not that one")
            handled.append(record.key)

        return app

    first, second = made(), made()
    [words] = first.declared.topics.values()
    words.append([("a", 1), ("b", 1), ("c", -1), ("d", 1)])
    errors: list[BaseException] = []

    def run(app: sl.App) -> None:
        try:
            app.run(until="idle", progress=False, timeout=30)
        except sl.TaskFailed as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(app,)) for app in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
        assert not thread.is_alive()
    assert errors, "somebody has met it"
    assert {"a", "b"} <= set(handled) | {"d"}


@pytest.mark.long_on_kafka
def test_a_running_app_cannot_be_reset(on: On, eventually: Eventually) -> None:
    one, log = on.running(), on.log
    one.made.words.append(some(100))
    eventually(lambda: len(one.numbers) == PARTITIONS, what="at work")
    other = on.made()
    plan = plan_for(log.broker, other.app.name, on.system.url)
    for reset in (other.app.reset, partial(carry_out, log.broker, plan, yes=True, json=True)):
        with pytest.raises(sl.InvalidRequest, match=r"is running \(.*stop it first"):
            reset()
    one.stop()
    other.app.run(until="idle", progress=False)
    assert judge(other, some(100)) == []
    other.app.reset()
    assert log.broker.committed(other.app.name) == {}


@pytest.mark.long_on_kafka
def test_a_group_shows_the_partitions_of_each_worker(on: On, eventually: Eventually) -> None:
    one = on.running()
    eventually(lambda: len(one.numbers) == PARTITIONS, what="at work")
    group = one.made.app.name
    [member] = on.log.broker.describe_group(group).members
    assert {tp.topic for tp in member.held} == set(one.made.inputs)
    one.stop()
    assert on.log.broker.describe_group(group).members == []
