"""The consumer: records of assigned partitions, from a position on.

A position is the offset of the next record to be handed out. It comes from, in this order: a
`seek`, the group's committed offset, `auto_offset_reset`. The last also applies when a position
has fallen out of the log, when the topic was deleted and made again under its name, or when the log
has another history by now (`changelog.history`): it was restored from a backup.
Nothing is committed unless `commit` is called, or the positions are sent in a transaction.

`poll` asks for a few partitions at a time, so that what it returns is bounded, and goes on with
the others the next time: no partition starves another. For use by one thread at a time.

A consumer either names its partitions (`assign`), or it subscribes to topics. With a `group` it
then shares their partitions with the group's other members (see `changelog.groups`); without one it reads
all of them. With `assign`, `group` only says under which name offsets are committed.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self, get_args

from strandline.changelog.broker import Broker
from strandline.changelog.client.cursor import FetchCursor
from strandline.changelog.client.group_subscription import GroupSubscription, Listener
from strandline.changelog.client.offset_reset import OffsetReset, StartingOffsets
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.errors import (
    CoordinatorLoading,
    InvalidConfig,
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
from strandline.changelog.settings import LONG_MAX, check_number

POLL_SECONDS = 1.0
"""How long iteration waits in one poll before it looks whether the consumer was closed."""
PAUSE_S = 0.02
SHARING_SECONDS = 0.2
"""How long one of a group waits in the log before it looks whether others want partitions."""
METADATA_MAX_AGE_S = 30.0
"""How often subscribed topics are looked at for new partitions."""


class Consumer:
    """Reads partitions of a log.

    `session_timeout_ms` after it was last heard of, and `max_poll_interval_ms` after its last
    poll, a member of a group has lost its partitions to the others. `instance` makes it a static
    member (KIP-345): one that is back within the session timeout has what it had. `assignor` is
    how the group shares out.

    `isolation` "read_committed" (the default, unlike Kafka's) bounds it by the last stable
    offset and leaves out aborted records. `max_bytes` is about how much one poll returns,
    `max_partition_bytes` how much of one partition; a batch is never cut for it.

    >>> from strandline.changelog.embedded.owner import Owner
    >>> from strandline.changelog.client.producer import Producer
    >>> from strandline.changelog.storage import MemoryStorage
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
        _check_choice("isolation", isolation, get_args(Isolation))
        _check_choice("auto_offset_reset", auto_offset_reset, get_args(OffsetReset))
        check_number("max_bytes", max_bytes, 0, LONG_MAX)
        check_number("max_partition_bytes", max_partition_bytes, 1, LONG_MAX)
        check_number("max_poll_interval_ms", max_poll_interval_ms, 1)
        self._broker = broker
        self._group = group
        self._isolation: Isolation = isolation
        self._beginning = StartingOffsets(broker, group, isolation, auto_offset_reset)
        self._at_once = max(1, max_bytes // max_partition_bytes)
        self._max_partition_bytes = max_partition_bytes
        self._clock = clock or SystemClock()
        self._assigned: dict[TopicPartition, FetchCursor] = {}
        self._turn: deque[TopicPartition] = deque()
        """The assigned partitions, the one whose turn it is first."""
        self._subscribed: list[str] = []
        self._join = partial(
            GroupSubscription,
            broker,
            group or "",
            clock=self._clock,
            session_timeout_ms=session_timeout_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            instance=instance,
            assignor=assignor,
        )
        self._sharing: GroupSubscription | None = None
        """Its part in the group, once it has subscribed as one of it."""
        self._looked_at = 0.0
        self._closed = False

    # What to read ---------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions from now on, and no others; kept ones keep their positions.

        Raises UnknownTopic, UnknownPartition.
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
        """Read these topics, and partitions that are added to them later.

        Without a group: all partitions, from now on. With one: those that are the consumer's
        share, from the next `poll` on. The listeners are called within `poll`, with partitions:
        `on_assigned` when they have been added; `on_revoked` before they go to another member,
        the place to commit; `on_lost` when others may have them already, and a commit would
        be refused (default: `on_revoked`).

        Raises UnknownTopic without a group; in a group a topic may come later.
        """
        self._check_open()
        self._leave()
        self._subscribed = [topics] if isinstance(topics, str) else list(topics)
        if self._group is None:
            self._assign(self._partitions_of_subscribed())
        else:
            self._assign([])
            lost = on_lost or on_revoked
            self._sharing = self._join(self._subscribed, on_assigned, on_revoked, lost)

    @property
    def member(self) -> GroupMember:
        """Who it is in its group, for `Producer.send_offsets_to_transaction`.

        Without a subscription as one of a group its member id is empty. Raises InvalidRequest
        without a group.
        """
        return self._sharing.member if self._sharing else GroupMember(self._group_name(), "")

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
            wait = self._longest_wait(remaining)
            try:
                self._take_part()
                self._look_for_changes()
                self._beginning.resolve(self._assigned, self._active())
                if self._has_fetched() or self._fetch(wait):
                    return True
                if wait == remaining:
                    return False
            except Retriable as error:
                if remaining <= 0:
                    if isinstance(error, CoordinatorLoading):
                        return False  # an open transaction is about to say where to begin
                    raise
                wait = 0.0
            if wait < PAUSE_S or not self._active():
                threading.Event().wait(PAUSE_S)
            waited += max(wait, PAUSE_S)

    def _longest_wait(self, seconds: float) -> float:
        """How long to wait in the log at once, if there are so many seconds."""
        if self._sharing is None:
            return seconds
        return min(seconds, SHARING_SECONDS if self._active() else PAUSE_S)

    def _take_part(self) -> None:
        if self._sharing is not None:
            self._sharing.take_part(self.assignment(), self._share)

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
            if not self._beginning.recover(self._assigned, partitions):
                raise
            return self._fetch_from(partitions, timeout)
        except (UnknownTopic, UnknownPartition):
            self._looked_at = float("-inf")
            raise
        diverged = [tp for tp, one in fetched.items() if not self._assigned[tp].follows(one)]
        if diverged:
            self._beginning.reset_diverged(self._assigned, diverged)
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
        self._beginning.resolve(self._assigned, [partition])
        return cursor.position

    def positions(self) -> dict[TopicPartition, CommittedOffset]:
        """All known positions, as `commit` and `send_offsets_to_transaction` take them."""
        return {
            tp: cursor.committed() for tp, cursor in self._assigned.items() if cursor.position >= 0
        }

    def beginning_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return {tp: ends.log_start for tp, ends in self._broker.offsets(partitions).items()}

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Where each partition ends, as this consumer's isolation sees it."""
        return {
            tp: self._beginning.end(ends) for tp, ends in self._broker.offsets(partitions).items()
        }

    def offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, PartitionOffsets]:
        """All that is known of where partitions begin and end.

        Who builds a table from a compacted topic asks for it after each poll, with the position
        from before it: `PartitionOffsets.must_start_over` says whether a deletion was missed.
        """
        return self._broker.offsets(partitions)

    def lag(self) -> dict[TopicPartition, int]:
        """How many offsets each assigned partition is ahead of its position."""
        self._beginning.resolve(self._assigned, list(self._assigned))
        ends = self.end_offsets(self._assigned)
        return {tp: max(0, end - self._assigned[tp].position) for tp, end in ends.items()}

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
        member = self.member
        self._broker.commit_offsets(member.group, located, member_id=member.member_id)

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
        self._looked_at = self._clock.monotonic()

    def _partitions_of_subscribed(self) -> list[TopicPartition]:
        topics = [self._broker.topic(name) for name in self._subscribed]
        return [TopicPartition(t.name, n) for t in topics for n in range(t.partitions)]

    def _share(self, partitions: Collection[TopicPartition]) -> None:
        """What the group lets it read from now on."""
        self._assign(sorted(partitions))

    def _leave(self) -> None:
        if self._sharing is not None:
            sharing, self._sharing = self._sharing, None
            sharing.leave()

    def _look_for_changes(self) -> None:
        """Now and then: partitions added to subscribed topics, topics made anew."""
        if self._clock.monotonic() - self._looked_at >= METADATA_MAX_AGE_S:
            every = self._subscribed and self._sharing is None
            wanted = self._partitions_of_subscribed() if every else self._assigned
            self._assign(list(wanted), later=True)

    def _active(self) -> list[TopicPartition]:
        """What is assigned and not paused, the one whose turn it is first."""
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
        """Let go of everything, and leave the group; commits nothing. Harmless when repeated."""
        self._closed = True
        with contextlib.suppress(StrandlineError):
            self._leave()
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
