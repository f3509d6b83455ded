"""A bounded run leaves nothing pending: windows are called, and timers fire at the end of input."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.log import Log
from strandline.framework.container.feeder import Feeder
from strandline.framework.testing import CRASH, TestDriver

HOUR = 3_600_000


def batches(log: Any = None, **options: Any) -> tuple[sl.App, Any, Any]:
    """Return an app whose counts are sent and cleared by `window`."""
    app = sl.App("app", log=log, **options)
    words, out = app.topic("words", value=int, partitions=2), app.topic("out", value=int)
    pending = app.store("pending", value=int, default=0)

    @app.task(words, stores=[pending], window_ms=HOUR)
    class Sum:
        def process(self, record: sl.Record[str, int]) -> None:
            pending[record.key] += record.value

        def window(self) -> None:
            for key, value in pending.all():
                out.send(key, value)
                del pending[key]
            out.send("called", sl.current_task().partition)

    return app, words, out


def sent(app: sl.App, topic: Any) -> list[tuple[Any, Any]]:
    rows = topic.to_polars().rows(named=True)
    return sorted((row["key"], row["value"]) for row in rows)


def test_a_run_until_idle_calls_a_window_that_is_not_due_yet(tmp_path: Path) -> None:
    app, words, out = batches(tmp_path)
    with app:
        words.append([("a", 1), ("a", 2)])
        assert app.run(until="idle", progress=False) == 2
        assert ("a", 3) in sent(app, out)


def test_a_run_until_idle_handles_records_sent_by_its_own_last_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit comes right after a fetch that found nothing, in the same round."""
    app = sl.App("app", log=tmp_path)
    words, more = app.topic("words", value=int), app.topic("more", value=int)
    seen: list[int] = []

    @app.task(words)
    def forward(record: sl.Record[str, int]) -> None:
        more.send(record.key, record.value)

    @app.task(more)
    def note(record: sl.Record[str, int]) -> None:
        seen.append(record.value)

    feed = Feeder.feed

    def feed_and_let_time_pass(feeder: Feeder, wait: float) -> None:
        feed(feeder, wait)
        worker = app.runner.worker
        assert worker is not None
        if not any(instance.has_input for instance in worker.instances):
            worker._schedule.next_at = 0.0  # pretends that the commit interval has passed

    monkeypatch.setattr(Feeder, "feed", feed_and_let_time_pass)
    with app:
        words.append([("a", 1), ("a", 2)])
        app.run(until="idle", progress=False)
    assert seen == [1, 2]


def test_a_window_is_called_once_for_the_handled_records(tmp_path: Path) -> None:
    """A partition without records, or the next run, must not call it again."""
    app, words, out = batches(tmp_path)
    with app:
        words.append([("a", 1)])
        for _ in range(3):
            app.run(until="idle", progress=False)
        [partition] = words.to_polars()["partition"].to_list()
        assert sent(app, out) == [("a", 1), ("called", partition)]
        words.append([("a", 5)])
        app.run(until="end", progress=False)
        assert sent(app, out)[:2] == [("a", 1), ("a", 5)]


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_pending_window_is_called_by_the_next_run(
    tmp_path: Path, guarantee: sl.Guarantee
) -> None:
    """The first run commits its records and ends before it is idle, like one that dies there."""
    app, words, out = batches(tmp_path, processing_guarantee=guarantee)
    with app:
        words.append([("a", 1), ("a", 2)])
        assert app.run(count=2, progress=False) == 2
        assert sent(app, out) == []
    again, _, out = batches(tmp_path, processing_guarantee=guarantee)
    with again:
        assert again.run(until="idle", progress=False) == 0
        assert ("a", 3) in sent(again, out)


def test_windows_count_once_over_crashes() -> None:
    app, _, out = batches()
    with TestDriver(app) as driver:
        driver.run([("a", 1), CRASH, ("a", 2), CRASH], until="idle")
        driver.crash().run(until="idle")
        totals = [r for r in driver.output(out) if r.key == "a"]
        assert [r.value for r in totals] == [3]
        driver.crash().run([("a", 4), CRASH], until="idle").crash().run(until="idle")
        assert [r.value for r in driver.output(out) if r.key == "a"] == [3, 4]


