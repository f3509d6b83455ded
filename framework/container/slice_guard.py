"""A thread that ends slices which take too long.

The size of a slice follows from the duration of the last ones, so a slice takes too long if
handlers have become slower. The loop over records reads no clock, because that would cost time for
each record. Instead this thread cuts the slice, which then ends after the running record. The
thread is parked while nothing is handled, and it is not woken for every slice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

GUARD_S = 0.1
"""Seconds after which a slice ends with the running record."""


class SliceGuard:
    """Calls `cut` repeatedly while a slice takes longer than `seconds` (default GUARD_S).

    `begin` and `end` are called by one thread. A slice that follows a long one immediately may be
    cut too early, but never before its first record.
    """

    def __init__(self, cut: Callable[[], None], seconds: float | None = None) -> None:
        self._cut = cut
        self._seconds = GUARD_S if seconds is None else seconds
        self._due: float | None = None
        """Time of `perf_counter` at which the running slice is to end; None between slices."""
        self._changed = threading.Condition()
        self._is_parked = False
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin a slice: start or wake the thread if needed."""
        self._due = time.perf_counter() + self._seconds
        # The thread sets _is_parked and then reads _due; this method sets _due and then reads
        # _is_parked. So at least one of the two sees the other's write, and no wake-up is lost.
        if self._is_parked:
            with self._changed:
                self._changed.notify()
        elif self._thread is None:
            self._thread = threading.Thread(
                target=self._watch, name="strandline-slices", daemon=True
            )
            self._thread.start()

    def end(self) -> None:
        """End the slice. The thread notices it at its next look at `_due`."""
        self._due = None

    def close(self) -> None:
        """End the thread. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        with self._changed:
            while not self._is_closed:
                due = self._due
                if due is None:
                    self._park()
                    continue
                left = due - time.perf_counter()
                if left <= 0:
                    self._cut()
                self._changed.wait(left if left > 0 else self._seconds)

    def _park(self) -> None:
        """Wait for `begin` or `close`, with `_changed` held."""
        self._is_parked = True
        if self._due is None:
            self._changed.wait()
        self._is_parked = False
