"""Ends slices that take too long, on a thread of its own.

A slice is sized by what the last ones took, so it takes too long when handlers have become slow. The
loop over records reads no clock. This thread cuts the slice short instead: it ends after the record
that is being handled. The thread is parked while nothing is handled, and it is not woken for each slice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

GUARD_S = 0.1
"""Seconds after which a slice ends with the running record."""


class SliceGuard:
    """Calls `cut` again and again for a slice that goes on for longer than `seconds` (GUARD_S).

    `begin` and `end` belong to one thread. A slice that follows a long one immediately may be cut
    too early, but never before its first record.
    """

    def __init__(self, cut: Callable[[], None], seconds: float | None = None) -> None:
        self._cut = cut
        self._seconds = GUARD_S if seconds is None else seconds
        self._due: float | None = None
        """When the running slice is to end; None between slices."""
        self._changed = threading.Condition()
        self._is_parked = False
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """A slice begins."""
        self._due = time.perf_counter() + self._seconds
        # The thread sets _is_parked before it looks at _due a last time, and this sets _due before it
        # looks at _is_parked: at least one of the two sees what the other has done.
        if self._is_parked:
            with self._changed:
                self._changed.notify()
        elif self._thread is None:
            self._thread = threading.Thread(
                target=self._watch, name="strandline-slices", daemon=True
            )
            self._thread.start()

    def end(self) -> None:
        """The slice has ended."""
        self._due = None

    def close(self) -> None:
        """End the thread; harmless when repeated."""
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
        self._is_parked = True
        if self._due is None:
            self._changed.wait()
        self._is_parked = False
