"""`strandline stores` shows the state of streams as columns."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

import strandline as sl
from strandline.changelog.log import Log
from tests.cli.conftest import Command
from tests.streams.oracle import Event

BASE = 1_760_000_400_000


@pytest.fixture(autouse=True)
def shop(log: Log) -> None:
    """Two open windows of two groups, and all rows of them."""
    app = sl.App("shop", log=log)
    topic = app.topic("events", value=Event, key="user", timestamp="at", partitions=2)
    stream = app.stream(topic, idle=None)
    figures = {"n": sl.count(), "mean": sl.mean("amount"), "kinds": sl.collect("kind")}
    for name, window in (("hourly", sl.tumbling("1h")), ("hops", sl.hopping("2h", "1h"))):
        stream.group_by("user", "kind").window(window).agg(**figures, name=name)
    stream.group_by("amount").agg(n=sl.count(), name="amounts")
    reducer = sl.reducer(0, lambda old, _: old + 1, lambda old, new: old + new)
    stream.group_by("user").window(sl.hopping("2h", "1h")).agg(n=reducer, name="made")
    topic.append(
        [Event("ann", "x", 1, BASE), Event("bob", "y", 2, BASE), Event("ann", "x", 2, BASE)]
    )
    app.run(until="idle", progress=False)
    app.close()


def row(user: str, kind: str, hour: int, end: int, n: int, mean: float) -> dict[str, object]:
    return {
        "user": user,
        "kind": kind,
        "window_start": f"2025-10-09T{hour:02}:00:00Z",
        "window_end": f"2025-10-09T{end:02}:00:00Z",
        "n": n,
        "mean": mean,
        "kinds": [kind] * n,
    }


def test_windows_are_scanned_as_rows(strandline: Command) -> None:
    rows = strandline("stores", "scan", "shop/hourly", "--json").lines
    assert rows == [row("ann", "x", 9, 10, 2, 1.5), row("bob", "y", 9, 10, 1, 2.0)]
    rows = strandline("stores", "scan", "shop/hops", "--json", "--prefix", "b", "--max", "1").lines
    assert rows == [row("bob", "y", 8, 10, 1, 2.0)]
    shown = strandline("stores", "scan", "shop/hourly").out.splitlines()
    assert shown[1].split() == ["user", "kind", "window_start", "window_end", "n", "mean", "kinds"]
    assert shown[3].split()[2:5] == ["2025-10-09T09:00:00Z", "2025-10-09T10:00:00Z", "2"]


def test_a_group_is_looked_up_by_its_key(strandline: Command) -> None:
    rows = strandline("stores", "get", "shop/hops", '["ann", "x"]', "--json").lines
    assert rows == [row("ann", "x", 8, 10, 2, 1.5), row("ann", "x", 9, 11, 2, 1.5)]
    assert strandline("stores", "get", "shop/amounts", "2", "--json").lines == [
        {"amount": 2, "n": 2}
    ]
    missing = strandline("stores", "get", "shop/amounts", "7")
    assert (missing.code, "shop/amounts has nothing of the key 7" in missing.err) == (1, True)
    wrong = strandline("stores", "get", "shop/hourly", "ann")
    assert (wrong.code, "a group is user, kind" in wrong.err) == (1, True)


def test_parts_are_shown_as_they_are_stored(strandline: Command) -> None:
    rows = strandline("stores", "scan", "shop/hourly", "--json", "--parts").lines
    assert [found["key"] for found in rows] == [[BASE, "ann", "x"], [BASE, "bob", "y"]]
    refused = strandline("stores", "scan", "shop/made")
    assert (refused.code, "--parts shows what is stored" in refused.err) == (1, True)
    assert strandline("stores", "scan", "shop/made", "--parts").code == 0


def test_a_group_of_times_is_looked_up_by_its_time(log: Log, strandline: Command) -> None:
    app = sl.App("clock", log=log)
    schema = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("n", pa.int64())])
    topic = app.topic("ticks", value=schema, timestamp="at")
    app.stream(topic).group_by("at").agg(n=sl.count(), name="times")
    at = dt.datetime(2025, 10, 9, tzinfo=dt.UTC)
    topic.append(pa.table({"at": [at, at], "n": [1, 2]}, schema=schema))
    app.run(until="idle", progress=False)
    app.close()
    [row] = strandline("stores", "scan", "clock/times", "--json").lines
    assert row["n"] == 2
    assert strandline("stores", "get", "clock/times", str(row["at"]), "--json").lines == [row]
