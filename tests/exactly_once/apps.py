"""Small apps whose right results follow from their input alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from strandline.framework.testing import CRASH, TestDriver
from tests.kafka.apps import totals


def running_totals(**options: Any) -> tuple[Any, Any, Any]:
    """Return an app for a TestDriver that counts per key and sends each count, so that errors
    show."""
    made = totals("app", **{"partitions": 3, **options})
    return made.app, made.out, made.seen


def totals_sent(driver: TestDriver, out: Any) -> dict[str, list[int]]:
    """Return the totals sent for each key, in order."""
    sent: dict[str, list[int]] = {}
    for record in driver.output(out):
        sent.setdefault(record.key, []).append(record.value)
    return sent


def expected(given: Iterable[Any]) -> tuple[dict[str, int], dict[str, list[int]]]:
    """Return state and totals if each record counts exactly once."""
    counts = Counter(item[0] for item in given if item is not CRASH)
    return dict(counts), {key: list(range(1, n + 1)) for key, n in counts.items()}
