"""Reading from positions that the caller names.

A consumer of librdkafka's goes on from where it was, ahead of who asks it. So some are kept, and a
fetch takes the one that is at its positions, as the next fetch of the same reader's is; or
another, which is sent there. None is a member of a group.

How far there is anything to read is asked first: librdkafka says that it has come to an end only
after a wait of the broker's (`fetch.wait.max.ms`), and says nothing about the last stable offset.
What it does not hand out (markers, aborted records) shows in its position.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition

from changelog.errors import OffsetOutOfRange, RequestTimedOut, Retriable
from changelog.kafka.connection import DEADLINE_S, Connection
from changelog.kafka.failures import failure
from changelog.kafka.offsets import Offsets
from changelog.records import (
    HEADERS_TYPE,
    Batch,
    Fetched,
    Isolation,
    PartitionOffsets,
    TopicPartition,
    columns_schema,
)

Positions = Mapping[TopicPartition, int]
Ends = Mapping[TopicPartition, PartitionOffsets]

KEPT = 8
"""Consumers that are kept between fetches."""
AT_ONCE = 10_000
"""Messages taken over in one call."""
SLICE_S = 0.1
"""How long Python is away in one call: so long Ctrl-C has to wait."""


class Fetching:
    """The consumers of one cluster. Thread-safe."""

    def __init__(self, connection: Connection, offsets: Offsets) -> None:
        self._connection = connection
        self._offsets = offsets
        self._lock = threading.Lock()
        self._idle: list[_Reader] = []
        """The one used last at the end."""

    def fetch(
        self, positions: Positions, max_bytes: int, isolation: Isolation, timeout: float
    ) -> dict[TopicPartition, Fetched]:
        """See Broker.fetch."""
        ends = self._offsets.of(positions)
        for tp, position in positions.items():
            _check_range(tp, position, ends[tp])
        goals = {tp: _end(ends[tp], isolation) for tp in positions}
        ahead = {tp: goal for tp, goal in goals.items() if positions[tp] < goal}
        if not ahead and timeout <= 0:
            return {tp: _fetched([], positions[tp], ends[tp], isolation) for tp in positions}
        with self._reader(positions, isolation) as reader:
            found = reader.read(ahead, max_bytes, timeout)
            return {
                tp: _fetched(
                    list(_batches(tp, found[tp])), reader.positions[tp], ends[tp], isolation
                )
                for tp in positions
            }

    @contextmanager
    def _reader(self, positions: Positions, isolation: Isolation) -> Iterator[_Reader]:
        reader = self._taken(positions, isolation) or _Reader(self._connection, isolation)
        try:
            reader.go_to(positions)
            yield reader
        except BaseException:
            reader.close()  # what it was doing is not known
            raise
        with self._lock:
            self._idle.append(reader)
            kept = 0 if self._connection.closed else KEPT
            too_many = [self._idle.pop(0) for _ in range(len(self._idle) - kept)]
        for oldest in too_many:
            oldest.close()

    def _taken(self, positions: Positions, isolation: Isolation) -> _Reader | None:
        """A reader that is at these positions; else the oldest if there are enough."""
        with self._lock:
            for reader in self._idle:
                if reader.isolation == isolation and reader.positions == positions:
                    self._idle.remove(reader)
                    return reader
            same = [reader for reader in self._idle if reader.isolation == isolation]
            if len(self._idle) < KEPT or not same:
                return None
            self._idle.remove(same[0])
            return same[0]

    def close(self) -> None:
        """Close the consumers that are not in use."""
        with self._lock:
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.close()


class _Reader:
    """A consumer of librdkafka's, and where it is. For one thread at a time."""

    def __init__(self, connection: Connection, isolation: Isolation) -> None:
        self._connection = connection
        self.isolation = isolation
        self.positions: dict[TopicPartition, int] = {}
        """Where the next read goes on."""
        self._consumer: Consumer = connection.client(
            Consumer,
            {
                "group.id": connection.cluster.properties.get("group.id", "strandline"),
                "queued.max.messages.kbytes": 16 << 10,
                "fetch.wait.max.ms": 200,
                "isolation.level": isolation,
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
            },
        )

    def go_to(self, positions: Positions) -> None:
        """Read there from now on."""
        if self.positions != positions:
            with self._connection.translated("fetching"):
                self._consumer.assign([KafkaPartition(*tp, at) for tp, at in positions.items()])
            self.positions = dict(positions)

    def read(
        self, ahead: Positions, max_bytes: int, timeout: float
    ) -> dict[TopicPartition, list[Message]]:
        """What comes next; waits until there is something, or all of `ahead` has been passed.

        If then there is nothing it waits up to `timeout` seconds. Raises what the cluster says, and
        RequestTimedOut if what is there does not come.
        """
        found: defaultdict[TopicPartition, list[Message]] = defaultdict(list)
        sizes: defaultdict[TopicPartition, int] = defaultdict(int)
        clock = self._connection.clock
        begun = clock.monotonic()
        trouble: Retriable | None = None
        while True:
            passed = all(self.positions[tp] >= goal for tp, goal in ahead.items())
            waited = clock.monotonic() - begun
            left = (timeout if passed else DEADLINE_S) - waited
            wait = 0.0 if found else max(0.0, min(SLICE_S, left))
            messages = self._messages(wait)
            trouble = self._sort(messages, found, sizes) or trouble
            self._note_positions()
            if found and (not messages or max(sizes.values()) >= max_bytes):
                return found
            if not messages and left <= 0:
                if passed:
                    return found
                raise trouble or RequestTimedOut(
                    f"{self._connection.where('fetching')}: {', '.join(map(str, ahead))} have records "
                    f"that did not come within {DEADLINE_S:g} s; check that the brokers keep up"
                )

    def _messages(self, wait: float) -> list[Message]:
        """What has come; if nothing has, what comes first within `wait` seconds, and with it."""
        with self._connection.translated("fetching"):
            # Asked for many, librdkafka waits until it has as many; so it is asked for one first.
            first = self._consumer.poll(wait)
            if first is None:
                return []
            return [first, *self._consumer.consume(AT_ONCE, 0)]

    def _sort(
        self,
        messages: Sequence[Message],
        found: dict[TopicPartition, list[Message]],
        sizes: dict[TopicPartition, int],
    ) -> Retriable | None:
        """Put messages to their partitions; what is wrong for the moment, if anything."""
        trouble: Retriable | None = None
        for message in messages:
            error = message.error()
            if error is None:
                tp = TopicPartition(message.topic(), message.partition())
                found[tp].append(message)
                sizes[tp] += len(message)
                self.positions[tp] = message.offset() + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                tp = TopicPartition(message.topic(), message.partition())
                self.positions[tp] = max(self.positions[tp], message.offset())
            else:
                said = failure(error, self._connection.where("fetching"))
                if not isinstance(said, Retriable):
                    raise said
                trouble = said
        return trouble

    def _note_positions(self) -> None:
        with self._connection.translated("fetching"):
            known = self._consumer.position([KafkaPartition(*tp) for tp in self.positions])
        for one in known:
            tp = TopicPartition(one.topic, one.partition)
            self.positions[tp] = max(self.positions[tp], one.offset)  # -1001 before the first

    def close(self) -> None:
        self._consumer.close()


