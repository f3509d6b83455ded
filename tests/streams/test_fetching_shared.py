"""Open windows read while workers run, move and end, on a folder and on Kafka."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.log import Log
from tests.streams.oracle import Event
from tests.streams.test_running import millis
from tests.systems import System
from tests.workers.threads import InThread

Eventually = Callable[..., None]
USERS = [f"user-{number}" for number in range(8)]
BASE, STEP, SIZE, EVERY = 1_700_000_000_000, 500, 10_000, 2_000
LAST, CHUNK = 1_200, 60


def numbered(begin: int, end: int) -> list[Event]:
    """Return events whose amount is their number, for each user."""
    return [
        Event(user, "x", number, BASE + number * STEP)
        for number in range(begin, end)
        for user in USERS
    ]


def made(system: System, log: Log) -> tuple[sl.App, Any]:
    """Return an app that aggregates hopping windows and all events, and its input."""
    app = sl.App(
        f"{system.prefix}air",
        log=log,
        state_dir=system.state,
        commit_interval_ms=10,
        session_timeout_ms=2_000,
    )
    topic = app.topic(
        f"{system.prefix}events", value=Event, key="user", timestamp="at", partitions=4
    )
    groups = app.stream(topic, idle=None).group_by("user")
    aggregates = {"n": sl.count(), "least": sl.min("amount"), "most": sl.max("amount")}
    groups.window(sl.hopping(SIZE, EVERY)).agg(**aggregates, name="hops").to(f"{system.prefix}out")
    groups.agg(**aggregates, name="plain")
    return app, topic


def first_of(start: int) -> int:
    """Return the number of the first event at or after a time."""
    return max(0, -((BASE - start) // STEP))


def check(rows: list[Any]) -> None:
    """Check that each window has all events from its first one to some last one."""
    for row in rows:
        assert row.least == first_of(millis(row.window_start))
        assert row.n == row.most - row.least + 1


def bounds(rows: list[Any]) -> list[tuple[str, int, int]]:
    return [(row.user, millis(row.window_start), row.n) for row in rows]


def open_at_the_end() -> list[tuple[str, int, int]]:
    """Return user, start and number of events of the windows that the last event leaves open."""
    last = BASE + (LAST - 1) * STEP
    starts = range((last - SIZE) // EVERY * EVERY + EVERY, last + 1, EVERY)
    return [(user, start, LAST - first_of(start)) for start in starts for user in USERS]


@pytest.mark.long_on_kafka
def test_windows_are_as_of_one_moment_while_workers_run(
    system: System, eventually: Eventually
) -> None:
    log = system.open(durability="os")
    first, topic = made(system, log)
    second, _ = made(system, log)
    one, two = InThread(first, "hops"), InThread(second, "hops")
    eventually(lambda: one.error or len(one.numbers) == len(two.numbers) == 2, what="sharing")
    assert one.error is None, repr(one.error)
    with sl.connect(log, deadline=60) as connection:
        hops = connection.store(f"{first.name}/hops")
        plain = connection.store(f"{first.name}/plain")
        own = first.query("hops")
        for begin in range(0, LAST, CHUNK):
            topic.append(numbered(begin, begin + CHUNK))
            if begin == LAST // 2:
                two.stop()
            for store in (hops, own):
                check(store.fetch_all())
                check(store.fetch(USERS[begin // CHUNK % len(USERS)], BASE + (begin - 20) * STEP))
        eventually(lambda: bounds(hops.fetch_all()) == open_at_the_end(), what="all counted")
        eventually(lambda: plain.to_polars()["n"].to_list() == [LAST] * len(USERS), what="plain")
        assert (plain[USERS[0]].n, first.query("plain")[USERS[1]].most) == (LAST, LAST - 1)
        mine = [row for row in open_at_the_end() if row[0] == USERS[2]]
        assert bounds(hops.fetch(USERS[2])) == bounds(own.fetch(USERS[2])) == mine
        one.stop()
        assert bounds(hops.fetch_all()) == bounds(own.fetch_all()) == open_at_the_end()
        assert plain[USERS[0]].n == LAST
    with sl.connect(log) as connection:
        assert bounds(connection.store(f"{first.name}/hops").fetch(USERS[2])) == mine
        assert connection.store(f"{first.name}/plain")[USERS[0]].n == LAST
