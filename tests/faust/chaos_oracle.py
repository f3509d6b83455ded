"""Comparison of everything that a Faust app of the chaos has written with its input.

Input values are never used twice, so each output shows from which record it comes. The running
figures of a key must be those of the input records up to that one, in the order of the log.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from strandline.changelog.log import Log
from tests.faust.faust_workers import latest, rows
from tests.faust.sample_chaos_terms import BUCKETS, WINDOW_S

EXAMPLES = 3


@dataclass
class Findings:
    """Outputs that were lost, doubled, or different."""

    records: int = 0
    outputs: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: list[str] = field(default_factory=list)

    def compare(self, what: str, found: Mapping[Any, Any], wanted: Mapping[Any, Any]) -> None:
        """Note the keys whose values differ."""
        keys = sorted(found.keys() | wanted.keys())
        off = [key for key in keys if found.get(key) != wanted.get(key)]
        if off:
            first = off[0]
            self.wrong.append(
                f"{what}: {len(off)} of {len(wanted)} keys are off, as {off[:EXAMPLES]}; {first} is "
                f"{found.get(first)!s:.100}, should be {wanted.get(first)!s:.100}"
            )

    def count(self, what: str, found: Counter[int], wanted: Counter[int]) -> None:
        """Count outputs that are missing, and those that came again."""
        missing, more = wanted - found, found - wanted
        self.lost += missing.total()
        self.doubled += more.total()
        if missing or more:
            self.wrong.append(
                f"{what}: {missing.total()} missing, as {sorted(missing)[:EXAMPLES]}, "
                f"{more.total()} too many, as {sorted(more)[:EXAMPLES]}"
            )


class Expected:
    """State and outputs that follow from the input."""

    def __init__(self, log: Log) -> None:
        self.copies: dict[int, dict[str, int]] = {}
        """Output of each input value."""
        self.values: Counter[int] = Counter()
        self.totals: dict[str, list[int]] = {}
        self.recent: Counter[str] = Counter()
        self.buckets: dict[str, int] = Counter()
        table = log.read("source")
        names = ("key", "value", "timestamp")
        columns = [table.column(name).to_pylist() for name in names]
        for key_, value_, at in zip(*columns, strict=True):
            self._add(key_.decode(), int(value_), at.timestamp())

    def _add(self, key: str, value: int, at_s: float) -> None:
        self.values[value] += 1
        number, total = self.totals.get(key, (0, 0))
        number, total = number + 1, total + value
        self.totals[key] = [number, total]
        start = at_s // WINDOW_S * WINDOW_S
        window = str([key, [start, start + WINDOW_S - 0.1]])
        self.recent[window] += 1
        self.buckets[str(value % BUCKETS)] += 1
        row = {"value": value, "n": number, "total": total, "window": self.recent[window]}
        self.copies[value] = row


def compare(log: Log, acknowledged: Counter[int]) -> Findings:
    """Compare the log's topics with each other, and the input with what was acknowledged."""
    found, expected = Findings(), Expected(log)
    found.records = len(expected.copies)
    found.count("source", expected.values, acknowledged)
    copies = [value for *_, value in rows(log, "copies")]
    found.count("copies", Counter(row["value"] for row in copies), acknowledged)
    found.compare("copies", {row["value"]: row for row in copies}, expected.copies)
    grouped: dict[str, list[int]] = defaultdict(list)
    values: Counter[int] = Counter()
    for _, _, bucket, (value, number) in rows(log, "buckets"):
        grouped[str(bucket)].append(number)
        values[value] += 1
    found.count("buckets", values, acknowledged)
    in_order = {bucket: list(range(1, n + 1)) for bucket, n in expected.buckets.items()}
    found.compare("numbers of buckets", grouped, in_order)
    found.outputs = len(copies) + values.total()
    found.compare("table totals", latest(log, "chaos-totals-changelog"), expected.totals)
    found.compare("table recent", latest(log, "chaos-recent-changelog"), expected.recent)
    found.compare("table per_bucket", latest(log, "chaos-per_bucket-changelog"), expected.buckets)
    return found


def expected_views(log: Log) -> dict[str, Mapping[str, Any]]:
    """Return what the workers' views show, put together, once all input is handled."""
    expected = Expected(log)
    return {"totals": expected.totals, "per_bucket": expected.buckets}


def compare_views(
    found: Findings,
    shown: Mapping[str, Mapping[str, Any]],
    expected: Mapping[str, Mapping[str, Any]],
) -> None:
    """Compare what the workers' views show, put together, with what they should."""
    for table, wanted in expected.items():
        found.compare(f"{table} in workers", shown[table], wanted)
