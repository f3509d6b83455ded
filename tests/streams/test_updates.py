"""Updates of overlapping windows: they read the panes of the groups that changed."""

from __future__ import annotations

import random
from typing import Any

import pytest

import strandline as sl
from strandline.framework.container import batch_size
from strandline.framework.streams.operators import panes
from strandline.framework.testing import TestDriver
from tests.streams.oracle import Event

BASE = 1_000_000
GROUPS = 200
WINDOWS = {"hopping": sl.hopping(60, 20, grace=10), "sliding": sl.sliding(40, grace=10)}


def summed(window: Any) -> tuple[TestDriver, Any, Any]:
    """Return a driver of an app that sums amounts by user, its updates and its final results."""
    app = sl.App("app", commit_records=1)
    topic = app.topic("events", value=Event, key="user", timestamp="at")
    windowed = app.stream(topic, idle=None).group_by("user").window(window)
    sums = windowed.agg(n=sl.count(), total=sl.sum("amount"), name="sums")
    updates, finals = sums.to("updates", emit="update"), sums.to("finals")
    return TestDriver(app, now_ms=BASE), updates, finals


def event(at: int, user: str, amount: int = 1) -> Event:
    return Event(user, "x", amount, BASE + at)


def test_updates_of_hopping_windows_read_no_panes_of_other_groups(
    entries_read: list[bytes],
) -> None:
    driver, updates, _ = summed(sl.hopping(60, 20, grace=1_000))
    driver.run([event(n % 60, f"user-{n}") for n in range(GROUPS)])
    before = len(driver.output(updates))
    entries_read.clear()
    driver.run([event(10, "user-7", 5)])
    assert len(entries_read) < GROUPS / 10
    rows = [record.value for record in driver.output(updates)[before:]]
    assert [(row["user"], row["n"], row["total"]) for row in rows] == [("user-7", 2, 6)] * 3


def test_updates_of_sliding_windows_read_the_panes_near_the_changes(
    entries_read: list[bytes],
) -> None:
    driver, updates, _ = summed(sl.sliding(10, grace=10_000))
    driver.run([event(10 * n, f"user-{n % 5}") for n in range(GROUPS)])
    before = len(driver.output(updates))
    entries_read.clear()
    driver.run([event(10 * GROUPS, "user-0", 5)])
    assert len(entries_read) < GROUPS / 10
    rows = [record.value for record in driver.output(updates)[before:]]
    assert [(row["user"], row["n"], row["total"]) for row in rows] == [("user-0", 1, 5)]


@pytest.mark.parametrize("entries", [0.0, 1e9], ids=["scanned", "looked up"])
@pytest.mark.parametrize("kind", WINDOWS)
def test_the_last_updates_are_the_final_results(
    kind: str, entries: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Records that are late for some of their windows have panes of their own.
    monkeypatch.setattr(panes, "LOOKUP_ENTRIES", entries)
    monkeypatch.setattr(batch_size, "FIRST_BATCH_RECORDS", 4)
    driver, updates, finals = summed(WINDOWS[kind])
    chance = random.Random(kind)
    driver.run(
        [
            event(5 * n + chance.randrange(-60, 1), chance.choice("abc"), chance.randrange(9))
            for n in range(150)
        ]
    ).end()
    last = {record.key: record.value for record in driver.output(updates)}
    assert last == {record.key: record.value for record in driver.output(finals)}
    assert len(last) > 50
