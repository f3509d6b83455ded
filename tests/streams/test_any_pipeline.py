"""Any sequence of operators gives the same results for any division of the input, and any crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.framework.container import batch_size
from strandline.framework.testing import CRASH, TestDriver
from tests.streams.oracle import Event

BASE = 1_000_000
EVENTS = st.lists(
    st.builds(
        Event,
        user=st.sampled_from(["ann", "bob", ""]),
        kind=st.sampled_from("xy"),
        amount=st.none() | st.integers(-3, 3),
        at=st.integers(0, 300).map(lambda at: BASE + at),
    ),
    max_size=25,
)
CUTS = st.lists(st.tuples(st.integers(0, 25), st.booleans()), max_size=3)
Operator = Callable[[sl.Stream], sl.Stream]


def branched(stream: sl.Stream) -> sl.Stream:
    arms = stream.branch(less=sl.col("amount") < 0, more=lambda row: row.amount == 2)
    return arms.more.merge(arms.rest, arms.less)


OPERATORS: dict[str, Operator] = {
    "filter": lambda s: s.filter(lambda row: row.amount != 1),
    "computed": lambda s: s.with_columns(amount=sl.col("amount") * 2),
    "branched": branched,
    "frames": lambda s: s.map_batches(lambda frame: frame.filter(pl.col("amount") != 3)),
    "once": lambda s: s.drop_duplicates(on=["user", "kind"], within=20, name="once"),
    "renamed": lambda s: s.rename({"amount": "start"}).rename({"start": "amount"}),
}
WINDOWS = st.one_of(
    st.builds(sl.tumbling, st.integers(1, 60), grace=st.integers(0, 60)),
    st.builds(lambda every, n: sl.hopping(every * n, every), st.integers(1, 30), st.integers(1, 3)),
    st.builds(sl.session, st.integers(1, 60)),
    st.builds(sl.sliding, st.integers(1, 60), grace=st.integers(0, 60)),
    st.builds(sl.count_window, st.integers(1, 3)),
)


@settings(max_examples=12, deadline=None)
@given(
    events=EVENTS,
    cuts=CUTS,
    operators=st.lists(st.sampled_from([*OPERATORS]), max_size=2, unique=True),
    key=st.sampled_from(["user", "kind"]),
    windows=st.tuples(WINDOWS, WINDOWS),
    size=st.integers(1, 4),
)
def test_results_are_the_same_for_any_division_of_the_input(
    events: list[Event], cuts: Any, operators: Sequence[str], key: str, windows: Any, size: int
) -> None:
    def results(cuts: Sequence[tuple[int, bool]], size: int) -> list[Counter[Any]]:
        app = sl.App("app", commit_records=5)
        topic = app.topic("events", value=Event, key="user", timestamp="at", partitions=1)
        late = app.topic("late", value=Event, key="user", timestamp="at")
        stream = app.stream(topic, idle=None, late=late)
        for name in operators:
            stream = OPERATORS[name](stream)
        figures = {"n": sl.count(), "total": sl.sum("amount"), "last": sl.last("amount")}
        first = stream.group_by(key).window(windows[0]).agg(**figures, name="first")
        again = first.group_by(key).window(windows[1]).agg(k=sl.sum("n"), name="again")
        outs = [first.to("results"), again.to("again"), late]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batch_size, "FIRST_BATCH_RECORDS", size)
            driver = ran(app, events, cuts)
        return [Counter(map(plain, driver.output(out))) for out in outs]

    assert results(cuts, size) == results([], 1_000)


def ran(app: sl.App, events: list[Event], cuts: Sequence[tuple[int, bool]]) -> TestDriver:
    driver, begin = TestDriver(app, now_ms=BASE + 10_000), 0
    for at, crashes in sorted(cuts):
        end = max(begin, at)
        driver.run([*events[begin:end], *([CRASH] if crashes else [])])
        begin = end
    return driver.run(events[begin:]).end()


def plain(record: Any) -> Any:
    value = record.value
    return tuple(sorted(value.items())) if isinstance(value, dict) else value
