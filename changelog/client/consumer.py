"""The consumer: records of assigned partitions, from a position on.

A position is the offset of the next record to be handed out. It comes from, in this order: a
`seek`, the group's committed offset, `auto_offset_reset`. The last also applies when a position
has fallen out of the log, or when the topic was deleted and made again under its name.
Nothing is committed unless `commit` is called, or the positions are sent in a transaction.

`poll` asks for a few partitions at a time, so that what it returns is bounded, and goes on with
the others the next time: no partition starves another. For use by one thread at a time.

A consumer assigns its partitions to itself; sharing them out among the members of a group is
not done here, and `group` only says under which name offsets are committed.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Literal, Self, get_args

from changelog.broker import Broker
from changelog.client.cursor import Cursor
from changelog.clock import Clock, SystemClock
from changelog.errors import (
    CoordinatorLoading,
    InvalidConfig,
    InvalidRequest,
    OffsetOutOfRange,
    Retriable,
    UnknownPartition,
    UnknownTopic,
)
from changelog.records import (
    Batch,
    CommittedOffset,
    ConsumerRecord,
    Isolation,
    PartitionOffsets,
    TopicPartition,
)

OffsetReset = Literal["earliest", "latest", "none"]

POLL_SECONDS = 1.0
"""How long iteration waits in one poll before it looks whether the consumer was closed."""
PAUSE_S = 0.02
METADATA_MAX_AGE_S = 30.0
"""How often subscribed topics are looked at for new partitions."""


class Consumer:
    """Reads partitions of a log.

    `isolation` "read_committed" (the default, unlike Kafka's) bounds it by the last stable
    offset and leaves out aborted records. `max_bytes` is about how much one poll returns,
    `max_partition_bytes` how much of one partition; a batch is never cut for it.

    >>> from changelog.embedded.owner import Owner
    >>> from changelog.client.producer import Producer
    >>> from changelog.storage import MemoryStorage
    >>> owner = Owner(MemoryStorage(), background=False)
    >>> info = owner.create_topic("greetings")
    >>> with Producer(owner) as producer, Consumer(owner) as consumer:
    ...     where = producer.append("greetings", [{"value": b"hello"}, {"value": b"again"}])
    ...     consumer.subscribe("greetings")
    ...     [record.value for record in consumer.records(timeout=0)]
    [b'hello', b'again']
    """

    def __init__(
        self,
        broker: Broker,
        *,
        group: str | None = None,
        isolation: Isolation = "read_committed",
        auto_offset_reset: OffsetReset = "earliest",
        max_bytes: int = 64 << 20,
        max_partition_bytes: int = 8 << 20,
        clock: Clock | None = None,
    ) -> None:
        _check_choice("isolation", isolation, get_args(Isolation))
        _check_choice("auto_offset_reset", auto_offset_reset, get_args(OffsetReset))
        self._broker = broker
        self._group = group
        self._isolation: Isolation = isolation
        self._reset: OffsetReset = auto_offset_reset
        self._at_once = max(1, max_bytes // max_partition_bytes)
        self._max_partition_bytes = max_partition_bytes
        self._clock = clock or SystemClock()
        self._assigned: dict[TopicPartition, Cursor] = {}
        self._turn: deque[TopicPartition] = deque()
        """The assigned partitions, the one whose turn it is first."""
        self._subscribed: list[str] = []
        self._looked_at = 0.0
        self._closed = False

    # What to read ---------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions from now on, and no others; kept ones keep their positions.

        Raises UnknownTopic, UnknownPartition.
        """
        self._check_open()
        self._subscribed = []
        self._assign(list(dict.fromkeys(partitions)))

    def subscribe(self, topics: Iterable[str] | str) -> None:
        """Read all partitions of these topics, and those that are added to them later."""
        self._check_open()
        self._subscribed = [topics] if isinstance(topics, str) else list(topics)
        self._assign(self._partitions_of_subscribed())

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read."""
        return list(self._assigned)

    def pause(self, *partitions: TopicPartition) -> None:
        """Return nothing of these partitions until `resume`; positions stay."""
        for tp in partitions:
            self._of(tp).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Go on with paused partitions."""
        for tp in partitions:
            self._of(tp).paused = False

    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return [tp for tp, assigned in self._assigned.items() if assigned.paused]

    # Reading --------------------------------------------------------------------------

    def poll(self, timeout: float = 0.0, *, max_records: int | None = None) -> list[Batch]:
        """The next batches of columns, waiting up to `timeout` seconds if there are none.

        Each is of one partition and in its order; positions move behind them. With
        `max_records` the rest stays for the next poll. Raises OffsetOutOfRange with
        auto_offset_reset="none", Retriable if the log does not answer in time, UnknownTopic.
        """
        limit = sys.maxsize if max_records is None else max_records
        return self._taken(limit) if self._fill(timeout) else []

    def records(self, timeout: float = 1.0) -> Iterator[ConsumerRecord]:
        """Record by record, until nothing new has come for `timeout` seconds.

        The position is behind a record when it is handed out, so a `commit` in the loop covers
        it, and breaking out of the loop loses nothing.
        """
        while self._fill(timeout):
            yield from self._one_by_one()

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Record by record, waiting for more until the consumer is closed."""
        while not self._closed:
            if self._fill(POLL_SECONDS):
                yield from self._one_by_one()

    def _fill(self, timeout: float) -> bool:
        """Have something fetched, waiting up to `timeout` seconds; whether there is anything."""
        deadline = self._clock.monotonic() + timeout
        waited = 0.0
        while True:
            self._check_open()
            remaining = max(0.0, min(deadline - self._clock.monotonic(), timeout - waited))
            try:
                self._look_for_changes()
                self._resolve(self._active())
                return self._has_fetched() or self._fetch(remaining)
            except Retriable as error:
                if remaining <= 0:
                    if isinstance(error, CoordinatorLoading):
                        return False  # an open transaction is about to say where to begin
                    raise
            threading.Event().wait(PAUSE_S)
            waited += PAUSE_S

    def _has_fetched(self) -> bool:
        return any(self._assigned[tp].fetched for tp in self._active())

    def _fetch(self, timeout: float) -> bool:
        """Ask for what comes next, a few partitions at a time; whether anything came."""
        active = self._active()
        groups = [active[i : i + self._at_once] for i in range(0, len(active), self._at_once)]
        for group in groups if len(groups) > 1 else ():
            if self._fetch_from(group, 0.0):
                self._turn.rotate(-len(group))
                return True
        # Nothing anywhere: wait for all of them at once.
        return bool(active) and self._fetch_from(active, timeout)

    def _fetch_from(self, partitions: Sequence[TopicPartition], timeout: float) -> bool:
        positions = {tp: self._assigned[tp].fetch_position for tp in partitions}
        try:
            fetched = self._broker.fetch(
                positions,
                max_bytes=self._max_partition_bytes,
                isolation=self._isolation,
                timeout=timeout,
            )
        except OffsetOutOfRange:
            if not self._recover(partitions):
                raise
            return self._fetch_from(partitions, timeout)
        except (UnknownTopic, UnknownPartition):
            self._looked_at = float("-inf")
            raise
        for tp, one in fetched.items():
            self._assigned[tp].received(one)
        return any(one.batches for one in fetched.values())

    def _taken(self, limit: int) -> list[Batch]:
        batches: list[Batch] = []
        for tp in self._active():
            cursor = self._assigned[tp]
            if cursor.fetched:
                self._turn.remove(tp)
                self._turn.append(tp)
            while cursor.fetched and limit > 0:
                batches.append(cursor.take(limit))
                limit -= len(batches[-1])
            if limit <= 0:
                break
        return batches

    def _one_by_one(self) -> Iterator[ConsumerRecord]:
        for tp in self._active():
            cursor = self._assigned[tp]
            while cursor.fetched and not cursor.paused and self._assigned.get(tp) is cursor:
                for record in cursor.rest_of_first().records():
                    moves = cursor.passed(record.offset)
                    yield record
                    if cursor.moves != moves or cursor.paused:
                        break  # a seek or a pause between two records

    # Positions ------------------------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at `offset`; whether the log has it shows at the next poll."""
        if offset < 0:
            raise OffsetOutOfRange(f"{partition}: an offset is not negative, got {offset}")
        self._of(partition).seek(offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go back to the first record (of all partitions if none are named)."""
        for tp, offset in self.beginning_offsets(partitions or self._assigned).items():
            self._of(tp).seek(offset)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Skip what is there (in all partitions if none are named)."""
        for tp, offset in self.end_offsets(partitions or self._assigned).items():
            self._of(tp).seek(offset)

    def seek_to_time(self, timestamp: int, *partitions: TopicPartition) -> None:
        """Go to the first record at or after `timestamp` (ms), or to the end if there is none."""
        for tp in partitions or list(self._assigned):
            offset = self._broker.offset_for_time(tp, timestamp, isolation=self._isolation)
            self._of(tp).seek(self.end_offsets([tp])[tp] if offset is None else offset)

    def position(self, partition: TopicPartition) -> int:
        """Offset of the next record to be handed out. Raises CoordinatorLoading."""
        cursor = self._of(partition)
        self._resolve([partition])
        return cursor.position

    def positions(self) -> dict[TopicPartition, CommittedOffset]:
        """All known positions, as `commit` and `send_offsets_to_transaction` take them."""
        return {
            tp: CommittedOffset(cursor.position, "", cursor.topic_id)
            for tp, cursor in self._assigned.items()
            if cursor.position >= 0
        }

    def beginning_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return {tp: ends.log_start for tp, ends in self._broker.offsets(partitions).items()}

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Where each partition ends, as this consumer's isolation sees it."""
        return {tp: self._end(ends) for tp, ends in self._broker.offsets(partitions).items()}

    def lag(self) -> dict[TopicPartition, int]:
        """How many offsets each assigned partition is ahead of its position."""
        self._resolve(list(self._assigned))
        ends = self.end_offsets(self._assigned)
        return {tp: max(0, end - self._assigned[tp].position) for tp, end in ends.items()}

    def _end(self, ends: PartitionOffsets) -> int:
        committed = self._isolation == "read_committed"
        return ends.last_stable_offset if committed else ends.high_watermark

    # Committed offsets ----------------------------------------------------------------

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None) -> None:
        """Commit `offsets` (default: all positions) for the group, durably.

        Raises InvalidRequest without a group.
        """
        chosen = self.positions() if offsets is None else offsets
        located = {
            tp: CommittedOffset(offset) if isinstance(offset, int) else offset
            for tp, offset in chosen.items()
        }
        self._broker.commit_offsets(self._group_name(), located)

    def committed(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """What the group has committed; partitions without are left out.

        Raises CoordinatorLoading while an open transaction is about to change it.
        """
        return self._broker.committed(self._group_name(), partitions)

    def _group_name(self) -> str:
        if self._group is None:
            raise InvalidRequest("this consumer has no group; create it with group=… to commit")
        return self._group

    # Where to begin -------------------------------------------------------------------

    def _resolve(self, partitions: Sequence[TopicPartition]) -> None:
        """Find the position of partitions that have none yet."""
        unknown = [tp for tp in partitions if self._assigned[tp].position < 0]
        if not unknown:
            return
        committed = self._broker.committed(self._group, unknown) if self._group else {}
        without = []
        for tp in unknown:
            cursor, offset = self._assigned[tp], committed.get(tp)
            # An offset of a deleted topic of the same name says nothing about this one.
            if offset is not None and offset.topic_id in ("", cursor.topic_id):
                cursor.seek(offset.offset)
            else:
                without.append(tp)
        self._reset_to_policy(without, "has no committed offset")

    def _recover(self, partitions: Sequence[TopicPartition]) -> bool:
        """Apply auto_offset_reset where the position is not in the log; whether there was any."""
        lost = []
        for tp, ends in self._broker.offsets(partitions).items():
            cursor = self._assigned[tp]
            inside = ends.log_start <= cursor.fetch_position <= ends.high_watermark
            if not inside or ends.topic_id != cursor.topic_id:
                cursor.topic_id = ends.topic_id
                lost.append(tp)
        self._reset_to_policy(lost, "no longer has what this consumer was about to read")
        return bool(lost)

    def _reset_to_policy(self, partitions: Sequence[TopicPartition], why: str) -> None:
        if not partitions:
            return
        for tp, ends in self._broker.offsets(partitions).items():
            cursor = self._assigned[tp]
            if self._reset == "none":
                raise OffsetOutOfRange(
                    f"{tp} {why}, and auto_offset_reset is 'none'; seek to an offset from "
                    f"{ends.log_start} to {self._end(ends)}"
                )
            from_start = self._reset == "earliest" or cursor.appeared_later
            cursor.seek(ends.log_start if from_start else self._end(ends))

    # Assignment -----------------------------------------------------------------------

    def _assign(self, partitions: Sequence[TopicPartition], *, later: bool = False) -> None:
        topics = {tp.topic: self._broker.topic(tp.topic) for tp in partitions}
        assigned: dict[TopicPartition, Cursor] = {}
        for tp in partitions:
            topic, known = topics[tp.topic], self._assigned.get(tp)
            if not 0 <= tp.partition < topic.partitions:
                raise UnknownPartition(
                    f"topic {tp.topic!r} has partitions 0 to {topic.partitions - 1}, got "
                    f"{tp.partition}"
                )
            if known is None or known.topic_id != topic.topic_id:
                added = later and known is None
                known = Cursor(topic.topic_id, appeared_later=added)
            assigned[tp] = known
        self._assigned = assigned
        self._turn = deque(assigned)
        self._looked_at = self._clock.monotonic()

    def _partitions_of_subscribed(self) -> list[TopicPartition]:
        topics = [self._broker.topic(name) for name in self._subscribed]
        return [TopicPartition(t.name, n) for t in topics for n in range(t.partitions)]

    def _look_for_changes(self) -> None:
        """Now and then: partitions added to subscribed topics, topics made anew."""
        if self._clock.monotonic() - self._looked_at >= METADATA_MAX_AGE_S:
            wanted = self._partitions_of_subscribed() if self._subscribed else self._assigned
            self._assign(list(wanted), later=True)

    def _active(self) -> list[TopicPartition]:
        """What is assigned and not paused, the one whose turn it is first."""
        return [tp for tp in self._turn if not self._assigned[tp].paused]

    def _of(self, partition: TopicPartition) -> Cursor:
        self._check_open()
        try:
            return self._assigned[partition]
        except KeyError:
            raise InvalidRequest(
                f"{partition} is not assigned to this consumer; assigned are "
                f"{', '.join(map(str, self._assigned)) or 'none'}"
            ) from None

    # Closing --------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of everything; commits nothing. Harmless when repeated."""
        self._closed = True
        self._assigned = {}
        self._turn.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest("this consumer is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _check_choice(name: str, got: str, choices: Sequence[str]) -> None:
    if got not in choices:
        raise InvalidConfig(f"{name} must be one of {', '.join(map(repr, choices))}, got {got!r}")
