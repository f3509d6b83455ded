"""Small apps whose right answer is known from their input alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import strandline as sl
from framework.testing import CRASH, TestDriver


def running_totals(*, partitions: int = 3, **options: Any) -> tuple[sl.App, Any, Any]:
    """Counts per key and sends each count, so that every loss and repeat shows."""
    app = sl.App("app", **options)
    words = app.topic("words", value=int, partitions=partitions)
    out = app.topic("out", value=int, partitions=2)
    seen = app.store("seen", value=int, default=0)

    @app.task(words, stores=[seen])
    def count(record: sl.Record[str, int]) -> None:
        seen[record.key] += 1
        out.send(record.key, seen[record.key])

    return app, out, seen


def totals_sent(driver: TestDriver, out: Any) -> dict[str, list[int]]:
    """The totals that were sent for each key, in order."""
    sent: dict[str, list[int]] = {}
    for record in driver.output(out):
        sent.setdefault(record.key, []).append(record.value)
    return sent


def expected(given: Iterable[Any]) -> tuple[dict[str, int], dict[str, list[int]]]:
    """State and totals if each record counts exactly once."""
    counts = Counter(item[0] for item in given if item is not CRASH)
    return dict(counts), {key: list(range(1, n + 1)) for key, n in counts.items()}
