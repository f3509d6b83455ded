"""Answers to fetches over TCP: read in parts, and counted as in flight until they are sent."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from strandline.changelog.broker import Broker
from strandline.changelog.errors import QuotaExceeded
from strandline.changelog.flight.budgets import ClientBudget
from strandline.changelog.flight.clients import Client
from strandline.changelog.flight.limits import PARTITIONS_AT_ONCE
from strandline.changelog.flight.messages import MAX_FETCH_BYTES, FetchRequest
from strandline.changelog.pins import PinName, there
from strandline.changelog.records import Fetched, Isolation, TopicPartition

Answered = dict[TopicPartition, Fetched]


class Answer:
    """Answer to one fetch, whose byte limit counts for all partitions together.

    Partitions that do not fit are answered as having no new records, and come with a later fetch.
    """

    def __init__(self, broker: Broker, budget: ClientBudget, client: Client) -> None:
        self._broker = broker
        self._budget = budget
        self._client = client
        self._taken = 0

    def fetch(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        max_bytes: int,
        isolation: Isolation,
        timeout: float,
    ) -> Answered:
        """Fetch like Broker.fetch, a group of partitions at a time. Raises QuotaExceeded."""
        left = self._room(max_bytes)
        answered: Answered = {}
        waiting = iter(positions.items())
        while left > 0 and (some := dict(islice(waiting, PARTITIONS_AT_ONCE))):
            last = len(answered) + len(some) == len(positions)
            fetched = self._broker.fetch(
                some,
                max_bytes=max(1, left // len(some)),
                isolation=isolation,
                # Only the last group waits, because a wait before it would delay the records of
                # later groups.
                timeout=timeout if last and not any(f.batches for f in answered.values()) else 0.0,
            )
            left -= self._count(fetched)
            answered |= fetched
        answered |= self._not_fetched(dict(waiting))
        return {partition: answered[partition] for partition in positions}

    def pinned(self, request: FetchRequest, pin: PinName) -> Answered:
        """Return the pinned records at the request's positions.

        Raises QuotaExceeded, UnknownPin.
        """
        left = self._room(min(request.max_bytes, MAX_FETCH_BYTES))
        pins, answered = there(self._broker.pins), Answered()
        for partition, offset in request.positions.items():
            fetched = pins.fetch(pin, partition, offset, max_bytes=max(1, left))
            left -= self._count({partition: fetched})
            answered[partition] = fetched
        return answered

    def sent(self) -> None:
        """Stop counting the answer, which was sent or is lost. Idempotent."""
        self._budget.give(self._client, self._taken)
        self._taken = 0

    def _room(self, max_bytes: int) -> int:
        room = self._budget.room(self._client)
        if room <= 0:
            raise QuotaExceeded(
                "this client has reached the limit of fetched bytes that it has not read; read the "
                "answers first"
            )
        return min(max_bytes, room)

    def _count(self, fetched: Answered) -> int:
        size: int = sum(batch.columns.nbytes for one in fetched.values() for batch in one.batches)
        self._budget.take(self._client, size)
        self._taken += size
        return size

    def _not_fetched(self, positions: Mapping[TopicPartition, int]) -> Answered:
        ends = self._broker.offsets(list(positions)) if positions else {}
        return {
            partition: Fetched(
                [],
                offset,
                ends[partition].log_start,
                ends[partition].high_watermark,
                ends[partition].last_stable_offset,
            )
            for partition, offset in positions.items()
        }
