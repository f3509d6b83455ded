"""Event time over several stages: late records, idle partitions, and results windowed again."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.changelog.client.partitioner import partition_for
from strandline.framework.container import batch_size
from strandline.framework.streams.operators.groups import GroupState
from strandline.framework.testing import TestDriver
from tests.streams.oracle import Event, by_partition, fixed_windows

PARTITIONS = 3
BASE = 1_000_000
USERS = [next(f"u{n}" for n in range(99) if partition_for(b"u%d" % n, 3) == at) for at in range(3)]
"""A user in each partition."""
HOUR = 3_600_000


def app_of(**settings: Any) -> tuple[sl.App, sl.Stream]:
    """Return an app, and the stream of its topic of events."""
    app = sl.App("app")
    events = app.topic("events", value=Event, key="user", timestamp="at", partitions=PARTITIONS)
    return app, app.stream(events, **settings)


def event(partition: int, at: int, kind: str = "x") -> Event:
    return Event(USERS[partition], kind, 1, BASE + at)


def counts(driver: TestDriver, topic: Any) -> list[int]:
    return [record.value["n"] for record in driver.output(topic)]


def tick(driver: TestDriver, seconds: int) -> None:
    """Let time pass by the wall clock, a second at a time."""
    for _ in range(seconds):
        driver.advance(1_000)


def late_rows(driver: TestDriver) -> float:
    readings = driver.worker.metrics()
    return sum(r.value for r in readings if r.metric.name == "strandline_late_records_total")


# Results that are windowed again ------------------------------------------------------

FIRST = {
    "tumbling": sl.tumbling(10, grace=25),
    "hopping": sl.hopping(20, 10, grace=7),
    "sliding": sl.sliding(20, grace=7),
    "session": sl.session(5, grace=30),
    "count": sl.count_window(3),
}


def windowed_twice(
    kind: str, by: str, events: Sequence[Event], cuts: Sequence[int]
) -> tuple[Counter[Any], float]:
    """Return the results of windows of windows, and the number of late rows."""
    app, stream = app_of(idle=None)
    first = stream.group_by("user").window(FIRST[kind]).agg(n=sl.count(), name="first")
    second = first.group_by(by).window(sl.tumbling(10))
    out = second.agg(results=sl.count(), total=sl.sum("n"), name="second").to("out")
    with TestDriver(app, now_ms=BASE) as driver:
        ends = [0, *cuts, len(events)]
        for begin, end in zip(ends, [*ends[1:], len(events)], strict=True):
            driver.run(events[begin:end])
        driver.end()
        return Counter(tuple(r.value.values()) for r in driver.output(out)), late_rows(driver)


@pytest.mark.parametrize(
    ("kind", "by"),
    [
        *(("tumbling", "user"), ("tumbling", "n"), ("hopping", "user"), ("sliding", "n")),
        *(("session", "user"), ("count", "n")),
    ],
)
def test_windows_of_windows_are_the_same_for_any_division_into_batches(kind: str, by: str) -> None:
    events = [Event(user, "x", 1, BASE + at) for at in range(25) for user in USERS]
    whole, late = windowed_twice(kind, by, events, [])
    assert late == 0
    assert sum(whole[row] * row[-1] for row in whole) >= len(events) - 6
    assert windowed_twice(kind, by, events, range(9, len(events), 9)) == (whole, 0)


def test_results_of_count_windows_are_late_by_the_record_that_made_them_full() -> None:
    events = [event(0, at) for at in (0, 100, 5, 101, 102, 103)]
    whole = windowed_twice("count", "user", events, [])
    assert whole[1] == 1
    assert windowed_twice("count", "user", events, [2, 4]) == whole


WEEK = 7 * 24 * HOUR
MANY_WEEKS = 2_800 * WEEK


@pytest.mark.parametrize(
    ("window", "closed_at"),
    [
        (sl.tumbling("1h", grace="10m"), HOUR + HOUR // 6),
        (sl.tumbling("1h", offset="10m"), HOUR + HOUR // 6),
        (sl.hopping("1h", "1h", grace="10m"), HOUR + HOUR // 6),
        (sl.hopping("2h", "1h", grace="10m"), 2 * HOUR + HOUR // 6),
        (sl.tumbling("1w"), WEEK - 3 * 24 * HOUR),  # the first one began on a Monday
    ],
    ids=str,
)
def test_windows_after_an_internal_topic_close_when_their_time_has_passed(
    window: Any, closed_at: int
) -> None:
    app, stream = app_of(idle=None)
    out = stream.group_by("kind").window(window).agg(n=sl.count(), name="agg").to("out")
    with TestDriver(app, now_ms=BASE) as driver:
        driver.run([Event(user, "x", 1, MANY_WEEKS + HOUR // 2) for user in USERS])
        driver.run([Event(user, "y", 1, MANY_WEEKS + closed_at - 1) for user in USERS])
        before = len(driver.output(out))
        driver.run([Event(user, "y", 1, MANY_WEEKS + closed_at) for user in USERS])
        assert len(driver.output(out)) > before


# Late records -------------------------------------------------------------------------

EVENTS = st.lists(
    st.builds(
        Event,
        user=st.sampled_from(USERS),
        kind=st.sampled_from("xyz"),
        amount=st.none(),
        at=st.integers(BASE, BASE + 100),
    ),
    max_size=30,
)


@settings(max_examples=10, deadline=None)
@given(EVENTS, st.integers(0, 60), st.integers(1, 30))
def test_late_records_go_to_their_topic_although_the_rows_get_another_key(
    events: list[Event], grace: int, cut: int
) -> None:
    app = sl.App("app")
    topic = app.topic("events", value=Event, key="user", timestamp="at", partitions=PARTITIONS)
    late = app.topic("late", value=Event, key="user", timestamp="at")
    stream = app.stream(topic, late=late, idle=None)
    window = sl.tumbling(20, grace=grace)
    out = stream.group_by("kind").window(window).agg(n=sl.count(), name="agg").to("out")
    parts = by_partition(events, PARTITIONS)
    _, number = fixed_windows(
        parts, lambda event: (event.kind,), size=20, every=20, grace=grace, delay=0
    )
    with TestDriver(app, now_ms=BASE) as driver:
        driver.run(events[:cut]).run(events[cut:]).end()
        sent = [record.value for record in driver.output(late)]
        assert len(sent) == number == late_rows(driver)
        assert not Counter(sent) - Counter(events)
        assert sum(counts(driver, out)) == len(events) - number


def test_a_row_that_is_late_for_one_of_two_aggregations_counts_for_the_other() -> None:
    app = sl.App("app")
    topic = app.topic("events", value=Event, key="user", timestamp="at", partitions=PARTITIONS)
    late = app.topic("late", value=Event, key="user", timestamp="at")
    groups = app.stream(topic, late=late, idle=None).group_by("kind", name="kinds")
    short = groups.window(sl.tumbling(10)).agg(n=sl.count(), name="short").to("short")
    long = groups.window(sl.tumbling(10, grace=500)).agg(n=sl.count(), name="long").to("long")
    with TestDriver(app, now_ms=BASE) as driver:
        driver.run([event(0, at) for at in (0, 50, 3)]).end()
        assert (counts(driver, short), counts(driver, long)) == ([1, 1], [2, 1])
        assert [record.value for record in driver.output(late)] == [event(0, 3)]
        assert late_rows(driver) == 1


def test_a_late_record_without_a_group_goes_to_the_late_topic() -> None:
    app = sl.App("app")
    schema = pa.schema([("k", pa.string())])
    topic = app.topic("rows", value=schema, key=str, partitions=1)
    late = app.topic("late", value=schema, key=str, partitions=1)
    stream = app.stream(topic, late=late, idle=None).group_by("k").window(sl.tumbling(10))
    out = stream.agg(n=sl.count(), name="agg").to("out")
    rows = [("x", {"k": k}, BASE + at) for k, at in (("a", 100), (None, 3))]
    with TestDriver(app, now_ms=BASE) as driver:
        driver.run(rows).end()
        assert [record.value["k"] for record in driver.output(late)] == [None]
        assert counts(driver, out) == [1]


@pytest.mark.parametrize("by", ["user", "kind"])
def test_a_record_that_is_late_for_two_aggregations_is_kept_once(by: str) -> None:
    app = sl.App("app")
    topic = app.topic("events", value=Event, key="user", timestamp="at", partitions=PARTITIONS)
    late = app.topic("late", value=Event, key="user", timestamp="at")
    groups = app.stream(topic, late=late, idle=None).group_by(by, name="groups")
    for size in (10, 20):
        groups.window(sl.tumbling(size)).agg(n=sl.count(), name=f"by-{size}").to(f"by-{size}")
    with TestDriver(app, now_ms=BASE) as driver:
        driver.run([event(0, at) for at in (0, 50, 3)])
        assert [record.value for record in driver.output(late)] == [event(0, 3)]
        assert late_rows(driver) == 2


# Idle partitions ----------------------------------------------------------------------


def by_kind(stream: sl.Stream, size: str | int = 10) -> Any:
    windows = stream.group_by("kind").window(sl.tumbling(size))
    return windows.agg(n=sl.count(), name="agg").to("out")


def test_a_partition_that_was_idle_before_a_restart_holds_nothing_back_after_it() -> None:
    app, stream = app_of(idle="10s")
    out = by_kind(stream)
    with TestDriver(app, now_ms=BASE) as driver:
        driver.run([event(partition, 0) for partition in range(3)])
        tick(driver, 16)
        driver.crash()
        tick(driver, 4)
        driver.run([event(0, at) for at in range(1, 50)])
        tick(driver, 16)
        assert counts(driver, out) == [12, 10, 10, 10]


def test_records_of_all_partitions_after_a_silence_are_not_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Partitions are read one after another, so the first one alone says nothing of the others."""
    monkeypatch.setattr(batch_size, "FIRST_BATCH_RECORDS", 1)
    app, stream = app_of(idle="10s")
    out = by_kind(stream)
    with TestDriver(app, now_ms=BASE) as driver:
        driver.run([event(partition, 0) for partition in range(3)])
        tick(driver, 16)
        for partition in range(3):
            driver.run([event(partition, at) for at in range(20, 60)])
        assert counts(driver, out) == [3, 30, 30, 30]
        assert late_rows(driver) == 0


