"""Windowed tables of Faust's documentation: which windows a record counts in, and their end."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from strandline import changelog
from strandline.changelog.log import Log
from tests.faust.faust_workers import append, by_key, eventually, in_folder, latest, rows, worker

PER_TEN, PER_FIVE = "windows-per_ten-changelog", "windows-per_five-changelog"
ENDING = "windows-ending-changelog"


def reading(sensor: str, amount: int, at_s: float) -> dict[str, Any]:
    """Return a reading with the time at which it was taken."""
    return {
        "sensor": sensor,
        "amount": amount,
        "at": datetime.fromtimestamp(at_s, UTC).isoformat(),
    }


def window(start: float, size: float) -> list[float]:
    """Return a window as Faust writes it."""
    return [float(start), start + size - 0.1]


def table(log: Log, name: str) -> Counter[tuple[str, float, float]]:
    """Return the windows of a table, as its changelog has them."""
    found: Counter[tuple[str, float, float]] = Counter()
    for _, _, (key, (start, end)), value in rows(log, name):
        found[key, start, end] = value or 0
    return +found


def counted(readings: Iterable[dict[str, Any]], size: int) -> Counter[tuple[str, float, float]]:
    """Return the sums of tumbling windows of the times of readings."""
    found: Counter[tuple[str, float, float]] = Counter()
    for one in readings:
        start = datetime.fromisoformat(one["at"]).timestamp() // size * size
        first, last = window(start, size)
        found[one["sensor"], first, last] += one["amount"]
    return found


def test_windows_of_a_field_of_the_record_and_of_the_clock(tmp_path: Path) -> None:
    began_s = int(time.time()) - 1000
    taken = [reading(f"s{n % 2}", n, began_s + n) for n in range(40)]
    sent_ms = (began_s + 3) * 1000
    with changelog.open(tmp_path / "log") as log:
        log.create_topic("readings", 1)
        log.append(
            "readings",
            [
                {"value": json.dumps(one).encode(), "timestamp": sent_ms + 1000 * n}
                for n, one in enumerate(taken)
            ],
        )
        with worker("sample_windows", in_folder(tmp_path), tmp_path) as running:
            eventually(lambda: len(rows(log, "seen")) == 40)
            assert running.stop() == 0
        assert table(log, PER_TEN) == counted(taken, 10)
        hopping: Counter[tuple[str, float, float]] = Counter()
        for n, one in enumerate(taken):
            at = sent_ms / 1000 + n
            for start in (at // 5 * 5 - 5, at // 5 * 5):
                first, last = window(start, 10)
                hopping[one["sensor"], first, last] += one["amount"]
        assert table(log, PER_FIVE) == hopping
        seen = [one for of in by_key(log, "seen").values() for one in of]
        assert len(seen) == 40
        assert all(one["value"] == one["current"] for one in seen)
        totals = {f"s{parity}": sum(range(parity, 40, 2)) for parity in (0, 1)}
        last = by_key(log, "seen")["s1"][-1]
        assert last["now"] in (totals["s1"], 0)  # 0 at the turn of an hour
        assert dict(last["hour"]).keys() == totals.keys()


def test_a_window_is_closed_once_with_all_that_it_has(tmp_path: Path) -> None:
    at_s = time.time() + 10
    taken = [reading(f"s{n % 2}", n, at_s + n / 10) for n in range(40)]
    skip = {"FAUST_OPTIONS": "?on_error=skip"}
    with changelog.open(tmp_path / "log") as log:
        log.create_topic("readings", 1)
        append(log, "readings", [*taken[:20], reading("bad", 1, at_s), *taken[20:]])
        expected = sorted(
            [key, start, end, n] for (key, start, end), n in counted(taken, 2).items()
        )
        with worker("sample_windows", in_folder(tmp_path), tmp_path, **skip) as running:
            eventually(lambda: len(rows(log, "closed")) >= len(expected))
            eventually(lambda: latest(log, ENDING) == {})
            assert running.stop() == 0
        assert sorted(value for *_, value in rows(log, "closed")) == expected


def test_windows_of_an_earlier_worker_are_closed_too(tmp_path: Path) -> None:
    """In stock Faust a worker closes only windows that it has written since its start."""
    at_s = time.time() + 15
    taken = [reading(f"s{n % 2}", n, at_s + n / 10) for n in range(20)]
    with changelog.open(tmp_path / "log") as log:
        log.create_topic("readings", 1)
        append(log, "readings", taken)
        expected = counted(taken, 2)
        with worker("sample_windows", in_folder(tmp_path), tmp_path) as running:
            eventually(lambda: table(log, ENDING) == expected)
            running.kill()
        assert rows(log, "closed") == []
        with worker("sample_windows", in_folder(tmp_path), tmp_path) as running:
            eventually(lambda: len(rows(log, "closed")) >= len(expected))
            eventually(lambda: latest(log, ENDING) == {})
            assert running.stop() == 0
        closed = {(key, start, end): n for *_, (key, start, end, n) in rows(log, "closed")}
        assert closed == expected


@pytest.mark.parametrize("is_old", [False, True])
def test_the_age_of_its_changelog_closes_no_window(tmp_path: Path, *, is_old: bool) -> None:
    """Faust lets the log delete a change `expires` after it was written, before its window ends."""
    at_s = time.time() + 3600
    taken = [reading(f"s{n % 2}", n, at_s + n / 10) for n in range(20)]
    with changelog.open(tmp_path / "log") as log:
        config = {"cleanup.policy": "compact,delete", "retention.ms": "2000"}
        if is_old:
            log.create_topic(ENDING, 1, config=config)  # as an earlier version has left it
        log.create_topic("readings", 1)
        append(log, "readings", taken)
        with worker("sample_windows", in_folder(tmp_path), tmp_path) as running:
            eventually(lambda: table(log, ENDING) == counted(taken, 2))
            assert running.stop() == 0
        found = log.broker.topic(ENDING).effective
        assert (found.compact, found.delete) == (True, False)
