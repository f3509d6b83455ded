"""Streams on a folder and on Kafka: windows are final once while workers join, leave and die."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import strandline as sl
from strandline.changelog.log import Log
from tests.streams.oracle import Event, Key, by_partition, figures, fixed_windows
from tests.systems import System
from tests.workers.threads import InThread

Eventually = Callable[..., None]
PARTITIONS, SIZE, GRACE = 4, 60_000, 5_000
BASE = 1_700_000_000_000


def events(count: int, seed: int) -> list[Event]:
    """Return events in about the order of time, of which some are late."""
    chance = random.Random(seed)
    return [
        Event(
            f"user-{chance.randrange(20)}",
            chance.choice("xyz"),
            chance.choice([None, 1, 2, 30]),
            BASE + 500 * n + chance.randrange(-20_000, 1),
        )
        for n in range(count)
    ]


def made(system: System, log: Log) -> tuple[sl.App, Any, Any]:
    """Return the app, its input, and its output: figures of each minute and kind."""
    app = sl.App(
        f"{system.prefix}air",
        log=log,
        state_dir=system.state,
        commit_interval_ms=10,
        session_timeout_ms=1_000,
    )
    topic = app.topic(
        f"{system.prefix}events", value=Event, key="user", timestamp="at", partitions=PARTITIONS
    )
    out = (
        app.stream(topic, idle=None)
        .group_by("kind")
        .window(sl.tumbling(SIZE, grace=GRACE))
        .agg(
            n=sl.count(),
            total=sl.sum("amount"),
            most=sl.max("amount"),
            mean=sl.mean("amount"),
            name="minutes",
        )
        .to(f"{system.prefix}minutes", partitions=2)
    )
    return app, topic, out


def sent(out: Any) -> Counter[Any]:
    frame = out.to_polars().with_columns(
        pl.col("window_start", "window_end").dt.epoch("ms"), pl.col("mean").round(9)
    )
    rows = frame.select("kind", "window_start", "window_end", "n", "total", "most", "mean").rows()
    return Counter(((kind,), start, end, tuple(rest)) for kind, start, end, *rest in rows)


def expected(given: list[Event]) -> Counter[Any]:
    def key(event: Event) -> Key:
        return (event.kind,)

    partitions = by_partition(given, PARTITIONS)
    windows, late = fixed_windows(partitions, key, size=SIZE, every=SIZE, grace=GRACE, delay=0)
    assert late > 0
    return Counter((*window, figures(found)) for window, found in windows.items())


@pytest.mark.long_on_kafka
def test_windows_are_final_once_while_workers_join_and_leave(
    system: System, eventually: Eventually
) -> None:
    log = system.open(durability="os")
    given = events(6_000, seed=1)
    first, topic, out = made(system, log)
    one = InThread(first, "minutes")
    eventually(lambda: one.error or one.numbers == [0, 1, 2, 3], what="all at the first")
    assert one.error is None
    topic.append(given[:2_000])
    second, _, _ = made(system, log)
    two = InThread(second, "minutes")
    eventually(lambda: len(one.numbers) == len(two.numbers) == 2, what="sharing")
    topic.append(given[2_000:4_000])
    one.stop()
    eventually(lambda: two.numbers == [0, 1, 2, 3], what="all at the second")
    topic.append(given[4_000:])
    two.stop()
    third, _, results = made(system, log)
    third.run(until="end", progress=False)
    assert sent(results) == expected(given)
