"""Reading from positions that the caller names.

A consumer of librdkafka's goes on from where it was, ahead of who asks it. So some are kept, and a
fetch takes the one that is at its positions, as the next fetch of the same reader's is; or
another, which is sent there. None is a member of a group.

While records come they are handed out. When none has, it is asked how far there is anything to read:
librdkafka says that it has come to an end only after a wait of the broker's (`fetch.wait.max.ms`), and
says nothing about the last stable offset.
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

Found = dict[TopicPartition, list[Message]]

KNOWN_FOR_S = 1.0
"""So long what comes is handed out without asking where partitions begin and end."""
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
        reader = self._taken(positions, isolation)
        if reader is not None:
            with self._used(reader):
                if found := reader.arrived(max_bytes):
                    return reader.fetched(positions, found)
        ends = self._offsets.of(positions)
        for tp, position in positions.items():
            _check_range(tp, position, ends[tp])
        goals = {tp: _end(ends[tp], isolation) for tp in positions}
        ahead = {tp: goal for tp, goal in goals.items() if positions[tp] < goal}
        if not ahead and timeout <= 0:
            return {tp: _fetched([], at, ends[tp], isolation) for tp, at in positions.items()}
        with self._used(self._free(positions, isolation)) as reader:
            reader.go_to(positions, ends)
            return reader.fetched(positions, reader.read(ahead, max_bytes, timeout))

    @contextmanager
    def _used(self, reader: _Reader) -> Iterator[_Reader]:
        """A reader that nobody else uses meanwhile, and that is kept."""
        try:
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
        """The reader that is at these positions, if there is one."""
        with self._lock:
            for reader in self._idle:
                if reader.isolation == isolation and reader.positions == positions:
                    self._idle.remove(reader)
                    return reader
        return None

    def _free(self, positions: Positions, isolation: Isolation) -> _Reader:
        """A reader to be sent to these positions: best the one that is there, else an old one, or a new."""
        reader = self._taken(positions, isolation)
        if reader is None:
            with self._lock:
                same = [one for one in self._idle if one.isolation == isolation]
                if len(self._idle) >= KEPT and same:
                    reader = same[0]
                    self._idle.remove(reader)
        return reader or _Reader(self._connection, isolation)

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
        self._ends: Ends = {}
        self._asked = 0.0
        """When it was asked for them."""
        self._consumer: Consumer = connection.client(
            Consumer,
            {
                "group.id": connection.cluster.properties.get("group.id", "strandline"),
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

    def go_to(self, positions: Positions, ends: Ends) -> None:
        """Read there from now on. `ends` are those of its partitions as they are now."""
        if self.positions != positions:
            with self._connection.translated("fetching"):
                self._consumer.assign([KafkaPartition(*tp, at) for tp, at in positions.items()])
            self.positions = dict(positions)
        self._ends = ends

    def arrived(self, max_bytes: int) -> Found:
        """What has come already from where it is; nothing if it is not known what is still there."""
        found: Found = {}
        if self._knows_ends_for(self._connection.clock.monotonic()):
            self._take(found, max_bytes, 0.0)
        return found

    def read(self, ahead: Positions, max_bytes: int, timeout: float) -> Found:
        """What comes next; waits until there is something, or all of `ahead` has been passed.

        If then there is nothing it waits up to `timeout` seconds. Raises what the cluster says, and
        RequestTimedOut if what is there does not come.
        """
        found: Found = {}
        clock = self._connection.clock
        begun = self._asked = clock.monotonic()
        trouble: Retriable | None = None
        while True:
            passed = all(self.positions[tp] >= goal for tp, goal in ahead.items())
            left = (timeout if passed else DEADLINE_S) - (clock.monotonic() - begun)
            taken, trouble_now = self._take(found, max_bytes, max(0.0, min(SLICE_S, left)))
            trouble = trouble_now or trouble
            if found:
                return found
            if not taken and left <= 0:
                if passed:
                    return found
                raise trouble or RequestTimedOut(
                    f"{self._connection.where('fetching')}: {', '.join(map(str, ahead))} have records "
                    f"that did not come within {DEADLINE_S:g} s; check that the brokers keep up"
                )

    def fetched(self, positions: Positions, found: Found) -> dict[TopicPartition, Fetched]:
        """The answer for these positions, with the ends as they were when they were asked for."""
        return {
            tp: _fetched(
                list(_batches(tp, found.get(tp, ()))),
                self.positions[tp],
                self._ends[tp],
                self.isolation,
            )
            for tp in positions
        }

    def _knows_ends_for(self, now: float) -> bool:
        return now - self._asked < KNOWN_FOR_S

    def _take(self, found: Found, max_bytes: int, wait: float) -> tuple[bool, Retriable | None]:
        """Put what has come to its partitions, up to about `max_bytes` of one; waits for the first.

        Whether anything has come, and what is wrong for the moment, if anything.
        """
        sizes: defaultdict[TopicPartition, int] = defaultdict(int)
        trouble: Retriable | None = None
        taken = False
        while messages := self._messages(0.0 if found else wait):
            taken = True
            trouble = self._sort(messages, found, sizes) or trouble
            if max(sizes.values(), default=0) >= max_bytes or not found:
                break
        self._note_positions()
        return taken, trouble

    def _messages(self, wait: float) -> list[Message]:
        """What has come; if nothing has, what comes first within `wait` seconds, and with it."""
        with self._connection.translated("fetching"):
            messages: list[Message] = self._consumer.consume(AT_ONCE, 0)
            if messages:
                return messages
            # Asked for many, librdkafka waits until it has as many; so it is asked for one.
            first = self._consumer.poll(wait) if wait else None
            return [] if first is None else [first, *self._consumer.consume(AT_ONCE, 0)]

    def _sort(
        self, messages: list[Message], found: Found, sizes: dict[TopicPartition, int]
    ) -> Retriable | None:
        """Put messages to their partitions; what is wrong for the moment, if anything."""
        trouble: Retriable | None = None
        if any(map(Message.error, messages)):
            trouble = self._note_errors(messages)
            messages = [message for message in messages if message.error() is None]
        for tp, run in self._runs(messages):
            found.setdefault(tp, []).extend(run)
            sizes[tp] += sum(map(len, run))
            self.positions[tp] = run[-1].offset() + 1
        return trouble

    def _runs(self, messages: list[Message]) -> Iterator[tuple[TopicPartition, list[Message]]]:
        """What comes of one partition after the other."""
        if len(self.positions) == 1 and messages:
            yield next(iter(self.positions)), messages
            return
        names = zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)
        at = 0
        for name, run in groupby(names):
            count = sum(1 for _ in run)
            yield TopicPartition(*name), messages[at : at + count]
            at += count

    def _note_errors(self, messages: Sequence[Message]) -> Retriable | None:
        """What goes by is told, the last of it; an end that was reached is a position; else it raises."""
        trouble: Retriable | None = None
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
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
    if not messages:
        return
    if messages[0].leader_epoch() == messages[-1].leader_epoch():  # they only grow
        yield _batch(tp, messages)
        return
    for _, group in groupby(messages, key=Message.leader_epoch):
        yield _batch(tp, list(group))


def _batch(tp: TopicPartition, messages: Sequence[Message]) -> Batch:
    columns = [
        pa.array([when for _, when in map(Message.timestamp, messages)], pa.int64()),
        pa.array(list(map(Message.key, messages)), pa.binary()),
        pa.array(list(map(Message.value, messages)), pa.binary()),
    ]
    heads = list(map(Message.headers, messages))
    has_headers = any(heads)
    if has_headers:
        pairs = [
            None if not one else [{"key": key, "value": value} for key, value in one]
            for one in heads
        ]
        columns.append(pa.array(pairs, HEADERS_TYPE))
    schema = columns_schema(pa.binary(), headers=has_headers)
    first, last = messages[0].offset(), messages[-1].offset()
    follow = last - first + 1 == len(messages)
    return Batch(
        *tp,
        first,
        pa.RecordBatch.from_arrays(columns, schema=schema),
        messages[0].leader_epoch() or 0,
        None if follow else pa.array(list(map(Message.offset, messages)), pa.int64()),
    )
