"""A result that cannot be made or sent concerns itself alone: no record, no other result."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.framework.container import batch_size
from strandline.framework.testing import TestDriver
from tests.streams.oracle import Event

BASE = 1_000_000
BIG = 2**62 + 5
RESULT = pa.schema([("user", pa.string()), ("n", pa.int64())])


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size, "FIRST_BATCH_RECORDS", 4)


def app_of(on_error: Any) -> tuple[sl.App, sl.Stream]:
    app = sl.App("app", commit_records=7)
    topic = app.topic("events", value=Event, key="user", timestamp="at", partitions=1)
    return app, app.stream(topic, idle=None, on_error=on_error)


def run(app: sl.App, rows: list[tuple[int, int]]) -> TestDriver:
    """Run the app over records of one user, given as time and amount, and end the input."""
    driver = TestDriver(app, now_ms=BASE + 10_000)
    return driver.run([Event("ann", "x", amount, BASE + at) for at, amount in rows]).end()


def refuse_two(row: Any) -> dict[str, Any]:
    if row.n == 2:
        raise ValueError("two")
    return {"user": row.user, "n": row.n}


def letters(driver: TestDriver) -> list[dict[str, bytes]]:
    topics = driver.app.declared.topics
    [name] = [name for name in topics if name.endswith("-dead-letter")]
    return [dict(record.headers) for record in driver.output(topics[name])]


TIMES = [(0, 1), (11, 1), (12, 1), (23, 1), (34, 1), (45, 1)]


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
@pytest.mark.parametrize("times", [TIMES, TIMES[:3]], ids=["by a record", "by the end"])
def test_a_function_that_raises_for_a_result_loses_that_result_alone(
    on_error: str, times: list[tuple[int, int]]
) -> None:
    app, stream = app_of(on_error)
    windows = stream.group_by("user").window(sl.tumbling(10)).agg(n=sl.count(), name="agg")
    out = windows.map(refuse_two, schema=RESULT).to("out", key="user")
    driver = run(app, times)
    assert [record.value["n"] for record in driver.output(out)] == [1] * (len(times) - 2)
    if on_error == "dead_letter":
        [letter] = letters(driver)
        assert b"user=ann, window_start=1970-01-01 00:16:40.010000" in letter["error.message"]
        assert b"ValueError: two" in letter["error.message"]


TEXT = pa.schema([("user", pa.string()), ("text", pa.string())])


def long_if_two(row: Any) -> dict[str, Any]:
    return {"user": row.user, "text": "x" * (5_000 if row.n == 2 else 5)}


@pytest.mark.parametrize("what", ["a result", "a row"])
def test_a_row_too_large_for_its_topic_is_one_dead_letter(what: str) -> None:
    app, stream = app_of("dead_letter")
    out = app.topic("out", value=TEXT, key="user", config={"max.message.bytes": "1000"})
    windows = stream.group_by("user").window(sl.tumbling(10))
    results = windows.agg(n=sl.count(), name="agg") if what == "a result" else None
    rows = results or stream.select("user", n="amount")
    rows.map(long_if_two, schema=TEXT).to(out)
    amounts = range(1, 6) if what == "a row" else [1] * 5
    driver = run(app, list(zip([0, 11, 12, 23, 34], amounts, strict=True)))
    sent = [record.value["text"] for record in driver.output(out)]
    assert sent == ["xxxxx"] * (3 if what == "a result" else 4)
    [letter] = letters(driver)
    assert b"max.message.bytes = 1000" in letter["error.message"]
    assert what == "a result" or letter["origin.offset"] == b"1"


def test_without_a_policy_the_task_stops_at_such_a_result() -> None:
    app, stream = app_of("fail")
    windows = stream.group_by("user").window(sl.tumbling(10)).agg(n=sl.count(), name="agg")
    windows.map(refuse_two, schema=RESULT).to("out", key="user")
    with pytest.raises(sl.TaskFailed, match="ValueError: two"):
        run(app, TIMES)


@pytest.mark.parametrize("window", [sl.hopping(20, 10), sl.sliding(10)], ids=str)
def test_a_window_whose_panes_have_too_large_a_sum_is_left_out_alone(window: Any) -> None:
    app, stream = app_of("dead_letter")
    out = stream.group_by("user").window(window).agg(n=sl.sum("amount"), name="agg").to("out")
    driver = run(app, [(0, BIG), (10, BIG), (40, 1), (60, 1)])
    sums = [record.value["n"] for record in driver.output(out)]
    assert sums == ([BIG, BIG, 1, 1, 1, 1] if "hopping" in str(window) else [BIG, 1, 1])
    assert [b"exceeds 64 bits" in letter["error.message"] for letter in letters(driver)] == [True]


@pytest.mark.parametrize("window", [sl.tumbling(10), sl.session(5, grace=0), sl.count_window(1)])
def test_a_reducer_whose_state_has_another_type_spoils_its_window_alone(window: Any) -> None:
    app, stream = app_of("skip")
    state = sl.reducer(0, lambda _, row: "x" if row["amount"] == 5 else 1, lambda _, new: new)
    out = stream.group_by("user").window(window).agg(n=state, name="agg").to("out")
    driver = run(app, [(0, 1), (20, 5), (40, 1), (60, 1)])
    assert [record.value["n"] for record in driver.output(out)] == [1, 1, 1]


def test_what_follows_a_result_sees_it_once_though_another_one_is_refused() -> None:
    """The branch that refuses a result is after an operator that has counted it."""
    app, stream = app_of("skip")
    windows = stream.group_by("user").window(sl.tumbling(10)).agg(n=sl.count(), name="agg")
    plain = windows.to("plain")
    again = windows.group_by("user").window(sl.tumbling(100)).agg(k=sl.count(), name="again")
    counted = again.to("counted")
    pairs = windows.group_by("user").window(sl.count_window(2)).agg(k=sl.count(), name="pairs")
    paired = pairs.to("paired")
    windows.map(refuse_two, schema=RESULT).to("out", key="user")
    driver = TestDriver(app, now_ms=BASE + 10_000)
    times = [0, 11, 12, 23, 34, 45]
    driver.run([Event("ann", "x", 1, BASE + at) for at in times]).end()
    # The result that the function refuses is left out wherever results go.
    assert [record.value["n"] for record in driver.output(plain)] == [1, 1, 1, 1]
    assert [record.value["k"] for record in driver.output(counted)] == [4]
    assert [record.value["k"] for record in driver.output(paired)] == [2, 2]


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
def test_a_function_that_raises_for_an_update_concerns_the_record_that_caused_it(
    on_error: str,
) -> None:
    app, stream = app_of(on_error)
    counts = stream.group_by("user").agg(n=sl.count(), name="agg")
    out = counts.map(refuse_two, schema=RESULT).to("out")
    driver = TestDriver(app, now_ms=BASE)
    driver.run([Event(user, "x", 1, BASE) for user in ("ann", "ann", "bob")])
    latest = {record.value["user"]: record.value["n"] for record in driver.output(out)}
    assert latest == {"ann": 1, "bob": 1}
    if on_error == "dead_letter":
        [letter] = letters(driver)
        assert letter["origin.offset"] == b"1"


def test_without_a_policy_the_task_stops_at_the_record_of_such_an_update() -> None:
    app, stream = app_of("fail")
    stream.group_by("user").agg(n=sl.count(), name="agg").map(refuse_two, schema=RESULT).to("out")
    with pytest.raises(sl.TaskFailed, match=r"events-0 @ 1 .*ValueError: two"):
        TestDriver(app, now_ms=BASE).run([Event("ann", "x", 1, BASE)] * 2)
