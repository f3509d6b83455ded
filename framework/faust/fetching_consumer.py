"""Fetches of Faust's consumer: records come from the log, go into the ledger, and then to Faust.

Faust's own loop races each record against the start of a rebalance, with four asyncio tasks a
record. Here all records that are handed on at once share a race. A rebalance still stops the loop
before the next record, wherever it waits.

A fetch may return more records than the agents have room for. The others wait here, not in the
loop, so that the records of other partitions pass them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from faust.transport.consumer import CONSUMER_FETCHING
from faust.types import TP
from faust.types.tuples import ConsumerMessage

from strandline.changelog.errors import InvalidRecord, OffsetOutOfRange, Retriable
from strandline.changelog.rate_limited_log import RateLimitedLog
from strandline.changelog.records import ConsumerRecord, TopicPartition
from strandline.framework.faust.committing_consumer import CommittingConsumer
from strandline.framework.faust.failures import settle_undecodable
from strandline.framework.faust.fetched_records import FetchedRecords, fetch_records
from strandline.framework.faust.positions import within
from strandline.framework.patience import Patience

_log = logging.getLogger("strandline")

POLL_S = 0.25
"""Maximum seconds of one fetch; a rebalance waits for it."""
IDLE_S = 0.05
"""Seconds to wait when there is nothing to read, or after a fetch that failed."""
ROOM_S = 0.01
"""Seconds between two looks whether an agent has room for more records."""
RECORDS_AT_ONCE = 1000
"""Maximum number of records handed on at once to agents whose buffers have no limit."""
MAX_UNCOMMITTED_RECORDS = 10_000
"""Maximum number of records of a partition that wait for their commit. Their effects are in memory,
and one record that an agent does not finish keeps all later ones waiting."""
RECORDS_PER_TURN = 100
"""Records handed to Faust before other tasks of the event loop have a turn."""


class FetchingConsumer(CommittingConsumer):
    """Part of Faust's consumer that fetches records and hands them to Faust."""

    _n_acked: int

    def __init__(self, transport: Any, callback: Any, *args: Any, **options: Any) -> None:
        super().__init__(transport, self._track, *args, **options)
        self._deliver = callback
        self._fetch_patience = Patience(self.link.clock)
        self._stuck = RateLimitedLog(_log, self.link.clock)
        self._ahead: dict[TP, FetchedRecords] = {}
        """Fetched records that are still to be handed on, valid at their position only."""

    # Handing on -----------------------------------------------------------------------

    async def _drain_messages(self, fetcher: Any) -> None:
        """Fetch records and hand them to Faust until this consumer or the fetcher stops."""
        try:
            while not (self.should_stop or fetcher.should_stop):
                self.diag.set_flag(CONSUMER_FETCHING)
                await self.sleep(0)
                async with aclosing(self.getmany(timeout=1.0)) as fetched:
                    first = await anext(fetched, None)
                    if first is not None:
                        handing_on = self._hand_on(first, fetched)
                        await self.wait_first(handing_on, self.suspend_flow.wait())
                self.diag.unset_flag(CONSUMER_FETCHING)
        except asyncio.CancelledError:
            if not self.app.should_stop:
                raise
        except Exception as error:
            self.log.exception("fetching records failed: %r", error)
            raise
        finally:
            self.diag.unset_flag(CONSUMER_FETCHING)

    async def _hand_on(
        self, first: tuple[TP, ConsumerMessage], others: AsyncIterator[tuple[TP, ConsumerMessage]]
    ) -> None:
        """Hand the records of one fetch to Faust. A rebalance cancels this."""
        following: tuple[TP, ConsumerMessage] | None = first
        count = 0
        while following is not None:
            tp, message = following
            await self._hand_on_one(tp, message)
            count += 1
            if count % RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
            following = await anext(others, None)

    async def _hand_on_one(self, tp: TP, message: ConsumerMessage) -> None:
        read = self._read_offset[tp]
        if read is not None and message.offset < read:
            return  # was handed on before
        if self._commit_every is not None and self._n_acked >= self._commit_every:
            self._n_acked = 0
            await asyncio.shield(self.commit())  # a commit that has begun ends, whatever happens
        await self.callback(message)
        self._read_offset[tp] = message.offset

    # Fetching -------------------------------------------------------------------------

    async def _track(self, message: Any) -> None:
        """Add the record to the ledger, then hand it to Faust."""
        is_committed = self.app.topics.acks_enabled_for(message.topic)
        if self.app.client_only or not is_committed or message.tp in self._private:
            await self._deliver(message)
            return
        unit = self.link.ledger.deliver(message)
        unit.delivering = True  # and remains so if a rebalance cancels this call
        await self._deliver(message)
        # Faust acknowledges a record that it cannot decode, before any agent has begun with it.
        undecodable = unit.undecodable is not None or (message.acked and not message.tracked)
        if undecodable and not settle_undecodable(self.link, unit, message):
            self.log.error("the worker stops at a record that cannot be decoded: %r", message)
            await self.app.crash(
                InvalidRecord(f"{message!r} cannot be decoded: {unit.undecodable}")
            )
            return
        unit.delivering = False

    async def _wait_next_records(self, timeout: float) -> Any:
        """Return the next records, with the partitions that have room. Faust waits 1 s for room.

        The records are None if the flow has stopped. Faust would seek to committed offsets at that,
        at any time of a rebalance. Here the rebalance alone moves positions.
        """
        if not self.flow_active:
            await self.wait(self.can_resume_flow)
        active = None if self.app.client_only else self._get_active_partitions()
        if active is not None and not active:
            await asyncio.sleep(ROOM_S)
            records = {}
        else:
            records = await self._getmany(active_partitions=active, timeout=timeout)
        return (records if self.flow_active else None), active

    async def _getmany(self, active_partitions: Any, timeout: float) -> Any:
        """Return the next records of the active partitions, as many as their agents have room for."""
        if not self.flow_active:
            return {}
        active = self._private if active_partitions is None else active_partitions
        wanted = {
            tp: self._positions[tp]
            for tp in active
            if tp in self._positions
            and self._is_open(tp)
            and (tp not in self._private or self._has_reader(tp))
        }
        if not wanted:
            await asyncio.sleep(IDLE_S)
            return {}
        missing = {tp: at for tp, at in wanted.items() if not self._is_ahead(tp, at)}
        rooms = self._rooms(wanted)
        if missing:
            # Records that were fetched ahead are of another position.
            for tp in missing:
                self._ahead.pop(tp, None)
            wait = ROOM_S if self._ahead else POLL_S  # an agent may soon have room for the rest
            await self._fetch(missing, 0.0 if rooms else min(timeout, wait))
            rooms = self._rooms(wanted)
        elif not rooms:
            await asyncio.sleep(ROOM_S)
        if not self.flow_active:
            return {}
        shares = {tp: max(1, room // len(wanted)) for tp, room in rooms.items() if tp in active}
        return {tp: self._take(tp, share) for tp, share in shares.items()}

    def _rooms(self, wanted: Mapping[TP, int]) -> dict[TP, int]:
        """Return the room for records of each partition that has fetched ones and any room."""
        rooms = {tp: self._room(tp) for tp, at in wanted.items() if self._is_ahead(tp, at)}
        return {tp: room for tp, room in rooms.items() if room > 0}

    def _room(self, tp: TP) -> int:
        """Return the number of records for which all agents of a partition, and memory, have room."""
        queues = [channel.queue for channel in self.app.topics._tp_index.get(tp, ())]
        rooms = [queue.maxsize - queue.qsize() for queue in queues if queue.maxsize > 0]
        room = MAX_UNCOMMITTED_RECORDS - self.link.ledger.uncommitted(tp)
        if room <= 0:
            name = str(TopicPartition(*tp))
            self._stuck.note(
                f"{name} is not read on: {MAX_UNCOMMITTED_RECORDS:,} of its records are not "
                "committed. An agent has not finished the first of them, or commits fail",
                partition=name,
            )
        return min(room, min(rooms, default=RECORDS_AT_ONCE))

    def _is_ahead(self, tp: TP, position: int) -> bool:
        """Return True if the next records are fetched, and nothing has moved the position."""
        ahead = self._ahead.get(tp)
        return ahead is not None and ahead.position == position == self._positions.get(tp)

    def _take(self, tp: TP, most: int) -> list[ConsumerRecord]:
        """Return the next records that are fetched; they count as read."""
        ahead = self._ahead[tp]
        records = ahead.take(most)
        self._positions[tp] = ahead.position
        if not ahead:
            del self._ahead[tp]
        return records

    async def _fetch(self, wanted: dict[TP, int], timeout: float) -> None:
        """Fetch the next records of partitions. Waits if there are none, or the log is away."""
        self._fetch_patience.ask()
        try:
            found = await self.link.fetch(
                fetch_records,
                self.link.broker,
                {TopicPartition(*tp): offset for tp, offset in wanted.items()},
                max_bytes=self.app.conf.consumer_max_fetch_size,
                timeout=timeout,
            )
        except OffsetOutOfRange as error:
            moved = await self.link.call_patiently(
                within, self.link.broker, wanted, self.link.histories
            )
            self.log.warning("records are gone, and those after them are read: %s", error)
            for partition, at in moved.items():
                tp = TP(*partition)
                if self._positions.get(tp) == wanted[tp]:
                    self._positions[tp] = at
            return
        except Retriable as error:
            if not self._fetch_patience.failed(error):
                raise
            await self.sleep(IDLE_S)
            return
        self._fetch_patience.answered()
        for partition, ahead in found.items():
            tp = TP(*partition)
            if self._positions.get(tp) != wanted[tp] or not self.flow_active:
                continue  # moved meanwhile
            self.link.histories.note(partition, wanted[tp], ahead.source)
            self._ends[tp] = ahead.source.last_stable_offset
            if ahead:
                self._ahead[tp] = ahead
            else:
                self._positions[tp] = ahead.source.next_offset

    def _has_reader(self, tp: TP) -> bool:
        """Return True if something iterates over the topic: replies must not come before that."""
        return any(channel.is_iterator for channel in self.app.topics._tp_index.get(tp, ()))

    def _to_message(self, tp: TP, record: Any) -> ConsumerMessage:
        return ConsumerMessage(
            *(tp.topic, tp.partition, record.offset, record.timestamp / 1000, 0),
            *(list(record.headers), record.key, record.value, None),
            tp=tp,
            generation_id=self.app.consumer_generation_id,
        )

    async def _add_gap(self, tp: TP, offset_from: int, offset_to: int) -> None:
        """Do nothing: the ledger commits the delivered records, whatever lies between them."""
