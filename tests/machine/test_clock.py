"""The wall clock is set forward and back while no time passes, and the machine sleeps.

docs/reliability.md says what that does.
"""

from __future__ import annotations

from typing import Any

import pytest

import strandline as sl
from strandline.changelog.clock import ManualClock
from strandline.changelog.errors import OwnerUnavailable, ProducerFenced
from strandline.changelog.kafka.producers import _Written
from strandline.changelog.records import Append, Appended, ProducerIdentity, TopicPartition
from strandline.changelog.scan import scan
from strandline.framework.patience import PATIENCE_SECONDS, Patience
from strandline.framework.testing import TestDriver
from tests.exactly_once.apps import expected, running_totals, totals_sent
from tests.log.kit import START_MS, Client, World, columns

T0 = TopicPartition("t", 0)
SECOND = 1_000
MINUTE, HOUR, DAY = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND
YEAR = 365 * DAY
START = 1_760_000_400_000
"""Beginning of a minute."""
JUMPS = [-5 * DAY, -6 * HOUR, 6 * HOUR, 30 * DAY]


def a_world(**config: str) -> World:
    world = World()
    settings = {name.replace("_", "."): value for name, value in config.items()}
    world.owner.create_topic("t", config=settings)
    return world


@pytest.mark.parametrize("jump", JUMPS)
def test_a_transaction_neither_times_out_nor_lives_for_ever(jump: int) -> None:
    world = a_world()
    client = Client(world, "tx", timeout_ms=10_000)
    client.append(b"a")
    world.clock.jump(jump)
    world.owner.tick()
    client.commit()
    assert world.values() == [b"a"]
    client.append(b"late")
    world.clock.jump(jump)
    world.clock.advance(10_001)
    world.owner.tick()
    assert world.owner.offsets([T0])[T0].last_stable_offset > 2


@pytest.mark.parametrize("jump", JUMPS)
def test_no_producer_and_no_transactional_id_is_forgotten(jump: int) -> None:
    world = a_world(retention_ms="-1")
    plain, transactional = Client(world), Client(world, "tx")
    plain.append(b"a")
    world.clock.jump(jump)
    world.clock.advance(20_000)
    world.owner.tick()
    assert plain.append(b"a", sequence=0).duplicate
    transactional.append(b"b")
    transactional.commit()
    assert world.values() == [b"a", b"b"]


@pytest.mark.damages
def test_idle_producers_are_forgotten_even_if_the_clock_goes_back_each_day() -> None:
    world = a_world(retention_ms="-1")
    plain, transactional = Client(world), Client(world, "tx")
    plain.append(b"a")
    for _ in range(8):
        world.clock.advance(DAY)
        world.clock.jump(-DAY)
        world.owner.tick()
    assert not plain.append(b"a", sequence=0).duplicate
    with pytest.raises(ProducerFenced):
        transactional.append(b"late")


@pytest.mark.parametrize("jump", [-5 * DAY, -6 * HOUR])
def test_retention_works_while_the_clock_catches_up(jump: int) -> None:
    world = a_world(retention_ms=str(HOUR), segment_bytes="4096", file_delete_delay_ms="60000")
    client = Client(world)
    world.owner.tick()
    world.clock.jump(jump)
    old = world.clock.now_ms() - 2 * HOUR
    for _ in range(5):
        client.append(b"x" * 2000, times=old)
    world.clock.advance(10_001)
    world.owner.tick()
    assert world.owner.offsets([T0])[T0].log_start > 0
    assert len(world.owner._log.maintenance.pending_deletes) > 0
    world.clock.advance(60_001)
    world.owner.tick()
    assert world.owner._log.maintenance.pending_deletes == []


def test_a_clock_set_forward_does_not_remove_files_that_may_be_in_use() -> None:
    world = a_world(retention_ms="1000", segment_bytes="4096", file_delete_delay_ms="60000")
    client = Client(world)
    for _ in range(5):
        client.append(b"x" * 2000, times=START_MS - HOUR)
    world.owner.tick()
    kept = len(world.owner._log.maintenance.pending_deletes)
    assert kept > 0
    world.clock.jump(DAY)
    world.owner.tick()
    assert len(world.owner._log.maintenance.pending_deletes) >= kept


