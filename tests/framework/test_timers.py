"""Timers fire in order, once, and survive with the state."""

from __future__ import annotations

from typing import Any

import pytest

import strandline as sl
from strandline.framework.testing import CRASH, TestDriver


def sessions(
    clock: Any = "stream", on_error: Any = "fail", delay: int = 100
) -> tuple[sl.App, Any, Any]:
    """Return an app that counts per key, and sends and deletes the count when its timer fires."""
    app = sl.App("app")
    words, out = app.topic("words", value=int), app.topic("out", value=int)
    open_ = app.store("open", value=int, default=0)

    @app.task(words, stores=[open_], on_error=on_error)
    def count(record: sl.Record[str, int]) -> None:
        open_[record.key] += 1
        sl.set_timer(record.key, record.timestamp + delay, clock=clock)
        if record.value < 0:
            raise ValueError

    @app.on_timer(count)
    def close(key: str) -> None:
        out.send(key, open_[key])
        del open_[key]
        if key == "bad":
            raise ValueError("bad timer")

    return app, out, open_


def fired(driver: TestDriver, out: Any) -> list[tuple[Any, ...]]:
    return [(r.key, r.value, r.timestamp) for r in driver.output(out)]


def test_stream_timers_fire_before_the_first_record_at_or_past_their_time() -> None:
    app, out, open_ = sessions()
    driver = TestDriver(app).run(
        [("a", 1, 0), ("b", 1, 50), ("a", 1, 60), ("c", 1, 150), ("a", 1, 160)]
    )
    assert fired(driver, out) == [("b", 1, 150), ("a", 2, 160)]
    assert driver.store(open_) == {"c": 1, "a": 1}


def test_setting_a_timer_again_replaces_it_and_cancelling_removes_it() -> None:
    app = sl.App("app")
    words, out = app.topic("words", value=str), app.topic("out", value=str)

    @app.task(words)
    class Task:
        def process(self, record: sl.Record[str, str]) -> None:
            if record.value == "set":
                sl.set_timer(("t", 1), record.timestamp + 10)
            if record.value == "cancel":
                sl.cancel_timer(("t", 1))

        def on_timer(self, name: Any) -> None:
            out.send("fired", repr(name))

    driver = TestDriver(app).run([("k", "set", 0), ("k", "set", 5), ("k", "", 12)])
    assert fired(driver, out) == []
    driver.run([("k", "", 15)])
    assert fired(driver, out) == [("fired", "('t', 1)", 15)]
    driver.run([("k", "set", 20), ("k", "cancel", 21), ("k", "", 99)])
    assert len(fired(driver, out)) == 1


def test_several_due_timers_fire_in_the_order_of_their_times() -> None:
    app, out, _ = sessions()
    driver = TestDriver(app).run([("a", 1, 30), ("b", 1, 10), ("c", 1, 20), ("z", 1, 10_000)])
    assert [key for key, _, _ in fired(driver, out)] == ["b", "c", "a"]


def test_timers_set_by_timers_fire_in_turn() -> None:
    app = sl.App("app")
    words, out = app.topic("words", value=int), app.topic("out", value=int)

    @app.task(words)
    class Task:
        def process(self, record: sl.Record[str, int]) -> None:
            if record.value:
                sl.set_timer(0, record.timestamp + 10)

        def on_timer(self, n: int) -> None:
            out.send("n", n)
            sl.set_timer(n + 1, sl.current_task().stream_time + 10)

    driver = TestDriver(app).run([("k", 1, 0), ("k", 0, 35)])
    assert fired(driver, out) == [("n", 0, 10), ("n", 1, 20), ("n", 2, 30)]


def test_wall_clock_timers_fire_by_the_clock() -> None:
    app, out, _ = sessions("wall")
    driver = TestDriver(app, now_ms=1_000).run([("a", 1, 1_000)])
    assert fired(driver.advance(99), out) == []
    assert fired(driver.advance(1), out) == [("a", 1, 1_100)]


