"""An app whose stores are read by other processes. It runs in a thread, or as a process.

python -m tests.queries.shop LOG      runs a worker until SIGTERM
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import strandline as sl
from tests.workers.threads import InThread

PARTITIONS = 4
POISON = "poison"
Eventually = Callable[..., None]


@dataclass(frozen=True)
class Total:
    """Totals of the sales of a shop."""

    n: int = 0
    amount: int = 0


@dataclass
class Shop:
    """The app, and its handles."""

    app: sl.App
    sales: sl.Topic[str, int]
    totals: sl.Store[str, Total]
    gate: threading.Event
    """Event for which handlers of records of 0 wait, in the middle of their changes."""
    waiting: threading.Event
    """Set while a handler waits."""


def shop(log: Any, **options: Any) -> Shop:
    """Return the app on a log."""
    app = sl.App(
        "shop", log=log, **{"commit_interval_ms": 10, "session_timeout_ms": 2_000, **options}
    )
    sales = app.topic("sales", key=str, value=int, partitions=PARTITIONS)
    totals = app.store("totals", key=str, value=Total, default=Total())
    by_day = app.store("by-day", key=tuple[int, str], value=int)
    raw = app.store("raw", key=str, value=bytes)
    figures = app.aggregates("figures", n=sl.count(), mean=sl.mean("amount"))
    json = app.store("json", key=str, value=sl.JsonSerde())
    made = Shop(app, sales, totals, threading.Event(), threading.Event())

    @app.task(sales, stores=[totals, by_day, raw, figures, json], on_error="skip")
    def tally(record: sl.Record[str, int]) -> None:
        before = totals[record.key]
        totals[record.key] = Total(before.n + 1, before.amount + record.value)
        by_day[record.value % 7, record.key] = record.value
        raw[record.key] = record.key.encode()
        figures.add(record.key, amount=record.value)
        json[record.key] = {"last": record.value}
        if record.value == 0:
            totals["seen only inside"] = Total(-1, -1)
            made.waiting.set()
            assert made.gate.wait(30)
            del totals["seen only inside"]
        if record.value < 0:
            totals[record.key] = Total(-1, -1)
            raise ValueError("a refund")

    return made


class Running(InThread):
    """A worker of the shop."""

    def __init__(self, log: Any, state: Path | None = None, **options: Any) -> None:
        self.made = shop(log, state_dir=state, **options)
        super().__init__(self.made.app, "tally")

    def stop(self) -> None:
        self.made.gate.set()
        super().stop()


def main() -> None:
    [log] = sys.argv[1:]
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    made = shop(log)
    with made.app:
        made.app.run(progress=False)


if __name__ == "__main__":
    main()
