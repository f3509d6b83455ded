"""A member of a group: a consumer of librdkafka that is in the group, and reads nothing.

librdkafka sends heartbeats and rejoins in a thread of its own, and reports assigned and revoked
partitions within `poll`. Therefore a thread of the member polls, and turns the reports into
assignments:

    assigned   the new assignment has more partitions
    revoked    the new assignment has fewer partitions; the callback, and with it the answer to
               Kafka, waits for a heartbeat that has seen it and no longer owns them
    lost       the consumer is no longer a member

Offsets are committed with the metadata (member id and generation, KIP-447) of the time of the
assignment. So commits are rejected for a member that was removed from the group meanwhile, even if
librdkafka has already rejoined.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from strandline.changelog.errors import (
    MemberFenced,
    RequestTimedOut,
    Retriable,
    StrandlineError,
    TransactionAborted,
)
from strandline.changelog.groups import Assignment, Subscription
from strandline.changelog.kafka.callbacks import called, in_callback
from strandline.changelog.kafka.connection import DEADLINE_S, KafkaConnection
from strandline.changelog.kafka.copartitioning import Unit
from strandline.changelog.records import TopicPartition

POLL_S = 0.02
"""Maximum seconds in one call of `poll`, which delays calls from other threads."""
REBALANCE_MS = 300_000
"""Milliseconds in which a member must release revoked partitions; otherwise it is removed from the
group (Kafka's max.poll.interval.ms)."""
RELEASE_POLL_S = 0.1
"""Maximum seconds between two checks if revoked partitions were released."""
REFRESH_S = 1.0
"""Seconds between two calls of the function given to `refresh_regularly`."""
REFRESH_MS = 2_000
"""Milliseconds after which created topics and added partitions are noticed."""

T = TypeVar("T")
Partitions = Callable[[Collection[Unit]], frozenset[TopicPartition]]
"""Function that returns the partitions represented by units of Kafka's assignment."""
_NONE: frozenset[TopicPartition] = frozenset()
_MISSING_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)