def test_a_timer_after_the_last_time_is_refused() -> None:
    """It would never fire, not even at the end of the input."""
    app = sl.App("app")
    words = app.topic("words", key=str, value=int)

    @app.task(words)
    def handle(record: sl.Record[str, int]) -> None:
        sl.set_timer(record.key, 2**63 - 2 + record.value)

    @app.on_timer(handle)
    def due(name: str) -> None: ...

    with TestDriver(app) as driver:
        driver.run([("last", 1)])
        with pytest.raises(sl.TaskFailed) as failed:
            driver.run([("later", 2)])
    assert isinstance(failed.value.__cause__, sl.InvalidRecord)
    assert "after the latest one" in str(failed.value.__cause__)


def test_timers_survive_a_crash() -> None:
    app, out, _ = sessions()
    driver = TestDriver(app).run([("a", 1, 0)])
    driver.run([CRASH, ("b", 1, 50), CRASH, ("c", 1, 120), CRASH, ("d", 1, 500)])
    assert fired(driver, out) == [("a", 1, 100), ("b", 1, 150), ("c", 1, 220)]


def test_a_timer_fires_again_once_after_a_crash_before_the_commit() -> None:
    app, out, _ = sessions()
    driver = TestDriver(app).run([("a", 1, 0), ("b", 1, 200), CRASH, ("c", 1, 201)])
    assert fired(driver, out) == [("a", 1, 100)]


def test_stream_time_survives_a_crash_and_does_not_go_back() -> None:
    app, out, _ = sessions()
    driver = TestDriver(app).run([("a", 1, 1_000)])
    driver.crash()
    driver.run([("b", 1, 10)])
    [instance] = driver.worker.instances
    assert instance.context.stream_time == 1_000


def test_timers_set_by_a_failed_record_are_undone() -> None:
    app, out, _ = sessions(on_error="skip")
    driver = TestDriver(app).run([("a", -1, 0), ("b", 1, 10), ("c", 1, 900)])
    assert fired(driver, out) == [("b", 1, 110)]


def test_a_failed_record_does_not_move_a_timer() -> None:
    app, out, _ = sessions(on_error="skip")
    driver = TestDriver(app).run([("a", 1, 0), ("a", -1, 50), ("c", 1, 900)])
    assert fired(driver, out) == [("a", 1, 100)]


def test_a_timer_that_raises_is_undone_and_removed_if_skipped() -> None:
    app, out, open_ = sessions(on_error="skip")
    driver = TestDriver(app).run([("bad", 1, 0), ("a", 1, 5), ("c", 1, 900), ("c", 1, 2_000)])
    assert fired(driver, out) == [("a", 1, 105), ("c", 1, 1_000)]
    assert driver.store(open_) == {"bad": 1, "c": 1}


def test_a_timer_that_raises_fails_the_task_and_fires_again() -> None:
    app, out, _ = sessions()
    driver = TestDriver(app)
    with pytest.raises(sl.TaskFailed, match="on timer 'bad': ValueError: bad timer"):
        driver.run([("bad", 1, 0), ("a", 1, 900)])
    driver.crash()
    with pytest.raises(sl.TaskFailed, match="timer 'bad'"):
        driver.settle()
    assert fired(driver, out) == []


def test_timer_functions_may_be_async() -> None:
    app = sl.App("app")
    words, out = app.topic("words", value=int), app.topic("out", value=int)

    @app.task(words)
    class Task:
        async def process(self, record: sl.Record[str, int]) -> None:
            sl.set_timer("t", record.timestamp + 10)

        async def on_timer(self, name: str) -> None:
            out.send(name, 1)

    driver = TestDriver(app).run([("k", 1, 0), ("k", 1, 50)])
    assert fired(driver, out) == [("t", 1, 10)]


def test_setting_a_timer_without_a_timer_function_raises() -> None:
    app = sl.App("app")
    app.task(app.topic("words"), name="t")(lambda record: sl.set_timer("x", 1))
    with pytest.raises(sl.TaskFailed, match="has no handler for timers"):
        TestDriver(app).run([1])