def test_a_clock_set_forward_only_deletes_by_the_time_of_records() -> None:
    world = a_world(retention_ms=str(DAY), segment_bytes="4096")
    client = Client(world)
    for age in (20 * HOUR, 20 * HOUR, 2 * HOUR, 2 * HOUR):
        client.append(b"x" * 3000, times=START_MS - age)
    world.clock.jump(6 * HOUR)
    world.owner.tick()
    assert world.owner.offsets([T0])[T0].log_start == 2


@pytest.mark.parametrize("jump", JUMPS)
def test_an_app_counts_each_record_once(jump: int) -> None:
    app, out, seen = running_totals(commit_records=3)
    given = [(key, 1) for key in "abacabad"]
    with TestDriver(app, now_ms=START_MS) as driver:
        driver.run(given)
        driver.clock.jump(jump)
        driver.run(given).crash().run(given)
        assert (driver.store(seen), totals_sent(driver, out)) == expected(given * 3)


def test_windows_of_a_class_task_continue_after_the_clock_was_set_back() -> None:
    app = sl.App("app")
    words, out = app.topic("words", value=int), app.topic("out", value=int)

    @app.task(words, window_ms=10_000)
    class Task:
        def process(self, record: sl.Record[str, int]) -> None:
            pass

        def window(self) -> None:
            out.send("window", 1)

    with TestDriver(app, now_ms=START_MS) as driver:
        driver.advance(10_000)
        driver.clock.jump(-6 * HOUR)
        driver.settle()
        driver.advance(10_000)
        assert len(driver.output(out)) == 2


def test_timers_by_the_wall_clock_wait_for_their_time() -> None:
    app = sl.App("app")
    words, out = app.topic("words", value=int), app.topic("out", value=int)

    @app.task(words)
    class Task:
        def process(self, record: sl.Record[str, int]) -> None:
            sl.set_timer(record.key, START_MS + HOUR, clock="wall")

        def on_timer(self, name: str) -> None:
            out.send(name, 1)

    with TestDriver(app, now_ms=START_MS) as driver:
        driver.run([("a", 1)])
        driver.clock.jump(-6 * HOUR)
        driver.advance(HOUR)
        assert driver.output(out) == []
        driver.clock.jump(6 * HOUR)
        driver.settle()
        assert [record.key for record in driver.output(out)] == ["a"]


def counting(**options: Any) -> tuple[sl.App, list[sl.Topic[str, int]], Any]:
    """Return an app that counts the records of two topics in windows, its inputs and its output."""
    app = sl.App("app")
    inputs = [app.topic(name, key=str, value=int) for name in ("a", "b")]
    windows = app.stream(*inputs, **options).group_by("key").window(sl.tumbling("1m"))
    return app, inputs, windows.agg(n=sl.count(), name="w").to("out")


def total(driver: TestDriver, out: Any) -> int:
    return sum(record.value["n"] for record in driver.output(out))


@pytest.mark.parametrize(("how", "by"), [("jump", -HOUR), ("jump", HOUR), ("suspend", HOUR)])
def test_no_row_is_late_because_the_clock_was_set_or_the_machine_slept(how: str, by: int) -> None:
    """Each topic has a record every 20 s, which is less than `idle=`; one is 5 minutes behind."""
    app, (a, b), out = counting()
    with TestDriver(app, now_ms=START) as driver:
        for number in range(30):
            at = START + number * 20 * SECOND
            driver.run([(a, "k", 1, at)])
            driver.advance(10 * SECOND)
            if number == 15:
                getattr(driver.clock, how)(by)
                driver.settle()
            driver.run([(b, "k", 1, at - 5 * MINUTE)])
            driver.advance(10 * SECOND)
        driver.end()
        assert total(driver, out) == 60


def test_a_partition_becomes_idle_although_the_clock_was_set_back() -> None:
    app, (a, b), out = counting()
    with TestDriver(app, now_ms=START) as driver:
        driver.run([(a, "k", 1, START), (b, "k", 1, START)])
        driver.advance(10 * SECOND)
        driver.clock.jump(-YEAR)
        for minute in range(1, 10):
            driver.run([(a, "k", 1, START + minute * MINUTE)])
            driver.advance(MINUTE)
        assert total(driver, out) >= 8


