"""Death of the owner: nothing is half done, and nothing is done twice."""

from __future__ import annotations

import contextlib

import pytest

from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import (
    OwnerUnavailable,
    ProducerFenced,
    TopicExists,
    TransactionAborted,
    UnknownTopic,
)
from strandline.changelog.flight.failover import FailoverBroker, LogLink
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import Append, CommittedOffset, TopicPartition
from tests.cleaning import Segments

T0 = TopicPartition("t", 0)


class Folder:
    """A folder whose owner can be lost before a call is carried out, or after it but before the
    answer."""

    def __init__(self, *, reopened):
        self.storage = MemoryStorage()
        self.reopened = reopened
        self.owner = Owner(self.storage, background=False, durability="os")
        self.connections = 0
        self.lose_before = None
        self.lose_after = None

    def connect(self, seconds):
        if self.connections and self.reopened:
            self.storage.crash()
            self.owner = Owner(self.storage, background=False, durability="os")
        self.connections += 1
        line = Line(self)
        return LogLink(line, lambda: line.lost, lambda: None)


class Line:
    """One connection to the folder's owner."""

    def __init__(self, folder):
        self.folder = folder
        self.lost = False

    def __getattr__(self, name):
        call = getattr(self.folder.owner, name)

        def called(*args, **options):
            if self.folder.lose_before == name:
                self.folder.lose_before = None
                self.break_off()
            answer = call(*args, **options)
            if self.folder.lose_after == name:
                self.folder.lose_after = None
                self.break_off()
            return answer

        return called

    def break_off(self):
        self.lost = True
        if not self.folder.reopened:
            abort_open_transaction(self.folder)
        raise OwnerUnavailable("lost")


def abort_open_transaction(folder):
    """Abort the open transaction, as a living owner does when a session ends (sessions.py)."""
    if folder.open_producer is not None:
        try:
            folder.owner.end_transaction(folder.open_producer, commit=False)
        except Exception:
            return


@pytest.fixture(params=[True, False], ids=["owner died", "connection died"])
def folder(request):
    folder = Folder(reopened=request.param)
    folder.open_producer = None
    folder.owner.create_topic("t")
    return folder


@pytest.fixture
def broker(folder):
    broker = FailoverBroker(folder.connect, deadline=5, name="the test's log")
    yield broker
    broker.close()


@pytest.fixture
def producer(broker, folder):
    folder.open_producer = broker.init_producer("me")
    return folder.open_producer


def committed(broker):
    return [
        record.value for batch in broker.fetch({T0: 0})[T0].batches for record in batch.records()
    ]


@pytest.mark.parametrize("moment", ["lose_before", "lose_after"])
def test_a_plain_append_is_written_once_whenever_the_answer_is_lost(
    folder, broker, columns, moment
):
    producer = broker.init_producer()
    broker.append([Append("t", 0, columns(2), producer, 0)])
    setattr(folder, moment, "append")
    (answer,) = broker.append([Append("t", 0, columns(2, 2), producer, 2)])
    broker.append([Append("t", 0, columns(2, 4), producer, 4)])
    assert (answer.base_offset, answer.last_offset) == (2, 3) or folder.reopened
    assert not answer.duplicate, "a duplicate would be the batch of another producer"
    assert committed(broker) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert folder.connections == 2


@pytest.mark.parametrize("moment", ["lose_before", "lose_after"])
@pytest.mark.parametrize("call", ["append", "add_offsets", "topics"])
def test_a_transaction_open_at_the_loss_is_aborted_whole(
    folder, broker, producer, columns, moment, call
):
    broker.append([Append("t", 0, columns(2), producer, 0, transactional=True)])
    setattr(folder, moment, call)
    if call == "topics":
        broker.topics()
    with pytest.raises(TransactionAborted, match="call init_producer"):
        if call == "add_offsets":
            broker.add_offsets(producer, "g", {T0: CommittedOffset(2)})
        broker.append([Append("t", 0, columns(1, 2), producer, 2, transactional=True)])
    with pytest.raises(TransactionAborted):
        broker.add_offsets(producer, "g", {T0: CommittedOffset(3)})
    with pytest.raises(TransactionAborted):
        broker.end_transaction(producer, commit=True)
    assert committed(broker) == []
    assert broker.committed("g") == {}
    check_continues(broker, columns)


@pytest.mark.parametrize("moment", ["lose_before", "lose_after"])
def test_the_first_append_of_a_transaction_lost_on_the_way_aborts_it(
    folder, broker, producer, columns, moment
):
    setattr(folder, moment, "append")
    with pytest.raises(TransactionAborted):
        broker.append([Append("t", 0, columns(2), producer, 0, transactional=True)])
    check_continues(broker, columns)


def test_a_commit_that_did_not_arrive_is_an_abort(folder, broker, producer, columns):
    broker.append([Append("t", 0, columns(2), producer, 0, transactional=True)])
    folder.lose_before = "end_transaction"
    with pytest.raises(TransactionAborted):
        broker.end_transaction(producer, commit=True)
    assert committed(broker) == []
    check_continues(broker, columns)


