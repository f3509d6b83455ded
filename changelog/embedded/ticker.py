"""The background thread of an open log, for its periodic work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger("strandline")

TICK_S = 0.5
"""Seconds between two ticks."""


class Ticker:
    """Calls `tick` every TICK_S seconds until it is stopped. An exception is logged, not raised."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strandline-owner", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and return when it has ended."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                self._tick()
            except Exception:
                _log.exception("the log's periodic work failed; the next tick tries again")
