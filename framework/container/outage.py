"""What a running app waits for: room on a full disk, a log that is not ready. And what it says."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.errors import DiskFull, Retriable

_log = logging.getLogger("strandline")

T = TypeVar("T")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
REPEAT_SECONDS = 60.0
STEP = 0.05
"""A pause ends at most so many seconds after a stop was asked for."""
PATIENCE_SECONDS = 300.0
"""How long a worker goes on asking a log that is out of reach (as Kafka Streams' task.timeout.ms)."""
SAID_AFTER = 1.0
LONGEST_RETRY = 1.0


class Outage:
    """The time from the first refusal to the next commit that succeeds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pause = FIRST_PAUSE
        self._begun = 0.0
        self._said = 0.0
        self.reason: DiskFull | None = None
        """Why the app waits; None if it does not."""

    def met(self, error: DiskFull) -> None:
        """Note a refusal, and say so: the first time, then every minute."""
        now = self._clock.monotonic()
        if self.reason is None:
            self._begun = now
        if self.reason is None or now - self._said >= REPEAT_SECONDS:
            self._said = now
            said = {"error": error, "seconds": round(now - self._begun, 3)}
            _log.error("the app waits for room, and goes on by itself: %s", error, extra=said)
        self.reason = error

    def pause(self, ended: Callable[[], bool]) -> bool:
        """Wait, each time longer; False as soon as `ended` says that nobody wants to go on."""
        left, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        waiting = threading.Event()
        while left > 0 and not ended():
            waiting.wait(min(left, STEP))
            left -= STEP
        return not ended()

    def over(self) -> None:
        """There was room for a commit."""
        if self.reason is not None:
            seconds = self._clock.monotonic() - self._begun
            said = {"seconds": round(seconds, 3)}
            _log.warning("there is room again after %.0f s: the app goes on", seconds, extra=said)
            self.reason = None
            self._pause = FIRST_PAUSE


def patiently(call: Callable[[], T], ended: Callable[[], bool] = bool) -> T:
    """Repeat a call that raises Retriable, for PATIENCE_SECONDS; not once `ended` says so.

    Says that it waits, again every minute, and when that is over. Raises the call's last error.
    """
    pause, clock = threading.Event(), SystemClock()
    begun, seconds, say_at = clock.monotonic(), FIRST_PAUSE / 2, SAID_AFTER
    while True:
        try:
            result = call()
            if say_at > SAID_AFTER:
                waited = clock.monotonic() - begun
                _log.warning("the log answers again after %.0f s: the app goes on", waited)
            return result
        except Retriable as error:
            waited = clock.monotonic() - begun
            if ended() or waited >= PATIENCE_SECONDS:
                raise
            if waited >= say_at:
                say_at = waited + REPEAT_SECONDS
                said = {"error": error, "seconds": round(waited, 3)}
                _log.warning(
                    "the app waits for the log (for %.0f s by now), and tries again for another %.0f s: %s",
                    *(waited, PATIENCE_SECONDS - waited, error),
                    extra=said,
                )
        pause.wait(seconds)
        seconds = min(2 * seconds, LONGEST_RETRY)