def test_a_commit_whose_answer_was_lost_is_answered_as_committed(folder, broker, producer, columns):
    broker.append([Append("t", 0, columns(2), producer, 0, transactional=True)])
    broker.add_offsets(producer, "g", {T0: CommittedOffset(2)})
    folder.lose_after = "end_transaction"
    successor = broker.end_transaction(producer, commit=True)
    assert successor.epoch > producer.epoch
    assert committed(broker) == [b"0", b"1"]
    assert broker.committed("g")[T0].offset == 2


@pytest.mark.parametrize("moment", ["lose_before", "lose_after"])
def test_an_abort_lost_on_the_way_is_an_abort(folder, broker, producer, columns, moment):
    broker.append([Append("t", 0, columns(2), producer, 0, transactional=True)])
    setattr(folder, moment, "end_transaction")
    with contextlib.suppress(TransactionAborted):  # the request was an abort
        broker.end_transaction(producer, commit=False)
    assert committed(broker) == []
    check_continues(broker, columns)


def test_a_fenced_producer_stays_fenced_after_a_loss(folder, broker, producer, columns):
    broker.append([Append("t", 0, columns(2), producer, 0, transactional=True)])
    folder.lose_before = "topics"
    broker.topics()
    broker.init_producer("me")  # another instance replaces it
    with pytest.raises(TransactionAborted):
        broker.end_transaction(producer, commit=True)
    with pytest.raises((ProducerFenced, TransactionAborted)):
        broker.end_transaction(producer, commit=False)
    with pytest.raises((ProducerFenced, TransactionAborted)):
        broker.append([Append("t", 0, columns(1), producer, 0, transactional=True)])
    assert committed(broker) == []


@pytest.mark.parametrize("moment", ["lose_before", "lose_after"])
def test_topics_are_created_and_deleted_once(folder, broker, moment):
    setattr(folder, moment, "create_topic")
    assert broker.create_topic("new", 2, config={"retention.ms": "5"}).partitions == 2
    with pytest.raises(TopicExists):
        broker.create_topic("new", 2, config={"retention.ms": "5"})
    setattr(folder, moment, "delete_topic")
    broker.delete_topic("new")
    with pytest.raises(UnknownTopic):
        broker.delete_topic("new")


@pytest.mark.parametrize("moment", ["lose_before", "lose_after"])
def test_settings_of_the_log_can_be_changed_across_owners(folder, broker, moment):
    setattr(folder, moment, "alter_config")
    assert broker.alter_config({"log.retention.ms": "5"}) == {"log.retention.ms": "5"}
    folder.lose_before = "describe_config"
    assert broker.describe_config() == {"log.retention.ms": "5"}
    assert broker.topic("t").effective.retention_ms == 5


def test_an_existing_topic_with_other_settings_is_not_mistaken_for_the_new_one(folder, broker):
    folder.lose_before = "create_topic"
    with pytest.raises(TopicExists):
        broker.create_topic("t", 5)


def test_a_slow_but_living_owner_does_not_get_a_call_twice(folder, broker):
    def stuck():
        raise OwnerUnavailable("process 7 did not answer")

    folder.owner.topics = stuck
    with pytest.raises(OwnerUnavailable, match="process 7"):
        broker.topics()
    assert folder.connections == 1


def test_a_timeout_reports_the_time_of_all_attempts():
    clock = ManualClock()

    class Dying:
        def topics(self):
            clock.advance(20_000)
            raise OwnerUnavailable("gone")

    lines = [LogLink(Dying(), lambda: True, lambda: None)]

    def connect(seconds):
        if lines:
            return lines.pop()
        clock.advance(round(1_000 * seconds))
        silent = OwnerUnavailable("process 7 did not answer")
        silent.waited = seconds
        raise silent

    broker = FailoverBroker(connect, deadline=30.0, name="log", clock=clock)
    with pytest.raises(OwnerUnavailable, match=r"process 7 did not answer \(waited 30.0 s\)"):
        broker.topics()
    with pytest.raises(OwnerUnavailable, match=r"\(waited 12.0 s\)"):
        FailoverBroker(connect, deadline=12.0, name="log", clock=clock)


def test_a_closed_log_stays_closed(broker):
    broker.close()
    with pytest.raises(OwnerUnavailable, match="closed"):
        broker.topics()


def check_continues(broker, columns):
    """Check that the producer starts again, and its next transaction commits whole."""
    producer = broker.init_producer("me")
    broker.append([Append("t", 0, columns(3), producer, 0, transactional=True)])
    broker.end_transaction(producer, commit=True)
    assert committed(broker) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("moment", ["lose_before", "lose_after"])
def test_every_owner_knows_the_clean_end_of_a_partition(folder, broker, moment):
    broker.topics()
    changelog = Segments(folder.owner)
    changelog.change("a", 1)
    changelog.delete_and_purge("a")
    setattr(folder, moment, "offsets")
    told = broker.offsets([changelog.partition])[changelog.partition]
    assert folder.connections == 2
    assert (told.purged_end, told.clean_end, told.superseding_end) == (3, 6, 6)