def test_records_sent_by_a_window_are_handled_before_the_run_ends() -> None:
    app = sl.App("app")
    words, sums = app.topic("words", value=int), app.topic("sums", value=int)
    out = app.topic("out", value=int)

    @app.task(words, window_ms=HOUR)
    class First:
        def init(self, context: sl.TaskContext) -> None:
            self.total = 0

        def process(self, record: sl.Record[str, int]) -> None:
            self.total += record.value

        def window(self) -> None:
            sums.send("sum", self.total)

    @app.task(sums, window_ms=HOUR)
    class Second:
        def process(self, record: sl.Record[str, int]) -> None:
            self.last = record.value

        def window(self) -> None:
            out.send("last", self.last)

    with TestDriver(app) as driver:
        driver.run([("a", 1), ("b", 2)], until="idle")
        assert [(r.key, r.value) for r in driver.output(out)] == [("last", 3)]


def test_an_unbounded_run_calls_windows_only_when_they_are_due() -> None:
    app, _, out = batches()
    with TestDriver(app) as driver:
        driver.run([("a", 1)])
        assert driver.output(out) == []
        driver.advance(HOUR)
        assert [r.value for r in driver.output(out) if r.key == "a"] == [1]


def test_a_window_that_raises_stops_a_run_until_idle_and_is_called_again() -> None:
    app = sl.App("app")
    words, out = app.topic("words", value=int), app.topic("out", value=int)
    broken = [True]

    @app.task(words, window_ms=HOUR)
    class Task:
        def process(self, record: sl.Record[str, int]) -> None:
            pass

        def window(self) -> None:
            out.send("window", 1)
            if broken:
                raise ValueError("not now")

    with TestDriver(app) as driver:
        with pytest.raises(sl.TaskFailed, match="on window: ValueError: not now"):
            driver.run([("a", 1)], until="idle")
        broken.clear()
        driver.crash().run(until="idle").run(until="idle")
        assert len(driver.output(out)) == 1


# The end of the input -----------------------------------------------------------------


def sessions(**options: Any) -> tuple[sl.App, Any, Any]:
    app = sl.App("app", **options)
    words, out = app.topic("words", value=int, partitions=2), app.topic("out", value=int)
    count = app.store("count", value=int, default=0)

    @app.task(words, stores=[count])
    def follow(record: sl.Record[str, int]) -> None:
        count[record.key] += 1
        sl.set_timer(record.key, record.timestamp + 100)

    @app.on_timer(follow)
    def close(key: str) -> None:
        out.send(key, count[key], headers=[("at", b"%d" % sl.current_task().stream_time)])
        del count[key]

    return app, words, out


def test_the_end_fires_all_timers_in_order_of_time_each_at_its_time() -> None:
    app, _, out = sessions()
    with TestDriver(app) as driver:
        driver.run([("a", 1, 30), ("b", 1, 10), ("c", 1, 20), ("a", 1, 40)])
        assert driver.output(out) == []
        driver.end()
        found = [(r.key, r.value, r.timestamp, r.headers) for r in driver.output(out)]
        assert sorted(found) == [
            ("a", 2, 140, (("at", b"140"),)),
            ("b", 1, 110, (("at", b"110"),)),
            ("c", 1, 120, (("at", b"120"),)),
        ]
        for partition in (0, 1):
            times = [r.timestamp for r in driver.output(out) if r.partition == partition]
            assert times == sorted(times)
        driver.end().crash().end()
        assert len(driver.output(out)) == 3


def test_a_run_until_idle_leaves_timers_in_stream_time(tmp_path: Path) -> None:
    app, words, out = sessions(log=tmp_path)
    with app:
        words.append([("a", 1, 0)])
        app.run(until="idle", progress=False)
        assert sent(app, out) == []
        app.run(until="end", progress=False)
        assert sent(app, out) == [("a", 1)]


def test_timers_that_timers_set_fire_too_and_those_of_the_wall_clock_only_when_due() -> None:
    app = sl.App("app")
    words, out = app.topic("words", value=int), app.topic("out", value=int)

    @app.task(words, window_ms=HOUR)
    class Task:
        def process(self, record: sl.Record[str, int]) -> None:
            sl.set_timer(3, record.timestamp + 10)
            sl.set_timer("wall", 5_000, clock="wall")

        def on_timer(self, left: Any) -> None:
            out.send("timer", left if left != "wall" else -1)
            if left != "wall" and left:
                sl.set_timer(left - 1, sl.current_task().stream_time + 10)

        def window(self) -> None:
            out.send("window", 0, timestamp=sl.current_task().stream_time)

    with TestDriver(app, now_ms=1_000) as driver:
        driver.run([("k", 1, 0)], until="end")
        found = [(r.key, r.value, r.timestamp) for r in driver.output(out)]
        timers = [("timer", n, 10 * (4 - n)) for n in (3, 2, 1, 0)]
        assert found == [*timers, ("window", 0, 40)]
        driver.advance(4_000)
        assert driver.output(out)[-1].value == -1


