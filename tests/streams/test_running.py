"""Running streams: results are those of plain Python, for any division, order and crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.framework.container import batch_size
from strandline.framework.testing import CRASH, TestDriver
from tests.forms import by_form, examples
from tests.streams.oracle import (
    Event,
    Key,
    Windowed,
    by_partition,
    figures,
    fixed_windows,
    sessions,
    sliding,
)

PARTITIONS = 3
BASE = 1_000_000
EVENTS = st.lists(
    st.builds(
        Event,
        user=st.sampled_from(["ann", "bob", "cid", "dee"]),
        kind=st.sampled_from("xyz"),
        amount=st.none() | st.integers(-50, 50),
        at=st.integers(0, 400).map(lambda at: BASE + at),
    ),
    max_size=40,
)
CUTS = st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=4)
"""Places in the input at which a run ends, or the process dies (True)."""
KEYS: dict[str, Any] = {
    "user": lambda event: (event.user,),
    "kind": lambda event: (event.kind,),
    "user, kind": lambda event: (event.user, event.kind),
}
AGGREGATES: dict[str, Any] = {
    "n": sl.count(),
    "total": sl.sum("amount"),
    "most": sl.max("amount"),
    "mean": sl.mean("amount"),
}
PROPERTY = settings(
    max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture]
)

FEW = settings(PROPERTY, max_examples=by_form(4, 8))
"""For properties of which each example runs twice."""


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size, "FIRST_BATCH_RECORDS", 4)


def app_of(**settings: Any) -> tuple[sl.App, Any, Any]:
    """Return an app, its topic of events, and the stream of them."""
    app = sl.App("app", commit_records=7)
    events = app.topic("events", value=Event, key="user", timestamp="at", partitions=PARTITIONS)
    return app, events, app.stream(events, idle=None, **settings)


def run(app: sl.App, events: Sequence[Event], cuts: Sequence[tuple[int, bool]] = ()) -> TestDriver:
    """Run an app over events, with ends of runs and deaths of the process between them."""
    driver = TestDriver(app, now_ms=BASE + 10_000)
    begin = 0
    for at, crashes in sorted(cuts):
        at = max(begin, min(at, len(events)))
        driver.run([*events[begin:at], *([CRASH] if crashes else [])])
        begin = at
    return driver.run(list(events[begin:]))


def windows_sent(driver: TestDriver, topic: Any, keys: Sequence[str]) -> Counter[Any]:
    """Return the final results that were sent, each as often as it was."""
    found = Counter[Any]()
    for record in driver.output(topic):
        row = record.value
        key = tuple(row[name] for name in keys)
        start, end = row["window_start"], row["window_end"]
        if not isinstance(start, int):
            start, end = (round(when.timestamp() * 1_000) for when in (start, end))
        mean = row["mean"] if row["mean"] is None else round(row["mean"], 9)
        found[key, start, end, (row["n"], row["total"], row["most"], mean)] += 1
    return found


def expected(windows: Windowed) -> Counter[Any]:
    return Counter((*window, figures(events)) for window, events in windows.items())


def late_rows(driver: TestDriver) -> float:
    readings = driver.worker.metrics()
    return sum(r.value for r in readings if r.metric.name == "strandline_late_records_total")


# Windows ------------------------------------------------------------------------------


@pytest.mark.parametrize("by", KEYS)
@PROPERTY
@given(
    events=EVENTS,
    cuts=CUTS,
    size=st.integers(1, 90),
    grace=st.integers(0, 60),
    delay=st.integers(0, 60),
)
def test_each_tumbling_window_is_sent_once(
    by: str, events: list[Event], cuts: Any, size: int, grace: int, delay: int
) -> None:
    keys = by.split(", ")
    app, _, stream = app_of(delay=delay)
    window = sl.tumbling(size, grace=grace)
    out = stream.group_by(*keys).window(window).agg(**AGGREGATES, name="agg").to("out")
    driver = run(app, events, cuts).end()
    windows, _ = fixed_windows(
        by_partition(events, PARTITIONS), KEYS[by], size=size, every=size, grace=grace, delay=delay
    )
    assert windows_sent(driver, out, keys) == expected(windows)


@pytest.mark.parametrize("by", KEYS)
@PROPERTY
@given(
    events=EVENTS,
    cuts=CUTS,
    every=st.integers(1, 40),
    times=st.integers(1, 3),
    rest=st.integers(0, 5),
    grace=st.integers(0, 60),
)
def test_each_hopping_window_is_sent_once(
    by: str, events: list[Event], cuts: Any, every: int, times: int, rest: int, grace: int
) -> None:
    keys, size = by.split(", "), every * times + min(rest, every - 1)
    app, _, stream = app_of()
    window = sl.hopping(size, every, grace=grace)
    out = stream.group_by(*keys).window(window).agg(**AGGREGATES, name="agg").to("out")
    driver = run(app, events, cuts).end()
    windows, _ = fixed_windows(
        by_partition(events, PARTITIONS), KEYS[by], size=size, every=every, grace=grace, delay=0
    )
    assert windows_sent(driver, out, keys) == expected(windows)


@pytest.mark.parametrize("by", KEYS)
@PROPERTY
@given(events=EVENTS, cuts=CUTS, size=st.integers(1, 90), grace=st.integers(0, 60))
def test_each_sliding_window_is_sent_once(
    by: str, events: list[Event], cuts: Any, size: int, grace: int
) -> None:
    keys = by.split(", ")
    app, _, stream = app_of()
    window = sl.sliding(size, grace=grace)
    out = stream.group_by(*keys).window(window).agg(**AGGREGATES, name="agg").to("out")
    driver = run(app, events, cuts).end()
    windows = sliding(by_partition(events, PARTITIONS), KEYS[by], size=size, grace=grace)
    assert windows_sent(driver, out, keys) == expected(windows)


@pytest.mark.parametrize("by", KEYS)
@PROPERTY
@given(events=EVENTS, cuts=CUTS, gap=st.integers(1, 60), grace=st.integers(0, 80))
def test_each_session_is_sent_once(
    by: str, events: list[Event], cuts: Any, gap: int, grace: int
) -> None:
    keys = by.split(", ")
    grace = max(grace, gap)  # otherwise which record comes first decides
    app, _, stream = app_of()
    window = sl.session(gap, grace=grace)
    out = stream.group_by(*keys).window(window).agg(**AGGREGATES, name="agg").to("out")
    driver = run(app, events, cuts).end()
    windows, _ = sessions(by_partition(events, PARTITIONS), KEYS[by], gap=gap, grace=grace, delay=0)
    if by == "user" or not any(late_of(events, grace)):
        assert windows_sent(driver, out, keys) == expected(windows)


def late_of(events: Sequence[Event], grace: int) -> list[bool]:
    latest, found = 0, []
    for event in events:
        found.append(event.at + grace < latest)
        latest = max(latest, event.at)
    return found


@PROPERTY
@given(events=EVENTS, cuts=CUTS, n=st.integers(1, 5))
def test_each_n_records_of_a_key_are_sent_once(events: list[Event], cuts: Any, n: int) -> None:
    app, _, stream = app_of()
    out = stream.group_by("user").window(sl.count_window(n)).agg(**AGGREGATES, name="agg").to("out")
    driver = run(app, events, cuts)
    windows: Windowed = {}
    for user in {event.user for event in events}:
        mine = [event for event in events if event.user == user]
        for start in range(0, len(mine) - n + 1, n):
            windows[(user,), start, start + n] = mine[start : start + n]
    assert windows_sent(driver, out, ["user"]) == expected(windows)


@PROPERTY
@given(events=EVENTS, cuts=CUTS, n=st.integers(1, 5))
def test_each_n_records_of_another_key_are_sent_once(
    events: list[Event], cuts: Any, n: int
) -> None:
    app, _, stream = app_of()
    out = stream.group_by("kind").window(sl.count_window(n)).agg(**AGGREGATES, name="agg").to("out")
    driver = run(app, events, cuts)
    rows = [record.value for record in driver.output(out)]
    sizes = Counter(event.kind for event in events)
    found = Counter((row["kind"], row["window_start"]) for row in rows)
    assert found == Counter(
        (kind, start) for kind, size in sizes.items() for start in range(0, size - n + 1, n)
    )
    assert {row["n"] for row in rows} <= {n}


@FEW
@given(events=EVENTS, cuts=CUTS, n=st.integers(1, 3), grace=st.integers(0, 60))
def test_windows_of_a_number_of_records_are_late_or_not_for_any_division(
    events: list[Event], cuts: Any, n: int, grace: int
) -> None:
    def results(cuts: Any) -> Counter[Any]:
        app, _, stream = app_of()
        few = stream.group_by("user").window(sl.count_window(n)).agg(k=sl.count(), name="few")
        windowed = few.group_by("user").window(sl.tumbling(20, grace=grace))
        out = windowed.agg(k=sl.sum("k"), name="agg").to("out")
        rows = [r.value for r in run(app, events, cuts).end().output(out)]
        return Counter((row["user"], row["window_start"], row["k"]) for row in rows)

    assert results(cuts) == results([])


@pytest.mark.parametrize("by", ["user", "kind"])
@PROPERTY
@given(events=EVENTS, cuts=CUTS, grace=st.integers(0, 60))
def test_late_records_are_counted_and_go_to_their_topic(
    by: str, events: list[Event], cuts: Any, grace: int
) -> None:
    app = sl.App("app", commit_records=7)
    topic = app.topic("events", value=Event, key="user", timestamp="at", partitions=PARTITIONS)
    late = app.topic("late", value=Event, key="user", timestamp="at")
    stream = app.stream(topic, late=late, idle=None)
    stream.group_by(by).window(sl.tumbling(30, grace=grace)).agg(n=sl.count(), name="agg")
    driver = run(app, events, cuts)
    _, number = fixed_windows(
        by_partition(events, PARTITIONS), KEYS[by], size=30, every=30, grace=grace, delay=0
    )
    sent = [record.value for record in driver.output(late)]
    assert len(sent) == number
    assert not Counter(sent) - Counter(events)
    if not any(crashes for _, crashes in cuts):
        assert late_rows(driver) == number


@pytest.mark.parametrize(
    "late_for",
    [
        lambda s: s.group_by("kind").window(sl.tumbling(30)).agg(n=sl.count(), name="agg"),
        lambda s: s.group_by("kind").window(sl.hopping(30, 15)).agg(n=sl.count(), name="agg"),
        lambda s: s.group_by("kind").window(sl.sliding(29)).agg(n=sl.count(), name="agg"),
        lambda s: s.group_by("kind").window(sl.session(10, grace=20)).agg(n=sl.count(), name="agg"),
        lambda s: s.drop_duplicates(on="kind", within=30, name="once"),
    ],
)
def test_late_records_go_to_their_topic_before_an_internal_topic(late_for: Any) -> None:
    app = sl.App("app", commit_records=7)
    topic = app.topic("events", value=Event, key="user", timestamp="at")
    late = app.topic("late", value=Event, key="user", timestamp="at")
    late_for(app.stream(topic, late=late, idle=None))
    times = [0, 199, 10, 190, 20]
    events = [Event("ann", "x", number, BASE + at) for number, at in enumerate(times)]
    driver = run(app, events, [(3, False)]).end()
    assert [record.value for record in driver.output(late)] == [events[2], events[4]]
    assert late_rows(driver) == 2


# Aggregates without windows -----------------------------------------------------------


@pytest.mark.parametrize("by", KEYS)
@PROPERTY
@given(events=EVENTS, cuts=CUTS)
def test_updates_end_with_the_figures_of_all_records(
    by: str, events: list[Event], cuts: Any
) -> None:
    keys = by.split(", ")
    app, _, stream = app_of()
    out = stream.group_by(*keys).agg(**AGGREGATES, name="agg").to("out", partitions=2)
    driver = run(app, events, cuts)
    groups: dict[Key, list[Event]] = {}
    for event in events:
        groups.setdefault(KEYS[by](event), []).append(event)
    shown: dict[Key, Any] = {}
    for record in driver.output(out):
        row = record.value
        mean = row["mean"] if row["mean"] is None else round(row["mean"], 9)
        shown[tuple(row[k] for k in keys)] = (row["n"], row["total"], row["most"], mean)
    assert shown == {key: figures(of_key) for key, of_key in groups.items()}


WINDOWS = st.one_of(
    st.integers(5, 40).map(lambda size: sl.tumbling(size, grace=1_000)),
    st.integers(5, 40).map(lambda every: sl.hopping(2 * every, every, grace=1_000)),
    st.integers(5, 90).map(lambda size: sl.sliding(size, grace=1_000)),
)


@pytest.mark.long
@PROPERTY
@given(events=EVENTS, cuts=CUTS, window=WINDOWS)
def test_updates_of_windows_end_with_their_final_results(
    events: list[Event], cuts: Any, window: Any
) -> None:
    app, _, stream = app_of()
    windowed = stream.group_by("user").window(window)
    aggregated = windowed.agg(**AGGREGATES, name="agg")
    updates = aggregated.to("updates", emit="update")
    finals = aggregated.to("finals", emit="final")
    driver = run(app, events, cuts)
    latest: dict[Any, Any] = {}
    for record in driver.output(updates):
        latest[record.value["user"], record.value["window_start"]] = record.value
    driver.end()
    found = {(r.value["user"], r.value["window_start"]): r.value for r in driver.output(finals)}
    assert latest == found


@PROPERTY
@given(
    events=EVENTS,
    aborted=st.sets(st.integers(0, 8), max_size=4),
    window=st.one_of(WINDOWS, st.integers(5, 60).map(lambda gap: sl.session(gap, grace=1_000))),
)
def test_an_aborted_commit_changes_no_result(
    events: list[Event], aborted: set[int], window: Any
) -> None:
    def results(*, aborting: bool) -> Counter[Any]:
        app, _, stream = app_of()
        out = stream.group_by("kind").window(window).agg(**AGGREGATES, name="agg").to("out")
        driver = TestDriver(app, now_ms=BASE + 10_000)
        if aborting:
            abort(driver, aborted)
        driver.run(list(events)).end()
        return windows_sent(driver, out, ["kind"])

    assert results(aborting=True) == results(aborting=False)


def abort(driver: TestDriver, numbers: set[int]) -> None:
    """Let the commits of these numbers fail."""
    session = driver.worker._session
    commit, count = session.commit, iter(range(10_000))

    def sometimes(instances: Any) -> None:
        if next(count) in numbers:
            for instance in instances:  # a commit may fail after it was prepared
                instance.before_commit()
            raise sl.TransactionAborted("as the test asks for")
        commit(instances)

    session.commit = sometimes  # type: ignore[method-assign]


def test_updates_of_sessions_are_refused() -> None:
    _, _, stream = app_of()
    sessions = stream.group_by("user").window(sl.session(10)).agg(n=sl.count(), name="agg")
    with pytest.raises(sl.InvalidConfig, match="sessions that were merged"):
        sessions.to("out", emit="update")


# Other operators ----------------------------------------------------------------------


@pytest.mark.parametrize("on", ["user", "kind"])
@PROPERTY
@given(events=EVENTS, cuts=CUTS, within=st.integers(1, 200))
def test_duplicates_within_a_time_are_dropped(
    on: str, events: list[Event], cuts: Any, within: int
) -> None:
    app, _, stream = app_of(delay=1_000)
    out = stream.drop_duplicates(on=[on], within=within, name="once").to("out")
    driver = run(app, events, cuts)
    sent = [record.value for record in driver.output(out)]
    assert not Counter(row_of(event) for event in sent) - Counter(map(row_of, events))
    times: dict[str, list[int]] = {}
    for event in sent:
        times.setdefault(event[on], []).append(millis(event["at"]))
    for of_key in times.values():
        of_key.sort()
        assert all(later - earlier >= within for earlier, later in pairwise(of_key))
    if on == "user":
        kept: dict[str, list[int]] = {}
        for event in events:
            mine = kept.setdefault(event.user, [])
            if all(abs(event.at - other) >= within for other in mine):
                mine.append(event.at)
        assert times == {user: sorted(found) for user, found in kept.items()}


def row_of(event: Any) -> tuple[Any, ...]:
    if isinstance(event, Event):
        return event.user, event.kind, event.amount, event.at
    return event["user"], event["kind"], event["amount"], millis(event["at"])


def millis(at: Any) -> int:
    return at if isinstance(at, int) else round(at.timestamp() * 1_000)


def test_final_results_can_be_grouped_again_by_another_key() -> None:
    app, _, stream = app_of()
    hourly = stream.group_by("user").window(sl.tumbling(10)).agg(n=sl.count(), name="first")
    out = (
        hourly.group_by("n").window(sl.tumbling(50)).agg(users=sl.count(), name="second").to("out")
    )
    events = [Event(user, "x", 1, BASE + at) for at in range(200) for user in ("ann", "bob")]
    driver = run(app, events, [(100, True), (250, False)]).end()
    rows = [record.value for record in driver.output(out)]
    assert sum(row["users"] for row in rows) == 40
    assert {row["n"] for row in rows} == {10}
    assert Counter(row["users"] for row in rows) == {10: 4}


def test_a_group_by_the_key_of_the_record_may_have_windows() -> None:
    app = sl.App("app")
    stream = app.stream(app.topic("words", key=str, value=int))
    out = stream.group_by("key").window(sl.tumbling(10)).agg(n=sl.count(), name="agg").to("out")
    driver = TestDriver(app).run([("a", 1, BASE), ("a", 2, BASE + 5), ("b", 3, BASE)]).end()
    found = {record.value["key"]: (record.key, record.value["n"]) for record in driver.output(out)}
    assert {key: n for key, (_, n) in found.items()} == {"a": 2, "b": 1}
    assert [next(iter(key)) for key, _ in found.values()] == [*found]


def test_a_row_without_a_key_is_one_dead_letter() -> None:
    app, _, stream = app_of(on_error="dead_letter")
    stream.group_by("amount").agg(n=sl.count(), name="agg").to("out")
    events = [Event("ann", "x", amount, BASE) for amount in (1, None, 2, None, 1)]
    driver = run(app, events)
    rows = {r.value["amount"]: r.value["n"] for r in driver.output(app.declared.topics["out"])}
    assert rows == {1: 2, 2: 1}
    letters = [topic for name, topic in app.declared.topics.items() if name.endswith("-letter")]
    assert sum(len(driver.output(topic)) for topic in letters) == 2


@pytest.mark.parametrize(("kind", "key"), [(str, "a"), (int, 7), (bytes, b"\xff"), (float, 0.5)])
def test_a_record_without_a_key_stays_without_one(kind: type, key: Any) -> None:
    app = sl.App("app")
    stream = app.stream(app.topic("numbers", key=kind, value=int))
    out = stream.filter(sl.col("value") > 1).to("out")
    driver = TestDriver(app).run([(None, 1), (None, 2), (key, 3), (None, 4)])
    found = [(record.key, record.value["value"]) for record in driver.output(out)]
    assert found == [(None, 2), (key, 3), (None, 4)]


def test_a_null_in_the_column_of_the_key_is_a_record_without_one() -> None:
    schema = pa.schema([("user", pa.string()), ("n", pa.int64())])
    app = sl.App("app")
    events = app.topic("events", key="user", value=schema)
    out = app.stream(events).filter(sl.col("n") > 1).to("out")
    rows = pa.table({"user": ["ann", None, None], "n": [1, 2, 3]}, schema=schema)
    driver = TestDriver(app).run(rows)
    assert [(record.key, record.value["n"]) for record in driver.output(out)] == [
        (None, 2),
        (None, 3),
    ]


def test_a_function_that_raises_is_one_dead_letter() -> None:
    app, _, stream = app_of(on_error="dead_letter")
    stream.filter(lambda row: 10 // row.amount > 0).to("out")
    events = [Event("ann", "x", amount, BASE) for amount in (1, 0, 2)]
    driver = run(app, events)
    assert [r.value["amount"] for r in driver.output(app.declared.topics["out"])] == [1, 2]
    [letters] = [name for name in app.declared.topics if name.endswith("-dead-letter")]
    [letter] = driver.output(app.declared.topics[letters])
    assert b"ZeroDivisionError" in dict(letter.headers)["error.type"]


def test_an_idle_partition_does_not_hold_windows_back() -> None:
    app = sl.App("app")
    topic = app.topic("events", value=Event, key="user", timestamp="at", partitions=PARTITIONS)
    stream = app.stream(topic, idle="10s")
    out = stream.group_by("kind").window(sl.tumbling(10)).agg(n=sl.count(), name="agg").to("out")
    driver = TestDriver(app, now_ms=BASE)
    driver.run([Event("ann", "x", 1, BASE + at) for at in range(50)])
    assert driver.output(out) == []
    for _ in range(12):
        driver.advance(1_000)
    assert [record.value["n"] for record in driver.output(out)] == [10] * 4


def test_a_quiet_input_is_closed_by_the_clock_if_asked_for() -> None:
    app = sl.App("app")
    topic = app.topic("events", value=Event, key="user", timestamp="at")
    stream = app.stream(topic, close_idle="5s")
    out = stream.group_by("user").window(sl.tumbling("1h")).agg(n=sl.count(), name="agg").to("out")
    driver = TestDriver(app, now_ms=BASE)
    driver.run([Event("ann", "x", 1, BASE + at) for at in range(50)])
    for _ in range(9):
        driver.advance(1_000)
    assert [record.value["n"] for record in driver.output(out)] == [50]


def test_a_frame_of_rows_is_an_input_of_a_driver() -> None:
    app, _, stream = app_of()
    out = stream.group_by("user").agg(n=sl.count(), name="agg").to("out")
    frame = pl.DataFrame(
        {"user": ["ann", "bob", "ann"], "kind": "x", "amount": 1, "at": [BASE, BASE, BASE]}
    )
    driver = TestDriver(app, now_ms=BASE).run(frame)
    assert {r.value["user"]: r.value["n"] for r in driver.output(out)} == {"ann": 2, "bob": 1}


def test_a_topic_that_is_read_twice_has_the_columns_of_both_readers() -> None:
    app, topic, stream = app_of()
    again = app.stream(topic, idle=None)
    merged = stream.select("user", x="kind").merge(again.select("user", x=sl.col("user")))
    out = merged.to("out")
    driver = run(app, [Event("ann", "x", 1, BASE)])
    assert sorted(record.value["x"] for record in driver.output(out)) == ["ann", "x"]


# Changed definitions ------------------------------------------------------------------


def version(driver_log: Any, build: Any) -> sl.App:
    app = sl.App("app", log=driver_log)
    topic = app.topic("events", value=Event, key="user", timestamp="at", partitions=2)
    build(app.stream(topic, idle=None))
    return app


@pytest.mark.parametrize(
    ("build", "difference"),
    [
        (lambda s: s.group_by("user").window(sl.tumbling(20)).agg(n=sl.count(), name="agg"), "20"),
        (
            lambda s: s.group_by("kind").window(sl.tumbling(10)).agg(n=sl.count(), name="agg"),
            "kind",
        ),
        (lambda s: s.group_by("user").window(sl.session(10)).agg(n=sl.count(), name="agg"), "keys"),
        (
            lambda s: (
                s.group_by("user").window(sl.tumbling(10)).agg(n=sl.max("amount"), name="agg")
            ),
            "n=max",
        ),
    ],
)
def test_another_definition_is_refused_before_a_record_is_touched(
    tmp_path: Any, build: Any, difference: str
) -> None:
    def first(stream: Any) -> None:
        stream.group_by("user").window(sl.tumbling(10)).agg(n=sl.count(), name="agg").to("out")

    with version(tmp_path / "log", first) as app:
        app.declared.topics["events"].append([Event("ann", "x", 1, BASE)])
        app.run(until="idle", progress=False)
    with version(tmp_path / "log", build) as app, pytest.raises(sl.InvalidConfig, match=difference):
        app.run(until="idle", progress=False)
    with version(tmp_path / "log", first) as app:
        app.run(until="end", progress=False)
        assert app.declared.topics["out"].to_polars()["n"].to_list() == [1]


def summing(**settings: Any) -> Any:
    """Return a stream's declaration that sums amounts with functions of its own."""
    total = sl.reducer(0, lambda old, row: old + row["amount"], **settings)
    return lambda stream: stream.group_by("user").agg(n=total, name="agg").to("out")


