"""A small app whose right results follow from its input alone."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import strandline as sl

SESSION_MS = 1_000
"""Milliseconds. Session timeout of workers that others should soon consider dead."""


@dataclass
class Totals:
    """Adds up by key and sends each sum, so that every loss and every repetition shows."""

    app: sl.App
    words: sl.Topic[str, int]
    out: sl.Topic[str, int]
    seen: sl.Store[str, int]

    def sent(self) -> dict[str, list[int]]:
        """Return the sums of each key, in order."""
        found: dict[str, list[int]] = {}
        for key, value in self.out.to_polars().select("key", "value").iter_rows():
            found.setdefault(key, []).append(value)
        return found

    def judge(self, given: Iterable[tuple[str, int]]) -> None:
        """Check that each record counts once, in the outputs and in the store."""
        counts = Counter(key for key, _ in given)
        assert self.sent() == {key: list(range(1, n + 1)) for key, n in counts.items()}
        assert self.app.query(self.seen).to_dict() == dict(counts)


def totals(
    name: str,
    log: Any = None,
    state: Path | None = None,
    *,
    partitions: int = 2,
    concurrency: int | None = None,
    **options: Any,
) -> Totals:
    """Return the app. Its topics have its name as a prefix.

    With `concurrency` its handler is async, and waits for a random time.
    """
    app = sl.App(name, log=log, state_dir=state, **options)
    words = app.topic(f"{name}-words", key=str, value=int, partitions=partitions)
    out = app.topic(f"{name}-out", key=str, value=int, partitions=2)
    seen = app.store("seen", key=str, value=int, default=0)

    def count(record: sl.Record[str, int]) -> None:
        seen[record.key] += 1
        out.send(record.key, seen[record.key])

    async def count_later(record: sl.Record[str, int]) -> None:
        await asyncio.sleep(random.uniform(0, 0.003))
        count(record)
        await asyncio.sleep(0)

    if concurrency is None:
        app.task(words, stores=[seen])(count)
    else:
        app.task(words, stores=[seen], name="count", concurrency=concurrency)(count_later)
    return Totals(app, words, out, seen)


def worker(name: str, log: str, state: Path, guarantee: Any = "exactly_once") -> Totals:
    """Return the app for one of several workers, with a short session timeout."""
    return totals(
        *(name, log, state),
        processing_guarantee=guarantee,
        session_timeout_ms=SESSION_MS,
        transaction_timeout_ms=3 * SESSION_MS,
    )
