"""A stream with windows on each system: final results once, late records kept, over restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

import strandline as sl
from tests.streams.oracle import Event, by_partition, fixed_windows
from tests.systems import System

PARTITIONS = 2
START = 1_760_000_400_000
SIZE, GRACE = 40, 10


class Windowed:
    """An app that counts events by kind in windows. Each run of it is one life."""

    def __init__(self, name: str, system: System) -> None:
        self._name = name
        self._system = system

    def app(self) -> sl.App:
        """Return the app, declared again as by another process."""
        name = self._name
        app = sl.App(
            name, log=self._system.url, state_dir=self._system.state, commit_interval_ms=20
        )
        topic = app.topic(
            *(f"{name}-events",), value=Event, key="user", timestamp="at", partitions=PARTITIONS
        )
        late = app.topic(f"{name}-late", value=Event, key="user", timestamp="at")
        counted = (
            app.stream(topic, late=late, idle=None)
            .group_by("kind")
            .window(sl.tumbling(SIZE, grace=GRACE))
            .agg(n=sl.count(), total=sl.sum("amount"), name="counts")
        )
        counted.to(f"{name}-out")
        return app

    def live(self, events: list[Event], *, count: int | None, until: str | None = None) -> None:
        """Append events, and run until `count` more are handled, or all are."""
        with self.app() as app:
            app.declared.topics[f"{self._name}-events"].append(events)
            app.run(
                count=count,
                until=(until or "idle") if count is None else None,  # type: ignore[arg-type]
                timeout=60,
                progress=False,
            )

    def values(self, topic: str) -> Iterator[dict[str, Any]]:
        """Yield the committed values of a topic."""
        with self.app() as app:
            yield from app.declared.topics[f"{self._name}-{topic}"].to_polars().rows(named=True)


def events() -> list[Event]:
    """Return events of which some are late."""
    chance = Random(3)
    times = [START + 3 * number - chance.choice([0, 0, 0, 15, 200]) for number in range(240)]
    return [
        Event(
            chance.choice(["ann", "bob", "cid", "dee"]),
            chance.choice("xyz"),
            number,
            max(START, at),
        )
        for number, at in enumerate(times)
    ]


@pytest.mark.long_on_kafka
@pytest.mark.timeout(240)
def test_each_window_is_sent_once_and_late_records_are_kept_over_restarts(
    system: System, name: str
) -> None:
    given, windowed = events(), Windowed(name, system)
    windowed.live(given[:120], count=40)  # the rest is handled by the next life
    windowed.live(given[120:], count=150)
    windowed.live([], count=None, until="end")
    windows, late = fixed_windows(
        by_partition(given, PARTITIONS),
        lambda event: (event.kind,),
        size=SIZE,
        every=SIZE,
        grace=GRACE,
        delay=0,
    )
    sent = Counter(
        (row["kind"], round(row["window_start"].timestamp() * 1_000), row["n"], row["total"])
        for row in windowed.values("out")
    )
    expected = {
        (key[0], start, len(of), sum(event.amount or 0 for event in of))
        for (key, start, _), of in windows.items()
    }
    assert sent == Counter(expected)
    kept = Counter(row["amount"] for row in windowed.values("late"))
    assert late > 0
    assert kept.total() == late
    counted = {event.amount for of in windows.values() for event in of}
    assert kept == Counter(event.amount for event in given if event.amount not in counted)