def test_state_of_another_version_of_a_reducer_is_refused(tmp_path: Any) -> None:
    for build in (summing(version="1"), summing(version="1")):
        with version(tmp_path / "log", build) as app:
            app.declared.topics["events"].append([Event("ann", "x", 1, BASE)])
            app.run(until="idle", progress=False)
    for build, now in ((summing(version="2"), '{"version":"2"}'), (summing(), "n=reducer")):
        said = r'n=reducer {"version":"1"}(.|\n)*' + now
        with version(tmp_path / "log", build) as app, pytest.raises(sl.InvalidConfig, match=said):
            app.run(until="idle", progress=False)
    with version(tmp_path / "log", summing(version="1")) as app:
        assert app.declared.topics["out"].to_polars()["n"].to_list() == [1, 2]


def test_what_comes_before_an_operator_may_change(tmp_path: Any) -> None:
    def counting(stream: Any) -> None:
        stream.group_by("user").agg(n=sl.count(), name="agg").to("out")

    with version(tmp_path / "log", counting) as app:
        app.declared.topics["events"].append([Event("ann", "x", 1, BASE)])
        app.run(until="idle", progress=False)
    changed = lambda s: counting(s.filter(sl.col("kind") == "x"))  # noqa: E731
    with version(tmp_path / "log", changed) as app:
        rows = [Event("ann", "x", 1, BASE), Event("ann", "y", 1, BASE)]
        app.declared.topics["events"].append(rows)
        app.run(until="idle", progress=False)
        assert app.declared.topics["out"].to_polars()["n"].to_list() == [1, 2]


