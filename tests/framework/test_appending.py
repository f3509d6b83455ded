"""Records from outside of a task, many at a time."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest

import strandline as sl
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.storage import MemoryStorage


@dataclass(frozen=True)
class Delay:
    minutes: float


@pytest.fixture
def app() -> sl.App:
    return sl.App("app", log=Owner(MemoryStorage(), background=False))


ROWS = [("AA", Delay(5.0)), ("BA", Delay(7.0))]
TABLE = pl.DataFrame({"key": ["AA", "BA"], "minutes": [5.0, 7.0]})
NOON = dt.datetime(2013, 1, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize("data", [ROWS, TABLE, TABLE.to_arrow()])
@pytest.mark.parametrize("timestamp", [NOON, int(NOON.timestamp() * 1000)])
def test_records_without_a_time_get_the_given_one(app: sl.App, data: Any, timestamp: Any) -> None:
    delays = app.topic("delays", key=str, value=Delay)
    assert delays.append(data, timestamp=timestamp) == 2
    assert delays.to_polars().select("key", "timestamp", "minutes").rows() == [
        ("AA", NOON, 5.0),
        ("BA", NOON, 7.0),
    ]


def test_a_table_with_times_keeps_them(app: sl.App) -> None:
    delays = app.topic("delays", key=str, value=Delay)
    own = TABLE.with_columns(timestamp=pl.Series([NOON, NOON + dt.timedelta(hours=1)]))
    delays.append(own, timestamp=7)
    assert delays.to_polars()["timestamp"].to_list() == own["timestamp"].to_list()
