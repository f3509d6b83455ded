"""Lag of a worker behind the ends of its inputs, and detection of a log that does not answer.

The log is asked on a separate thread, because a log that does not answer blocks the caller. The
worker's reports must continue in that situation.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import Retriable, StrandlineError
from strandline.changelog.records import TopicPartition
from strandline.framework.container.status import lags

ASK_SECONDS = 1.0
"""Seconds between two requests for end offsets."""
SILENT_SECONDS = 3.0
"""Seconds without an answer after which the log is reported as silent."""

Positions = Mapping[TopicPartition, int | None]
"""Committed offset of each partition; None if it is not known."""


class LagMonitor:
    """Requests end offsets until it is closed.

    Args:
        broker: The log.
        positions: Returns the committed offsets of the worker's partitions.
        probes: Partitions to ask for while the worker has no positions, in order to notice a log
            that does not answer.
        clock: Measures time.
    """

    def __init__(
        self,
        broker: Broker,
        positions: Callable[[], Positions],
        probes: Collection[TopicPartition],
        clock: Clock,
    ) -> None:
        self._broker = broker
        self._positions = positions
        self._probes = probes
        self._clock = clock
        self._over = threading.Event()
        self._lag: dict[str, int] = {}
        self._unanswered: float | None = None
        """Monotonic time of the pending request; None if the last one was answered."""
        threading.Thread(target=self._run, name="strandline-lag", daemon=True).start()

    def lag(self) -> dict[str, int]:
        """Return the lag in offsets by topic, at most ASK_SECONDS old; empty if it is not known."""
        return {} if self.silent() else self._lag

    def silent(self) -> float:
        """Return the seconds for which the log has not answered; 0 if it answers."""
        since = self._unanswered
        seconds = 0.0 if since is None else self._clock.monotonic() - since
        return seconds if seconds > SILENT_SECONDS else 0.0

    def close(self) -> None:
        """Stop asking, without waiting for a pending request."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            self._ask()
            self._over.wait(ASK_SECONDS)

    def _ask(self) -> None:
        if self._unanswered is None:
            self._unanswered = self._clock.monotonic()
        try:
            self._lag = self._measure()
        except Retriable:
            return
        except StrandlineError:
            # An error is an answer too. The worker gets the same error, and reports it.
            pass
        self._unanswered = None

    def _measure(self) -> dict[str, int]:
        positions = self._positions()
        known = [tp for tp, offset in positions.items() if offset is not None]
        ends = self._broker.offsets(known or self._probes)
        stable = {tp: end.last_stable_offset for tp, end in ends.items()}
        total: defaultdict[str, int] = defaultdict(int)
        for tp, lag in lags(positions, stable).items():
            total[tp.topic] += lag
        return dict(total)