def test_partitions_that_stay_silent_after_a_silence_are_idle_again_after_a_restart() -> None:
    app, stream = app_of(idle="10s")
    out = by_kind(stream)
    with TestDriver(app, now_ms=BASE) as driver:
        driver.run([event(partition, 0) for partition in range(3)])
        tick(driver, 16)
        driver.run([event(0, at) for at in range(20, 60)])
        tick(driver, 5)
        assert counts(driver, out) == []
        driver.crash()
        for second in range(18):
            driver.run([event(0, 60 + second)])  # records of others do not count as its own
            tick(driver, 1)
        assert counts(driver, out) == [3, 10, 10, 10, 10, 10]


def test_a_partition_that_has_records_again_holds_windows_back_after_an_internal_topic() -> None:
    app, stream = app_of(idle="10s")
    out = by_kind(stream, "1h")
    with TestDriver(app, now_ms=BASE) as driver:
        driver.run([event(partition, 0) for partition in range(3)])
        tick(driver, 16)
        driver.run([event(1, 1_000)])  # its watermark passes no hour
        driver.run([event(0, HOUR)])
        assert counts(driver, out) == []
        driver.run([event(1, 2_000)]).end()
        assert counts(driver, out) == [5, 1]
        assert late_rows(driver) == 0


def test_an_idle_partition_holds_nothing_back_after_two_internal_topics() -> None:
    app = sl.App("app")
    left, right = (
        app.stream(
            app.topic(name, value=Event, key="user", timestamp="at", partitions=PARTITIONS),
            idle="10s",
        )
        for name in ("left", "right")
    )
    once = left.drop_duplicates(on=["kind", "amount"], within=5, name="once")
    out = by_kind(once.merge(right))
    with TestDriver(app, now_ms=BASE) as driver:
        topics = app.declared.topics
        driver.run([(topics["left"], event(0, 0)), (topics["right"], event(0, 0))])
        for second in range(24):
            driver.run([(topics["right"], event(1, second))])
            tick(driver, 1)
        assert counts(driver, out) == [12, 10]