def totals(app: sl.App) -> list[int]:
    return app.declared.topics["out"].to_polars()["n"].to_list()


def counted(stream: Any, key: str) -> None:
    stream.group_by(key).window(sl.tumbling(10)).agg(n=sl.count(), name="agg").to("out")


def first_of_equals(stream: Any, key: str) -> None:
    counted(stream.drop_duplicates(on=["user", "amount"], within=1, name="once"), key)


def beside_another(stream: Any, key: str) -> None:
    stream.group_by("user").agg(n=sl.count(), name="another").to("others")
    counted(stream, key)


@pytest.mark.parametrize("key", ["user", "kind"])
@pytest.mark.parametrize("changed", [first_of_equals, beside_another])
def test_an_added_operator_neither_opens_closed_windows_nor_keeps_others_open(
    tmp_path: Any, key: str, changed: Any
) -> None:
    def run_on(build: Any, ats: list[int]) -> list[int]:
        app = sl.App("app", log=tmp_path / "log")
        topic = app.topic("events", value=Event, key="user", timestamp="at")
        build(app.stream(topic, idle=None), key)
        with app:
            topic.append([Event("ann", "x", at, 1_700_000_000_000 + at) for at in ats])
            app.run(until="idle", progress=False)
            return totals(app)

    assert run_on(counted, [0, 1, 50]) == [2]
    assert run_on(changed, [2, 60]) == [2, 1]  # the window of 0 is closed, and that of 50 closes
    assert run_on(counted, [3, 70]) == [2, 1, 1]


