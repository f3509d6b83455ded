"""Groups: the assignment of partitions, commits by members, and fencing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from strandline.changelog.client.consumer import Consumer
from strandline.changelog.client.membership import Membership
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import Fenced, InvalidConfig, MemberFenced, StrandlineError
from strandline.changelog.groups import Subscription
from strandline.changelog.log import Log
from strandline.changelog.records import CommittedOffset, TopicPartition
from tests.forms import few_on_kafka

Eventually = Callable[..., None]
SESSION_MS = 3000
PATIENCE_S = 30.0


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def twin(log: Log, name: str, topic: str) -> str:
    """Another topic with the same number of partitions."""
    return log.create_topic(f"{name}-twin", 2).name


class Worker:
    """A member that takes assigned partitions and gives up revoked ones whenever it looks."""

    def __init__(self, log: Log, group: str, *topics: str, **options: object) -> None:
        options = {"together": [topics], "session_timeout_ms": SESSION_MS, **options}
        self.log = log
        self.membership = Membership(
            log.broker,
            group,
            Subscription(topics, **options),  # type: ignore[arg-type]
            SystemClock(),
            max_poll_interval_ms=60_000,
        )
        self.holds: frozenset[TopicPartition] = frozenset()

    @property
    def member_id(self) -> str:
        return self.membership.member.member_id

    def look(self) -> frozenset[TopicPartition]:
        allowed = self.membership.allowed()
        if self.holds - allowed:
            self.holds &= allowed
            self.membership.holds(self.holds)
        if allowed - self.holds:
            self.holds |= allowed
            self.membership.holds(self.holds)
        return self.holds

    def stop_beating(self) -> None:
        """Stop heartbeats without leaving, as a stopped process does."""
        self.membership._stop.set()

    def commit(self, tp: TopicPartition, offset: int) -> None:
        self.log.broker.commit_offsets(
            self.membership.member.group,
            {tp: CommittedOffset(offset)},
            member_id=self.member_id,
        )


def all_of(*topics: str) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, n) for topic in topics for n in range(2))


def test_one_member_gets_all_partitions_and_a_second_one_half(
    log: Log, name: str, topic: str, twin: str, closing: ExitStack, eventually: Eventually
) -> None:
    one = Worker(log, name, topic, twin)
    closing.callback(one.membership.leave)
    eventually(lambda: one.look() == all_of(topic, twin), timeout=PATIENCE_S)
    other = Worker(log, name, topic, twin)
    closing.callback(other.membership.leave)
    eventually(lambda: one.look() and other.look() and not one.holds & other.holds, timeout=30)
    eventually(lambda: (one.look() | other.look()) == all_of(topic, twin), timeout=PATIENCE_S)
    for worker in (one, other):
        numbers = {tp.partition for tp in worker.holds}
        assert worker.holds == {TopicPartition(t, n) for t in (topic, twin) for n in numbers}
        assert len(numbers) == 1
    assert {one.membership.member.slot, other.membership.member.slot} == {0, 1}


def test_a_partition_is_not_assigned_before_its_owner_has_given_it_up(
    log: Log, name: str, topic: str, closing: ExitStack, eventually: Eventually
) -> None:
    one = Worker(log, name, topic, session_timeout_ms=10_000)
    closing.callback(one.membership.leave)
    eventually(lambda: one.look() == all_of(topic), timeout=PATIENCE_S)
    other = Worker(log, name, topic, session_timeout_ms=10_000)
    closing.callback(other.membership.leave)
    eventually(lambda: one.membership.allowed() < all_of(topic), timeout=PATIENCE_S)
    surplus = one.holds - one.membership.allowed()
    with pytest.raises(pytest.fail.Exception):
        eventually(lambda: other.membership.allowed(), timeout=1.0)
    one.commit(next(iter(surplus)), 3)  # until then it may finish its work
    one.look()
    eventually(lambda: other.look() == surplus, timeout=PATIENCE_S)
    with pytest.raises(MemberFenced):
        one.commit(next(iter(surplus)), 4)
    assert log.broker.committed(name)[next(iter(surplus))].offset == 3


@pytest.mark.long_on_kafka
def test_a_silent_member_loses_everything_and_cannot_commit(
    log: Log, name: str, topic: str, closing: ExitStack, eventually: Eventually
) -> None:
    one = Worker(log, name, topic)
    closing.callback(one.membership.leave)
    eventually(lambda: one.look() == all_of(topic), timeout=PATIENCE_S)
    other = Worker(log, name, topic)
    closing.callback(other.membership.leave)
    one.stop_beating()
    eventually(lambda: other.look() == all_of(topic), timeout=PATIENCE_S)
    with pytest.raises(MemberFenced):
        one.commit(TopicPartition(topic, 0), 1)
    other.commit(TopicPartition(topic, 0), 2)
    assert log.broker.committed(name)[TopicPartition(topic, 0)].offset == 2


def test_offsets_in_a_transaction_of_a_former_member_are_refused(
    log: Log, name: str, topic: str, closing: ExitStack, eventually: Eventually
) -> None:
    one = Worker(log, name, topic)
    closing.callback(one.membership.leave)
    eventually(lambda: one.look() == all_of(topic), timeout=PATIENCE_S)
    producer = closing.enter_context(log.producer(transactional_id=name))
    tp = TopicPartition(topic, 0)
    with producer.transaction():
        producer.send(topic, b"good", key="k", partition=0)
        producer.send_offsets_to_transaction({tp: CommittedOffset(1)}, one.membership.member)
    other = Worker(log, name, topic)
    closing.callback(other.membership.leave)
    one.stop_beating()
    eventually(lambda: other.look() == all_of(topic), timeout=PATIENCE_S)
    with pytest.raises(Fenced), producer.transaction():
        producer.send(topic, b"late", key="k", partition=0)
        producer.send_offsets_to_transaction({tp: CommittedOffset(9)}, one.membership.member)
    eventually(lambda: log.broker.committed(name)[tp].offset == 1, timeout=PATIENCE_S)
    assert log.read(topic)["value"].to_pylist() == [b"good"]


def test_a_commit_after_a_rebalance_is_valid_for_partitions_still_owned(
    log: Log, name: str, topic: str, closing: ExitStack, eventually: Eventually
) -> None:
    one = Worker(log, name, topic)
    closing.callback(one.membership.leave)
    eventually(lambda: one.look() == all_of(topic), timeout=PATIENCE_S)
    other = Worker(log, name, topic)
    closing.callback(other.membership.leave)
    eventually(lambda: one.look() and other.look(), timeout=PATIENCE_S)
    producer = closing.enter_context(log.producer(transactional_id=name))
    [tp] = one.look()
    with producer.transaction():
        producer.send_offsets_to_transaction({tp: CommittedOffset(5)}, one.membership.member)
    eventually(lambda: log.broker.committed(name).get(tp) is not None, timeout=PATIENCE_S)
    with pytest.raises(MemberFenced), producer.transaction():
        producer.send_offsets_to_transaction(
            dict.fromkeys(other.holds, CommittedOffset(5)), one.membership.member
        )


@pytest.mark.long_on_kafka
def test_a_member_that_leaves_is_replaced_at_once_and_its_slot_is_reused(
    log: Log, name: str, topic: str, closing: ExitStack, eventually: Eventually
) -> None:
    one, other = (Worker(log, name, topic, session_timeout_ms=30_000) for _ in range(2))
    closing.callback(other.membership.leave)
    eventually(lambda: one.look() and other.look(), timeout=PATIENCE_S)
    one.membership.leave()
    eventually(lambda: other.look() == all_of(topic), timeout=10)
    third = Worker(log, name, topic, session_timeout_ms=30_000)
    closing.callback(third.membership.leave)
    assert third.membership.member.slot == one.membership.member.slot == 0
    assert other.membership.member.slot == 1
    with pytest.raises(MemberFenced):
        one.commit(TopicPartition(topic, 0), 1)


def test_a_group_is_described(
    log: Log, name: str, topic: str, twin: str, closing: ExitStack, eventually: Eventually
) -> None:
    assert not log.broker.describe_group(name).members
    options = {"client": "me-7", "servers": ["http://here:1"], "standby_replicas": 1}
    options["session_timeout_ms"] = 10_000
    one = Worker(log, name, topic, twin, **options)
    other = Worker(log, name, topic, twin, **options)
    closing.callback(one.membership.leave)
    closing.callback(other.membership.leave)
    eventually(lambda: one.look() and other.look(), timeout=PATIENCE_S)
    eventually(lambda: other.membership.standbys() == one.look(), timeout=PATIENCE_S)
    info = log.broker.describe_group(name)
    members = {member.member_id: member for member in info.members}
    assert info.assignor == "cooperative-sticky"
    assert members.keys() == {one.member_id, other.member_id}
    for mine, others in ((one, other), (other, one)):
        member = members[mine.member_id]
        assert frozenset(member.held) == mine.holds
        assert frozenset(member.standbys) == others.holds
        assert member.client == "me-7"
        assert list(member.servers) == ["http://here:1"]
        assert sorted(member.topics) == sorted([topic, twin])
    assert name in log.broker.groups()


def test_a_static_member_returns_to_its_partitions(
    log: Log, name: str, topic: str, closing: ExitStack, eventually: Eventually
) -> None:
    one = Worker(log, name, topic, instance="a")
    other = Worker(log, name, topic, instance="b")
    closing.callback(other.membership.leave)
    eventually(lambda: one.look() and other.look(), timeout=PATIENCE_S)
    had, kept = one.holds, other.holds
    again = Worker(log, name, topic, instance="a")
    closing.callback(again.membership.leave)
    eventually(lambda: again.look() == had, timeout=PATIENCE_S)
    assert other.look() == kept
    with pytest.raises(MemberFenced):
        one.commit(next(iter(had)), 1)


def test_members_must_agree_on_the_assignor(
    log: Log, name: str, topic: str, closing: ExitStack, eventually: Eventually
) -> None:
    one = Worker(log, name, topic, together=())
    closing.callback(one.membership.leave)
    eventually(lambda: one.look() == all_of(topic), timeout=PATIENCE_S)
    with pytest.raises(InvalidConfig):
        Worker(log, name, topic, together=(), assignor="range")


def test_members_may_read_other_topics_if_all_of_them_allow_it(
    log: Log, name: str, topic: str, twin: str, closing: ExitStack, eventually: Eventually
) -> None:
    one = Worker(log, name, topic, topics_differ=True)
    closing.callback(one.membership.leave)
    eventually(lambda: one.look() == all_of(topic), timeout=PATIENCE_S)
    # A thread, because on Kafka a member joins only when the others have released partitions.
    joining = ThreadPoolExecutor(1).submit(Worker, log, name, topic, twin, topics_differ=True)
    eventually(lambda: one.look() and joining.done(), timeout=PATIENCE_S)
    other = joining.result()
    closing.callback(other.membership.leave)

    def shared() -> bool:
        assert one.look().isdisjoint(other.look())
        held = one.holds | other.holds
        return all_of(topic) <= held and bool(other.holds - all_of(topic)) and bool(one.holds)

    eventually(shared, timeout=PATIENCE_S)
    one.membership.leave()
    eventually(lambda: other.look() == all_of(topic, twin), timeout=PATIENCE_S)


@pytest.mark.long
@pytest.mark.parametrize("system", ["kafka"], indirect=True)
def test_on_kafka_members_with_other_topics_are_refused_otherwise(
    log: Log, name: str, topic: str, twin: str, closing: ExitStack, eventually: Eventually
) -> None:
    one = Worker(log, name, topic)
    closing.callback(one.membership.leave)
    eventually(lambda: one.look() == all_of(topic), timeout=PATIENCE_S)
    joining = ThreadPoolExecutor(1).submit(Worker, log, name, topic, twin, topics_differ=True)
    eventually(lambda: one.look() is not None and joining.done(), timeout=PATIENCE_S)
    with pytest.raises(InvalidConfig, match="must have the same tasks"):
        joining.result()


@pytest.mark.long_on_kafka
def test_a_worker_with_the_tasks_of_another_program_is_refused(
    log: Log, name: str, topic: str, closing: ExitStack, eventually: Eventually
) -> None:
    one = Worker(log, name, topic, tasks=[["count", topic]])
    closing.callback(one.membership.leave)
    eventually(lambda: one.look() == all_of(topic), timeout=PATIENCE_S)

    def joined(*tasks: str) -> Future[Worker]:
        wanted = [[task, topic] for task in tasks]
        joining = ThreadPoolExecutor(1).submit(Worker, log, name, topic, tasks=wanted)
        eventually(lambda: one.look() is not None and joining.done(), timeout=PATIENCE_S)
        return joining

    with pytest.raises(InvalidConfig, match="tasks count, this one a worker with the tasks sum"):
        joined("sum").result()
    closing.callback(joined("count", "sum").result().membership.leave)


@pytest.mark.parametrize("system", ["embedded"], indirect=True)
def test_a_consumer_in_the_group_of_a_worker_is_refused(
    log: Log, name: str, topic: str, closing: ExitStack, eventually: Eventually
) -> None:
    one = Worker(log, name, topic, tasks=[["count", topic]])
    closing.callback(one.membership.leave)
    consumer = closing.enter_context(log.consumer(group=name))
    consumer.subscribe(topic)
    with pytest.raises(InvalidConfig, match="tasks count, this one a consumer"):
        consumer.poll()
    eventually(lambda: one.look() == all_of(topic), timeout=PATIENCE_S)


@pytest.mark.parametrize("assignor", few_on_kafka(["cooperative-sticky", "range", "roundrobin"]))
def test_consumers_read_everything_once_while_they_join_and_leave(
    log: Log, name: str, assignor: str, closing: ExitStack, eventually: Eventually
) -> None:
    topic = log.create_topic(name, 4).name
    log.append(topic, [{"key": b"%d" % n, "value": b"%d" % n} for n in range(200)])
    got: list[bytes] = []

    def consumer() -> Consumer:
        made = log.consumer(group=name, assignor=assignor, session_timeout_ms=6000)
        made.subscribe(topic, on_revoked=lambda _: made.commit())
        return made

    def read(*consumers: Consumer) -> None:
        for one in consumers:
            for batch in one.poll(0.05, max_records=3):
                got.extend(batch.columns.column("value").to_pylist())

    def shared(*consumers: Consumer) -> bool:
        read(*consumers)
        shares = [len(one.assignment()) for one in consumers]
        return sum(shares) == 4 and all(shares)

    first, second = consumer(), consumer()
    eventually(lambda: shared(first), timeout=PATIENCE_S)
    eventually(lambda: shared(first, second), timeout=PATIENCE_S)
    first.commit()
    first.close()
    eventually(lambda: shared(second), timeout=PATIENCE_S)
    eventually(lambda: shared(second) and len(got) >= 200, timeout=PATIENCE_S)
    second.close()
    assert sorted(got) == sorted(b"%d" % n for n in range(200))
    assert not log.broker.describe_group(name).members


def test_an_unknown_member_is_refused(log: Log, name: str, topic: str) -> None:
    with pytest.raises(StrandlineError, match="member"):
        log.broker.commit_offsets(
            name, {TopicPartition(topic, 0): CommittedOffset(1)}, member_id="nobody"
        )