def test_an_idle_input_that_was_closed_by_the_clock_stays_idle() -> None:
    app = sl.App("app")
    topics = [
        app.topic(name, value=Event, key="user", timestamp="at") for name in ("left", "right")
    ]
    left, right = (app.stream(topic, idle="4s", close_idle="8s") for topic in topics)
    windows = left.merge(right).group_by("user").window(sl.tumbling(10))
    out = windows.agg(n=sl.count(), name="agg").to("out")
    with TestDriver(app, now_ms=BASE) as driver:
        driver.run([(topic, event(0, 0)) for topic in topics])
        tick(driver, 16)
        assert counts(driver, out) == [2]
        driver.run([(topics[0], event(0, at)) for at in range(20, 45)])
        tick(driver, 6)
        assert counts(driver, out) == [2, 10, 10]


def test_a_silence_before_a_record_does_not_count_for_the_clock_after_an_internal_topic() -> None:
    app = sl.App("app")
    topics = [
        app.topic(name, value=Event, key="user", timestamp="at") for name in ("left", "right")
    ]
    out = by_kind(app.stream(*topics, close_idle="9s", idle=None))
    with TestDriver(app, now_ms=BASE) as driver:
        tick(driver, 20)
        driver.run([(topics[0], event(0, 0))])
        tick(driver, 8)
        assert counts(driver, out) == []
        tick(driver, 12)
        assert counts(driver, out) == [1]


