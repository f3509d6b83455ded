"""Windows of the words' letters, in plain Python, and what the workers sent for them.

Most words have the time of the wall clock at which they were written, and some are older, so that
they may be late. Each final result must be sent once, with the figures of the words that
were not late; each late word must be in the topic for them, once.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from strandline.changelog.records import TopicPartition
from tests.workers.pipeline import GRACE_MS, PARTITIONS, WINDOW_MS

EXAMPLES = 3


class Result(NamedTuple):
    """Result of a window."""

    letter: str
    start: int
    n: int
    total: int


class Windows:
    """Expected results of the words that were read so far, and those that came."""

    def __init__(self) -> None:
        self._watermarks = dict.fromkeys(range(PARTITIONS), 0)
        """Greatest time in ms by partition of the input."""
        self._expected: dict[tuple[str, int], tuple[int, int]] = {}
        self._late = Counter[int]()
        self._sent = Counter[Result]()
        self._kept = Counter[int]()

    def put_in(self, tp: TopicPartition, word: str, value: int, at_ms: int) -> None:
        """Take a word of the input, in the order of its partition."""
        start, before = at_ms // WINDOW_MS * WINDOW_MS, self._watermarks[tp.partition]
        if start + WINDOW_MS + GRACE_MS <= before:
            self._late[value] += 1
        else:
            n, total = self._expected.get((word[0], start), (0, 0))
            self._expected[word[0], start] = n + 1, total + value
        self._watermarks[tp.partition] = max(before, at_ms)

    def came_out(self, row: Any) -> None:
        """Take a final result."""
        start = round(row["window_start"].timestamp() * 1_000)
        self._sent[Result(row["letter"], start, row["n"], row["total"])] += 1

    def came_late(self, value: int) -> None:
        """Take a word from the topic of late ones."""
        self._kept[value] += 1

    @property
    def count(self) -> int:
        """Number of results that came."""
        return self._sent.total()

    @property
    def late(self) -> int:
        """Number of late words."""
        return self._late.total()

    def wrong(self) -> list[str]:
        """Return the differences of what came from what was expected, once all input is handled."""
        watermark = min(self._watermarks.values())
        closed = Counter(
            Result(letter, start, *figures)
            for (letter, start), figures in self._expected.items()
            if start + WINDOW_MS + GRACE_MS <= watermark
        )
        found = {
            "windows too many": self._sent - closed,
            "windows missing": closed - self._sent,
            "late words too many": self._kept - self._late,
            "late words missing": self._late - self._kept,
        }
        return [
            f"{each.total()} {what}, as {sorted(each)[:EXAMPLES]}"
            for what, each in found.items()
            if each
        ]
