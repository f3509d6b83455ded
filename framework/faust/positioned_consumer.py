"""Positions of Faust's consumer: seeking, and the ends that Faust's recovery waits for.

Faust's recovery lets records flow again before it seeks the source partitions, and it empties the
agents' queues once more after that. A record that an agent had got in between would be lost, or
handled twice. So agents get records only after the whole recovery:

    rebalance → (recovery: flow on) → seek to committed → queues emptied, flow on → records

A recovery is not stopped when the next rebalance begins, and Faust's loop of fetches seeks too. A
late seek would set back partitions whose records are handled but not committed, and they would be
handled twice. A seek during the rebalance would find the offsets before those of another worker. So
each assignment is sought once, after its partitions are taken, and a rebalance stops the flow until
then, whatever an earlier recovery does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import faust.transport.base
from faust.types import TP

from strandline.changelog.records import TopicPartition
from strandline.framework.faust.log_link import FaustLink
from strandline.framework.faust.positions import after_last_record, starting_offsets, within


class PositionedConsumer(faust.transport.base.Consumer):
    """Part of Faust's consumer that knows where each partition is read."""

    link: FaustLink

    def __init__(self, transport: Any, callback: Any, *args: Any, **options: Any) -> None:
        self.link = transport.link
        super().__init__(transport, callback, *args, **options)
        self._private: frozenset[TP] = frozenset()
        """Partitions that are read by this process alone: replies to it."""
        self._owned: frozenset[TP] = frozenset()
        self._positions: dict[TP, int] = {}
        self._ends: dict[TP, int] = {}
        self._begun_at: dict[TP, int] = {}
        """Offset of each source partition that is committed, or would be if nothing was handled."""
        self._taken: int | None = None
        """Generation whose partitions this worker has taken; None during a rebalance."""
        self._sought: int | None = None
        """Generation in which the source partitions were sought to their committed offsets."""
        self._open: int | None = None
        """Generation whose records agents may get, from the end of its recovery on."""
        self._committing = asyncio.Lock()
        """Held during a commit, and while uncommitted work is dropped."""

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Read all source partitions from their committed offsets, once in each assignment.

        Returns:
            The offsets; none if another rebalance has begun, or the assignment is sought already.
        """
        generation = self._taken
        async with self._committing:
            if generation is None or generation != self._taken or generation == self._sought:
                return {}
            changelogs = self.app.tables.changelog_topics
            sources = [tp for tp in self._owned - self._private if tp.topic not in changelogs]
            found = await self.link.call_patiently(
                starting_offsets,
                self.link.broker,
                self.app.conf.id,
                [TopicPartition(*tp) for tp in sources],
                self.app.conf.consumer_auto_offset_reset,
                self.link.clock,
            )
            offsets = {TP(*tp): offset for tp, offset in found.items()}
            self._positions.update(offsets)
            self._begun_at = dict(offsets)
            self._sought = generation
        await self._seek_missing()
        return offsets

    def resume_flow(self) -> None:
        """Read records. A recovery calls this several times, and at last after its seek.

        A call during a rebalance has no effect: it is of the recovery before.
        """
        if self._taken is None and not self.app.client_only:
            return
        self._open = self._sought
        super().resume_flow()

    def _is_open(self, tp: TP) -> bool:
        """Return True if a partition may be read: during a recovery, changelogs only."""
        is_open = self.app.client_only or self._open == self.app.consumer_generation_id
        return is_open or tp.topic in self.app.tables.changelog_topics

    def _has_begun(self) -> bool:
        """Return True if the source partitions are read from where this assignment begins.

        Before that nothing is committed: the tables may not be restored, and on Kafka a commit of
        work without records contains `_begun_at`, which is that of an earlier assignment. Another
        worker may have committed more in the meantime.
        """
        return self._sought == self.app.consumer_generation_id

    async def _seek_missing(self) -> None:
        missing = [TopicPartition(*tp) for tp in self._private if tp not in self._positions]
        found = await self.link.call_patiently(
            starting_offsets, self.link.broker, None, missing, "earliest", self.link.clock
        )
        self._positions.update({TP(*tp): offset for tp, offset in found.items()})

    async def seek_wait(self, partitions: Mapping[TP, int]) -> None:
        """Read partitions from these offsets, or the nearest that the log has."""
        found = await self.link.call_patiently(
            within, self.link.broker, {TopicPartition(*tp): at for tp, at in partitions.items()}
        )
        for partition, offset in found.items():
            tp = TP(*partition)
            await self._seek(tp, offset)
            self._read_offset[tp] = offset or None

    async def _seek(self, partition: TP, offset: int) -> None:
        self._positions[TP(*partition)] = offset
        self.link.ledger.sought(TP(*partition))

    async def seek_to_latest(self, *partitions: TP) -> None:
        """Read partitions from their ends."""
        await self.seek_wait(await self.highwaters(*partitions))

    async def seek_to_beginning(self, *partitions: TP) -> None:
        """Read partitions from their first records."""
        await self.seek_wait(await self.earliest_offsets(*partitions))

    async def position(self, tp: TP) -> int | None:
        """Return the next offset to read."""
        return self._positions.get(TP(*tp))

    def highwater(self, tp: TP) -> int:
        """Return the last stable offset that the latest fetch has seen."""
        return self._ends.get(tp, 0)

    async def earliest_offsets(self, *partitions: TP) -> Mapping[TP, int]:
        """Return the first offset of each partition."""
        asked = [TopicPartition(*tp) for tp in partitions]
        found = await self.link.call_patiently(self.link.broker.offsets, asked) if asked else {}
        return {TP(*tp): one.log_start for tp, one in found.items()}

    async def highwaters(self, *partitions: TP) -> Mapping[TP, int]:
        """Return the end of each partition, as Faust's recovery waits for it."""
        asked = [TopicPartition(*tp) for tp in partitions]
        ends = {tp: end for tp in asked if (end := self._restored_end(tp)) is not None}
        ours = [tp for tp in asked if tp not in ends and self._store_of(tp) is not None]
        if ours:
            # Copies of other workers' partitions. Faust compares the end with the position that a
            # copy has reached, which may be after a marker.
            bounds = await self.link.call_patiently(self.link.broker.offsets, ours)
            ends |= {tp: bound.high_watermark for tp, bound in bounds.items()}
        rest = [tp for tp in asked if tp not in ends]
        ends |= await self.link.call_patiently(after_last_record, self.link.broker, rest)
        return {TP(*tp): end for tp, end in ends.items()}

    def _restored_end(self, tp: TopicPartition) -> int | None:
        """Return the end to which our store has restored a table partition; None for others."""
        store = self._store_of(tp)
        part = None if store is None else store.parts.get(tp.partition)
        return None if part is None or part.is_standby else int(part.end)

    def _store_of(self, tp: TopicPartition) -> Any:
        """Return our store of a changelog partition; None if it is none of ours."""
        table = self.app.tables._changelogs.get(tp.topic)
        ours = table is not None and getattr(table.data, "keeps_its_changelog", False)
        return table.data if ours else None

    def topic_partitions(self, topic: str) -> int | None:
        """Return the number of partitions of a topic; None if it does not exist."""
        info = self.link.info(topic)
        return None if info is None else info.partitions

    def key_partition(
        self, topic: str, key: bytes | None, partition: int | None = None
    ) -> int | None:
        """Return the partition of a key."""
        return self.link.partition_of(topic, key) if partition is None else partition

    async def create_topic(self, *args: Any, **options: Any) -> None:
        """Create a topic if it does not exist."""
        await self.app.producer.create_topic(*args, **options)

    def _new_topicpartition(self, topic: str, partition: int) -> TP:
        return TP(topic, partition)