def test_windows_are_not_closed_by_an_hour_that_the_clock_was_set_forward() -> None:
    app, (a, _), out = counting(close_idle="1m")
    with TestDriver(app, now_ms=START) as driver:
        driver.run([(a, "k", 1, START)])
        driver.advance(10 * SECOND)
        driver.clock.jump(HOUR)
        driver.settle()
        assert total(driver, out) == 0
        driver.run([(a, "k", 1, START + SECOND)])
        driver.advance(10 * SECOND)
        driver.advance(2 * MINUTE)
        assert total(driver, out) == 2


def test_expired_values_are_removed_after_a_moment_with_the_clock_ahead() -> None:
    app = sl.App("app")
    words = app.topic("words", key=str, value=int)
    seen = app.store("seen", key=str, value=int, ttl_ms=HOUR)

    @app.task(words, stores=[seen])
    def count(record: sl.Record[str, int]) -> None:
        seen[record.key] = record.value

    with TestDriver(app, now_ms=START) as driver:
        driver.run([("first", 1)])
        driver.clock.jump(YEAR)
        driver.run([("ahead", 1)])
        driver.clock.jump(-YEAR)
        for hour in range(20):
            driver.run([(f"{hour}-{number}", 1) for number in range(50)])
            driver.advance(HOUR)
        tp = TopicPartition(seen.changelog_topic, 0)
        ends = driver.owner.offsets([tp])[tp]
        last: dict[bytes, bytes | None] = {}
        for part in scan(driver.owner, {tp: ends.log_start}, {tp: ends.high_watermark}):
            for batch in part[tp].batches:
                rows = (batch.columns[name].to_pylist() for name in ("key", "value"))
                last |= zip(*rows, strict=True)
        assert sum(value is not None for value in last.values()) < 3 * 50


def test_a_segment_made_while_the_clock_was_ahead_is_closed_and_cleaned() -> None:
    world = World()
    config = {"cleanup.policy": "compact", "segment.ms": str(DAY)}
    world.owner.create_topic("t", config=config)
    client = Client(world)
    world.clock.jump(YEAR)
    client.append(b"first", times=world.clock.now_ms())
    world.clock.jump(-YEAR)
    for day in range(5):
        world.clock.advance(DAY + 1)
        client.append(b"day %d" % day, times=world.clock.now_ms())
        world.owner.tick()
    assert b"first" not in world.values()


def test_a_batch_is_recognised_although_the_log_was_opened_with_an_old_clock() -> None:
    world = World()
    world.clock.jump(-3 * DAY)
    world = World(clock=world.clock)
    world.owner.create_topic("t", config={"segment.bytes": "4096"})
    world.clock.jump(3 * DAY)
    world.clock.advance(HOUR)
    first, second = Client(world), Client(world)
    first.append(b"payment")
    for _ in range(2):
        second.append(b"x" * 3_000)  # the segment is rolled
    world.clock.advance(SECOND)
    world.crash()
    world.owner.tick()
    assert first.append(b"payment", sequence=0).duplicate
    assert world.values().count(b"payment") == 1


def test_a_batch_that_kafka_has_is_recognised_after_a_jump() -> None:
    clock = ManualClock(START)
    written = _Written(clock)

    def sent(number: int) -> Append:
        producer = ProducerIdentity(number, 0)
        return Append("t", 0, columns([b"v"]), producer, 0, transactional=False)

    for number in range(101):
        written.finalize(sent(number), Appended(number, number))
        if number:
            written.mark_reported(sent(number))
    clock.jump(2 * DAY)
    written.finalize(sent(101), Appended(101, 101))
    assert written.check(sent(0))


def test_a_machine_that_slept_during_a_call_is_patient_afterwards(clock: ManualClock) -> None:
    patience = Patience(clock)
    patience.ask()
    clock.suspend(8 * HOUR)
    assert patience.failed(OwnerUnavailable("the connection is gone"))
    clock.advance(int(PATIENCE_SECONDS - 61) * SECOND)
    assert patience.failed(OwnerUnavailable("still gone"))
    clock.advance(2 * SECOND)
    assert not patience.failed(OwnerUnavailable("still gone"))
