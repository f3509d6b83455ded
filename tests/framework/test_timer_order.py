"""Timers and records of one task take effect in one order, which a plain Python loop defines."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.framework.testing import CRASH, TestDriver
from tests.forms import by_form

NAMES = "abc"


class Action(NamedTuple):
    """Action of a record or of a fired timer."""

    kind: str
    """"set" or "cancel" a timer, set it and "raise" an error, or do "nothing"."""
    name: str
    delay: int
    """Time of the timer after that of the action, in ms."""


ACTIONS = st.builds(
    Action,
    st.sampled_from(["set", "set", "set", "cancel", "raise", "nothing"]),
    st.sampled_from(NAMES),
    st.integers(-5, 30),
)
RECORDS = st.lists(st.tuples(ACTIONS, st.integers(0, 100)), min_size=1, max_size=40)
ON_TIMER = st.fixed_dictionaries(dict.fromkeys(NAMES, ACTIONS))
START = 1_760_000_000_000
NUMBERS = st.sets(st.integers(0, 40))
MAX_FIRED = 3
"""Number of times that each timer acts when it fires, so that timers that set themselves end."""

Seen = list[tuple[str, str, int]]


@dataclass(frozen=True)
class Item:
    """Value of a record: its number, time and action."""

    number: str
    at: dt.datetime
    kind: str
    name: str
    delay: int


def as_frame(records: list[tuple[Action, int]]) -> pl.DataFrame:
    """Return records as rows, so that a handler's slice has many of them."""
    actions, offsets = [action for action, _ in records], [offset for _, offset in records]
    return pl.DataFrame(
        {
            "number": [str(number) for number in range(len(records))],
            "at": pl.Series([START + offset for offset in offsets]).cast(pl.Datetime("ms", "UTC")),
            "kind": [action.kind for action in actions],
            "name": [action.name for action in actions],
            "delay": [action.delay for action in actions],
        }
    )


def expected(records: list[tuple[Action, int]], on_timer: dict[str, Action]) -> Seen:
    """Return what handlers without an error have seen, in order."""
    timers: dict[str, int] = {}
    fired = dict.fromkeys(NAMES, 0)
    seen: Seen = []
    now = -1

    def act(action: Action, at: int) -> bool:
        if action.kind == "raise":
            return False
        if action.kind == "set":
            timers[action.name] = at + action.delay
        elif action.kind == "cancel":
            timers.pop(action.name, None)
        return True

    for number, (action, offset) in enumerate(records):
        latest = max(now, START + offset)
        while due := [(at, name) for name, at in timers.items() if at <= latest]:
            at, name = min(due)
            del timers[name]
            now = max(now, at)
            if fired[name] == MAX_FIRED or act(on_timer[name], at):
                seen.append(("timer", name, now))
                fired[name] = min(fired[name] + 1, MAX_FIRED)
        now = latest
        if act(action, START + offset):
            seen.append(("record", str(number), now))
    return seen


def declared(on_timer: dict[str, Action], cut: Callable[[], None]) -> tuple[sl.App, Any]:
    """Return an app and the topic of what its handlers have seen; each step calls `cut`."""
    app = sl.App("order", commit_records=7)
    actions = app.topic("actions", value=Item, key="number", timestamp="at")
    seen = app.topic("seen", value=int)
    fired = app.store("fired", key=str, value=int, default=0)

    def act(action: Action, at: int) -> None:
        if action.kind in ("set", "raise"):
            sl.set_timer(action.name, at + action.delay)
        if action.kind == "cancel":
            sl.cancel_timer(action.name)
        if action.kind == "raise":
            raise ValueError

    @app.task(actions, stores=[fired], on_error="skip")
    def handle(record: sl.Record[str, Item]) -> None:
        cut()
        seen.send(f"record {record.key}", sl.current_task().stream_time)
        value = record.value
        act(Action(value.kind, value.name, value.delay), record.timestamp)

    @app.on_timer(handle)
    def fire(name: str) -> None:
        cut()
        context = sl.current_task()
        seen.send(f"timer {name}", context.stream_time)
        if fired[name] < MAX_FIRED:
            fired[name] += 1
            act(on_timer[name], context.record.timestamp)

    return app, seen


@settings(max_examples=by_form(60, 500), deadline=None)
@given(RECORDS, ON_TIMER, NUMBERS, NUMBERS, NUMBERS)
def test_steps_come_in_the_order_of_a_plain_loop(
    records: list[tuple[Action, int]],
    on_timer: dict[str, Action],
    batches: set[int],
    crashes: set[int],
    cuts: set[int],
) -> None:
    """Also if handlers raise, which are skipped without a trace, after crashes and in short slices.

    Args:
        records: Actions of records, with their times.
        on_timer: Actions of timers.
        batches: Numbers of the records with which batches begin.
        crashes: Those of them before which the worker crashes.
        cuts: Steps after which a slice ends.
    """
    steps = itertools.count()

    def cut() -> None:
        if next(steps) in cuts:
            [instance] = driver.worker.instances
            instance.cut()

    app, seen = declared(on_timer, cut)
    frame = as_frame(records)
    feed: list[Any] = []
    for begin, end in itertools.pairwise(
        [0, *sorted(batches & set(range(len(frame)))), len(frame)]
    ):
        feed += [CRASH] if begin in crashes else []
        feed += [frame[begin:end]] if begin < end else []
    with TestDriver(app) as driver:
        driver.run(feed)
        found = [(*r.key.split(), r.value) for r in driver.output(seen)]
    assert found == expected(records, on_timer)
