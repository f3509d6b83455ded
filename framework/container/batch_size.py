"""Size of the batches of one instance: as many records as take about as long as a slice.

A batch also takes a time that does not depend on its records, and which is long while the machine
is busy. Smaller batches do not help then; they only let records wait. So if batches of half the
records take about as long, their size is not to blame, and they become larger again.
"""

from __future__ import annotations

from strandline.framework.container.slices import SLICE_SECONDS

FIRST_BATCH_RECORDS = 4_096
"""Number of records in the first batch."""
MAX_BATCH_RECORDS = 262_144
"""Maximum number of records in a batch, which bounds the memory of a step."""
MAX_GROWTH = 4
"""Maximum factor from one size to the next."""
ABOUT_AS_LONG = 0.75
"""Part of the time of a batch that half its records take if the time is not that of records."""


class BatchSize:
    """Number of records that take about as long as a slice.

    >>> size = BatchSize()
    >>> size.took(0.5, 4_096)
    >>> size.records
    409
    """

    def __init__(self) -> None:
        self.records = FIRST_BATCH_RECORDS
        """Maximum number of records of the next batch."""
        self._slow: tuple[int, float] | None = None
        """Records and seconds of the first of the last batches, if all took too long."""

    def took(self, seconds: float, handled: int) -> None:
        """Choose the next size after a batch."""
        if seconds <= SLICE_SECONDS:
            self._slow = None
            if handled < self.records:
                return  # it says nothing about larger batches
        elif self._is_no_matter_of_records(seconds, handled):
            self.records = min(MAX_GROWTH * handled, MAX_BATCH_RECORDS)
            self._slow = None
            return
        fitting = int(handled * SLICE_SECONDS / max(seconds, 1e-9))
        self.records = max(1, min(fitting, MAX_GROWTH * self.records, MAX_BATCH_RECORDS))

    def _is_no_matter_of_records(self, seconds: float, handled: int) -> bool:
        """Return True if half the records have taken about as long as all before."""
        if self._slow is None:
            self._slow = handled, seconds
        most, longest = self._slow
        return 2 * handled <= most and seconds > ABOUT_AS_LONG * longest
