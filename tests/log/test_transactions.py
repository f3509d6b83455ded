"""Transactions: all of it or nothing, on every partition, for every reader, after every crash."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from strandline.changelog.embedded.syncing import sync_all
from strandline.changelog.errors import (
    CoordinatorLoading,
    InvalidConfig,
    InvalidTxnState,
    ProducerFenced,
    TransactionAborted,
)
from strandline.changelog.records import CommittedOffset, TopicPartition
from tests.log.kit import Client, World

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_read_committed_sees_a_transaction_when_it_commits_on_all_partitions(world: World) -> None:
    client = Client(world, "tx")
    client.append(b"a")
    client.append(b"b", partition=1)
    assert (world.values(), world.values(partition=1)) == ([], [])
    client.commit()
    assert (world.values(), world.values(partition=1)) == ([b"a"], [b"b"])


def test_read_uncommitted_sees_durable_records_of_open_and_aborted_transactions(
    world: World,
) -> None:
    client = Client(world, "tx")
    client.append(b"a")
    client.abort()
    assert world.values() == []
    assert world.values(isolation="read_uncommitted") == [b"a"]


def test_an_aborted_batch_is_skipped_and_its_neighbours_are_not(world: World) -> None:
    plain, client = Client(world), Client(world, "tx")
    plain.append(b"1")
    client.append(b"aborted")
    plain.append(b"2")
    client.abort()
    client.append(b"3")
    client.commit()
    assert world.values() == [b"1", b"2", b"3"]


def test_the_last_stable_offset_is_the_first_offset_of_the_earliest_open_transaction(
    world: World,
) -> None:
    one, two, plain = Client(world, "one"), Client(world, "two"), Client(world)
    plain.append(b"0")
    one.append(b"1")
    two.append(b"2")
    plain.append(b"3")
    assert world.owner.offsets([T0])[T0].last_stable_offset == 1
    assert world.values() == [b"0"]
    one.commit()
    assert world.owner.offsets([T0])[T0].last_stable_offset == 2
    two.abort()
    assert world.values() == [b"0", b"1", b"3"]


def test_a_marker_takes_one_offset_and_is_never_returned(world: World) -> None:
    client = Client(world, "tx")
    client.append(b"a", b"b")
    client.commit()
    client.append(b"c")
    client.commit()
    fetched = world.owner.fetch({T0: 0})[T0]
    assert [offset for batch in fetched.batches for offset in batch.offsets.to_pylist()] == [
        0,
        1,
        3,
    ]
    assert fetched.next_offset == 5


def test_every_transaction_has_its_own_epoch(world: World) -> None:
    client = Client(world, "tx")
    first = client.identity
    client.append(b"a")
    client.commit()
    assert client.identity == first._replace(epoch=first.epoch + 1)
    with pytest.raises(ProducerFenced):
        client.append(b"late", identity=first, sequence=1)
    assert world.values() == [b"a"]


def test_ending_again_after_a_lost_answer_gets_the_same_answer(world: World) -> None:
    client = Client(world, "tx")
    first = client.identity
    client.append(b"a")
    client.commit()
    assert world.owner.end_transaction(first, commit=True) == client.identity
    with pytest.raises(InvalidTxnState, match="was committed"):
        world.owner.end_transaction(first, commit=False)
    second = client.identity
    client.append(b"b")
    client.abort()
    assert world.owner.end_transaction(second, commit=False) == client.identity
    with pytest.raises(TransactionAborted):
        world.owner.end_transaction(second, commit=True)


def test_ending_an_empty_transaction_changes_nothing(world: World) -> None:
    client = Client(world, "tx")
    assert world.owner.end_transaction(client.identity, commit=True) == client.identity


@pytest.mark.parametrize("what", ["records", "offsets"])
def test_late_calls_of_an_aborted_transaction_are_refused(world: World, what: str) -> None:
    """The late call of a lost request is carried out after the producer has given up."""
    client = Client(world, "tx")
    late = client.identity
    client.abort()
    with pytest.raises(TransactionAborted):
        if what == "records":
            client.append(b"late", partition=1, identity=late, sequence=0)
        else:
            world.owner.add_offsets(late, "g", {T1: CommittedOffset(7)})
    client.append(b"a")
    client.commit()
    assert (world.values(), world.values(partition=1)) == ([b"a"], [])
    assert world.owner.committed("g") == {}


def test_init_aborts_the_predecessors_open_transaction_and_fences_it_everywhere(
    world: World,
) -> None:
    old = Client(world, "tx")
    old.append(b"a")
    new = Client(world, "tx")
    for partition in (0, 1):
        with pytest.raises(ProducerFenced):
            old.append(b"b", partition=partition)
    with pytest.raises(ProducerFenced):
        old.commit()
    with pytest.raises(ProducerFenced):
        world.owner.add_offsets(old.identity, "g", {T0: CommittedOffset(1)})
    new.append(b"c")
    new.commit()
    assert world.values() == [b"c"]


def test_a_transaction_open_for_too_long_is_aborted_and_readers_continue(world: World) -> None:
    client = Client(world, "tx", timeout_ms=5_000)
    client.append(b"a")
    Client(world).append(b"b")
    world.clock.advance(5_001)
    world.owner.tick()
    assert world.values() == [b"b"]
    with pytest.raises(TransactionAborted, match=r"transaction\.timeout\.ms = 5000"):
        client.append(b"c")
    with pytest.raises(TransactionAborted):
        client.commit()
    client.abort()
    client.append(b"d")
    client.commit()
    assert world.values() == [b"b", b"d"]


def test_a_commit_past_the_deadline_is_refused_before_the_timer_fires(world: World) -> None:
    client = Client(world, "tx", timeout_ms=5_000)
    client.append(b"a")
    world.clock.advance(5_001)
    with pytest.raises(TransactionAborted):
        client.commit()
    assert world.values() == []


def test_a_timeout_above_the_maximum_is_refused(world: World) -> None:
    with pytest.raises(InvalidConfig, match="900001"):
        Client(world, "tx", timeout_ms=900_001)


def test_an_unknown_producer_cannot_join_a_transaction(world: World) -> None:
    client = Client(world, "tx")
    with pytest.raises(ProducerFenced):
        client.append(b"a", identity=client.identity._replace(producer_id=77))


def test_offsets_in_a_transaction_are_visible_once_it_commits(world: World) -> None:
    client = Client(world, "tx")
    world.owner.commit_offsets("g", {T0: CommittedOffset(3)})
    client.append(b"a")
    world.owner.add_offsets(client.identity, "g", {T0: CommittedOffset(9)})
    with pytest.raises(CoordinatorLoading, match="has not ended in every partition"):
        world.owner.committed("g")
    assert world.owner.committed("g", require_stable=False)[T0].offset == 3
    client.commit()
    assert world.owner.committed("g")[T0].offset == 9
    world.owner.add_offsets(client.identity, "g", {T0: CommittedOffset(12)})
    client.abort()
    assert world.owner.committed("g")[T0].offset == 9


def test_offsets_are_visible_even_if_the_commit_was_interrupted_after_its_last_marker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = Client(world, "tx"), Client(world, "other")
    world.owner.add_offsets(client.identity, "g", {T0: CommittedOffset(5)})
    calls = itertools.count()

    def interrupted(*given: Any) -> Any:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return sync_all(*given)

    with monkeypatch.context() as patched:
        patched.setattr("strandline.changelog.embedded.group_commit.sync_all", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.commit()
    other.append(b"a")
    other.commit()
    assert world.owner.committed("g")[T0].offset == 5


def test_the_later_of_a_plain_and_a_transactional_commit_wins(world: World) -> None:
    client = Client(world, "tx")
    world.owner.add_offsets(client.identity, "g", {T0: CommittedOffset(5)})
    world.owner.commit_offsets("g", {T0: CommittedOffset(8)})
    client.commit()
    assert world.owner.committed("g")[T0].offset == 8


@pytest.mark.parametrize("how", ["crash", "reopen"])
def test_after_a_reopening_committed_transactions_are_whole_and_open_ones_are_gone(
    world: World, how: str
) -> None:
    done, left, open_ = Client(world, "done"), Client(world, "left"), Client(world, "open")
    for client, word in ((done, b"done"), (left, b"left"), (open_, b"open")):
        client.append(word)
        client.append(word, partition=1)
    world.owner.add_offsets(done.identity, "g", {T0: CommittedOffset(4)})
    world.owner.add_offsets(open_.identity, "g", {T1: CommittedOffset(4)})
    done.commit()
    left.abort()
    getattr(world, how)()
    assert world.values() == world.values(partition=1) == [b"done"]
    committed = world.owner.committed("g")
    assert {tp: offset.offset for tp, offset in committed.items()} == {T0: 4}
    ends = world.owner.offsets([T0, T1])
    assert all(end.last_stable_offset == end.high_watermark for end in ends.values())


@pytest.mark.parametrize("how", ["crash", "reopen"])
def test_a_transactional_producer_from_before_a_reopening_must_start_again(
    world: World, how: str
) -> None:
    client = Client(world, "tx")
    client.append(b"a")
    client.commit()
    getattr(world, how)()
    with pytest.raises(TransactionAborted, match="init_producer"):
        client.append(b"b")
    fresh = Client(world, "tx")
    assert fresh.identity.producer_id != client.identity.producer_id
    with pytest.raises(ProducerFenced):
        client.append(b"b")
    fresh.append(b"c")
    fresh.commit()
    assert world.values() == [b"a", b"c"]


@pytest.mark.parametrize("how", ["crash", "reopen"])
def test_a_commit_whose_answer_was_lost_with_the_owner_is_answered_by_the_next(
    world: World, how: str
) -> None:
    client = Client(world, "tx")
    first = client.identity
    client.append(b"a")
    client.commit()
    getattr(world, how)()
    assert world.owner.end_transaction(first, commit=True).producer_id == first.producer_id
    with pytest.raises(ProducerFenced):
        client.append(b"late", identity=first, sequence=1)
    assert world.values() == [b"a"]


@pytest.mark.parametrize("how", ["crash", "reopen"])
def test_a_zombie_is_fenced_by_the_next_owner_too(world: World, how: str) -> None:
    zombie = Client(world, "tx")
    Client(world, "tx")
    getattr(world, how)()
    with pytest.raises(ProducerFenced):
        zombie.append(b"a")


def test_producer_ids_are_never_assigned_twice() -> None:
    world = World()
    ids = []
    for _ in range(4):
        ids += [Client(world).identity.producer_id for _ in range(3)]
        world.crash()
    assert len(set(ids)) == len(ids)


def test_deleting_a_topic_leaves_its_transactions_whole_on_other_topics(world: World) -> None:
    world.owner.create_topic("gone")
    client = Client(world, "tx")
    client.append(b"a")
    client.append(b"b", topic="gone")
    world.owner.delete_topic("gone")
    client.commit()
    assert world.values() == [b"a"]
    world.crash()
    assert world.values() == [b"a"]


def test_a_recreated_topic_has_no_records_of_the_old_one(world: World) -> None:
    Client(world).append(b"old")
    world.owner.commit_offsets("g", {T0: CommittedOffset(1)})
    world.owner.delete_topic("t")
    world.owner.create_topic("t", 2)
    assert world.values() == []
    assert world.owner.committed("g") == {}
    world.crash()
    assert world.values() == []