def _check_range(tp: TopicPartition, position: int, ends: PartitionOffsets) -> None:
    if not ends.log_start <= position <= ends.high_watermark:
        raise OffsetOutOfRange(
            f"{tp} has offsets {ends.log_start} to {ends.high_watermark}, got {position}; seek to "
            f"the beginning or the end"
        )


def _end(ends: PartitionOffsets, isolation: Isolation) -> int:
    return ends.last_stable_offset if isolation == "read_committed" else ends.high_watermark


def _fetched(
    batches: list[Batch], position: int, ends: PartitionOffsets, isolation: Isolation
) -> Fetched:
    """With the ends as they were before the fetch, or as far as it has come since."""
    stable = ends.last_stable_offset
    if isolation == "read_committed":
        stable = max(stable, position)
    return Fetched(batches, position, ends.log_start, max(ends.high_watermark, position), stable)


def _batches(tp: TopicPartition, messages: Sequence[Message]) -> Iterator[Batch]:
    """Messages of one partition as columns: a batch for each leader epoch."""
    for epoch, group in groupby(messages, key=lambda message: message.leader_epoch()):
        yield _batch(tp, list(group), epoch or 0)


def _batch(tp: TopicPartition, messages: Sequence[Message], epoch: int) -> Batch:
    offsets = [message.offset() for message in messages]
    heads = [message.headers() for message in messages]
    columns = [
        pa.array([message.timestamp()[1] for message in messages], pa.int64()),
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
    ]
    has_headers = any(heads)
    if has_headers:
        pairs = [
            None if not one else [{"key": key, "value": value} for key, value in one]
            for one in heads
        ]
        columns.append(pa.array(pairs, HEADERS_TYPE))
    schema = columns_schema(pa.binary(), headers=has_headers)
    follow = offsets[-1] - offsets[0] + 1 == len(offsets)
    return Batch(
        *tp,
        offsets[0],
        pa.RecordBatch.from_arrays(columns, schema=schema),
        epoch,
        None if follow else pa.array(offsets, pa.int64()),
    )
