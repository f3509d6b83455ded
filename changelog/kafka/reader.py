"""A consumer of librdkafka's that reads on from where it was sent, ahead of who asks.

It may be asked for some of its partitions only; what has come of the others waits here until it is their
turn. If that gets too much they pause.

What librdkafka does not hand out (markers, aborted records) shows in its position.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count, pairwise

import numpy as np
from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition

from strandline.changelog.errors import RequestTimedOut, Retriable
from strandline.changelog.kafka.connection import DEADLINE_S, SLICE_S, KafkaConnection
from strandline.changelog.kafka.messages import batches_of, uncollected
from strandline.changelog.records import Batch, Isolation, PartitionOffsets, TopicPartition

Positions = Mapping[TopicPartition, int]
Ends = Mapping[TopicPartition, PartitionOffsets]

KNOWN_FOR_S = 1.0
"""So long what comes is handed out without asking where partitions begin and end."""
WAITING_BYTES = 32 << 20
"""Of a partition that is not asked for; then it pauses."""
AT_ONCE = 10_000
"""Messages taken over in one call: a fetch gives no more, and librdkafka gets more ready meanwhile."""


class Reader:
    """For one thread at a time. It is never sent elsewhere."""

    def __init__(
        self, connection: KafkaConnection, positions: Positions, isolation: Isolation
    ) -> None:
        self._connection = connection
        self.isolation = isolation
        self._positions = dict(positions)
        """How far it has handed out."""
        self._heads = dict(positions)
        """How far it has read."""
        self._waiting: defaultdict[TopicPartition, list[Batch]] = defaultdict(list)
        self._sizes: defaultdict[TopicPartition, int] = defaultdict(int)
        """Bytes of what waits."""
        self._paused: set[TopicPartition] = set()
        self._ends: dict[TopicPartition, tuple[PartitionOffsets, float]] = {}
        """Where partitions begin and end, and when that was asked."""
        self._consumer: Consumer = connection.client(
            Consumer,
            {
                "group.id": "strandline",
                "queued.max.messages.kbytes": 64 << 10,
                "queued.min.messages": 1_000_000,
                "fetch.message.max.bytes": 4 << 20,
                "fetch.wait.max.ms": 200,
                "isolation.level": isolation,
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
            },
        )
        try:
            with connection.translated("fetching"):
                self._consumer.assign([KafkaPartition(*tp, at) for tp, at in positions.items()])
        except BaseException:
            self.close()
            raise

    def is_at(self, positions: Positions) -> bool:
        """Whether it goes on there, with all of these."""
        return all(self._positions.get(tp) == at for tp, at in positions.items())

    def reads(self, topic: str) -> bool:
        """Whether it is at a partition of it."""
        return any(tp.topic == topic for tp in self._positions)

    def note_ends(self, ends: Ends) -> None:
        """The ends of partitions as they are now."""
        now = self._connection.clock.monotonic()
        self._ends.update((tp, (end, now)) for tp, end in ends.items())

    def arrived(self, asked: Collection[TopicPartition]) -> bool:
        """Whether something has come already; not if it is not known what is still there."""
        now = self._connection.clock.monotonic()
        known = [self._ends.get(tp) for tp in asked]
        if not all(one is not None and now - one[1] < KNOWN_FOR_S for one in known):
            return False
        self._take(asked, 0.0)
        return self._has(asked)

    def read(self, asked: Collection[TopicPartition], goals: Positions, timeout: float) -> None:
        """Wait until something has come, or all the goals have been passed.

        If then there is nothing it waits up to `timeout` seconds. Raises what the cluster says, and
        RequestTimedOut if what is there does not come.
        """
        clock = self._connection.clock
        begun = clock.monotonic()
        trouble: Retriable | None = None
        while True:
            passed = all(self._heads[tp] >= goal for tp, goal in goals.items())
            left = (timeout if passed else DEADLINE_S) - (clock.monotonic() - begun)
            came, said = self._take(asked, max(0.0, min(SLICE_S, left)))
            trouble = said or trouble
            if self._has(asked) or (passed and not came and left <= 0):
                return
            if not came and left <= 0:
                raise trouble or RequestTimedOut(
                    f"{self._connection.where('fetching')}: {', '.join(map(str, goals))} have records "
                    f"that did not come within {DEADLINE_S:g} s; check that the brokers keep up"
                )

    def handed_out(self, tp: TopicPartition) -> tuple[list[Batch], int, PartitionOffsets]:
        """What waits of a partition, where it goes on, and its ends as they were when last asked for."""
        batches = self._waiting.pop(tp, [])
        self._sizes.pop(tp, None)
        self._positions[tp] = self._heads[tp]
        if tp in self._paused:
            self._paused.discard(tp)
            with self._connection.translated("fetching"):
                self._consumer.resume([KafkaPartition(*tp)])
        return batches, self._positions[tp], self._ends[tp][0]

    def _has(self, asked: Collection[TopicPartition]) -> bool:
        return any(self._waiting.get(tp) for tp in asked)

    def _take(
        self, asked: Collection[TopicPartition], wait: float
    ) -> tuple[bool, Retriable | None]:
        """Take over what has come, waiting for the first if nothing that was asked for is here.

        Whether anything has come, and what is wrong for the moment, if anything.
        """
        with uncollected():
            messages = self._messages(0.0 if self._has(asked) else wait)
            came, trouble = bool(messages), self._sort(messages)
            del messages
        self._note_positions()
        self._pause(asked)
        return came, trouble

    def _messages(self, wait: float) -> list[Message]:
        """What has come; if nothing has, what comes first within `wait` seconds, and with it."""
        with self._connection.translated("fetching"):
            messages: list[Message] = self._consumer.consume(AT_ONCE, 0)
            if messages:
                return messages
            # Asked for many, librdkafka waits until it has as many; so it is asked for one.
            first = self._consumer.poll(wait) if wait else None
            return [] if first is None else [first, *self._consumer.consume(AT_ONCE, 0)]

    def _sort(self, messages: list[Message]) -> Retriable | None:
        """Put messages to their partitions; what is wrong for the moment, if anything."""
        trouble: Retriable | None = None
        if any(map(Message.error, messages)):
            trouble = self._note_errors(messages)
            messages = [message for message in messages if message.error() is None]
        for tp, run in self._runs(messages):
            batches = list(batches_of(tp, run))
            self._waiting[tp] += batches
            self._sizes[tp] += sum(batch.columns.nbytes for batch in batches)
            self._heads[tp] = run[-1].offset() + 1
        return trouble

    def _runs(self, messages: list[Message]) -> Iterator[tuple[TopicPartition, list[Message]]]:
        """What came of one partition after another."""
        if not messages:
            return
        of = np.array(self._numbers(messages), np.int64)
        starts = [0, *(np.flatnonzero(of[1:] != of[:-1]) + 1).tolist()]
        for start, end in pairwise([*starts, len(messages)]):
            first = messages[start]
            yield TopicPartition(first.topic(), first.partition()), messages[start:end]

    def _numbers(self, messages: list[Message]) -> list[int]:
        """For each message a number that stands for its partition."""
        if len({tp.topic for tp in self._heads}) == 1:
            return list(map(Message.partition, messages))
        known: defaultdict[tuple[str, int], int] = defaultdict(count().__next__)
        names = zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)
        return list(map(known.__getitem__, names))

    def _note_errors(self, messages: Sequence[Message]) -> Retriable | None:
        """What goes by is told, the last of it; an end that was reached is a position; else it raises."""
        trouble: Retriable | None = None
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                tp = TopicPartition(message.topic(), message.partition())
                self._heads[tp] = max(self._heads[tp], message.offset())
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # it is in none
                said = self._connection.failure(error, "fetching")
                if not isinstance(said, Retriable):
                    raise said
                trouble = said
        return trouble

    def _note_positions(self) -> None:
        with self._connection.translated("fetching"):
            known = self._consumer.position([KafkaPartition(*tp) for tp in self._heads])
        for one in known:
            tp = TopicPartition(one.topic, one.partition)
            self._heads[tp] = max(self._heads[tp], one.offset)  # -1001 before the first

    def _pause(self, asked: Collection[TopicPartition]) -> None:
        """Let no more come of those that nobody asks for and that have much waiting."""
        full = {tp for tp, size in self._sizes.items() if size > WAITING_BYTES} - set(asked)
        if more := full - self._paused:
            self._paused |= more
            with self._connection.translated("fetching"):
                self._consumer.pause([KafkaPartition(*tp) for tp in more])

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
