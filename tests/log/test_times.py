"""Seconds, microseconds and nanoseconds are never mistaken for milliseconds."""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import strandline as sl
from strandline.changelog.clock import ManualClock
from strandline.changelog.errors import StrandlineError
from strandline.changelog.times import MIN_FINE, to_ms
from strandline.framework.testing import TestDriver

NOW = 1_760_000_400_000
SECONDS = NOW // 1000
WRONG = [SECONDS, float(SECONDS), NOW + 0.5, NOW * 1_000, NOW * 1_000_000]
MOON = dt.datetime(1970, 1, 20, tzinfo=dt.UTC)
"""A time before 1980 that is certainly meant, because it is a datetime."""
MOON_MS = 19 * 86_400_000


@contextmanager
def opened(folder: Path) -> Iterator[tuple[sl.App, Any]]:
    with sl.App("app", log=folder, clock=ManualClock(NOW)) as app:
        yield app, app.topic("words", value=int)


Enter = Callable[[sl.App, Any, Any], Any]


def by_set_timer(clock: Any) -> Enter:
    """Return a handler that sets a timer."""

    def enter(app: sl.App, topic: Any, at: Any) -> None:
        @app.task(topic, name="timing")
        class Task:
            def process(self, record: sl.Record[str, int]) -> None:
                sl.set_timer("t", at, clock=clock)

            def on_timer(self, name: str) -> None:
                """Do nothing."""

        topic.append([("a", 1, NOW)])
        app.run(until="idle", progress=False)

    return enter


def by_send(app: sl.App, topic: Any, at: Any) -> None:
    out = app.topic("out", value=int)

    @app.task(topic, name="sending")
    def send(record: sl.Record[str, int]) -> None:
        out.send("k", 1, timestamp=at)

    topic.append([("a", 1, NOW)])
    app.run(until="idle", progress=False)


def by_producer(app: sl.App, topic: Any, at: Any) -> None:
    with app.producer() as producer:
        producer.send("words", b"\x01", timestamp=at)


def by_producer_append(app: sl.App, topic: Any, at: Any) -> None:
    with app.producer() as producer:
        producer.append("words", [{"value": b"\x01"}], timestamp=at)


def by_frame(app: sl.App, topic: Any, at: Any) -> None:
    frame = pl.DataFrame({"key": ["a"], "value": [b"\x01"], "timestamp": [at]})
    app.topic("frames", value=bytes).append(frame)


def by_column(app: sl.App, topic: Any, at: Any) -> None:
    schema = pa.schema([("at", pa.int64()), ("value", pa.int64())])
    typed = app.topic("typed", value=schema, key="value", timestamp="at")
    typed.append([{"at": at, "value": 1}])


def by_driver(app: sl.App, topic: Any, at: Any) -> None:
    app.task(topic, name="driven")(lambda record: None)
    with TestDriver(app) as driver:  # its clock begins in 1970
        driver.run([("a", 1, at)])


ENTRIES: dict[str, Enter] = {
    "a row": lambda app, topic, at: topic.append([("a", 1, at)]),
    "timestamp=": lambda app, topic, at: topic.append([("a", 1)], timestamp=at),
    "a data frame": by_frame,
    "send in a handler": by_send,
    "a timer in stream time": by_set_timer("stream"),
    "a timer by the wall clock": by_set_timer("wall"),
    "producer.send": by_producer,
    "producer.append": by_producer_append,
    "the driver": by_driver,
}


@pytest.mark.parametrize("enter", ENTRIES.values(), ids=ENTRIES)
@pytest.mark.parametrize("at", WRONG)
def test_other_units_and_floats_are_refused(tmp_path: Path, enter: Enter, at: Any) -> None:
    with opened(tmp_path) as (app, topic), pytest.raises(StrandlineError, match="milliseconds"):
        enter(app, topic, at)


@pytest.mark.parametrize("enter", ENTRIES.values(), ids=ENTRIES)
def test_any_datetime_is_accepted(tmp_path: Path, enter: Enter) -> None:
    with opened(tmp_path) as (app, topic):
        enter(app, topic, MOON)


@pytest.mark.parametrize(
    ("at", "unit"),
    [(SECONDS, "seconds"), (NOW * 1_000, "microseconds"), (NOW * 1_000_000, "nanoseconds")],
)
def test_a_column_of_a_typed_value_in_another_unit_is_refused(
    tmp_path: Path, at: int, unit: str
) -> None:
    with opened(tmp_path) as (app, topic):
        by_column(app, topic, NOW)
        with pytest.raises(sl.InvalidRecord, match=f"looks like {unit}"):
            by_column(app, topic, at)


@pytest.mark.parametrize("at", [MIN_FINE - 1, 2**62, 2**63 - 1])
def test_a_time_that_means_never_is_accepted(tmp_path: Path, at: int) -> None:
    with opened(tmp_path) as (app, topic):
        by_set_timer("stream")(app, topic, at)
        assert to_ms(at, around=NOW) == at


def test_a_very_early_time_is_kept_with_a_warning(tmp_path: Path) -> None:
    with opened(tmp_path) as (_, topic):
        with pytest.warns(UserWarning, match="the time 20000 ms is before 1980"):
            topic.append([("a", 1, 20_000)])
        assert [at.timestamp() for at in topic.to_polars()["timestamp"]] == [20.0]


def test_a_test_clock_that_begins_in_1970_is_accepted(tmp_path: Path) -> None:
    app = sl.App("app")
    words = app.topic("words", value=int)
    app.task(words, name="t")(lambda record: None)
    with warnings.catch_warnings(), TestDriver(app) as driver:
        warnings.simplefilter("error")
        driver.run([("a", 1, 0), ("a", 1, 60_000)])


def test_an_app_works_on_a_log_whose_times_are_wrong(tmp_path: Path) -> None:
    """Reading refuses nothing, and a handler may work with times like its record's."""
    with opened(tmp_path) as (app, topic):
        out = app.topic("out", value=int)

        @app.task(topic)
        def forward(record: sl.Record[str, int]) -> None:
            out.send(record.key, 1, timestamp=record.timestamp + 1)
            sl.set_timer("t", record.timestamp + 30)

        @app.on_timer(forward)
        def fired(name: str) -> None:
            out.send(name, 2)

        topic.append([("a", 1, MOON)])
        app.run(until="end", progress=False)
        times = [int(at.timestamp() * 1000) - MOON_MS for at in out.to_polars()["timestamp"]]
        assert times == [1, 30]