def test_a_topic_that_is_read_no_more_does_not_hold_windows_open(tmp_path: Any) -> None:
    def run_on(names: list[str], ats: dict[str, int]) -> list[int]:
        app = sl.App("app", log=tmp_path / "log")
        topics = {name: app.topic(name, value=Event, key="user", timestamp="at") for name in names}
        counted(app.stream(*topics.values(), idle=None), "user")
        with app:
            for name, at in ats.items():
                topics[name].append([Event("ann", "x", at, 1_700_000_000_000 + at)])
            app.run(until="idle", progress=False)
            return totals(app)

    assert run_on(["one", "other"], {"one": 20, "other": 0}) == []
    assert run_on(["one"], {"one": 50}) == [1, 1]


# Order of arrival ---------------------------------------------------------------------


@FEW
@given(events=EVENTS, cuts=CUTS, n=st.integers(1, 4))
def test_merged_branches_have_the_order_of_their_records(
    events: list[Event], cuts: Any, n: int
) -> None:
    def results(cuts: Any) -> Counter[Any]:
        app, _, stream = app_of()
        branches = stream.branch(large=sl.col("amount") > 10, small=lambda row: row.amount == 0)
        merged = branches.rest.merge(branches.small, branches.large)
        windowed = merged.group_by("user").window(sl.count_window(n))
        out = windowed.agg(amounts=sl.sum("amount"), name="agg").to("out")
        rows = [record.value for record in run(app, events, cuts).output(out)]
        return Counter((row["user"], row["window_start"], row["amounts"]) for row in rows)

    assert results(cuts) == results([])


