"""Answers to fetches over TCP: read in parts, and counted as in flight until they are sent."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.errors import QuotaExceeded
from strandline.changelog.flight.budgets import ClientBudget
from strandline.changelog.flight.clients import Client
from strandline.changelog.flight.limits import FIRST_BATCH_BYTES, PARTITIONS_AT_ONCE, RELEASE_BYTES
from strandline.changelog.flight.locating import Locate
from strandline.changelog.flight.messages import MAX_FETCH_BYTES, FetchRequest, Located
from strandline.changelog.pins import PinName, there
from strandline.changelog.records import Fetched, Isolation, TopicPartition

Read = Callable[[TopicPartition, int, int], Fetched]
"""Reads one partition from an offset on, up to a number of bytes."""
Answered = dict[TopicPartition, Fetched]


class Answer:
    """Answer to one fetch, whose byte limit counts for all partitions together.

    Partitions that do not fit are answered as having no new records, and come with a later fetch.
    """

    def __init__(
        self, broker: Broker, locate: Locate, budget: ClientBudget, client: Client
    ) -> None:
        self._broker = broker
        self._locate = locate
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
        """Fetch like Broker.fetch, a partition at a time. Raises QuotaExceeded.

        It waits without a reservation, because idle readers would use up the budget.
        """
        located = self._located(positions, isolation, timeout)
        answered = {partition: view.nothing() for partition, view in located.items()}
        new = {partition: positions[partition] for partition, v in located.items() if v.pieces}

        def read(partition: TopicPartition, offset: int, size: int) -> Fetched:
            there = {partition: offset}
            return self._broker.fetch(there, max_bytes=size, isolation=isolation)[partition]

        return answered | self._read(new, max_bytes, read)

    def pinned(self, request: FetchRequest, pin: PinName) -> Answered:
        """Return the pinned records at the request's positions.

        Raises QuotaExceeded, UnknownPin.
        """
        pins = there(self._broker.pins)

        def read(partition: TopicPartition, offset: int, size: int) -> Fetched:
            return pins.fetch(pin, partition, offset, max_bytes=size)

        found = self._read(request.positions, min(request.max_bytes, MAX_FETCH_BYTES), read)
        left = {tp: offset for tp, offset in request.positions.items() if tp not in found}
        return found | self._not_fetched(left)

    def sent(self) -> None:
        """Stop counting the answer, which was sent or is lost. Idempotent."""
        taken, self._taken = self._taken, 0
        if taken >= RELEASE_BYTES and self._client.is_gone:
            _release_free_memory()
        self._budget.give(self._client, taken)

    def _located(
        self, positions: Mapping[TopicPartition, int], isolation: Isolation, timeout: float
    ) -> Located:
        """Return where the records are. If there are none yet, wait for them."""
        located: Located = {}
        waiting = iter(positions.items())
        while some := dict(islice(waiting, PARTITIONS_AT_ONCE)):
            last = len(located) + len(some) == len(positions)
            # Only the last group waits, because a wait before it would delay the records of later
            # groups.
            idle = last and not any(view.pieces for view in located.values())
            located |= self._locate(
                some, max_bytes=1, isolation=isolation, timeout=timeout if idle else 0.0
            )
        return located

    def _read(
        self, positions: Mapping[TopicPartition, int], max_bytes: int, read: Read
    ) -> Answered:
        """Read the partitions that fit into `max_bytes`, at least one batch of the first one.

        The bytes are reserved before they are read, so parallel fetches cannot use the same room.
        """
        if not positions:
            return {}
        reserved = self._budget.reserve(self._client, max(max_bytes, FIRST_BATCH_BYTES))
        self._taken += reserved
        used, limit, answered = 0, min(max_bytes, reserved), Answered()
        try:
            used = _read_into(answered, positions, limit, read)
        except BaseException:
            answered.clear()
            raise
        finally:
            self._settle(reserved, used, answered)
        return answered

    def _settle(self, reserved: int, used: int, answered: Answered) -> None:
        """Count what was read. Raises QuotaExceeded, without the records but still counting."""
        try:
            self._budget.settle(self._client, reserved, used)
        except QuotaExceeded:
            # The traceback refers to the frames that refer to the records.
            answered.clear()
            raise
        self._taken += used - reserved

    def _not_fetched(self, positions: Mapping[TopicPartition, int]) -> Answered:
        ends = self._broker.offsets(list(positions)) if positions else {}
        return {
            partition: Fetched(
                [],
                offset,
                ends[partition].log_start,
                ends[partition].high_watermark,
                ends[partition].last_stable_offset,
                topic_id=ends[partition].topic_id,
            )
            for partition, offset in positions.items()
        }


def _read_into(
    answered: Answered, positions: Mapping[TopicPartition, int], limit: int, read: Read
) -> int:
    """Add the partitions that fit into `limit` bytes, and return their bytes.

    This is a function of its own so that a result that does not fit is gone when it returns.
    """
    used = 0
    for number, (partition, offset) in enumerate(positions.items()):
        if used >= limit:
            break
        sharing = min(len(positions) - number, PARTITIONS_AT_ONCE)
        fetched = read(partition, offset, max(1, (limit - used) // sharing))
        size = sum(batch.columns.nbytes for batch in fetched.batches)
        if used and used + size > limit:
            break
        answered[partition] = fetched
        used += size
    return used


def _release_free_memory() -> None:
    """Return memory that is allocated but not used to the system, as far as the allocators can.

    They keep freed memory for later allocations. That is faster, but the process would keep the
    memory of all clients that have ended.
    """
    pa.default_memory_pool().release_unused()
    if _malloc_trim is not None:
        _malloc_trim(0)


_malloc_trim: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Function of glibc; other C libraries have none."""
