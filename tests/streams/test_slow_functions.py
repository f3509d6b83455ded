"""Functions of streams that take long for each row: a batch begins with one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import changelog
from strandline.framework.container.batch_size import FIRST_BATCH_RECORDS
from tests.streams.oracle import Event

RECORDS = 40
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "foreach": lambda stream, look: stream.foreach(look),
    "filter": lambda stream, look: stream.filter(lambda row: look(row) is None).to("out"),
    "peek": lambda stream, look: stream.peek(look).to("out"),
    "map_batches": lambda stream, look: stream.map_batches(
        lambda frame: [look(row) for row in frame.rows()] and frame, schema=Event
    ).to("out"),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_stop_ends_a_run_after_the_running_row(tmp_path: Path, kind: str) -> None:
    """A worker whose first batch takes longer than max_poll_interval_ms would repeat it for ever."""
    app = sl.App("app", log=tmp_path / "log")
    events = app.topic("events", value=Event, key="user", timestamp="at", partitions=1)
    seen: list[Any] = []

    def look(row: Any) -> None:
        seen.append(row)
        if len(seen) == 1:
            app.stop()

    FUNCTIONS[kind](app.stream(events), look)
    with app:
        events.append([Event("ann", "x", n, 1_760_000_000_000 + n) for n in range(RECORDS)])
        assert app.run(progress=False) == 1
        assert len(seen) == 1
        app.run(until="idle", progress=False)
        assert len(seen) == RECORDS


SLOW_ROW_S = 0.02
FAST, SLOW = 20_000, 3_000
STOP_AT = 40


@pytest.mark.long
@pytest.mark.parametrize("kind", ["foreach", "filter", "peek", "map", "flat_map"])
def test_a_batch_of_many_rows_ends_soon_if_a_function_becomes_slow(
    tmp_path: Path, kind: str
) -> None:
    """Its size follows from the rows before, and it would take minutes."""
    app = sl.App("app", log=tmp_path / "log")
    events = app.topic("events", value=Event, key="user", timestamp="at", partitions=1)
    is_slow, calls = threading.Event(), [0]

    def look(row: Any) -> None:
        if is_slow.is_set() and row.kind == "slow":
            calls[0] += 1
            if calls[0] == 1:
                app.stop()
            threading.Event().wait(SLOW_ROW_S)

    def same(row: Any) -> Event:
        look(row)
        return Event(row.user, row.kind, row.amount, row.at)

    functions = {
        **FUNCTIONS,
        "map": lambda stream, _: stream.map(same, schema=Event).to("out"),
        "flat_map": lambda stream, _: stream.flat_map(lambda row: [same(row)], schema=Event).to(
            "out"
        ),
    }
    functions[kind](app.stream(events), look)
    with app:
        kinds = ["fast"] * FAST + ["slow"] * SLOW
        events.append([Event("u", kind, n, 1_760_000_000_000 + n) for n, kind in enumerate(kinds)])
        is_slow.set()
        app.run(progress=False)
        assert 0 < calls[0] <= SLOW / 10
        is_slow.clear()
        app.run(until="idle", progress=False)
    if kind != "foreach":
        with changelog.open(tmp_path / "log") as log:
            amounts = log.read("out").column("value").combine_chunks().field("amount")
        assert amounts.to_pylist() == [*range(FAST + SLOW)]


def test_a_commit_has_few_results_if_a_function_of_them_is_slow(tmp_path: Path) -> None:
    app = sl.App("app", log=tmp_path / "log", commit_interval_ms=60_000)
    events = app.topic("events", value=Event, key="user", timestamp="at", partitions=1)
    calls = 0

    def look(row: Any) -> None:
        nonlocal calls
        calls += 1
        threading.Event().wait(SLOW_ROW_S)
        if calls == STOP_AT:
            app.stop()

    app.stream(events).group_by("user").agg(n=sl.count(), name="counts").peek(look).to("out")
    with app:
        events.append([Event(f"u{n}", "x", n, 1_760_000_000_000 + n) for n in range(SLOW)])
        handled = app.run(progress=False)
        # One commit has been repeated at most, with results for about a second.
        assert STOP_AT <= calls <= handled + 1 / SLOW_ROW_S * 2 <= SLOW / 10


def test_a_step_is_not_repeated_for_the_results_of_a_window(tmp_path: Path) -> None:
    """Fewer records do not make them fewer, because one record closes the window."""
    app = sl.App("app", log=tmp_path / "log")
    events = app.topic("events", value=Event, key="user", timestamp="at", partitions=1)
    called: list[str] = []

    def look(row: Any) -> None:
        called.append(row.user)
        threading.Event().wait(SLOW_ROW_S)

    counts = app.stream(events).group_by("user").window(sl.tumbling("1m"))
    counts.agg(n=sl.count(), name="counts").foreach(look)
    users = [f"u{n}" for n in range(int(2 / SLOW_ROW_S))]
    with app:
        at = 1_760_000_400_000
        events.append([Event(user, "x", 1, at + n) for n, user in enumerate(users)])
        events.append([Event("last", "x", 1, at + 60_000 + n) for n in range(1000)])
        app.run(until="idle", progress=False)
    assert sorted(called) == sorted(users)


def test_a_stage_without_functions_begins_with_more(tmp_path: Path) -> None:
    app = sl.App("app", log=tmp_path / "log")
    events = app.topic("events", value=Event, key="user", timestamp="at")
    app.stream(events).filter(sl.col("amount") > 1).to("out")
    with app:
        events.append([Event("ann", "x", n, 1_760_000_000_000 + n) for n in range(RECORDS)])
        assert app.run(until="idle", progress=False) == RECORDS
        [task] = app.declared.tasks.values()
        assert task.first_batch is None
    assert FIRST_BATCH_RECORDS > RECORDS