def test_a_timer_can_check_if_the_input_has_ended() -> None:
    """A periodic timer must stop then, or the run would never end."""
    app = sl.App("app")
    words, out = app.topic("words", value=int), app.topic("out", value=int)

    @app.task(words)
    class Task:
        def process(self, record: sl.Record[str, int]) -> None:
            assert not sl.current_task().ending
            sl.set_timer("tick", record.timestamp + 10)

        def on_timer(self, name: str) -> None:
            out.send(name, int(sl.current_task().ending))
            if not sl.current_task().ending:
                sl.set_timer(name, sl.current_task().stream_time + 10)

    with TestDriver(app) as driver:
        driver.run([("k", 1, 0), ("k", 1, 15)], until="end").run([("k", 1, 40)])
        assert [(r.value, r.timestamp) for r in driver.output(out)] == [(0, 10), (1, 25)]


def two_stages(**options: Any) -> tuple[sl.App, Any, Any]:
    """Return an app that counts sessions of users in sessions of their shop, through a repartition
    topic."""
    app = sl.App("stages", **options)
    clicks = app.topic("clicks", key=str, value=str, partitions=2)
    ended = app.topic("ended", key=str, value=str, partitions=2)
    users = app.store("users", value=str, default="")
    shops = app.store("shops", value=int, default=0)
    out = app.topic("out", value=int)
    by_shop = app.repartition(ended, lambda r: r.value, name="by-shop")

    @app.task(by_shop, stores=[shops])
    class Shop:
        def process(self, record: sl.Record[str, str]) -> None:
            shops[record.key] += 1
            sl.set_timer(record.key, record.timestamp + 100)

        def on_timer(self, shop: str) -> None:
            out.send(shop, shops[shop])
            del shops[shop]

    @app.task(clicks, stores=[users])
    class User:
        def process(self, record: sl.Record[str, str]) -> None:
            users[record.key] = record.value
            sl.set_timer(record.key, record.timestamp + 10)

        def on_timer(self, user: str) -> None:
            ended.send(user, users[user])
            del users[user]

    return app, clicks, out


CLICKS = [("ann", "york", 0), ("bob", "york", 60), ("cid", "york", 120), ("dan", "hull", 50)]
CLICKS += [("eve", "york", 400)]
SHOPS = [("hull", 1, 160), ("york", 1, 510), ("york", 3, 230)]


def test_stream_time_ends_downstream_after_the_output_of_upstream_timers() -> None:
    """A shop's session continues while sessions of its users end within its gap."""
    app, clicks, out = two_stages()
    given = [(clicks, *click) for click in CLICKS]
    with TestDriver(app) as driver:
        driver.run(given[:-1]).run(given[-1:], until="end")
        found = sorted((r.key, r.value, r.timestamp) for r in driver.output(out))
        assert found == SHOPS


@pytest.mark.long
def test_the_end_of_a_log_that_crashes_all_the_time_is_the_same() -> None:
    app, clicks, out = two_stages(commit_records=1)
    with TestDriver(app) as driver:
        driver.run([x for click in CLICKS for x in ((clicks, *click), CRASH)])
        ends = driver.worker._completion
        for _ in range(30):  # one step of the end, which may be committed, and a crash
            driver.settle()
            assert driver.worker.is_idle
            for instance, steps in ends.last_steps("end"):
                instance.drive(steps)
            driver.crash()
            ends = driver.worker._completion
            driver.settle()
            for instance, steps in ends.last_steps("end"):
                instance.drive(steps)
            driver.settle()
        assert sorted((r.key, r.value, r.timestamp) for r in driver.output(out)) == SHOPS


