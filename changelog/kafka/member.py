"""A member of a group: a consumer of librdkafka's that takes part in it, and reads nothing.

librdkafka speaks for it in a thread of its own (heartbeats, joining again), and tells what it is
given and what it is to give up, within `poll`. So a thread polls; what it hears is a *grant*, and what is
to be given up it gives up only when the member says that it holds it no more:

    assigned   more may be held
    revoked    less may be held: the answer to Kafka waits for a beat that has seen so and leaves it out
    lost       it is no member any more

Offsets are committed under the metadata (member id and generation, KIP-447) that counted when the
grant was made, so a member that was put out meanwhile, and may be in again without knowing, is refused.
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
"""How long Python is away in one call."""
REBALANCE_MS = 300_000
"""In this time a member says that it gives something up, or it is out (Kafka's max.poll.interval.ms)."""
GIVE_UP_S = 0.1
LOOK_S = 1.0
REFRESH_MS = 2_000
"""How soon topics that came or grew are noticed."""

T = TypeVar("T")
Partitions = Callable[[Collection[Unit]], frozenset[TopicPartition]]
"""What the units of Kafka's assignment stand for."""
_NONE: frozenset[TopicPartition] = frozenset()
_MAY_COME = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)


class KafkaMember:
    """In the group from `join` to `leave`. Thread-safe. Raises MemberFenced once it is out."""

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
        self._may_hold = _NONE
        self._standbys = _NONE
        self._gives_up = _NONE
        self._call = self._seen = 0
        self._holds = _NONE
        self._heard = connection.clock.monotonic()
        self._metadata: Any = None
        self._asked: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
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
        """Wait until it is in, or the time is over; whether it is. Raises what the cluster says."""
        with self._changed:
            self._changed.wait_for(lambda: self._number or self._failure, seconds)
            self._check()
            return bool(self._number)

    def beat(
        self, call: int, seen: int, holds: Collection[TopicPartition], timeout: float
    ) -> Assignment:
        """See Broker.beat_group."""
        with self._changed:
            self._check()
            self._heard = self._connection.clock.monotonic()
            if call > self._call:
                self._call, self._seen, self._holds = call, seen, frozenset(holds)
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._number > seen or self._failure, timeout)
            self._check()
            return Assignment(self._number, sorted(self._may_hold), sorted(self._standbys))

    def look_around(self, look: Callable[[], None]) -> None:
        """Call this about every second from now on.

        In a thread of its own: brokers may take their time, and who does not poll meanwhile is out.
        """

        def again_and_again() -> None:
            while not self._over.wait(LOOK_S):
                try:
                    with contextlib.suppress(Retriable):
                        look()
                except StrandlineError as error:
                    self._fail(error)

        threading.Thread(target=again_and_again, name="strandline-member-look", daemon=True).start()

    def keep_copies(self, standbys: frozenset[TopicPartition]) -> None:
        """What of others it is to keep copies of, from now on."""
        with self._changed:
            if standbys != self._standbys:
                self._standbys = standbys
                self._number += 1
                self._changed.notify_all()

    def count_again(self) -> None:
        """Let units stand for all partitions that their topics have by now: topics only grow."""
        with self._changed:
            may_hold = self._partitions(self._units)
            if self._number and may_hold > self._may_hold:
                self._may_hold = may_hold
                self._number += 1
                self._changed.notify_all()

    def held(self) -> frozenset[TopicPartition]:
        """What it may commit offsets of: also what it is to give up, until it has. Raises MemberFenced."""
        with self._changed:
            self._check()
            return self._may_hold | (self._gives_up & self._holds)

    def metadata_for(self, partitions: Collection[TopicPartition]) -> Any:
        """Who it is, for offsets of these in a transaction. Raises MemberFenced if it holds not all."""
        with self._changed:
            if foreign := set(partitions) - self.held():
                raise MemberFenced(
                    f"{self._where}: {self.member_id} does not hold "
                    f"{', '.join(map(str, sorted(foreign)))}; another member may"
                )
            return self._metadata

    def wait_for_another(self, metadata: Any) -> None:
        """Until it is told of another generation than `metadata` is of; for a session at the most."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._metadata != metadata or self._failure, self._session_s
            )

    def commit(self, offsets: Mapping[TopicPartition, KafkaPartition]) -> None:
        """Commit offsets outside of any transaction. Raises MemberFenced."""
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
            except TransactionAborted:  # the group was just shared out anew
                return None
            return True

        self._connection.until(committed, doing)

    def _in_thread(self, call: Callable[[], T], doing: str) -> T:
        """What `call` gives in the member's thread: from another one, librdkafka's may hang."""
        answer: Future[T] = Future()
        with self._changed:
            self._check()
            self._asked.append((answer, call))
            self._changed.notify_all()
        try:
            with self._connection.translated(doing):
                return answer.result(DEADLINE_S)
        except TimeoutError:
            raise RequestTimedOut(f"{self._where}: {doing}: no answer") from None

    def leave(self) -> None:
        """Give up everything; returns when the group knows, or cannot be told."""
        self._fail(MemberFenced(f"{self._where}: {self.member_id or 'this member'} has left"))
        if threading.current_thread() is not self._thread:
            self._thread.join(DEADLINE_S)

    @property
    def is_over(self) -> bool:
        """Whether it is in the group no more."""
        return self._failure is not None

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    # In its thread --------------------------------------------------------------------

    def _run(self) -> None:
        """Everything that librdkafka's consumer is asked, it is asked here."""
        try:
            while not self.is_over:
                message = called(lambda: self._consumer.poll(POLL_S))
                if message is not None:
                    self._note(message)
                self._answer()
                self._check_silence()
        except KafkaException as error:
            self._fail(self._connection.failure(error.args[0], self._doing))
        except BaseException as error:
            self._fail(MemberFenced(f"{self._where}: {error!r}"))
            raise
        finally:
            self._answer()
            with contextlib.suppress(KafkaException, RuntimeError):
                called(self._consumer.close)

    def _note(self, message: Message) -> None:
        """What went wrong: outages pass, and librdkafka goes on by itself."""
        error = message.error()
        if error is not None:
            said = self._connection.failure(error, self._doing)
            # A topic that is not there may come.
            if not isinstance(said, Retriable) and error.code() not in _MAY_COME:
                self._fail(said)

    def _check_silence(self) -> None:
        """Who does not beat is not there: what it holds goes to others, as if the process had died."""
        silent = self._connection.clock.monotonic() - self._heard
        if self._call and silent > self._session_s:
            self._fail(
                MemberFenced(
                    f"{self._where}: {self.member_id} was not heard of for its session timeout of "
                    f"{self._session_s:g} s; others may hold what it held"
                )
            )

    def _answer(self) -> None:
        """Do what other threads have asked for."""
        while self._asked:
            answer, call = self._asked.popleft()
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
            self._grant()
        # Nothing is assigned to librdkafka itself, or it would read.
        consumer.incremental_assign([]) if self._cooperative else consumer.assign([])

    @in_callback
    def _revoked(self, consumer: Consumer, partitions: Sequence[KafkaPartition]) -> None:
        units = {(one.topic, one.partition) for one in partitions}
        with self._changed:
            before = self._may_hold
            self._units -= units
            self._grant()
            self._gives_up = before - self._may_hold
        self._wait_until_given_up()
        consumer.incremental_unassign([]) if self._cooperative else consumer.unassign()

    def _wait_until_given_up(self) -> None:
        """Until the member has said so; meanwhile it may commit what it has done there."""
        number = self._number
        deadline = self._connection.clock.monotonic() + REBALANCE_MS / 1000

        def given_up() -> bool:
            seen = self._seen >= number and self._holds.isdisjoint(self._gives_up)
            return seen or self.is_over

        while not given_up():
            with self._changed:
                self._changed.wait_for(lambda: self._asked or given_up(), GIVE_UP_S)
            self._answer()
            self._check_silence()
            if self._connection.clock.monotonic() > deadline:
                self._fail(
                    MemberFenced(
                        f"{self._where}: {self.member_id} did not give up "
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

    def _grant(self) -> None:
        """Another answer, if there is something else to say, and who it is from now on."""
        before = self._consumer.memberid()
        metadata = self._consumer.consumer_group_metadata()
        # Put out in this very moment it would be nobody's, and Kafka takes offsets from nobody.
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
        may_hold = self._partitions(self._units)
        if may_hold != self._may_hold or not self._number:
            self._may_hold = may_hold
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
