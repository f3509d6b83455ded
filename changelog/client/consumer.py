"""The consumer: reads records of assigned partitions, from a position on.

The position is the offset of the next record to return. It comes from, in this order: a
`seek`, the group's committed offset, `auto_offset_reset`. The reset policy also applies when the
position is no longer in the log, when the topic was deleted and created again, and when the log
has another history because it was restored from a backup (`changelog.history`).
Nothing is committed unless `commit` is called, or the positions are sent in a transaction.

`poll` fetches from a few partitions at a time, so that the size of its result is bounded, and
continues with the others in the next call, so that no partition starves another.

A consumer either chooses its partitions (`assign`) or subscribes to topics (`subscribe`). A
subscribed consumer with a `group` divides the partitions with the group's other members (see
`changelog.groups`); without a group it reads all of them. With `assign`, `group` is only the name
under which offsets are committed.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import get_args

from strandline.changelog.broker import Broker
from strandline.changelog.client.cursor import FetchCursor
from strandline.changelog.client.group_subscription import (
    GroupOptions,
    GroupSubscription,
    Listener,
    RebalanceListener,
    no_listener,
)
from strandline.changelog.client.offset_reset import OffsetReset, StartingOffsets
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.closing import ClosedByWith
from strandline.changelog.errors import (
    CoordinatorLoading,
    InvalidRequest,
    OffsetOutOfRange,
    Retriable,
    StrandlineError,
    UnknownPartition,
    UnknownTopic,
)
from strandline.changelog.groups import Assignor, GroupMember
from strandline.changelog.records import (
    Batch,
    CommittedOffset,
    ConsumerRecord,
    Isolation,
    PartitionOffsets,
    TopicPartition,
)
from strandline.changelog.settings import LONG_MAX, check_choice, check_number
from strandline.changelog.times import sought_ms

POLL_SECONDS = 1.0
"""Seconds that iteration waits in one poll before it checks if the consumer was closed."""
PAUSE_S = 0.02
"""Minimum seconds between two attempts to fetch."""
GROUP_POLL_S = 0.2
"""Maximum seconds that a group member waits in one fetch before it checks for a rebalance."""
METADATA_MAX_AGE_S = 30.0
"""Seconds between two checks of subscribed topics for new partitions."""


class Consumer(ClosedByWith):
    """Reads partitions of a log. Use it from one thread at a time.

    Args:
        broker: The log. `Log.consumer` passes its own.
        group: Name of the consumer group; None (default): no group, nothing can be committed.
        isolation: "read_committed" (the default, unlike Kafka's): read up to the last stable
            offset, and leave out aborted records. "read_uncommitted": read all records.
        auto_offset_reset: Position if there is no valid one: "earliest" (default), "latest", or
            "none" to raise OffsetOutOfRange.
        max_bytes: Approximate maximum size of the result of a poll in bytes. Default 64 MiB.
        max_partition_bytes: Approximate maximum per partition and fetch in bytes. Default 8 MiB.
            At least one batch is fetched, however large.
        session_timeout_ms: Milliseconds without a heartbeat after which a group member loses its
            partitions. Default 10,000.
        max_poll_interval_ms: Milliseconds without a poll after which a group member loses its
            partitions. Default 300,000, as Kafka's.
        instance: Name of a static member (KIP-345), which gets its partitions back if it rejoins
            within the session timeout; None (default): not static.
        assignor: Assignment strategy; the same for all members of the group.
        clock: Time source; the system's by default.

    Raises:
        InvalidConfig: An argument is out of range.

    Examples:
        >>> from strandline.changelog.embedded.owner import Owner
        >>> from strandline.changelog.client.producer import Producer
        >>> from strandline.changelog.memory_storage import MemoryStorage
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
        session_timeout_ms: int = 10_000,
        max_poll_interval_ms: int = 300_000,
        instance: str | None = None,
        assignor: Assignor = "cooperative-sticky",
        clock: Clock | None = None,
    ) -> None:
        check_choice("isolation", isolation, get_args(Isolation))
        check_choice("auto_offset_reset", auto_offset_reset, get_args(OffsetReset))
        check_number("max_bytes", max_bytes, 0, LONG_MAX)
        check_number("max_partition_bytes", max_partition_bytes, 1, LONG_MAX)
        check_number("max_poll_interval_ms", max_poll_interval_ms, 1)
        self._broker = broker
        self._group = group
        self._isolation: Isolation = isolation
        self._starting = StartingOffsets(broker, group, isolation, auto_offset_reset)
        self._at_once = max(1, max_bytes // max_partition_bytes)
        self._max_partition_bytes = max_partition_bytes
        self._clock = clock or SystemClock()
        self._assigned: dict[TopicPartition, FetchCursor] = {}
        self._turn: deque[TopicPartition] = deque()
        """Assigned partitions, in the order in which they are read next."""
        self._subscribed: list[str] = []
        self._options = GroupOptions(
            group or "", session_timeout_ms, max_poll_interval_ms, instance, assignor
        )
        self._subscription: GroupSubscription | None = None
        """Membership in the group, once the consumer has subscribed with a group."""
        self._topics_checked_at = 0.0
        self._closed = False

    # Input to read --------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions. Partitions assigned before keep their positions.

        Args:
            partitions: Partitions to read; they replace all earlier ones and any subscription.

        Raises:
            UnknownTopic: A topic does not exist.
            UnknownPartition: A topic has no such partition.
        """
        self._check_open()
        self._leave()
        self._subscribed = []
        self._assign(list(dict.fromkeys(partitions)))

    def subscribe(
        self,
        topics: Iterable[str] | str,
        *,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Read these topics, including partitions that are added to them later.

        Without a group the consumer reads all partitions, at once. With a group it reads the
        partitions assigned to it, from the next `poll` on. Listeners are called within `poll`
        with a list of partitions.

        Args:
            topics: Name of one topic, or several names.
            on_assigned: Called after partitions were added.
            on_revoked: Called before partitions are assigned to another member; commit here.
            on_lost: Called when partitions may already be owned by another member, so that a
                commit would be rejected; `on_revoked` by default.

        Raises:
            UnknownTopic: A topic does not exist and there is no group. With a group, topics may
                be created later.
        """
        self._check_open()
        self._leave()
        self._subscribed = [topics] if isinstance(topics, str) else list(topics)
        if self._group is None:
            self._assign(self._partitions_of_subscribed())
        else:
            self._assign([])
            listener = RebalanceListener(
                on_assigned or no_listener,
                on_revoked or no_listener,
                on_lost or on_revoked or no_listener,
            )
            self._subscription = GroupSubscription(
                self._broker, self._options, self._subscribed, listener, self._clock
            )

    @property
    def member(self) -> GroupMember:
        """Identity in the group, for `Producer.send_offsets_to_transaction`.

        Its member id is empty unless the consumer has subscribed. Raises InvalidRequest without a
        group.
        """
        return (
            self._subscription.member if self._subscription else GroupMember(self._group_name(), "")
        )

    def assignment(self) -> list[TopicPartition]:
        """Return the assigned partitions."""
        return list(self._assigned)

    def pause(self, *partitions: TopicPartition) -> None:
        """Stop returning records of these partitions until `resume`; keep their positions."""
        for tp in partitions:
            self._of(tp).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Continue to read paused partitions."""
        for tp in partitions:
            self._of(tp).paused = False

    def paused(self) -> list[TopicPartition]:
        """Return the paused partitions."""
        return [tp for tp, assigned in self._assigned.items() if assigned.paused]

    # Reading --------------------------------------------------------------------------

    def poll(self, timeout: float = 0.0, *, max_records: int | None = None) -> list[Batch]:
        """Return the next batches of records, and move the positions after them.

        Args:
            timeout: Seconds to wait if no records are available.
            max_records: Maximum number of records; the rest is kept for the next poll. None
                (default): no limit.

        Returns:
            Batches of one partition each, in the order of their offsets; empty if there are none.

        Raises:
            OffsetOutOfRange: A position is invalid and `auto_offset_reset` is "none".
            UnknownTopic: A topic was deleted.
            Retriable: The log did not answer in time.
        """
        limit = sys.maxsize if max_records is None else max_records
        return self._taken(limit) if self._fill(timeout) else []

    def records(self, timeout: float = 1.0) -> Iterator[ConsumerRecord]:
        """Yield single records until none has arrived for `timeout` seconds.

        The position is already after a record when it is yielded. A `commit` in the loop
        therefore includes the current record, and leaving the loop skips no record.
        """
        while self._fill(timeout):
            yield from self._one_by_one()

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield single records, and wait for more until the consumer is closed."""
        while not self._closed:
            if self._fill(POLL_SECONDS):
                yield from self._one_by_one()

    def _fill(self, timeout: float) -> bool:
        """Fetch if nothing is buffered, for up to `timeout` seconds; return True if records are."""
        deadline = self._clock.monotonic() + timeout
        waited = 0.0
        while True:
            self._check_open()
            remaining = max(0.0, min(deadline - self._clock.monotonic(), timeout - waited))
            wait = self._longest_wait(remaining)
            try:
                self._rebalance()
                self._refresh_topics()
                self._starting.resolve(self._assigned, self._active())
                if self._has_fetched() or self._fetch(wait):
                    return True
                if wait == remaining:
                    return False
            except Retriable as error:
                if remaining <= 0:
                    if isinstance(error, CoordinatorLoading):
                        return False  # an open transaction is going to commit the position
                    raise
                wait = 0.0
            if wait < PAUSE_S or not self._active():
                threading.Event().wait(PAUSE_S)
            waited += max(wait, PAUSE_S)

    def _longest_wait(self, seconds: float) -> float:
        """Return the seconds to wait in one fetch, at most `seconds`.

        Group members wait for less, because they must notice a rebalance.
        """
        if self._subscription is None:
            return seconds
        return min(seconds, GROUP_POLL_S if self._active() else PAUSE_S)

    def _rebalance(self) -> None:
        if self._subscription is not None:
            self._subscription.rebalance(self.assignment(), lambda own: self._assign(sorted(own)))

    def _has_fetched(self) -> bool:
        return any(self._assigned[tp].fetched for tp in self._active())

    def _fetch(self, timeout: float) -> bool:
        """Fetch from a few partitions at a time; return True if records have arrived."""
        active = self._active()
        groups = [active[i : i + self._at_once] for i in range(0, len(active), self._at_once)]
        for group in groups if len(groups) > 1 else ():
            if self._fetch_from(group, 0.0):
                self._turn.rotate(-len(group))
                return True
        # No partition has records: wait for all of them at once.
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
            if not self._starting.recover(self._assigned, partitions):
                raise
            return self._fetch_from(partitions, timeout)
        except (UnknownTopic, UnknownPartition) as error:
            self._topics_checked_at = float("-inf")
            if self._subscribed and isinstance(error, UnknownPartition):
                self._refresh_topics()  # the topic was created again with fewer partitions
                return False
            raise
        diverged = [tp for tp, one in fetched.items() if not self._assigned[tp].follows(one)]
        if diverged:
            self._starting.reset_diverged(self._assigned, diverged)
            return self._fetch_from(partitions, timeout)
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
        """Continue reading a partition at `offset`. The next poll checks that the log has it.

        Raises:
            OffsetOutOfRange: The offset is negative.
            InvalidRequest: The partition is not assigned to this consumer.
        """
        if offset < 0:
            raise OffsetOutOfRange(f"{partition}: an offset is not negative, got {offset}")
        self._of(partition).seek(offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue at the first record of these partitions (default: all assigned ones)."""
        for tp, offset in self.beginning_offsets(partitions or self._assigned).items():
            self._of(tp).seek(offset)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue at the end of these partitions (default: all assigned ones)."""
        for tp, offset in self.end_offsets(partitions or self._assigned).items():
            self._of(tp).seek(offset)

    def seek_to_time(self, timestamp: int | dt.datetime, *partitions: TopicPartition) -> None:
        """Continue at the first record at or after a time, or at the end if there is none.

        Args:
            timestamp: Milliseconds since the epoch, or a datetime (UTC if it has no zone).
            *partitions: Partitions to seek; by default all assigned ones.

        Raises:
            InvalidRecord: The time is a float, or looks like seconds, microseconds or nanoseconds.
            InvalidRequest: A partition is not assigned to this consumer.
        """
        ms = sought_ms(timestamp)
        for tp in partitions or list(self._assigned):
            offset = self._broker.offset_for_time(tp, ms, isolation=self._isolation)
            self._of(tp).seek(self.end_offsets([tp])[tp] if offset is None else offset)

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record to return.

        Raises:
            CoordinatorLoading: An open transaction is going to change the committed offset.
            InvalidRequest: The partition is not assigned to this consumer.
        """
        cursor = self._of(partition)
        self._starting.resolve(self._assigned, [partition])
        return cursor.position

    def positions(self) -> dict[TopicPartition, CommittedOffset]:
        """Return all known positions, for `commit` and `send_offsets_to_transaction`."""
        return {
            tp: cursor.committed() for tp, cursor in self._assigned.items() if cursor.position >= 0
        }

    def beginning_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        return {tp: ends.log_start for tp, ends in self._broker.offsets(partitions).items()}

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offset (exclusive) of each partition, for this consumer's isolation."""
        return {
            tp: ends.visible_end(self._isolation)
            for tp, ends in self._broker.offsets(partitions).items()
        }

    def offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, PartitionOffsets]:
        """Return the bounds of partitions.

        A reader that builds a table from a compacted topic calls it after each poll, and passes
        the position from before the poll to `PartitionOffsets.must_start_over`, to find out if
        it has missed a deletion.
        """
        return self._broker.offsets(partitions)

    def lag(self) -> dict[TopicPartition, int]:
        """Return the number of offsets between position and end of each assigned partition."""
        self._starting.resolve(self._assigned, list(self._assigned))
        ends = self.end_offsets(self._assigned)
        return {tp: max(0, end - self._assigned[tp].position) for tp, end in ends.items()}

    # Committed offsets ----------------------------------------------------------------

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None) -> None:
        """Commit offsets for the group, durably.

        Args:
            offsets: Next offset to read, by partition; by default all positions.

        Raises:
            InvalidRequest: The consumer has no group.
            MemberFenced: Another member may own the partitions now.
        """
        chosen = self.positions() if offsets is None else offsets
        located = {
            tp: CommittedOffset(offset, topic_id=self._topic_id(tp))
            if isinstance(offset, int)
            else offset
            for tp, offset in chosen.items()
        }
        member = self.member
        self._broker.commit_offsets(member.group, located, member_id=member.member_id)

    def _topic_id(self, partition: TopicPartition) -> str:
        """Return the id of the topic that is read; "" for a partition that is not."""
        cursor = self._assigned.get(partition)
        return "" if cursor is None else cursor.topic_id

    def committed(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the group's committed offsets. Partitions without one are left out.

        Args:
            partitions: Partitions of interest; by default all with a committed offset.

        Raises:
            CoordinatorLoading: An open transaction is going to change one of the offsets.
            InvalidRequest: The consumer has no group.
        """
        return self._broker.committed(self._group_name(), partitions)

    def _group_name(self) -> str:
        if self._group is None:
            raise InvalidRequest("this consumer has no group; create it with group=… to commit")
        return self._group

    # Assignment -----------------------------------------------------------------------

    def _assign(self, partitions: Sequence[TopicPartition], *, later: bool = False) -> None:
        topics = {tp.topic: self._broker.topic(tp.topic) for tp in partitions}
        assigned: dict[TopicPartition, FetchCursor] = {}
        for tp in partitions:
            topic, known = topics[tp.topic], self._assigned.get(tp)
            if not 0 <= tp.partition < topic.partitions:
                raise UnknownPartition(
                    f"topic {tp.topic!r} has partitions 0 to {topic.partitions - 1}, got "
                    f"{tp.partition}"
                )
            if known is None or known.topic_id != topic.topic_id:
                added = later and known is None
                known = FetchCursor(topic.topic_id, appeared_later=added)
            assigned[tp] = known
        self._assigned = assigned
        self._turn = deque(assigned)
        self._topics_checked_at = self._clock.monotonic()

    def _partitions_of_subscribed(self) -> list[TopicPartition]:
        counts = {name: self._broker.topic(name).partitions for name in self._subscribed}
        return [TopicPartition(name, n) for name, count in counts.items() for n in range(count)]

    def _leave(self) -> None:
        if self._subscription is not None:
            subscription, self._subscription = self._subscription, None
            subscription.leave()

    def _refresh_topics(self) -> None:
        """Check from time to time for added partitions and for topics that were recreated."""
        if self._clock.monotonic() - self._topics_checked_at >= METADATA_MAX_AGE_S:
            wanted = list(self._assigned)
            if self._subscription is not None:
                wanted = self._subscription.refresh(wanted)
            elif self._subscribed:
                wanted = self._partitions_of_subscribed()
            self._assign(wanted, later=True)

    def _active(self) -> list[TopicPartition]:
        """Return the assigned partitions that are not paused, in the order to read them."""
        return [tp for tp in self._turn if not self._assigned[tp].paused]

    def _of(self, partition: TopicPartition) -> FetchCursor:
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
        """Leave the group and close, without committing. Repeated calls have no effect."""
        self._closed = True
        with contextlib.suppress(StrandlineError):
            self._leave()
        self._assigned = {}
        self._turn.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest("this consumer is closed")
