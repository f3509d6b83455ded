"""Schedule of calls of a class task's `window`.

It is called at a fixed interval of the wall clock. At the end of a bounded run it is called once
more if a step ran since the last call. Each commit records whether such a call is pending.
"""

from __future__ import annotations

from strandline.changelog.clock import Clock


class WindowTimer:
    """Schedule of the windows of one task instance."""

    def __init__(self, interval_ms: int | None, clock: Clock) -> None:
        self._interval_ms = interval_ms
        self._clock = clock
        self._next = self._committed = clock.now_ms() + (interval_ms or 0)
        self.is_pending = False
        """True if a step ran after the last call of `window`."""
        self._was_pending = False

    def next_at(self) -> int | None:
        """Return the end of the next window in ms since the epoch; None without windows.

        It is at most one interval from now, even if the clock was set back.
        """
        if not self._interval_ms:
            return None
        self._next = min(self._next, self._clock.now_ms() + self._interval_ms)
        return self._next

    def is_due(self, now: int) -> bool:
        """Return True if a window has ended by `now` (ms)."""
        at = self.next_at()
        return at is not None and at <= now

    def end_window(self, now: int) -> None:
        """End the window that was due; the next one begins at `now` (ms)."""
        self._next = now + (self._interval_ms or 0)

    def handled(self) -> None:
        """Note that a step ran, so that a call of `window` is pending."""
        self.is_pending = self._interval_ms is not None

    def called(self) -> None:
        """Note that `window` was called, so that no call is pending."""
        self.is_pending = False

    def restored(self, *, pending: bool) -> None:
        """Set whether a call is pending, as read from the last commit."""
        self.is_pending = self._was_pending = pending and self._interval_ms is not None

    def committed(self) -> None:
        """Note that all windows so far are committed."""
        self._committed, self._was_pending = self._next, self.is_pending

    def rewind(self) -> None:
        """Return to the state of the last commit, so that later windows are due again."""
        self._next, self.is_pending = self._committed, self._was_pending
