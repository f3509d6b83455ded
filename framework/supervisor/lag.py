"""How far a worker is behind the ends of its inputs, and whether the log answers at all.

Asked in a thread of its own: a log that does not answer keeps who asks it waiting, and just then the
worker's reports must go on.
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
"""How often the log is asked."""
SILENT_SECONDS = 3.0
"""An answer that takes longer counts as none."""

Positions = Mapping[TopicPartition, int | None]


class LagMonitor:
    """Asks until it is closed, of the partitions that `positions` gives; of `probes` if it gives none."""

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
        """Since when there is no answer to what was asked."""
        threading.Thread(target=self._ask_on, name="strandline-behind", daemon=True).start()

    def lag(self) -> dict[str, int]:
        """By topic; of now, but for ASK_SECONDS. Empty while it is not known."""
        return {} if self.silent() else self._lag

    def silent(self) -> float:
        """For how many seconds the log has not answered; 0 if it does."""
        since = self._unanswered
        seconds = 0.0 if since is None else self._clock.monotonic() - since
        return seconds if seconds > SILENT_SECONDS else 0.0

    def close(self) -> None:
        """Ask no more; a question that is not answered yet is not waited for."""
        self._over.set()

    def _ask_on(self) -> None:
        while not self._over.is_set():
            self._ask()
            self._over.wait(ASK_SECONDS)

    def _ask(self) -> None:
        if self._unanswered is None:
            self._unanswered = self._clock.monotonic()
        try:
            self._lag = self._asked()
        except Retriable:
            return
        except StrandlineError:
            """An answer too; the worker meets it as well, and says so."""
        self._unanswered = None

    def _asked(self) -> dict[str, int]:
        positions = self._positions()
        known = [tp for tp, offset in positions.items() if offset is not None]
        ends = self._broker.offsets(known or self._probes)
        stable = {tp: end.last_stable_offset for tp, end in ends.items()}
        behind: defaultdict[str, int] = defaultdict(int)
        for tp, lag in lags(positions, stable).items():
            behind[tp.topic] += lag
        return dict(behind)
