"""Promises of running apps that a log must not break: whole answers, windows, stops."""

from __future__ import annotations

from typing import Any

import pytest

import strandline as sl
from tests.systems import System

PARTITIONS = 2
RECORDS = 100
HOUR_MS = 3_600_000


class Counts:
    """An app that counts words in records with other keys, and reports them by `window`."""

    def __init__(self, system: System) -> None:
        prefix, counts = system.prefix, self
        self.app = app = sl.App(
            prefix + "app", log=system.url, state_dir=system.state, commit_interval_ms=HOUR_MS
        )
        self.heard = app.topic(prefix + "heard", key=str, value=str, partitions=PARTITIONS)
        self.out = out = app.topic(prefix + "out", key=str, value=int, partitions=1)
        self.plain = plain = app.store("plain", key=str, value=int, default=0)
        self.counter = counter = app.counter("counter")
        self.stop_at = RECORDS

        @app.task(self.heard, stores=[plain, counter], window_ms=HOUR_MS, name="count")
        class Count:
            handled = 0

            def process(self, record: sl.Record[str, str]) -> None:
                plain[record.value] += 1
                counter.add(record.value)
                Count.handled += 1
                if Count.handled == counts.stop_at:
                    app.stop()

            def window(self) -> None:
                out.send("words", sum(count for _, count in plain.all()))


@pytest.mark.long_on_kafka
def test_an_app_returns_no_part_as_the_whole_and_stops_within_a_slice(system: System) -> None:
    with Counts(system).app as app:
        counts = app.declared.topics[system.prefix + "heard"]
        counts.append([(str(n), "xy"[n % 2]) for n in range(RECORDS)])

    stopped = Counts(system)
    stopped.stop_at = 7
    with stopped.app as app:
        assert app.run(progress=False) == 7

    rest = Counts(system)
    with rest.app as app:
        assert app.run(until="idle", timeout=60, progress=False) == RECORDS - 7
        reports = rest.out.to_polars()["value"].to_list()
        assert sum(reports[-PARTITIONS:]) == RECORDS
        assert app.query(rest.counter).to_dict() == {"x": RECORDS // 2, "y": RECORDS // 2}
        plain: Any = app.query(rest.plain)
        for read in (lambda: plain["x"], lambda: plain.to_dict(), lambda: list(plain.all())):
            with pytest.raises(sl.KeyInSeveralPartitions):
                read()


def counting(system: System, tally: str, *, fails: bool) -> tuple[sl.App, Any, Any, Any]:
    """Return an app that counts records in one task, and sends them in another one."""
    app = sl.App(system.prefix + "app", log=system.url, state_dir=system.state)
    given = app.topic(system.prefix + "in", key=str, value=int, partitions=1)
    sent = app.topic(system.prefix + "sent", key=str, value=int, partitions=1)
    counts = app.counter("counts")

    @app.task(given, name=tally, stores=[counts])
    def count(record: sl.Record[str, int]) -> None:
        counts.add(record.key)

    @app.task(given, name="send")
    def send(record: sl.Record[str, int]) -> None:
        if fails and record.value == RECORDS // 2:
            raise ValueError("a bug")
        sent.send(record.key, record.value)

    return app, given, counts, sent


@pytest.mark.long_on_kafka
def test_a_renamed_task_goes_on_at_the_offset_of_its_state(system: System) -> None:
    app, given, _, _ = counting(system, "tally", fails=True)
    with app:
        given.append([("k", value) for value in range(RECORDS)])
        with pytest.raises(sl.TaskFailed):
            app.run(until="idle", timeout=60, progress=False)
    app, _, counts, sent = counting(system, "tally-all", fails=False)
    with app:
        app.run(until="idle", timeout=60, progress=False)
        assert app.query(counts).to_dict() == {"k": RECORDS}
        assert sent.to_polars()["value"].to_list() == list(range(RECORDS))
