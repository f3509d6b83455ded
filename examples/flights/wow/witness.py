"""Comparison of every output with the flights themselves, as both are committed.

Flights of a carrier are in one partition, so the n-th output of a carrier must be the statistics of
its first n flights. These are computed here from the raw flights, independently of the app.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from examples.flights.app import Delays, carrier_delays, flights
from strandline.changelog.broker import Broker
from strandline.changelog.errors import StrandlineError
from strandline.changelog.records import TopicPartition
from strandline.framework.decoding import decode


class Witness:
    """Reader on a thread of its own, until it is stopped."""

    def __init__(self, broker: Broker) -> None:
        self.totals: dict[str, Delays] = {}
        """Latest output, by carrier."""
        self.flown: dict[str, Delays] = defaultdict(Delays)
        """Statistics of the flights so far, by carrier."""
        self.outputs = self.lost = self.differing = 0
        self._expected: dict[str, dict[int, Delays]] = defaultdict(dict)
        self._broker = broker
        self._positions = {
            TopicPartition(topic.name, number): 0
            for topic in (flights, carrier_delays)
            for number in range(broker.topic(topic.name).partitions)
        }
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def doubled(self) -> int:
        """Number of flights that were counted more than once."""
        return sum(
            max(0, total.n - self.flown[carrier].n)
            for carrier, total in sorted(self.totals.items())
        )

    @property
    def waiting(self) -> int:
        """Number of flights without an output so far."""
        return sum(
            max(0, flown.n - self.totals.get(carrier, Delays()).n)
            for carrier, flown in sorted(self.flown.items())
        )

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)

    def _watch(self) -> None:
        while not self._stop.is_set():
            try:
                fetched = self._broker.fetch(self._positions, timeout=0.1)
            except StrandlineError:
                self._stop.wait(0.1)
                continue
            # Flights first: outputs of a fetch were computed from flights of the same fetch or
            # earlier ones.
            for topic in (flights, carrier_delays):
                for tp, found in fetched.items():
                    if tp.topic == topic.name:
                        for key, value in self._records(topic, found.batches):
                            self._see(topic, key, value)
                        self._positions[tp] = found.next_offset

    def _records(self, topic: Any, batches: Any) -> Iterator[tuple[str, Any]]:
        for batch in batches:
            for chunk in decode(topic, batch, tombstones=False):
                yield from ((record.key, record.value) for record in chunk.records)

    def _see(self, topic: Any, carrier: str, value: Any) -> None:
        if topic is flights:
            self.flown[carrier] = flown = self.flown[carrier].add(value)
            self._expected[carrier][flown.n] = flown
            return
        before = self.totals.get(carrier, Delays())
        self.outputs += 1
        self.lost += max(0, value.n - before.n - 1)
        self.differing += self._expected[carrier].pop(value.n, None) != value
        self.totals[carrier] = value
