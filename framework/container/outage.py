"""Waits of a running app, with their log messages: for disk space, and for an unavailable log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.errors import DiskFull, Retriable
from strandline.framework.patience import (
    FIRST_RETRY_PAUSE_S,
    LONGEST_RETRY_PAUSE_S,
    REPEAT_SECONDS,
    Patience,
)

_log = logging.getLogger("strandline")

T = TypeVar("T")

FIRST_PAUSE_S = 0.1
"""Seconds of the first pause while the disk is full; each further one is twice as long."""
LONGEST_PAUSE_S = 5.0
"""Maximum seconds of a pause while the disk is full."""
STEP_S = 0.05
"""Maximum seconds between a request to stop and the end of a pause."""


class Outage:
    """A full disk, from the first error to the next successful commit."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pause = FIRST_PAUSE_S
        self._begun = 0.0
        self._logged_at = 0.0
        self.reason: DiskFull | None = None
        """Error for which the app waits; None if it does not wait."""

    def disk_full(self, error: DiskFull) -> None:
        """Note that the disk is full; log it the first time, then every minute."""
        now = self._clock.monotonic()
        if self.reason is None:
            self._begun = now
        if self.reason is None or now - self._logged_at >= REPEAT_SECONDS:
            self._logged_at = now
            fields = {"error": error, "seconds": round(now - self._begun, 3)}
            _log.error("the app waits for room, and goes on by itself: %s", error, extra=fields)
        self.reason = error

    def pause(self, ended: Callable[[], bool]) -> bool:
        """Wait, twice as long each time, until `ended` returns True; return False then."""
        left, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_S)
        waiting = threading.Event()
        while left > 0 and not ended():
            waiting.wait(min(left, STEP_S))
            left -= STEP_S
        return not ended()

    def end(self) -> None:
        """Note that a commit has succeeded; log the end of the outage if there was one."""
        if self.reason is not None:
            seconds = self._clock.monotonic() - self._begun
            fields = {"seconds": round(seconds, 3)}
            _log.warning("there is room again after %.0f s: the app goes on", seconds, extra=fields)
            self.reason = None
            self._pause = FIRST_PAUSE_S


def patiently(
    call: Callable[[], T],
    ended: Callable[[], bool] = bool,
    *,
    passing: tuple[type[Retriable], ...] = (),
) -> T:
    """Repeat a call while it raises Retriable, for at most PATIENCE_SECONDS.

    The outage is logged after a second, then every minute, and when it is over.

    Args:
        call: The call to repeat.
        ended: Returns True if the call is not to be repeated any more.
        passing: Errors after which the call is not repeated.

    Returns:
        The result of the call.

    Raises:
        Retriable: The last error of the call.
    """
    pause, patience = threading.Event(), Patience(SystemClock())
    seconds = FIRST_RETRY_PAUSE_S
    while True:
        patience.ask()
        try:
            result = call()
        except Retriable as error:
            if isinstance(error, passing) or ended() or not patience.failed(error):
                raise
        else:
            patience.answered()
            return result
        pause.wait(seconds)
        seconds = min(2 * seconds, LONGEST_RETRY_PAUSE_S)