@pytest.mark.parametrize("by", ["user", "kind"])
def test_a_record_after_windows_were_closed_has_its_sliding_window(by: str) -> None:
    app, stream = app_of(close_idle="9s", idle=None)
    windows = stream.group_by(by).window(sl.sliding(HOUR, grace=5))
    out = windows.agg(n=sl.count(), name="agg").to("out")
    with TestDriver(app, now_ms=BASE) as driver:
        driver.run([event(0, 0), event(0, 40)])
        tick(driver, 20)
        assert sorted(counts(driver, out)) == [1, 2]
        driver.run([event(0, 50)]).end().run([event(0, 60)]).end()
        assert sorted(counts(driver, out)) == [1, 2, 3, 4]
        driver.run([event(0, 59)])  # after its own window and that of 60
        driver.run([event(0, HOUR + 70)]).end()
        assert sorted(counts(driver, out)) == [1, 1, 2, 3, 4]


@pytest.mark.filterwarnings("error")
def test_a_source_without_a_watermark_gives_no_warning_about_times() -> None:
    app = sl.App("app")
    topics = [
        app.topic(name, value=Event, key="user", timestamp="at") for name in ("left", "right")
    ]
    out = by_kind(app.stream(*topics, close_idle="9s", idle=None))
    with TestDriver(app, now_ms=MANY_WEEKS) as driver:
        driver.run([(topics[0], Event("ann", "x", 1, MANY_WEEKS))])
        tick(driver, 30)
        assert counts(driver, out) == [1]


def test_windows_are_not_closed_by_the_clock_while_records_come() -> None:
    app, stream = app_of(close_idle="9s", idle=None)
    out = by_kind(stream, "1h")
    with TestDriver(app, now_ms=BASE) as driver:
        for second in range(30):
            driver.run([event(0, second * 1_000)])
            tick(driver, 1)
        assert counts(driver, out) == []
        tick(driver, 20)
        assert counts(driver, out) == [30]
        assert late_rows(driver) == 0


def test_a_window_that_was_closed_before_a_restart_is_not_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_size, "FIRST_BATCH_RECORDS", 1)
    app, stream = app_of(idle="10s")
    out = by_kind(stream)
    with TestDriver(app, now_ms=BASE) as driver:
        driver.run([event(partition, 0) for partition in range(3)])
        tick(driver, 16)
        driver.run([event(0, 100)])
        tick(driver, 16)
        assert counts(driver, out) == [3]
        driver.crash().run([event(1, 5)]).end()
        assert counts(driver, out) == [3, 1]
        assert late_rows(driver) == 1


