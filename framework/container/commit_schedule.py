"""Schedule of the commits of a worker, by time and by records."""

from __future__ import annotations

from strandline.changelog.clock import Clock
from strandline.framework.options import Options


class CommitSchedule:
    """Time and records until the next commit of a worker. Used by the worker's thread only."""

    def __init__(self, options: Options, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self.handled = 0
        """Number of records handled in all, without those that were undone."""
        self.uncommitted = 0
        """Number of those since the last commit."""
        self.next_at = 0.0
        """Monotonic time in seconds at which a commit is due."""

    @property
    def is_due(self) -> bool:
        """True if the commit interval has passed, or as many records were handled as allowed."""
        enough = self.uncommitted >= self._options.commit_records
        return enough or self._clock.monotonic() >= self.next_at

    @property
    def seconds_left(self) -> float:
        """Seconds until the commit interval has passed; negative after that."""
        return self.next_at - self._clock.monotonic()

    def note(self, handled: int) -> None:
        """Count records that were handled."""
        self.handled += handled
        self.uncommitted += handled

    def restart(self) -> None:
        """Begin a new interval, after a commit or an attempt of one."""
        self.uncommitted = 0
        self.next_at = self._clock.monotonic() + self._options.commit_interval_ms / 1000

    def undo(self) -> None:
        """Take back the records since the last commit, which will be handled again."""
        self.handled -= self.uncommitted
        self.uncommitted = 0