@FEW
@given(events=EVENTS, cuts=CUTS, grace=st.integers(0, 30))
def test_rows_of_a_function_of_frames_are_late_or_not_for_any_division(
    events: list[Event], cuts: Any, grace: int
) -> None:
    def results(cuts: Any) -> tuple[Counter[Any], Counter[Any]]:
        app = sl.App("app", commit_records=7)
        topic = app.topic("events", value=Event, key="user", timestamp="at", partitions=PARTITIONS)
        late = app.topic("late", value=Event, key="user", timestamp="at")
        stream = app.stream(topic, idle=None, late=late)
        few = stream.map_batches(lambda frame: frame.filter(pl.col("kind") != "x"))
        windowed = few.group_by("kind").window(sl.tumbling(30, grace=grace))
        out = windowed.agg(n=sl.count(), name="agg").to("out")
        driver = run(app, events, cuts).end()
        rows = [record.value for record in driver.output(out)]
        return (
            Counter((row["kind"], row["window_start"], row["n"]) for row in rows),
            Counter(record.value for record in driver.output(late)),
        )

    assert results(cuts) == results([])


@PROPERTY
@given(
    events=EVENTS,
    cuts=CUTS,
    window=st.one_of(
        st.builds(sl.tumbling, st.integers(1, 40), grace=st.integers(0, 80)),
        st.builds(sl.session, st.integers(1, 40), grace=st.integers(40, 80)),
    ),
)
def test_no_result_is_late_for_the_windows_after_it(
    events: list[Event], cuts: Any, window: Any
) -> None:
    app, _, stream = app_of()
    first = stream.group_by("user").window(window).agg(n=sl.count(), name="first")
    finals = first.to("finals")
    again = first.group_by("user").window(sl.tumbling(7)).agg(n=sl.sum("n"), name="again")
    out = again.to("out")
    driver = run(app, events, cuts).end()
    counted = sum(record.value["n"] for record in driver.output(finals))
    assert sum(record.value["n"] for record in driver.output(out)) == counted


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("by", ["user", "kind"])
def test_an_aborted_commit_takes_the_time_of_the_operators_back(
    monkeypatch: pytest.MonkeyPatch, by: str, number: int
) -> None:
    monkeypatch.setattr(batch_size, "FIRST_BATCH_RECORDS", 2)
    monkeypatch.setattr(batch_size, "MAX_BATCH_RECORDS", 2)
    app = sl.App("app")
    topic = app.topic("events", value=Event, key="user", timestamp="at", partitions=1)
    windowed = app.stream(topic, idle=None).group_by(by).window(sl.tumbling(10))
    out = windowed.agg(n=sl.count(), name="agg").to("out")
    driver = TestDriver(app, now_ms=BASE + 10_000)
    abort(driver, {number})
    driver.run([Event("ann", "x", 1, BASE + at) for at in (0, 5, 20, 1_500, 3_000)]).end()
    assert [record.value["n"] for record in driver.output(out)] == [2, 1, 1, 1]


