"""The wall clock is set forward and back by hours, while no time passes."""

from __future__ import annotations

import pytest

import strandline as sl
from strandline.changelog.errors import ProducerFenced
from strandline.changelog.records import TopicPartition
from strandline.framework.testing import TestDriver
from tests.exactly_once.apps import expected, running_totals, totals_sent
from tests.log.kit import START_MS, Client, World

T0 = TopicPartition("t", 0)
HOUR = 60 * 60 * 1000
DAY = 24 * HOUR
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
