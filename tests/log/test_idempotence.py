"""Idempotent producers: each batch is written once, in order, however often it is sent."""

from __future__ import annotations

import pytest

from strandline.changelog.errors import DiskFull, OutOfOrderSequence, ProducerFenced
from strandline.changelog.producer_state import BatchMeta, ProducerStates, advance
from strandline.changelog.records import ProducerIdentity, TopicPartition
from tests.log.kit import Client, World
from tests.log.power import PowerWorld, failing


def test_a_batch_sent_again_gets_its_first_offsets_and_is_not_written_again(world: World) -> None:
    client = Client(world)
    first = client.append(b"a", b"b")
    again = client.append(b"a", b"b", sequence=0)
    assert (again.base_offset, again.last_offset) == (first.base_offset, first.last_offset)
    assert again.duplicate
    assert world.values() == [b"a", b"b"]


def test_the_last_five_batches_are_recognised_and_the_sixth_is_not(world: World) -> None:
    client = Client(world)
    for n in range(6):
        client.append(b"%d" % n)
    for n in range(1, 6):
        assert client.append(b"%d" % n, sequence=n).base_offset == n
    with pytest.raises(OutOfOrderSequence):
        client.append(b"0", sequence=0)


@pytest.mark.parametrize("sequence", [1, 3, 7])
def test_a_gap_or_overlap_is_refused_and_nothing_is_written(world: World, sequence: int) -> None:
    client = Client(world)
    client.append(b"a", b"b")
    with pytest.raises(OutOfOrderSequence, match="sequence 2"):
        client.append(b"x", b"y", sequence=sequence)
    assert world.values() == [b"a", b"b"]


def test_an_unknown_producer_id_may_start_anywhere(world: World) -> None:
    client = Client(world)
    client.append(b"a", sequence=41)
    client.append(b"b", sequence=42)
    assert world.values() == [b"a", b"b"]


def test_a_higher_epoch_starts_at_sequence_0_and_fences_the_lower_one(world: World) -> None:
    client = Client(world)
    client.append(b"a", b"b")
    newer = client.identity._replace(epoch=1)
    with pytest.raises(OutOfOrderSequence, match="sequence 0"):
        client.append(b"x", sequence=2, identity=newer)
    client.append(b"c", sequence=0, identity=newer)
    with pytest.raises(ProducerFenced, match="epoch 1"):
        client.append(b"x", sequence=2)
    assert world.values() == [b"a", b"b", b"c"]


def test_sequences_wrap_after_the_largest_int(world: World) -> None:
    client = Client(world)
    client.append(b"a", sequence=2**31 - 1)
    client.append(b"b", sequence=0)
    assert advance(2**31 - 2, 3) == 1
    assert client.append(b"a", sequence=2**31 - 1).duplicate
    assert world.values() == [b"a", b"b"]


@pytest.mark.parametrize("how", ["crash", "reopen"])
@pytest.mark.parametrize("rolled", [False, True])
def test_duplicates_are_recognised_after_any_reopening(how: str, rolled: bool) -> None:
    world = World()
    world.owner.create_topic("t", 1, config={"segment.bytes": "4096"} if rolled else None)
    client = Client(world)
    count = 200 if rolled else 6
    for n in range(count):
        client.append(b"%d" % n)
    getattr(world, how)()
    for n in range(count - 5, count):
        assert client.append(b"%d" % n, sequence=n).duplicate
    client.append(b"next", sequence=count)
    assert world.values() == [b"%d" % n for n in range(count)] + [b"next"]


def test_producer_state_outlives_the_segments_it_came_from() -> None:
    world = World()
    world.owner.create_topic("t", 1, config={"segment.bytes": "4096"})
    client, other = Client(world), Client(world)
    client.append(b"a")
    for n in range(200):
        other.append(b"%d" % n)
    world.owner.delete_records(TopicPartition("t", 0), 150)
    world.crash()
    assert client.append(b"a", sequence=0).duplicate


def test_rolls_that_fail_do_not_take_the_snapshot_of_the_one_that_did_not() -> None:
    world = PowerWorld()
    world.owner.create_topic("t", 1)
    client, other = Client(world), Client(world)
    client.append(b"a")
    world.owner.delete_records(TopicPartition("t", 0), -1)  # the snapshot has the client
    partition = world.owner._log.catalog.get("t").partition(0)
    world.storage.hook = failing("create", ".log", error=DiskFull("no room"))
    for n in range(3):
        other.append(b"%d" % n)
        with pytest.raises(DiskFull):
            partition.roll()
    world.crash()
    assert client.append(b"a", sequence=0).duplicate


def test_an_idle_producer_is_forgotten_unless_a_transaction_is_open() -> None:
    states = ProducerStates()
    for producer, transactional in ((1, False), (2, True)):
        states.appended(
            ProducerIdentity(producer, 0),
            BatchMeta(0, 0, 0, 0),
            transactional=transactional,
            timestamp=1000,
        )
    states.expire(older_than=1001)
    assert list(states.entries) == [2]
