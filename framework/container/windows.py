"""When the `window` of a class task is called.

Every so many milliseconds of the wall clock and, where a bounded run ends, once more if something was
handled since the last call. The commit says whether such a call is still owed.
"""

from __future__ import annotations

from strandline.changelog.clock import Clock


class WindowTimer:
    """The windows of one task instance."""

    def __init__(self, interval_ms: int | None, clock: Clock) -> None:
        self._interval_ms = interval_ms
        self._clock = clock
        self._next = self._committed = clock.now_ms() + (interval_ms or 0)
        self.is_owed = False
        """True if something was handled that no call of `window` has followed."""
        self._was_owed = False

    def next_at(self) -> int | None:
        """Milliseconds since the epoch at which the next window ends; None without windows.

        At most an interval from now, also when the clock was set back.
        """
        if not self._interval_ms:
            return None
        self._next = min(self._next, self._clock.now_ms() + self._interval_ms)
        return self._next

    def is_due(self, now: int) -> bool:
        """Whether a window has ended by `now` (ms)."""
        at = self.next_at()
        return at is not None and at <= now

    def passed(self, now: int) -> None:
        """The window that was due is over; the next one begins at `now` (ms)."""
        self._next = now + (self._interval_ms or 0)

    def handled(self) -> None:
        """Something was handled, so a call is owed."""
        self.is_owed = self._interval_ms is not None

    def called(self) -> None:
        """A call has followed everything that was handled."""
        self.is_owed = False

    def restored(self, *, owed: bool) -> None:
        """Take from the last commit whether a call is owed."""
        self.is_owed = self._was_owed = owed and self._interval_ms is not None

    def committed(self) -> None:
        """What the windows so far have done is committed."""
        self._committed, self._was_owed = self._next, self.is_owed

    def rewind(self) -> None:
        """What was done since the last commit is undone, so its windows are due again."""
        self._next, self.is_owed = self._committed, self._was_owed
