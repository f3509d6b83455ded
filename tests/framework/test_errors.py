"""A handler that raises leaves no trace, and the policy decides about its record."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.errors import RebalanceInProgress
from strandline.changelog.records import TopicPartition
from strandline.framework.testing import CRASH, TestDriver


@dataclass(frozen=True)
class Flight:
    carrier: str
    delay: int


def counting(on_error: Any, **options: Any) -> tuple[sl.App, Any, Any]:
    """Return an app that counts records and sends the count, and raises after both on a negative
    value."""
    app = sl.App("app", **options)
    words, out = app.topic("words", value=int), app.topic("out", value=int)
    seen = app.store("seen", value=int, default=0)

    @app.task(words, stores=[seen], on_error=on_error)
    def count(record: sl.Record[str, int]) -> None:
        seen["n"] += 1
        seen[f"only-{record.value}"] = 1
        out.send("n", seen["n"])
        if record.value < 0:
            out.send("n", -1)
            raise ValueError(f"negative: {record.value}")

    return app, out, seen


def values(driver: TestDriver, out: Any) -> list[Any]:
    return [record.value for record in driver.output(out)]


def test_skip_leaves_no_trace_of_the_record() -> None:
    app, out, seen = counting("skip")
    driver = TestDriver(app).run([1, -1, 2, -2, -3, 3])
    assert values(driver, out) == [1, 2, 3]
    assert driver.store(seen) == {"n": 3, "only-1": 1, "only-2": 1, "only-3": 1}


def test_fail_stops_before_the_record_and_names_it() -> None:
    app, out, seen = counting("fail")
    driver = TestDriver(app)
    with pytest.raises(
        sl.TaskFailed,
        match=r"task 'count' failed on record words-0 @ 2 with key 'k': ValueError: negative: -1 \(at .*test_errors.py:\d+\)",
    ) as caught:
        driver.run([("k", 1), ("k", 2), ("k", -1), ("k", 3)])
    assert isinstance(caught.value.__cause__, ValueError)
    assert values(driver, out) == [1, 2]
    assert driver.store(seen)["n"] == 2
    assert driver.owner.committed("app")[TopicPartition("words", 0)].offset == 2


def test_a_failed_record_fails_again_at_the_next_start() -> None:
    app, out, _ = counting("fail")
    driver = TestDriver(app)
    for _ in range(2):
        with pytest.raises(sl.TaskFailed, match="words-0 @ 1"):
            driver.run([1, -1, 2]) if not driver.output(out) else driver.settle()
        driver.crash()
    assert values(driver, out) == [1]


def test_a_failed_instance_does_not_stop_the_others() -> None:
    app = sl.App("app")
    words, seen = app.topic("words", value=int, partitions=4), app.counter("seen")

    @app.task(words, stores=[seen])
    def count(record: sl.Record[str, int]) -> None:
        assert record.value >= 0
        seen.add(record.key)

    driver = TestDriver(app)
    bad = next(k for k in "bcdefgh" if _partition(k) != _partition("a"))
    with pytest.raises(sl.TaskFailed):
        driver.run([(bad, -1), ("a", 1), ("a", 2), (bad, 3)])
    assert driver.store(seen) == {"a": 2}


def _partition(key: str) -> int:
    from strandline.changelog.client.partitioner import partition_for

    return partition_for(key.encode(), 4)


def test_dead_letters_carry_the_record_and_the_cause() -> None:
    app, out, seen = counting("dead_letter")
    driver = TestDriver(app).run([("a", 1, 10), ("b", -1, 20), ("c", 2, 30)])
    assert values(driver, out) == [1, 2]
    [letter] = driver.output(app.declared.topics["app-count-dead-letter"])
    assert (letter.key, letter.value, letter.timestamp) == (b"b", b"\xff", 20)
    headers = dict(letter.headers)
    assert headers["error.type"] == b"ValueError"
    assert headers["error.message"] == b"negative: -1"
    assert b"test_errors.py" in headers["error.traceback"]
    assert (headers["origin.topic"], headers["origin.partition"], headers["origin.offset"]) == (
        b"words",
        b"0",
        b"1",
    )


def test_dead_letters_of_typed_topics_are_typed() -> None:
    app = sl.App("app")
    flights = app.topic("flights", value=Flight, key="carrier")

    @app.task(flights, on_error="dead_letter", name="t")
    def fail(record: sl.Record[str, Flight]) -> None:
        raise ValueError

    driver = TestDriver(app).run([Flight("AA", 3)])
    [letter] = driver.output(app.declared.topics["app-t-dead-letter"])
    assert (letter.key, letter.value) == (b"AA", {"carrier": "AA", "delay": 3})


def test_dead_letters_are_part_of_the_transaction() -> None:
    app, _, _ = counting("dead_letter")
    driver = TestDriver(app).run([-1, CRASH, -2])
    letters = driver.output(app.declared.topics["app-count-dead-letter"])
    assert [dict(letter.headers)["origin.offset"] for letter in letters] == [b"0", b"1"]


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
def test_a_record_that_cannot_be_decoded_follows_the_policy(on_error: Any) -> None:
    app, out, _ = counting(on_error)
    driver = TestDriver(app)
    raw = sl.App("raw").topic("words", value=bytes)
    driver._infos["words"]
    driver._take([(raw, b"k".decode(), value) for value in (b"\x01", b"\xc1 no", b"", b"\x02")])
    driver.settle()
    assert values(driver, out) == [1, 2]
    if on_error == "dead_letter":
        letters = driver.output(app.declared.topics["app-count-dead-letter"])
        assert [letter.value for letter in letters] == [b"\xc1 no", b""]


def test_a_record_that_cannot_be_decoded_fails_the_task_by_default() -> None:
    app, _, _ = counting("fail")
    driver = TestDriver(app)
    driver._take([(sl.App("raw").topic("words", value=bytes), "k", b"\xc1")])
    with pytest.raises(sl.TaskFailed, match="words-0 @ 0 with key b'k': InvalidRecord"):
        driver.settle()


def test_an_async_handler_leaves_no_trace_either() -> None:
    app = sl.App("app")
    words, out = app.topic("words", value=int), app.topic("out", value=int)
    seen = app.store("seen", value=int, default=0)

    @app.task(words, stores=[seen], on_error="skip")
    async def count(record: sl.Record[str, int]) -> None:
        seen["n"] += 1
        out.send("n", seen["n"])
        if record.value < 0:
            raise ValueError

    driver = TestDriver(app).run([1, -1, 2])
    assert values(driver, out) == [1, 2]
    assert driver.store(seen) == {"n": 2}


def test_edits_of_mutable_values_are_undone() -> None:
    app = sl.App("app")
    words, seen = (
        app.topic("words", value=int),
        app.store("seen", value=list[int], default_factory=list),
    )

    @app.task(words, stores=[seen], on_error="skip")
    def collect(record: sl.Record[str, int]) -> None:
        with seen.edit("all") as found:
            found.append(record.value)
        seen["all"].append(99)
        if record.value < 0:
            raise ValueError

    assert TestDriver(app).run([1, -1, 2]).store(seen) == {"all": [1, 2]}


def test_a_rebalance_during_a_commit_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = sl.App("app")
    words = app.topic("words", value=int)
    seen = app.store("seen", value=int, default=0)

    @app.task(words, stores=[seen])
    def count(record: sl.Record[str, int]) -> None:
        seen["n"] += record.value

    driver = TestDriver(app)
    add_offsets, refused = driver.owner.add_offsets, [RebalanceInProgress("another generation")]

    def once_refused(*arguments: Any, **options: Any) -> None:
        if refused:
            raise refused.pop()
        add_offsets(*arguments, **options)

    monkeypatch.setattr(driver.owner, "add_offsets", once_refused)
    caplog.set_level(logging.INFO, "strandline")
    driver.run([1, 2])
    assert driver.store(seen) == {"n": 3}
    assert not refused
    told = [
        record
        for record in caplog.records
        if "a rebalance interrupted a commit" in record.getMessage()
    ]
    assert [record.levelname for record in told] == ["INFO"]
    assert "aborted" not in caplog.text


@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
@pytest.mark.parametrize("batch", [False, True])
def test_a_store_that_the_task_does_not_have_stops_it_whatever_the_policy(
    policy: Any, batch: bool
) -> None:
    """It is a fault of the program, which every record would have: `stores=` was forgotten."""
    app = sl.App("app", log="memory")
    words, seen = app.topic("words", key=str, value=str), app.store("seen", value=int)

    @app.task(words, on_error=policy, batch=batch, name="count")
    def count(_given: Any) -> None:
        seen["x"] = 1

    with pytest.raises(sl.TaskFailed, match="belongs to no task") as failed:
        TestDriver(app).run([("a", "b")])
    assert isinstance(failed.value.__cause__, sl.NotInTask)
