"""Patience with a log that does not answer, such as a Kafka cluster that elects a leader.

An app, and a worker of Faust, waits for some minutes, and then ends with the error.
"""

from __future__ import annotations

import logging

from strandline.changelog.clock import Clock
from strandline.changelog.errors import Retriable

_log = logging.getLogger("strandline")

PATIENCE_SECONDS = 300.0
"""Seconds for which an unreachable log is retried (as task.timeout.ms of Kafka Streams)."""
FIRST_LOG_S = 1.0
"""Seconds of an outage of the log after which the first message is logged."""
LONGEST_ATTEMPT_S = 60.0
"""Seconds that the first attempt of an outage counts at most.

Attempts have shorter deadlines. In a longer one the machine was suspended, and nothing was tried.
"""
REPEAT_SECONDS = 60.0
"""Seconds between two messages about the same outage."""
FIRST_RETRY_PAUSE_S = 0.05
"""Seconds between the first two attempts to reach the log; each further pause is twice as long."""
LONGEST_RETRY_PAUSE_S = 1.0
"""Maximum seconds between two attempts to reach the log."""


class Patience:
    """Outages of the log, one after the other: when the current one began, and what was logged."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked_at = 0.0
        """Time of the last attempt, or of the first one of an outage."""
        self._is_outage = False
        self._log_at = FIRST_LOG_S

    def ask(self) -> None:
        """Note that an attempt begins."""
        if not self._is_outage:
            self._asked_at = self._clock.monotonic()

    def failed(self, error: Retriable) -> bool:
        """Note that the log did not answer; return False if it was asked for long enough."""
        now = self._clock.monotonic()
        if not self._is_outage:
            self._is_outage, self._asked_at = True, max(self._asked_at, now - LONGEST_ATTEMPT_S)
        waited = now - self._asked_at
        if waited >= PATIENCE_SECONDS:
            return False
        if waited >= self._log_at:
            self._log_at = waited + REPEAT_SECONDS
            _log.warning(
                "the app waits for the log (for %.0f s by now), and tries again for another %.0f s: "
                "%s",
                *(waited, PATIENCE_SECONDS - waited, error),
                extra={"seconds": round(waited, 3), "error": error},
            )
        return True

    def answered(self) -> None:
        """Note that the log answers; log the end of an outage that was logged."""
        if self._is_outage and self._log_at > FIRST_LOG_S:
            waited = self._clock.monotonic() - self._asked_at
            _log.warning("the log answers again after %.0f s: the app goes on", waited)
        self._is_outage, self._log_at = False, FIRST_LOG_S