def summed(stream: Any) -> None:
    stream.group_by("kind").agg(n=sl.sum("amount"), name="agg").to("out")


def reordered(stream: Any) -> None:
    summed(stream.select("amount", "kind", "user"))


def shared(stream: Any) -> None:
    groups = stream.group_by("kind", name="agg")
    groups.agg(n=sl.sum("amount")).to("out")
    groups.agg(k=sl.first("amount"), u=sl.max("at"), name="more").to("others")


@pytest.mark.parametrize("on_error", ["fail", "dead_letter"])
@pytest.mark.parametrize("changed", [reordered, shared])
def test_an_internal_topic_may_get_columns_in_another_order(
    tmp_path: Any, changed: Any, on_error: Any
) -> None:
    def run_on(build: Any, amount: int | None) -> list[int]:
        app = sl.App("app", log=tmp_path / "log")
        topic = app.topic("events", value=Event, key="user", timestamp="at")
        stream = app.stream(topic, on_error=on_error)
        build(stream.with_columns(amount=sl.col("amount") + sl.col("amount") * 0))
        with app:
            topic.append([Event("ann", "x", amount, 1_700_000_000_000)])
            app.run(until="idle", progress=False)
            return totals(app)

    assert run_on(summed, 1) == [1]
    assert run_on(changed, 2) == [1, 3]
    assert run_on(summed, 4) == [1, 3, 7]
    assert run_on(changed, 8) == [1, 3, 7, 15]
    if on_error == "dead_letter":
        assert run_on(changed, 2**63 - 1) == [1, 3, 7, 15]
        with sl.App("reader", log=tmp_path / "log") as reader:
            rows = reader.topic("app-agg-dead-letter", key=bytes, value=LETTER).to_polars()
        assert rows.select("kind", "amount").rows() == [("x", 2**63 - 1)]


LETTER = pa.schema(
    [
        ("kind", pa.string()),
        ("amount", pa.int64()),
        ("strandline_source", pa.string()),
        ("strandline_watermark", pa.int64()),
    ]
)
