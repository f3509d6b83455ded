"""Open windows of streams, read from outside: those of plain Python, whatever the layout."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline import changelog
from strandline.changelog.client.partitioner import partition_for
from strandline.changelog.client.producer import Producer
from strandline.framework.container import batch_size
from strandline.framework.querying import committed, groups
from strandline.framework.querying.folded import ReplayedSource
from strandline.framework.testing import TestDriver
from strandline.statestore.keys import key_codec
from tests.forms import by_form
from tests.streams import test_aggregates as every
from tests.streams.oracle import Event, Windowed, by_partition, fixed_windows, sessions, sliding
from tests.streams.test_running import (
    AGGREGATES,
    BASE,
    CUTS,
    EVENTS,
    KEYS,
    PARTITIONS,
    PROPERTY,
    app_of,
    expected,
    late_of,
    millis,
    run,
    windows_sent,
)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size, "FIRST_BATCH_RECORDS", 4)


def counted(rows: Sequence[Any], keys: Sequence[str]) -> Counter[Any]:
    """Return fetched windows in the form of `windows_sent`."""
    found = Counter[Any]()
    for row in rows:
        mean = row.mean if row.mean is None else round(row.mean, 9)
        key = tuple(row[name] for name in keys)
        bounds = millis(row.window_start), millis(row.window_end)
        found[key, *bounds, (row.n, row.total, row.most, mean)] += 1
    return found


def check(driver: TestDriver, out: Any, keys: Sequence[str], windows: Windowed) -> None:
    """Check that the windows that were not sent are fetched: all, of each group, and of ranges."""
    open_ = expected(windows) - windows_sent(driver, out, keys)
    with sl.connect(driver.owner) as connection:
        by_name, own = connection.store("app/agg"), driver.query("agg")
        for store in (by_name, own):
            assert counted(store.fetch_all(), keys) == open_
        table = by_name.to_polars()
        assert counted([sl_row(row) for row in table.rows(named=True)], keys) == open_
        for key in sorted({key for key, *_ in expected(windows)})[:3]:
            mine = Counter({w: n for w, n in open_.items() if w[0] == key})
            given = key if len(keys) > 1 else key[0]
            found = own.fetch(given)
            assert counted(found, keys) == mine
            assert [row.window_start for row in found] == sorted(r.window_start for r in found)
        for start in sorted({w[1] for w in open_})[1:3]:
            span = Counter({w: n for w, n in open_.items() if start <= w[1] < start + 25})
            assert counted(own.fetch_all(start, start + 25), keys) == span
            key = min(w[0] for w in span)
            mine = Counter({w: n for w, n in span.items() if w[0] == key})
            given = key if len(keys) > 1 else key[0]
            assert counted(own.fetch(given, start, start + 25), keys) == mine


class sl_row(dict[str, Any]):  # noqa: N801 - a row of a frame with attributes
    __getattr__ = dict.__getitem__


FETCHED = settings(PROPERTY, max_examples=by_form(3, 12))
SMALL_PAGES = st.sampled_from([1, 2, 1_000])


@pytest.mark.parametrize("by", KEYS)
@FETCHED
@given(
    events=EVENTS, cuts=CUTS, size=st.integers(1, 90), grace=st.integers(0, 60), page=SMALL_PAGES
)
def test_open_tumbling_windows_are_fetched(
    by: str, events: list[Event], cuts: Any, size: int, grace: int, page: int
) -> None:
    keys = by.split(", ")
    app, _, stream = app_of()
    window = sl.tumbling(size, grace=grace)
    out = stream.group_by(*keys).window(window).agg(**AGGREGATES, name="agg").to("out")
    driver = run(app, events, cuts)
    windows, _ = fixed_windows(
        by_partition(events, PARTITIONS), KEYS[by], size=size, every=size, grace=grace, delay=0
    )
    with pages_of(page):
        check(driver, out, keys, windows)


@pytest.mark.parametrize("by", KEYS)
@FETCHED
@given(
    events=EVENTS,
    cuts=CUTS,
    every=st.integers(1, 40),
    times=st.integers(1, 3),
    rest=st.integers(0, 5),
    grace=st.integers(0, 60),
    page=SMALL_PAGES,
)
def test_open_hopping_windows_are_merged_of_their_panes(
    by: str,
    events: list[Event],
    cuts: Any,
    every: int,
    times: int,
    rest: int,
    grace: int,
    page: int,
) -> None:
    keys, size = by.split(", "), every * times + min(rest, every - 1)
    app, _, stream = app_of()
    window = sl.hopping(size, every, grace=grace)
    out = stream.group_by(*keys).window(window).agg(**AGGREGATES, name="agg").to("out")
    driver = run(app, events, cuts)
    windows, _ = fixed_windows(
        by_partition(events, PARTITIONS), KEYS[by], size=size, every=every, grace=grace, delay=0
    )
    with pages_of(page):
        check(driver, out, keys, windows)


@pytest.mark.parametrize("by", KEYS)
@FETCHED
@given(
    events=EVENTS, cuts=CUTS, size=st.integers(1, 90), grace=st.integers(0, 60), page=SMALL_PAGES
)
def test_open_sliding_windows_are_merged_of_their_panes(
    by: str, events: list[Event], cuts: Any, size: int, grace: int, page: int
) -> None:
    keys = by.split(", ")
    app, _, stream = app_of()
    window = sl.sliding(size, grace=grace)
    out = stream.group_by(*keys).window(window).agg(**AGGREGATES, name="agg").to("out")
    driver = run(app, events, cuts)
    windows = sliding(by_partition(events, PARTITIONS), KEYS[by], size=size, grace=grace)
    with pages_of(page):
        check(driver, out, keys, windows)


@pytest.mark.parametrize("by", KEYS)
@FETCHED
@given(events=EVENTS, cuts=CUTS, gap=st.integers(1, 60), grace=st.integers(0, 80))
def test_open_sessions_are_fetched(
    by: str, events: list[Event], cuts: Any, gap: int, grace: int
) -> None:
    keys = by.split(", ")
    grace = max(grace, gap)  # otherwise which record comes first decides
    app, _, stream = app_of()
    window = sl.session(gap, grace=grace)
    out = stream.group_by(*keys).window(window).agg(**AGGREGATES, name="agg").to("out")
    driver = run(app, events, cuts)
    windows, _ = sessions(by_partition(events, PARTITIONS), KEYS[by], gap=gap, grace=grace, delay=0)
    if by == "user" or not any(late_of(events, grace)):
        check(driver, out, keys, windows)


@FETCHED
@given(events=EVENTS, cuts=CUTS, n=st.integers(1, 5))
def test_a_count_window_that_is_not_full_is_fetched(events: list[Event], cuts: Any, n: int) -> None:
    app, _, stream = app_of()
    out = stream.group_by("user").window(sl.count_window(n)).agg(**AGGREGATES, name="agg").to("out")
    driver = run(app, events, cuts)
    windows: Windowed = {}
    for user in {event.user for event in events}:
        mine = [event for event in events if event.user == user]
        for start in range(0, len(mine), n):
            windows[(user,), start, start + n] = mine[start : start + n]
    check(driver, out, ["user"], windows)


class pages_of:  # noqa: N801 - a context manager
    """Let the first page of a query have few entries, as if there were many."""

    def __init__(self, entries: int) -> None:
        self._entries = entries

    def __enter__(self) -> None:
        self._before, groups.FIRST_PAGE_ENTRIES = groups.FIRST_PAGE_ENTRIES, self._entries  # type: ignore[misc]

    def __exit__(self, *error: object) -> None:
        groups.FIRST_PAGE_ENTRIES = self._before  # type: ignore[misc]


# Aggregates and types -----------------------------------------------------------------


@pytest.mark.parametrize("kind", [None, *every.WINDOWS])
def test_every_aggregate_of_an_open_window_is_that_of_plain_python(kind: str | None) -> None:
    app, stream = every.readings_app()
    aggregates = {name: one for name, (one, _) in every.AGGREGATES.items()}
    grouped = stream.group_by("place")
    windowed = grouped if kind is None else grouped.window(every.WINDOWS[kind])
    windowed.agg(**aggregates, name="agg")
    driver = TestDriver(app, now_ms=round(every.BASE.timestamp() * 1_000)).run(every.READINGS)
    frames = [driver.query("agg").to_polars()]
    with sl.connect(driver.owner) as connection:
        store = connection.store("app/agg")
        if kind in ("hopping", "sliding"):
            with pytest.raises(sl.InvalidConfig, match=r"functions can merge those of made.*query"):
                store.fetch_all()
            with pytest.raises(sl.InvalidConfig, match="final results from the topic"):
                store.to_polars()
        else:
            frames.append(store.to_polars())
    for frame in frames:
        assert len(frame) >= (1 if kind == "sliding" else 3)
        for row in frame.rows(named=True):
            shown = {name: row[name] for name in every.AGGREGATES}
            figures = {
                n: round(v, 9) if type(v) is float else (v or None) for n, v in shown.items()
            }
            assert figures == every.expected(every.rows_of(row))
    assert all(frame.equals(frames[0]) for frame in frames)


KINDS = {
    "text": (pa.string(), "é\x00"),
    "raw": (pa.binary(), b"\x00\xff"),
    "small": (pa.int8(), -5),
    "large": (pa.uint64(), 2**63 - 1),
    "half": (pa.float32(), -0.5),
    "flag": (pa.bool_(), True),
    "day": (pa.date32(), dt.date(1969, 12, 31)),
    "utc": (pa.timestamp("us", "UTC"), dt.datetime(2025, 1, 1, 1, 2, 3, 456789, tzinfo=dt.UTC)),
    "milli": (pa.timestamp("ms", "UTC"), dt.datetime(2025, 1, 1, tzinfo=dt.UTC)),
}


@pytest.mark.parametrize("window", [sl.tumbling(50), sl.hopping(50, 10), sl.session(50)])
@pytest.mark.parametrize("name", KINDS)
def test_key_columns_have_their_types(name: str, window: Any) -> None:
    kind, value = KINDS[name]
    app = sl.App("app")
    topic = app.topic("rows", value=pa.schema([("at", pa.int64()), (name, kind)]), timestamp="at")
    grouped = app.stream(topic).group_by(name).window(window)
    grouped.agg(n=sl.count(), least=sl.min("at"), name="agg")
    driver = TestDriver(app).run([{"at": BASE + 3, name: value}])
    with sl.connect(driver.owner) as connection:
        store = connection.store("app/agg")
        [row, *_] = store.fetch(value, BASE - 40, BASE + 40)
        assert (row[name], row.n, row.least) == (value, 1, BASE + 3)
        assert pa.types.is_timestamp(store.to_arrow().schema.field("window_start").type)
        given = store.to_polars()
        assert given[name].to_list() == [value] * len(given)
        assert given.schema[name] == pl.from_arrow(pa.array([value], kind)).dtype  # type: ignore[union-attr]


def test_decimals_are_merged_as_numbers() -> None:
    app = sl.App("app")
    schema = pa.schema([("place", pa.string()), ("at", pa.int64()), ("price", pa.decimal128(9, 2))])
    prices = app.topic("prices", value=schema, key="place", timestamp="at")
    grouped = app.stream(prices).group_by("place").window(sl.hopping(100, 10))
    grouped.agg(most=sl.max("price"), all=sl.collect("price"), name="agg")
    given = [Decimal("9.50"), Decimal("10.00"), Decimal("2.25")]
    rows = [{"place": "a", "at": BASE + at * 10, "price": p} for at, p in enumerate(given)]
    driver = TestDriver(app).run(pa.Table.from_pylist(rows, schema=schema))
    with sl.connect(driver.owner) as connection:
        [row] = connection.store("app/agg").fetch("a", BASE, BASE + 1)
    assert (row.most, row.all) == (given[1], given)


# Refusals -----------------------------------------------------------------------------


@pytest.fixture
def hourly() -> Iterator[sl.ReadOnlyStore[Any, Any]]:
    """Tumbling windows of two keys, with one open window."""
    app, _, stream = app_of()
    stream.group_by("user", "kind").window(sl.tumbling(20)).agg(n=sl.count(), name="agg").to("out")
    stream.group_by("user").agg(n=sl.count(), name="plain")
    stream.group_by("user").window(sl.count_window(9)).agg(n=sl.count(), name="nines")
    driver = run(app, [Event("ann", "x", 1, BASE), Event("ann", "x", 1, BASE + 30)])
    with sl.connect(driver.owner) as connection:
        connection.driver = driver  # type: ignore[attr-defined]
        yield connection.store("app/agg")


def at(ms: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=ms)


def test_a_range_of_times_is_given_as_datetimes_or_ms(hourly: sl.ReadOnlyStore[Any, Any]) -> None:
    [row] = hourly.fetch(("ann", "x"))
    assert (row.window_start, row.window_end, row.n) == (at(BASE + 20), at(BASE + 40), 1)
    assert dict(row) == {"user": "ann", "kind": "x", **dict(list(row)[2:])}
    for start, end in [(BASE + 20, BASE + 21), (at(BASE + 20), at(BASE + 21)), (0, None)]:
        assert hourly.fetch(("ann", "x"), start, end) == hourly.fetch_all(start, end) == [row]
    later, sooner = dt.timedelta(microseconds=1), dt.timedelta(microseconds=-1)
    for first, last in [(sooner, later), (0 * later, later), (sooner, sooner + later + later)]:
        assert hourly.fetch_all(at(BASE + 20) + first, at(BASE + 20) + last) == [row]
    for first, last in [(later, None), (sooner, 0 * later)]:
        until = None if last is None else at(BASE + 20) + last
        assert hourly.fetch_all(at(BASE + 20) + first, until) == []
    assert hourly.fetch_all(at(BASE + 20).replace(tzinfo=None)) == [row]
    paris = at(BASE + 20).astimezone(zoneinfo.ZoneInfo("Europe/Paris"))
    assert hourly.fetch_all(paris) == [row]
    for start, end in [(BASE, BASE + 20), (BASE + 21, None), (BASE + 20, BASE + 20), (None, 0)]:
        assert hourly.fetch(("ann", "x"), start, end) == hourly.fetch_all(start, end) == []


def test_a_window_that_has_closed_has_no_state(hourly: sl.ReadOnlyStore[Any, Any]) -> None:
    assert hourly.fetch(("ann", "x"), BASE, BASE + 1) == []
    assert hourly.fetch(("bob", "x")) == []


def test_one_partition_is_fetched_alone(hourly: sl.ReadOnlyStore[Any, Any]) -> None:
    parts = [with_partition(hourly, number).fetch_all() for number in range(PARTITIONS)]
    assert sorted(map(len, parts)) == [0, 0, 1]
    assert [row for part in parts for row in part] == hourly.fetch_all()


def with_partition(store: sl.ReadOnlyStore[Any, Any], number: int) -> sl.ReadOnlyStore[Any, Any]:
    given, source = store._given, store._groups._source
    return sl.ReadOnlyStore(store.name, store._committed, given, number, source)


@pytest.mark.parametrize("window", [None, sl.tumbling(50), sl.hopping(50, 10), sl.session(50)])
def test_parts_of_a_group_in_several_partitions_are_merged(window: Any) -> None:
    app = sl.App("app")
    topic = app.topic("events", value=Event, key="user", timestamp="at", partitions=2)
    grouped = app.stream(topic, idle=None).group_by("user")
    windowed = grouped if window is None else grouped.window(window)
    windowed.agg(n=sl.count(), most=sl.max("amount"), name="agg")
    adding = sl.reducer(0, lambda old, _: old + 1)
    if window is None:
        grouped.agg(n=adding, name="made")
    driver = TestDriver(app).run()
    for number in range(2):
        row = {"user": "ann", "kind": "x", "amount": number, "at": BASE + 5, "timestamp": BASE + 5}
        with Producer(driver.owner) as producer:
            producer.append("events", [row], partition=number)
    driver.run()
    with sl.connect(driver.owner) as connection:
        table = connection.store("app/agg").to_polars()
        assert len(table) == (5 if isinstance(window, type(sl.hopping(50, 10))) else 1)
        assert set(table.select("n", "most").rows()) == {(2, 1)}
        if window is None:
            with pytest.raises(sl.KeyInSeveralPartitions, match="n cannot be merged"):
                connection.store("app/made").to_polars()


def test_types_that_are_given_do_not_change_windows() -> None:
    app, _, stream = app_of()
    stream.group_by("user").window(sl.hopping(20, 10)).agg(n=sl.count(), name="agg")
    driver = run(app, [Event("ann", "x", 1, BASE)])
    with sl.connect(driver.owner) as connection:
        given = connection.store("app/agg", key=tuple[int, int, str], value=dict)
        assert given.fetch("ann") == connection.store("app/agg").fetch("ann")
        table = given.to_arrow()
        assert table.column_names == ["key", "value"]
        assert table["key"][0].as_py() == {"_1": BASE, "_2": BASE - 10, "_3": "ann"}


@pytest.mark.parametrize("window", [sl.hopping(20, 10), sl.sliding(10)])
def test_the_last_closed_window_is_applied_before_panes_are_deleted(window: Any) -> None:
    app, _, stream = app_of()
    stream.group_by("user").window(window).agg(n=sl.count(), name="agg")
    driver = run(app, [Event("ann", "x", 1, BASE)])
    [instance] = [one for one in driver.worker.instances if one.partition == home_of("ann")]
    parts = {store.spec.name: store for store in instance.all_stores}
    seen: list[Any] = []

    def look() -> None:
        [closed] = parts["agg-closed"].reader.get_many([key_codec(str).encode("last")]).values
        seen.append(closed)

    apply = type(parts["agg"]).committed

    def looking(self: Any, *args: Any) -> None:
        if self is parts["agg"]:
            look()
        apply(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(parts["agg"]), "committed", looking)
        driver.run([Event("ann", "x", 1, BASE + 500)])
    assert len(seen) == 1
    assert seen[0] is not None


def home_of(user: str) -> int:
    return partition_for(user.encode(), PARTITIONS)


def test_a_key_of_another_type_is_refused(hourly: sl.ReadOnlyStore[Any, Any]) -> None:
    for key in ("ann", ("ann",), ("ann", "x", 1), ("ann", 1), ("ann", None), ["ann", "x"], 7):
        with pytest.raises(sl.InvalidRecord, match=r"'app/agg'.*a group is user, kind"):
            hourly.fetch(key)


def test_a_range_that_is_none_is_refused(hourly: sl.ReadOnlyStore[Any, Any]) -> None:
    with pytest.raises(sl.InvalidRequest, match="ends before it starts"):
        hourly.fetch_all(BASE + 1, BASE)
    with pytest.raises(sl.InvalidRecord, match="looks like seconds"):
        hourly.fetch_all(1_760_000_400)
    for wrong in (1.5, "2025", True):
        with pytest.raises(sl.InvalidRecord, match="times are integers of milliseconds"):
            hourly.fetch_all(wrong)  # type: ignore[arg-type]


def test_stores_without_windows_have_none_to_fetch() -> None:
    app, topic, stream = app_of()
    stream.group_by("user").agg(n=sl.count(), name="plain")
    stream.group_by("user").window(sl.count_window(9)).agg(n=sl.count(), name="nines")
    seen = app.store("seen", key=str, value=int)

    @app.task(topic, stores=[seen])
    def see(record: sl.Record[str, Event]) -> None:
        seen[record.key] = 1

    driver = run(app, [Event("ann", "x", 1, BASE)])
    with sl.connect(driver.owner) as connection:
        for store in (connection.store("app/plain"), driver.query("plain")):
            with pytest.raises(sl.InvalidRequest, match=r"plain' has no windows.*store\[key\]"):
                store.fetch("ann")
            assert store["ann"].n == 1
        for store in (connection.store("app/seen"), driver.query(seen)):
            with pytest.raises(sl.InvalidRequest, match="not the state of a stream's windows"):
                store.fetch_all()
        with pytest.raises(sl.InvalidRecord, match="begin at numbers of rows"):
            connection.store("app/nines").fetch("ann", at(BASE))
        assert connection.store("app/seen").to_polars().rows() == [("ann", 1)]
    with pytest.raises(sl.InvalidRequest, match="no store 'plai'; did you mean 'plain'"):
        driver.query("plai")


def test_a_definition_that_is_not_readable_is_refused(
    hourly: sl.ReadOnlyStore[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = hourly._committed.recorded()
    assert recorded is not None
    assert recorded.definition is not None
    for was, now in [('"state"', '"status"'), ("tumbling", "jumping"), ("int64", "int65")]:
        assert was in recorded.definition
        other = msgspec.structs.replace(recorded, definition=recorded.definition.replace(was, now))
        monkeypatch.setattr(hourly._committed, "recorded", lambda other=other: other)
        with pytest.raises(sl.InvalidConfig, match="recorded by another version of Strandline"):
            hourly.fetch_all()


# One moment ---------------------------------------------------------------------------


def contiguous(rows: Sequence[Any], first: dict[int, int]) -> None:
    """Check that windows have all rows from their first one to some last one."""
    for row in rows:
        assert row.n == row.most - row.least + 1
        assert row.least == first[millis(row.window_start)]


@pytest.mark.parametrize(
    ("window", "step", "page"),
    [(sl.hopping(40, 10, grace=150), 7, 2), (sl.sliding(30, grace=5), 20, 1_000)],
)
@pytest.mark.parametrize("ask", ["fetch", "fetch_all"])
def test_a_commit_between_two_pages_is_in_all_panes_or_in_none(
    window: Any, step: int, page: int, ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _, stream = app_of()
    aggregates = {"n": sl.count(), "least": sl.min("amount"), "most": sl.max("amount")}
    stream.group_by("user").window(window).agg(**aggregates, name="agg")
    events = [Event("ann", "x", number, BASE + number) for number in range(300)]
    driver = TestDriver(app, now_ms=BASE + 10_000).run(events[:95])
    store = driver.query("agg")
    more, unpatched = iter(range(95, 295, step)), ReplayedSource.page
    read_on = [0]

    def page_and_commit(self: ReplayedSource, *args: Any) -> Any:
        found = unpatched(self, *args)
        begin = next(more, None)
        if begin is not None:
            driver.run(events[begin : begin + step])
            read_on[0] += 1
        return found

    monkeypatch.setattr(groups, "FIRST_PAGE_ENTRIES", 2)
    monkeypatch.setattr(committed, "FIRST_PAGE_ENTRIES", 2)
    monkeypatch.setattr(committed, "PAGE_ENTRIES", page)
    monkeypatch.setattr(ReplayedSource, "page", page_and_commit)
    rows = store.fetch("ann") if ask == "fetch" else store.fetch_all()
    assert read_on[0] >= 2
    assert rows
    contiguous(rows, {BASE + start: max(0, start) for start in range(-50, 301)})


def test_other_windows_after_a_reset_are_read_by_the_same_object(tmp_path: Path) -> None:
    windows = [sl.tumbling(20), sl.hopping(40, 20), sl.hopping(20, 20), sl.session(5)]
    starts = [[20], [0, 20], [20], [25]]
    with changelog.open(tmp_path / "log") as log, sl.connect(log) as connection:
        store: Any = None
        for window, wanted in zip(windows, starts, strict=True):
            app = sl.App("app", log=log)
            topic = app.topic("events", value=Event, key="user", timestamp="at")
            app.stream(topic, idle=None).group_by("user").window(window).agg(n=sl.count(), name="x")
            if store is None:
                topic.append([Event("ann", "x", 1, BASE + 0), Event("ann", "x", 1, BASE + 25)])
            app.run(until="idle", progress=False)
            store = connection.store("app/x") if store is None else store
            found = [(millis(row.window_start) - BASE, row.n) for row in store.fetch("ann")]
            assert [start for start, _ in found] == wanted
            assert store.to_polars()["window_start"].len() == len(wanted)
            app.reset()
            app.close()


def test_windows_of_an_app_that_has_not_started_are_asked_for_again(tmp_path: Path) -> None:
    """Its topics exist, but it has recorded nothing of its stores."""
    app, topic, stream = app_of_folder(tmp_path / "log")
    stream.window(sl.tumbling("1h")).agg(n=sl.count(), name="hourly").to("out")
    topic.append([("ann", 1)])
    with app, sl.connect(str(app.log)) as connection:
        hourly = connection.store("app/hourly")
        with pytest.raises(sl.Retriable, match="'app/hourly': no worker of its app has started"):
            hourly.fetch("ann")
        app.run(until="idle", progress=False)
        assert [row.n for row in hourly.fetch("ann")] == [1]


def app_of_folder(log: Path) -> tuple[sl.App, Any, Any]:
    app = sl.App("app", log=log)
    topic = app.topic("in", key=str, value=int)
    return app, topic, app.stream(topic).group_by("key")


FIGURES = {
    "at": (pl.Datetime("us", "UTC"), dt.datetime(2025, 1, 1, tzinfo=dt.UTC)),
    "here": (
        pl.Datetime("ms", "Europe/Berlin"),
        dt.datetime(2025, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    ),
    "naive": (pl.Datetime("ns"), dt.datetime(2025, 1, 1, 3)),
    "day": (pl.Date(), dt.date(2025, 1, 2)),
    "hour": (pl.Time(), dt.time(3, 4, 5)),
    "span": (pl.Duration("ms"), dt.timedelta(seconds=3)),
    "price": (pl.Decimal(9, 2), Decimal("1.50")),
    "size": (pl.Int16(), 3),
    "name": (pl.String(), "x"),
}


@pytest.mark.parametrize("column", FIGURES)
def test_figures_of_a_key_have_the_types_of_the_columns(column: str) -> None:
    dtype, value = FIGURES[column]
    app = sl.App("app")
    schema = pl.Schema({"key": pl.String(), column: dtype}).to_frame().to_arrow().schema
    topic = app.topic("in", value=schema, key="key", partitions=2)
    made = [sl.max, sl.first, sl.last, sl.any, sl.collect, partial(sl.top, n=2, by=column)]
    if column not in {"hour", "span", "at", "here", "naive", "day", "name"}:
        made.append(sl.sum)
    figures: dict[str, Any] = {f"f{number}": one(column) for number, one in enumerate(made)}
    app.stream(topic, idle=None).group_by("key").agg(**figures, name="agg")
    driver = TestDriver(app)
    rows = {"key": ["a", "b"], column: [value, None]}
    driver.run(pl.DataFrame(rows, {"key": pl.String(), column: dtype}))
    with sl.connect(driver.owner) as connection:
        store = connection.store("app/agg")
        whole = {row["key"]: row for row in store.to_polars().rows(named=True)}
        for found in (store.to_dict(), store.get_many(["a", "b"]), dict(driver.query("agg").all())):
            for key, one in found.items():
                assert {name: getattr(one, name) for name in figures} == {
                    name: whole[key][name] for name in figures
                }
    assert whole["a"]["f0"] == value
    assert whole["b"]["f0"] is None
