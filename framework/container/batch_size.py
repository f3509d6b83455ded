"""Size of the batches of one instance: as many records as take about a tenth of a second.

A batch takes a time for each of its records, and a time of its own, which is long while the machine
is busy. If the latter alone takes that long, smaller batches would only make everything slower:
then a batch has as many records as take as long as the rest of it. Both times are estimated by a
line through the last batches, of which later ones have more weight.

Functions may also be called for results at a commit. Then a commit has as many records as suit it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from strandline.framework.container.slices import MAX_ROUND_S

BATCH_SECONDS = 0.1
"""Target duration of a batch in seconds: the usual time between two commits. Shorter ones would pay
more often for what a batch costs itself, and their results would not be visible sooner."""
FIRST_BATCH_RECORDS = 256
"""Number of records in the first batch. Nothing is known about the handler then, and a worker whose
batch takes longer than max_poll_interval_ms loses its partitions and begins again with this one."""
MAX_BATCH_RECORDS = 524_288
"""Maximum number of records in a batch, which bounds the memory of a step."""
MAX_LOOK_RECORDS = 8
"""Number of records of a batch up to which a larger one is tried, if they take as long as a batch is
to take."""
MAX_GROWTH = 4
"""Maximum factor from one size to the next."""
MAX_OWN_SECONDS = 0.2
"""Maximum number of seconds that the records of a batch take, because the batch itself takes long."""


class BatchSize:
    """Number of records that take about as long as a batch is to take.

    >>> size = BatchSize()
    >>> size.records
    256
    >>> size.took(0.5, 4_096)
    >>> size.records
    819
    """

    def __init__(self, first: int | None = None) -> None:
        """Begin with `first` records, or as many as suit a handler of whole batches."""
        self.records = FIRST_BATCH_RECORDS if first is None else first
        """Maximum number of records of the next batch."""
        self._line = _Line()

    def took(self, seconds: float, handled: int) -> None:
        """Choose the size of the next batch, after one of `handled` records that took `seconds`."""
        if not handled:
            return
        self._line.add(handled, seconds)
        if handled < self.records and seconds <= BATCH_SECONDS:
            return  # it says nothing about larger batches
        # A stall bends the line. At the pace of the last batch none takes longer than a round.
        growth = min(MAX_GROWTH, max(1.0, MAX_ROUND_S / max(seconds, 1e-9)))
        most = int(growth * handled)
        self.records = max(1, min(self._fitting(handled), most, MAX_BATCH_RECORDS))

    def cut_short(self, rows: int) -> None:
        """Choose the next size after a batch that took too long when `rows` of its rows were done."""
        self.records = max(1, min(rows, self.records) // 2)
        self._line = _Line()

    def _fitting(self, handled: int) -> int:
        own = min(self._line.start, MAX_OWN_SECONDS)
        if 2 * own > BATCH_SECONDS and not self._line.has_spread:
            # Either the batch itself or its records have become slower: another size will tell.
            return handled // 2 or 2
        fitting = int(max(BATCH_SECONDS - own, own) / max(self._line.slope, 1e-9))
        is_quick = self._line.seconds * MAX_GROWTH <= MAX_ROUND_S
        if (
            handled <= MAX_LOOK_RECORDS
            and fitting <= handled
            and is_quick
            and not self._line.has_spread
        ):
            # A few records do not tell a slow record from a slow batch: twice as many do.
            return 2 * handled
        return fitting


class CommitSize:
    """Number of records whose results, which are passed on at the commit, take up to about a second.

    A function that is called for results may take any time for each, and a commit that takes longer
    than max_poll_interval_ms would be repeated for ever. So the first commit has one record.

    >>> size = CommitSize(1)
    >>> size.took(0.001, 1)
    >>> size.records
    4
    >>> size.took(8.0, 4)
    >>> size.records
    1
    """

    def __init__(self, first: int | None = None) -> None:
        """Begin with `first` records, or without a limit for ever."""
        self.records: float = math.inf if first is None else first
        """Maximum number of records of the next commit."""

    def took(self, seconds: float, handled: int) -> None:
        """Choose the next size after the results of a commit were passed on."""
        if seconds > MAX_ROUND_S:
            self.records = max(1, int(handled * MAX_ROUND_S / seconds / 2))
        elif handled >= self.records and seconds * MAX_GROWTH <= MAX_ROUND_S:
            self.records *= MAX_GROWTH


@dataclass
class _Line:
    """Line of least squares through the seconds of batches by their records."""

    slope: float = 0.0
    """Seconds of a record."""
    start: float = 0.0
    """Seconds of a batch without records."""
    weight: float = 0.0
    records: float = 0.0
    """Mean of the records."""
    seconds: float = 0.0
    """Mean of the seconds."""
    spread: float = 0.0
    """Mean square of the distance of the records from their mean."""
    both: float = 0.0
    """Mean product of the distances of records and seconds from their means."""

    @property
    def has_spread(self) -> bool:
        """True if the batches differ enough in records to tell what a record takes."""
        return self.spread > (_LEAST_SPREAD * self.records) ** 2

    def add(self, records: int, seconds: float) -> None:
        """Move the line towards a batch."""
        self.weight = _KEPT * self.weight + 1
        part = 1 / self.weight
        away, above = records - self.records, seconds - self.seconds
        self.records += part * away
        self.seconds += part * above
        self.spread = (1 - part) * (self.spread + part * away * away)
        self.both = (1 - part) * (self.both + part * away * above)
        if self.weight == 1:
            self.slope = seconds / records
        elif self.has_spread:
            self.slope = max(0.0, self.both / self.spread)
        self.slope = min(self.slope, self.seconds / self.records)
        self.start = max(0.0, self.seconds - self.slope * self.records)


_KEPT = 0.7
"""Weight of a batch relative to that of the next one."""
_LEAST_SPREAD = 0.1
"""Spread of the records, relative to their mean, from which on they say what a record takes."""