class KafkaMember:
    """A member from `join` to `leave`. Thread-safe. Raises MemberFenced after it was removed."""

    def __init__(
        self,
        connection: KafkaConnection,
        group: str,
        subscription: Subscription,
        subscribed: Sequence[str],
        partitions: Partitions,
    ) -> None:
        self.group = group
        self.subscription = subscription
        self._connection = connection
        self._partitions = partitions
        self._doing = f"group {group!r}"
        self._where = connection.where(self._doing)
        self._cooperative = subscription.assignor == "cooperative-sticky"
        self._session_s = subscription.session_timeout_ms / 1000
        self._changed = threading.Condition()
        self._units: set[Unit] = set()
        self._number = 0
        self._assignable = _NONE
        self._standbys = _NONE
        self._gives_up = _NONE
        self._call = self._seen = 0
        self._owned = _NONE
        self._last_beat_at = connection.clock.monotonic()
        self._metadata: Any = None
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._failure: StrandlineError | None = None
        self._over = threading.Event()
        self.member_id = ""
        self._consumer: Consumer = connection.client(Consumer, _properties(subscription, group))
        with connection.translated(self._doing):
            self._consumer.subscribe(
                list(subscribed),
                on_assign=self._assigned,
                on_revoke=self._revoked,
                on_lost=self._lost,
            )
        self._thread = threading.Thread(target=self._run, name="strandline-member", daemon=True)
        self._thread.start()

    def join(self, seconds: float) -> bool:
        """Wait for up to `seconds`; return True if the consumer is a member then.

        Raises errors that the cluster reports.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._number or self._failure, seconds)
            self._check()
            return bool(self._number)

    def beat(
        self, call: int, seen: int, holds: Collection[TopicPartition], timeout: float
    ) -> Assignment:
        """See Broker.heartbeat."""
        with self._changed:
            self._check()
            self._last_beat_at = self._connection.clock.monotonic()
            if call > self._call:
                self._call, self._seen, self._owned = call, seen, frozenset(holds)
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._number > seen or self._failure, timeout)
            self._check()
            return Assignment(self._number, sorted(self._assignable), sorted(self._standbys))

    def refresh_regularly(self, refresh: Callable[[], None]) -> None:
        """Call `refresh` about every second from now on.

        It runs in a thread of its own, because brokers may answer slowly and the polling thread
        must not wait: without polls, the member would be removed from the group.
        """

        def run() -> None:
            while not self._over.wait(REFRESH_S):
                try:
                    with contextlib.suppress(Retriable):
                        refresh()
                except StrandlineError as error:
                    self._fail(error)

        threading.Thread(target=run, name="strandline-member-look", daemon=True).start()

    def set_standbys(self, standbys: frozenset[TopicPartition]) -> None:
        """Set the partitions that the member keeps copies of."""
        with self._changed:
            if standbys != self._standbys:
                self._standbys = standbys
                self._number += 1
                self._changed.notify_all()

    def add_grown_partitions(self) -> None:
        """Add partitions that the topics of assigned units have gained."""
        with self._changed:
            partitions = self._partitions(self._units)
            if self._number and partitions > self._assignable:
                self._assignable = partitions
                self._number += 1
                self._changed.notify_all()

    def owned(self) -> frozenset[TopicPartition]:
        """Return the partitions whose offsets the member may commit. Raises MemberFenced.

        These are the assigned ones, and revoked ones that it has not released yet.
        """
        with self._changed:
            self._check()
            return self._assignable | (self._gives_up & self._owned)

    def metadata_for(self, partitions: Collection[TopicPartition]) -> Any:
        """Return the member's metadata, to commit offsets of these partitions in a transaction.

        Raises MemberFenced if it does not own all of them.
        """
        with self._changed:
            if foreign := set(partitions) - self.owned():
                raise MemberFenced(
                    f"{self._where}: {self.member_id} does not hold "
                    f"{', '.join(map(str, sorted(foreign)))}; another member may"
                )
            return self._metadata

    def wait_for_generation(self, metadata: Any) -> None:
        """Wait for a generation other than that of `metadata`, at most for a session timeout."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._metadata != metadata or self._failure, self._session_s
            )

    def commit(self, offsets: Mapping[TopicPartition, KafkaPartition]) -> None:
        """Commit offsets outside a transaction. Raises MemberFenced."""
        self.metadata_for(offsets)
        doing = f"committing offsets of group {self.group!r}"

        def committed() -> bool | None:
            try:
                done = self._in_thread(
                    lambda: self._consumer.commit(
                        offsets=list(offsets.values()), asynchronous=False
                    ),
                    doing,
                )
                for one in done:
                    if one.error is not None:
                        raise self._connection.failure(one.error, doing)
            except TransactionAborted:  # the group is being rebalanced; retry
                return None
            return True

        self._connection.until(committed, doing)

    def _in_thread(self, call: Callable[[], T], doing: str) -> T:
        """Run `call` in the member's thread and return its result.

        In another thread the call of librdkafka may hang.
        """
        answer: Future[T] = Future()
        with self._changed:
            self._check()
            self._calls.append((answer, call))
            self._changed.notify_all()
        try:
            with self._connection.translated(doing):
                return answer.result(DEADLINE_S)
        except TimeoutError:
            raise RequestTimedOut(f"{self._where}: {doing}: no answer") from None

    def leave(self) -> None:
        """Leave the group; return when the coordinator knows, or cannot be reached."""
        self._fail(MemberFenced(f"{self._where}: {self.member_id or 'this member'} has left"))
        if threading.current_thread() is not self._thread:
            self._thread.join(DEADLINE_S)

    @property
    def is_over(self) -> bool:
        """True if the consumer is no longer a member."""
        return self._failure is not None

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    # In its thread --------------------------------------------------------------------

    def _run(self) -> None:
        """Poll until the membership ends. All calls of librdkafka's consumer are made here."""
        try:
            while not self.is_over:
                message = called(lambda: self._consumer.poll(POLL_S))
                if message is not None:
                    self._handle_error(message)
                self._run_calls()
                self._check_session()
        except KafkaException as error:
            self._fail(self._connection.failure(error.args[0], self._doing))
        except BaseException as error:
            self._fail(MemberFenced(f"{self._where}: {error!r}"))
            raise
        finally:
            self._run_calls()
            with contextlib.suppress(KafkaException, RuntimeError):
                called(self._consumer.close)

    def _handle_error(self, message: Message) -> None:
        """End the membership for an error, except outages, which librdkafka handles itself."""
        error = message.error()
        if error is not None:
            failure = self._connection.failure(error, self._doing)
            # A missing topic may be created later.
            if not isinstance(failure, Retriable) and error.code() not in _MISSING_TOPIC:
                self._fail(failure)

    def _check_session(self) -> None:
        """End the membership if the consumer sent no heartbeat for its session timeout.

        Its partitions are then assigned to others, as if the process had died. librdkafka's own
        heartbeats do not show that the consumer's thread is alive.
        """
        silent = self._connection.clock.monotonic() - self._last_beat_at
        if self._call and silent > self._session_s:
            self._fail(
                MemberFenced(
                    f"{self._where}: {self.member_id} was not heard of for its session timeout of "
                    f"{self._session_s:g} s; others may own its partitions"
                )
            )

    def _run_calls(self) -> None:
        """Run the calls that other threads have requested."""
        while self._calls:
            answer, call = self._calls.popleft()
            try:
                self._check()
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)

    @in_callback
    def _assigned(self, consumer: Consumer, partitions: Sequence[KafkaPartition]) -> None:
        with self._changed:
            if not self._cooperative:
                self._units.clear()
            self._units.update((one.topic, one.partition) for one in partitions)
            self._update_assignment()
        # Accept with an empty list, because librdkafka would read partitions assigned to it.
        consumer.incremental_assign([]) if self._cooperative else consumer.assign([])

    @in_callback
    def _revoked(self, consumer: Consumer, partitions: Sequence[KafkaPartition]) -> None:
        units = {(one.topic, one.partition) for one in partitions}
        with self._changed:
            before = self._assignable
            self._units -= units
            self._update_assignment()
            self._gives_up = before - self._assignable
        self._wait_for_release()
        consumer.incremental_unassign([]) if self._cooperative else consumer.unassign()

    def _wait_for_release(self) -> None:
        """Wait until the consumer has released revoked partitions; it may commit meanwhile.

        Kafka assigns the partitions to another member only after this callback has returned.
        """
        number = self._number
        deadline = self._connection.clock.monotonic() + REBALANCE_MS / 1000

        def released() -> bool:
            seen = self._seen >= number and self._owned.isdisjoint(self._gives_up)
            return seen or self.is_over

        while not released():
            with self._changed:
                self._changed.wait_for(lambda: self._calls or released(), RELEASE_POLL_S)
            self._run_calls()
            self._check_session()
            if self._connection.clock.monotonic() > deadline:
                self._fail(
                    MemberFenced(
                        f"{self._where}: {self.member_id} did not release "
                        f"{', '.join(map(str, sorted(self._gives_up)))} within "
                        f"{REBALANCE_MS / 1000:g} s; handle less between two commits"
                    )
                )
        self._gives_up = _NONE

    @in_callback
    def _lost(self, consumer: Consumer, _partitions: Sequence[KafkaPartition]) -> None:
        self._fail(
            MemberFenced(
                f"{self._where}: {self.member_id} was put out of the group: it was not heard of for its "
                f"session timeout of {self._session_s:g} s, or its brokers were not reached"
            )
        )
        consumer.incremental_unassign([]) if self._cooperative else consumer.unassign()

    def _update_assignment(self) -> None:
        """Update the assignment and the member's metadata, and notify waiting heartbeats."""
        before = self._consumer.memberid()
        metadata = self._consumer.consumer_group_metadata()
        # If the member was removed between the two calls, the metadata has an empty member id,
        # with which Kafka would accept offsets as from outside the group.
        if not before or self._consumer.memberid() != before:
            self._fail(MemberFenced(f"{self._where}: put out of the group while it was joining"))
            return
        if self.member_id not in ("", before):
            self._fail(
                MemberFenced(
                    f"{self._where}: {self.member_id} was put out of the group, and let in as {before}"
                )
            )
            return
        self.member_id, self._metadata = before, metadata
        partitions = self._partitions(self._units)
        if partitions != self._assignable or not self._number:
            self._assignable = partitions
            self._number += 1
        self._changed.notify_all()

    def _fail(self, error: StrandlineError) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._over.set()
            self._changed.notify_all()


def _properties(subscription: Subscription, group: str) -> dict[str, Any]:
    session = subscription.session_timeout_ms
    properties: dict[str, Any] = {
        "group.id": group,
        "partition.assignment.strategy": subscription.assignor,
        "session.timeout.ms": session,
        "heartbeat.interval.ms": max(1, min(1000, session // 3)),
        "max.poll.interval.ms": max(session, REBALANCE_MS),
        "topic.metadata.refresh.interval.ms": REFRESH_MS,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
    }
    if subscription.client:
        properties["client.id"] = subscription.client
    if subscription.instance is not None:
        properties["group.instance.id"] = subscription.instance
    return properties
