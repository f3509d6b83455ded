"""A consumer of librdkafka that reads from its start positions on, ahead of the caller.

A caller may read only some of its partitions. Batches of the others are kept until they are
requested; if they become too large, these partitions are paused.

Offsets that librdkafka does not return (markers, aborted records) are visible in its position.
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
TopicIds = Mapping[TopicPartition, str]

BOUNDS_MAX_AGE_S = 1.0
"""Seconds for which the bounds of partitions are used without querying them again."""
MAX_WAITING_BYTES = 32 << 20
"""Maximum bytes kept of a partition that is not requested; above it, the partition is paused."""
MAX_MESSAGES = 10_000
"""Maximum number of messages taken from librdkafka in one call, and so of a fetch. librdkafka
prepares more meanwhile."""


class Reader:
    """A consumer with its read-ahead buffer. For one thread at a time; it never seeks."""

    def __init__(
        self,
        connection: KafkaConnection,
        positions: Positions,
        topic_ids: TopicIds,
        isolation: Isolation,
    ) -> None:
        self._connection = connection
        self.isolation = isolation
        self._topic_ids = dict(topic_ids)
        """Ids of the topics that are read, by partition: a name may be another topic's later."""
        self._positions = dict(positions)
        """Next offset to return, by partition."""
        self._heads = dict(positions)
        """Next offset to read, by partition."""
        self._waiting: defaultdict[TopicPartition, list[Batch]] = defaultdict(list)
        self._sizes: defaultdict[TopicPartition, int] = defaultdict(int)
        """Bytes of the batches in `_waiting`."""
        self._paused: set[TopicPartition] = set()
        self._ends: dict[TopicPartition, tuple[PartitionOffsets, float]] = {}
        """Bounds of partitions, and the time of the query."""
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
        """Return True if the reader continues at all these positions."""
        return all(self._positions.get(tp) == at for tp, at in positions.items())

    def reads(self, topic: str) -> bool:
        """Return True if the reader has a partition of the topic."""
        return any(tp.topic == topic for tp in self._positions)

    def reads_other(self, topic_ids: TopicIds) -> bool:
        """Return True if the reader has one of these partitions of another topic of its name."""
        return any(self._topic_ids.get(tp, known) != known for tp, known in topic_ids.items())

    def note_ends(self, ends: Ends) -> None:
        """Store the current bounds of partitions."""
        now = self._connection.clock.monotonic()
        self._ends.update((tp, (end, now)) for tp, end in ends.items())

    def arrived(self, requested: Collection[TopicPartition]) -> bool:
        """Return True if records have arrived already and the bounds are recent."""
        now = self._connection.clock.monotonic()
        known = [self._ends.get(tp) for tp in requested]
        if not all(one is not None and now - one[1] < BOUNDS_MAX_AGE_S for one in known):
            return False
        self._take(requested, 0.0)
        return self._has(requested)

    def read(self, requested: Collection[TopicPartition], goals: Positions, timeout: float) -> None:
        """Wait until records have arrived, or the reader has passed all goals.

        After the goals it waits up to `timeout` seconds for new records. Raises errors of the
        cluster, and RequestTimedOut if records before the goals do not arrive.
        """
        clock = self._connection.clock
        begun = clock.monotonic()
        trouble: Retriable | None = None
        while True:
            passed = all(self._heads[tp] >= goal for tp, goal in goals.items())
            left = (timeout if passed else DEADLINE_S) - (clock.monotonic() - begun)
            arrived, error = self._take(requested, max(0.0, min(SLICE_S, left)))
            trouble = error or trouble
            if self._has(requested) or (passed and not arrived and left <= 0):
                return
            if not arrived and left <= 0:
                raise trouble or RequestTimedOut(
                    f"{self._connection.where('fetching')}: {', '.join(map(str, goals))} have records "
                    f"that did not come within {DEADLINE_S:g} s; check that the brokers keep up"
                )

    def handed_out(self, tp: TopicPartition) -> tuple[list[Batch], int, PartitionOffsets]:
        """Remove and return a partition's batches, with its next offset and last known bounds."""
        batches = self._waiting.pop(tp, [])
        self._sizes.pop(tp, None)
        self._positions[tp] = self._heads[tp]
        if tp in self._paused:
            self._paused.discard(tp)
            with self._connection.translated("fetching"):
                self._consumer.resume([KafkaPartition(*tp)])
        return batches, self._positions[tp], self._ends[tp][0]

    def _has(self, requested: Collection[TopicPartition]) -> bool:
        return any(self._waiting.get(tp) for tp in requested)

    def _take(
        self, requested: Collection[TopicPartition], wait: float
    ) -> tuple[bool, Retriable | None]:
        """Take messages from librdkafka; wait up to `wait` seconds if no requested ones are kept.

        Return True if messages have arrived, and the latest temporary error, if there was one.
        """
        with uncollected():
            messages = self._messages(0.0 if self._has(requested) else wait)
            arrived, trouble = bool(messages), self._sort(messages)
            del messages
        self._note_positions()
        self._pause(requested)
        return arrived, trouble

    def _messages(self, wait: float) -> list[Message]:
        """Return the messages that have arrived; wait up to `wait` seconds for a first one."""
        with self._connection.translated("fetching"):
            messages: list[Message] = self._consumer.consume(MAX_MESSAGES, 0)
            if messages:
                return messages
            # Wait for one message only: a request for many waits until it has that many.
            first = self._consumer.poll(wait) if wait else None
            return [] if first is None else [first, *self._consumer.consume(MAX_MESSAGES, 0)]

    def _sort(self, messages: list[Message]) -> Retriable | None:
        """Add messages to their partitions; return the latest temporary error, if any."""
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
        """Yield runs of consecutive messages of one partition."""
        if not messages:
            return
        of = np.array(self._numbers(messages), np.int64)
        starts = [0, *(np.flatnonzero(of[1:] != of[:-1]) + 1).tolist()]
        for start, end in pairwise([*starts, len(messages)]):
            first = messages[start]
            yield TopicPartition(first.topic(), first.partition()), messages[start:end]

    def _numbers(self, messages: list[Message]) -> list[int]:
        """Return for each message a number that identifies its partition."""
        if len({tp.topic for tp in self._heads}) == 1:
            return list(map(Message.partition, messages))
        known: defaultdict[tuple[str, int], int] = defaultdict(count().__next__)
        names = zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)
        return list(map(known.__getitem__, names))

    def _note_errors(self, messages: Sequence[Message]) -> Retriable | None:
        """Handle error messages; return the latest temporary error, raise others.

        The message about the end of a partition only updates the position.
        """
        trouble: Retriable | None = None
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                tp = TopicPartition(message.topic(), message.partition())
                self._heads[tp] = max(self._heads[tp], message.offset())
            # Ignore missing rights for the group, because the consumer is not a member of one.
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                failure = self._connection.failure(error, "fetching")
                if not isinstance(failure, Retriable):
                    raise failure
                trouble = failure
        return trouble

    def _note_positions(self) -> None:
        with self._connection.translated("fetching"):
            known = self._consumer.position([KafkaPartition(*tp) for tp in self._heads])
        for one in known:
            tp = TopicPartition(one.topic, one.partition)
            # The position is -1001 before the first message.
            self._heads[tp] = max(self._heads[tp], one.offset)

    def _pause(self, requested: Collection[TopicPartition]) -> None:
        """Pause partitions that are not requested and have too many bytes waiting."""
        full = {tp for tp, size in self._sizes.items() if size > MAX_WAITING_BYTES} - set(requested)
        if more := full - self._paused:
            self._paused |= more
            with self._connection.translated("fetching"):
                self._consumer.pause([KafkaPartition(*tp) for tp in more])

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
