"""Open sessions are in stores only: batches and closings read those that they concern."""

from __future__ import annotations

from typing import Any

import strandline as sl
from strandline.framework.testing import CRASH, TestDriver

BASE = 1_000_000
GAP = 10
GROUPS = 300

Visit = tuple[str, int, int]
"""Key, value and time of a record."""


def counting(gap: int, grace: int) -> tuple[TestDriver, Any, Any]:
    """Return a driver of an app that counts visits by session, the sessions, and their results."""
    app = sl.App("app", commit_records=1)
    stream = app.stream(app.topic("visits", key=str, value=int), idle=None)
    windowed = stream.group_by("key").window(sl.session(gap, grace=grace))
    out = windowed.agg(n=sl.count(), total=sl.sum("value"), name="sessions").to("out")
    driver = TestDriver(app, now_ms=BASE)
    return driver, app.declared.stores["sessions"], out


def at(time: int, key: str = "ann", value: int = 1) -> Visit:
    return key, value, BASE + time


def kept(driver: TestDriver, store: Any) -> dict[tuple[str, int], tuple[int, int, int | None]]:
    """Return start, end and count of each stored session."""
    return {
        key: (state.window_start - BASE, state.window_end - BASE, state.window_count)
        for key, state in driver.store(store).items()
    }


def sent(driver: TestDriver, out: Any) -> list[tuple[str, int, int, int]]:
    """Return key, start, end and count of each result, in the order of sending."""
    rows = [record.value for record in driver.output(out)]
    times = [[round(row[w].timestamp() * 1_000) - BASE for w in BOUNDS] for row in rows]
    return [(row["key"], *of, row["n"]) for row, of in zip(rows, times, strict=True)]


BOUNDS = ("window_start", "window_end")


def test_a_batch_after_a_restart_reads_no_sessions_of_other_groups(
    entries_read: list[bytes],
) -> None:
    driver, _, out = counting(gap=60_000, grace=60_000)
    driver.run([at(n, f"user-{n}") for n in range(GROUPS)])
    entries_read.clear()
    driver.run([CRASH, at(GROUPS, "user-7")])
    assert len(entries_read) < 10
    driver.end()
    assert ("user-7", 7, GROUPS + 60_000, 2) in sent(driver, out)


def test_closing_reads_the_sessions_that_are_due(entries_read: list[bytes]) -> None:
    driver, _, out = counting(gap=GAP, grace=0)
    driver.run([at(GAP * n // 100, f"user-{n}") for n in range(GROUPS)])
    assert sent(driver, out)[:2] == [("user-0", 0, GAP, 1), ("user-1", 0, GAP, 1)]
    entries_read.clear()
    closed = len(sent(driver, out))
    driver.run([at(GAP * 3, "bob")])
    closed = len(sent(driver, out)) - closed
    assert 0 < closed < GROUPS / 2
    assert len(entries_read) < 2 * closed + 10


def test_sessions_of_a_group_are_numbered_by_their_starts() -> None:
    driver, store, _ = counting(gap=GAP, grace=1_000)
    driver.run([at(100), at(0), at(200, "bob"), at(50), at(52)])
    assert kept(driver, store) == {
        ("ann", 0): (0, 10, 3),
        ("ann", 1): (50, 62, None),
        ("ann", 2): (100, 110, None),
        ("bob", 0): (200, 210, 1),
    }


def test_sessions_that_a_record_joins_become_one() -> None:
    driver, store, out = counting(gap=GAP, grace=1_000)
    driver.run([at(0), at(16), at(40), CRASH, at(8)])
    assert kept(driver, store) == {("ann", 0): (0, 26, 2), ("ann", 1): (40, 50, None)}
    driver.end()
    assert sent(driver, out) == [("ann", 0, 26, 3), ("ann", 40, 50, 1)]


def test_the_sessions_after_a_closed_one_get_its_number() -> None:
    driver, store, out = counting(gap=GAP, grace=100)
    driver.run([at(0), at(50), at(100), at(111, "bob")])
    assert kept(driver, store)[("ann", 0)] == (50, 60, 2)
    assert kept(driver, store)[("ann", 1)] == (100, 110, None)
    assert sent(driver, out) == [("ann", 0, 10, 1)]


def test_a_session_before_all_others_is_closed_in_time() -> None:
    driver, store, out = counting(gap=GAP, grace=100)
    driver.run([at(100), at(30), at(140, "bob")])
    assert sent(driver, out) == [("ann", 30, 40, 1)]
    assert kept(driver, store) == {("ann", 0): (100, 110, 1), ("bob", 0): (140, 150, 1)}


def test_a_session_that_goes_on_is_closed_once_at_its_end() -> None:
    driver, store, out = counting(gap=GAP, grace=0)
    driver.run([at(5 * n) for n in range(100)])
    assert kept(driver, store) == {("ann", 0): (0, 505, 1)}
    assert sent(driver, out) == []
    driver.run([at(504, "bob")])
    assert sent(driver, out) == []
    driver.run([at(505, "bob")])
    assert sent(driver, out) == [("ann", 0, 505, 100)]


def test_nothing_is_left_when_all_sessions_are_closed() -> None:
    driver, store, out = counting(gap=GAP, grace=100)
    deadlines = driver.app.declared.stores["sessions-deadlines"]
    driver.run([at(30 * n % 97, f"user-{n % 5}") for n in range(40)]).end()
    assert sum(n for *_, n in sent(driver, out)) == 40
    assert driver.store(store) == {}
    assert driver.store(deadlines) == {}


def test_the_last_session_ends_with_the_input() -> None:
    driver, _, out = counting(gap=GAP, grace=100)
    driver.run([at(0), at(7), at(3, "bob")]).end()
    assert sent(driver, out) == [("bob", 3, 13, 1), ("ann", 0, 17, 2)]