def test_nothing_fires_at_the_end_when_a_task_has_failed() -> None:
    """Records are missing after a failure, so the input has not ended."""
    app = sl.App("app")
    words, out = app.topic("words", value=int, partitions=2), app.topic("out", value=int)
    broken = [True]

    @app.task(words)
    def follow(record: sl.Record[str, int]) -> None:
        if record.value < 0 and broken:
            raise ValueError("not yet")
        sl.set_timer(record.key, record.timestamp + 10)

    @app.on_timer(follow)
    def close(key: str) -> None:
        out.send(key, 1)

    with TestDriver(app) as driver:
        with pytest.raises(sl.TaskFailed, match="not yet"):
            driver.run([("a", 1, 0), ("b", -1, 0), ("c", 1, 0), ("d", -1, 0)], until="end")
        assert driver.output(out) == []
        broken.clear()
        driver.crash().end()
        assert sorted(r.key for r in driver.output(out)) == ["a", "b", "c", "d"]


def test_init_window_and_timers_may_send_and_use_stores_and_timers_and_close_may_not() -> None:
    app = sl.App("app")
    words, out = app.topic("words", value=int), app.topic("out", value=int)
    calls = app.store("calls", value=int, default=0)
    refused: list[str] = []

    def touch(name: str) -> None:
        calls[name] += 1
        out.send(name, calls[name])
        sl.set_timer((name, "wall"), 10**13, clock="wall")

    @app.task(words, stores=[calls], window_ms=1_000)
    class Task:
        def init(self, context: sl.TaskContext) -> None:
            touch("init")
            sl.set_timer("timer", 10)

        def process(self, record: sl.Record[str, int]) -> None:
            pass

        def on_timer(self, name: str) -> None:
            touch(name)

        def window(self) -> None:
            touch("window")

        def close(self) -> None:
            for call in (lambda: out.send("close", 1), lambda: calls["close"], touch):
                with pytest.raises(sl.NotInTask):
                    call("close") if call is touch else call()  # type: ignore[operator]
                refused.append("close")

    driver = TestDriver(app).run([("a", 1, 0)], until="end")
    assert [r.key for r in driver.output(out)] == ["init", "timer", "window"]
    assert driver.store(calls) == {"init": 1, "timer": 1, "window": 1}
    driver.close()
    assert refused == ["close"] * 3


# Several workers ----------------------------------------------------------------------


def test_the_end_of_input_is_decided_for_the_whole_app(
    tmp_path: Path, eventually: Callable[..., None]
) -> None:
    """Two workers end together: neither ends stream time before the other one's timers have
    fired."""
    with _opened(tmp_path) as log:
        made = [two_stages(log=log, state_dir=tmp_path / "state") for _ in range(2)]
        first, clicks, out = made[0]
        first.prepare()
        clicks.append(CLICKS)
        threads = [
            threading.Thread(
                target=lambda a=app: a.run(until="end", progress=False, timeout=60), daemon=True
            )
            for app, _, _ in made
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
            assert not thread.is_alive()
        rows = out.to_polars().select("key", "value", "timestamp").rows()
        found = sorted((key, value, int(at.timestamp() * 1000)) for key, value, at in rows)
        assert found == SHOPS
        for app, _, _ in made:
            app.close()


def test_the_end_waits_for_timers_of_a_worker_that_keeps_running(
    tmp_path: Path, eventually: Callable[..., None]
) -> None:
    with _opened(tmp_path) as log:
        one, words, out = sessions(log=log, state_dir=tmp_path / "state")
        two, _, _ = sessions(log=log, state_dir=tmp_path / "state")
        words.append([(key, 1, 0) for key in "abcdefgh"])
        running = threading.Thread(target=lambda: one.run(progress=False, timeout=60), daemon=True)
        running.start()
        eventually(lambda: _at_ends(log, one), what="all at the first worker")
        ending = threading.Thread(
            target=lambda: two.run(until="end", progress=False, timeout=60), daemon=True
        )
        ending.start()
        eventually(lambda: len(out.to_polars()) > 0, what="the second worker's timers")
        eventually(lambda: two.runner.worker is not None and len(two.runner.worker.instances) == 1)
        assert ending.is_alive(), "it has not waited for the first worker's timers"
        assert len(out.to_polars()) < 8
        one.stop()
        running.join(30)
        ending.join(30)
        assert not ending.is_alive()
        assert sent(one, out) == [(key, 1) for key in "abcdefgh"]


def _opened(folder: Path) -> Log:
    from strandline import changelog

    return changelog.open(folder / "log", durability="os")


def _at_ends(log: Log, app: sl.App) -> bool:
    committed = log.broker.committed(app.name, require_stable=False)
    ends = log.broker.offsets(list(committed))
    return len(committed) == 2 and all(
        offset.offset == ends[tp].high_watermark for tp, offset in committed.items()
    )