# Event time without records -----------------------------------------------------------


def test_windows_close_when_a_driver_advances_the_watermark() -> None:
    app, stream = app_of(idle=None, delay=1_000)
    out = stream.group_by("kind").window(sl.tumbling(10, grace=5))
    out = out.agg(n=sl.count(), name="agg").to("out")
    with TestDriver(app, now_ms=BASE) as driver:
        driver.run([event(0, 0), event(1, 12)])
        driver.advance_watermark(BASE + 14)
        assert counts(driver, out) == []
        driver.advance_watermark(BASE + 15).advance_watermark(BASE + 3)
        assert counts(driver, out) == [1]
        driver.run([event(2, 4), event(2, 11)])  # the first one is late now
        assert late_rows(driver) == 1
        driver.advance_watermark(dt.datetime.fromtimestamp((BASE + 25) / 1_000, dt.UTC))
        assert counts(driver, out) == [1, 2]


@pytest.mark.parametrize("window", [sl.session(7), sl.sliding(7), sl.hopping(8, 4)], ids=str)
def test_an_advanced_watermark_reaches_windows_of_windows_and_survives_a_crash(
    window: Any,
) -> None:
    app, stream = app_of(idle=None)
    first = stream.group_by("kind").window(window).agg(n=sl.count(), name="first")
    second = first.group_by("n").window(sl.tumbling(10)).agg(m=sl.count(), name="second")
    out = second.to("out")
    with TestDriver(app, now_ms=BASE) as driver:
        driver.run([event(0, 1)]).advance_watermark(BASE + 20).crash()
        sent = sum(record.value["m"] for record in driver.output(out))
        assert sent == (2 if "hopping" in str(window) else 1)
        driver.run([event(1, 2)])
        assert late_rows(driver) == 1
        driver.advance_watermark(BASE + 40)
        assert sum(record.value["m"] for record in driver.output(out)) == sent


def test_an_app_without_streams_has_no_watermark() -> None:
    app = sl.App("app")
    words = app.topic("words", value=int)
    app.task(words)(lambda record: None)
    with TestDriver(app) as driver, pytest.raises(sl.InvalidRequest, match="no streams"):
        driver.advance_watermark(BASE)


# Open windows -------------------------------------------------------------------------


def open_windows(driver: TestDriver) -> float:
    readings = driver.worker.metrics()
    return sum(r.value for r in readings if r.metric.name == "strandline_open_windows")


@pytest.mark.parametrize(
    ("window", "opened"),
    [
        (sl.tumbling(10), [3, 0, 0]),
        (sl.hopping(20, 10), [3, 3, 0]),
        (sl.sliding(5), [6, 3, 0]),
        (sl.session(8), [3, 3, 0]),
        (sl.count_window(4), [3, 3, 3]),
    ],
    ids=str,
)
def test_the_number_of_open_windows_is_exported_and_survives_a_crash(
    window: Any, opened: list[int]
) -> None:
    app, stream = app_of(idle=None)
    stream.group_by("user").window(window).agg(n=sl.count(), name="agg").to("out")
    with TestDriver(app, now_ms=BASE) as driver:
        driver.run([event(partition, at) for at in (0, 3, 8) for partition in range(3)])
        found = [open_windows(driver)]
        driver.crash().advance_watermark(BASE + 11)
        found.append(open_windows(driver))
        assert found[-1] == sum(1 for i in driver.worker.instances for _ in i.stores[0].all())
        driver.advance_watermark(BASE + 100)
        assert [*found, open_windows(driver)] == opened


def test_open_windows_are_not_counted_again_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    app, stream = app_of(idle=None)
    by_kind(stream)
    with TestDriver(app, now_ms=BASE) as driver:
        driver.run([event(0, 0), event(1, 12)])
        monkeypatch.setattr(GroupState, "count", count_of_nothing)
        driver.crash().run([event(0, 25)])
        assert open_windows(driver) == 3


def count_of_nothing(state: GroupState) -> int:
    assert next(iter(state.columns.all()), None) is None
    return 0
