"""No space for the log: begun work is undone, acknowledged records are kept, and the log goes
on."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from strandline.changelog.client.producer import Producer
from strandline.changelog.client.transaction_state import ProducerPhase
from strandline.changelog.embedded.format import HEADER_SIZE
from strandline.changelog.embedded.frame import encode, frame_parts
from strandline.changelog.errors import (
    CoordinatorLoading,
    DiskFull,
    PartitionPoisoned,
    StorageFailed,
    StrandlineError,
    TransactionAborted,
)
from strandline.changelog.groups import Subscription
from strandline.changelog.layout import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    partition_folder,
)
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.records import CommittedOffset, TopicPartition
from tests.forms import by_form
from tests.log.kit import Client, World, columns
from tests.log.power import Operation, PowerStorage, PowerWorld
from tests.machine.quota import Quota

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
T = TypeVar("T")
BOUND = 200
"""Number of attempts after which a story counts as hung."""


def a_world(chance: Random | None = None, **config: str) -> PowerWorld:
    world = PowerWorld(storage=PowerStorage(chance))
    settings = {name.replace("_", "."): value for name, value in config.items()}
    world.owner.create_topic("t", 2, config=settings)
    return world


def folder(world: World, partition: int = 0, topic: str = "t") -> str:
    return partition_folder(world.owner.topic(topic).topic_id, partition)


def no_room(world: PowerWorld, where: str = "") -> Quota:
    quota = world.storage.hook = Quota(where=where)
    return quota


# Any step, any time -------------------------------------------------------------------


class Story:
    """A producer that follows the documentation when the disk is full."""

    def __init__(self, world: PowerWorld) -> None:
        self.world = world

    def tell(self) -> None:
        producer = self.patiently(
            lambda: Producer(self.world.owner, transactional_id="tx", clock=self.world.clock)
        )
        plain = Producer(self.world.owner, clock=self.world.clock)
        for n in range(3):
            while not self.transaction(producer, n):
                self.world.owner.tick()
            self.patiently(lambda n=n: plain.append("t", [{"value": b"plain %d" % n}], partition=1))
            self.world.owner.tick()

    def transaction(self, producer: Producer, n: int) -> bool:
        """Write a transaction. Return True if it was committed, False if it was aborted."""
        try:
            producer.begin_transaction()
            for partition in (0, 1):
                producer.append("t", [{"value": b"%d" % n + b"x" * 1500}], partition=partition)
            producer.send_offsets_to_transaction({T0: CommittedOffset(n)}, "g")
            producer.commit_transaction()
        except DiskFull:
            return self.resolved(producer)
        return True

    def resolved(self, producer: Producer) -> bool:
        if producer.state is ProducerPhase.IN_DOUBT:
            try:
                self.patiently(producer.commit_transaction)
            except TransactionAborted:
                producer.abort_transaction()
                return False
            return True
        if producer.state is ProducerPhase.ABORTABLE:
            producer.abort_transaction()
        return False

    def patiently(self, call: Callable[[], T]) -> T:
        for _ in range(BOUND):
            try:
                return call()
            except DiskFull:
                self.world.owner.tick()
        raise AssertionError("it hangs")


@pytest.mark.parametrize("end", ["crash", "power_cut"])
@pytest.mark.parametrize("times", by_form([2], [1, 2, 5, 17]))
def test_a_disk_that_is_full_at_any_step_loses_and_repeats_nothing(times: int, end: str) -> None:
    for room in range(BOUND):
        world = a_world(Random(room), segment_bytes="4096")
        quota = world.storage.hook = Quota(room, times)
        Story(world).tell()
        for _ in range(times + 1):
            world.owner.tick()
        values = [b"%d" % n + b"x" * 1500 for n in range(3)]
        both = [value for n in range(3) for value in (values[n], b"plain %d" % n)]
        assert world.values() == values
        assert world.values(partition=1) == both
        getattr(world, end)()
        assert world.values() == values
        assert world.values(partition=1) == both
        assert world.owner.committed("g")[T0].offset == 2
        if not quota.refused:
            assert room > 40
            return
    raise AssertionError("the story never came through without a refusal")


# Appends ------------------------------------------------------------------------------


def test_an_append_without_room_is_undone_and_may_be_retried() -> None:
    world = a_world(Random(1))
    client = Client(world)
    client.append(b"a")
    no_room(world, ".log")
    with pytest.raises(DiskFull):
        client.append(b"b" * 900)
    world.storage.hook = None
    client.append(b"c")
    assert world.values() == [b"a", b"c"]
    world.power_cut()
    assert world.values() == [b"a", b"c"]


def test_a_partition_whose_append_cannot_be_undone_fails_until_the_log_is_reopened() -> None:
    world = a_world(Random(1))
    client = Client(world)
    client.append(b"a")
    full = Quota(where=".log")

    def hook(operation: Operation) -> None:
        full(operation)
        if operation.kind == "truncate":
            raise StorageFailed("cannot truncate: Input/output error")

    world.storage.hook = hook
    with pytest.raises(StorageFailed, match="truncate"):
        client.append(b"b")
    world.storage.hook = None
    with pytest.raises(PartitionPoisoned, match="truncate"):
        client.append(b"b", sequence=1)
    world.crash()
    Client(world).append(b"c")
    assert [value for value in world.values() if value != b"b"] == [b"a", b"c"]


class Nearly(Random):
    """Random numbers with which a write that is cut short lacks only its last byte."""

    def randrange(self, start: int, *_: object) -> int:
        return start - 2


def test_a_whole_frame_in_an_undone_append_never_becomes_visible() -> None:
    world = a_world(Nearly())
    client = Client(world)
    client.append(b"a")
    ghost = b"".join(frame_parts(encode(columns([b"ghost"])), base_offset=2)[1])
    short = encode(columns([b"c" * 400])).frame_size
    before = bytes(encode(columns([b"\0" * 1000])).parts[1]).index(b"\0" * 1000) + HEADER_SIZE
    quota = no_room(world, ".log")
    with pytest.raises(DiskFull):
        client.append(b"\0" * (short - before) + ghost * 3 + b"\0" * 100)
    quota.make_room()
    client.append(b"c" * 400)
    world.crash()
    assert world.values() == [b"a", b"c" * 400]


def test_an_undone_append_is_removed_from_the_disk_before_the_next_append() -> None:
    world = a_world()
    client = Client(world)
    client.append(b"a")
    quota = Quota(times=1, where=".log")
    seen = []

    def hook(operation: Operation) -> None:
        seen.append(operation.kind)
        quota(operation)

    world.storage.hook = hook
    with pytest.raises(DiskFull):
        client.append(b"b")
    client.append(b"b")
    assert seen == ["append", "truncate", "fsync", "append", "fsync"]


def test_only_the_part_of_a_call_that_found_no_room_is_refused() -> None:
    world = a_world()
    Client(world).append(b"first")
    Client(world).append(b"first", partition=1)
    no_room(world, folder(world, 1))
    producer = Producer(world.owner, linger_ms=1e6, clock=world.clock)
    sent = [producer.send("t", b"x", partition=partition) for partition in (0, 1, 0)]
    producer.flush()
    outcomes = [one.exception() for one in sent]
    assert [type(outcome) for outcome in outcomes] == [type(None), DiskFull, type(None)]
    world.storage.hook = None
    producer.send("t", b"again", partition=1)
    producer.flush()
    assert world.values() == [b"first", b"x", b"x"]
    assert world.values(partition=1) == [b"first", b"again"]


def test_a_roll_that_found_no_room_is_repeated() -> None:
    for room in range(20):
        world = a_world(segment_bytes="4096")
        client = Client(world)
        for n in range(2):
            client.append(b"%d" % n + b"x" * 1800)
        quota = world.storage.hook = Quota(room, 1)
        with contextlib.suppress(DiskFull):
            client.append(b"2" * 1800)
        world.storage.hook = None
        client.append(b"3" * 1800, sequence=client.sequences[T0])
        world.power_cut()
        kept = [(value or b"")[:1] for value in world.values()]
        assert kept == [b"0", b"1", *([b"2"] if not quota.refused else []), b"3"]
        if not quota.refused:
            return
    raise AssertionError("a roll needs room without end")


# Transactions -------------------------------------------------------------------------


def without_room_for_the_second_marker(world: PowerWorld) -> tuple[Client, Quota]:
    client = Client(world, "tx")
    client.append(b"a")
    client.append(b"b", partition=1)
    quota = no_room(world, folder(world, 1))
    with pytest.raises(DiskFull):
        client.commit()
    return client, quota


def test_a_commit_whose_marker_finds_no_room_is_completed_without_a_reopening() -> None:
    world = a_world()
    client, quota = without_room_for_the_second_marker(world)
    assert (world.values(), world.values(partition=1)) == ([b"a"], [])
    for _ in range(2):
        with pytest.raises(DiskFull):
            client.commit()  # not all of it is visible yet
    quota.make_room()
    client.commit()
    assert (world.values(), world.values(partition=1)) == ([b"a"], [b"b"])
    client.append(b"c", partition=1)
    client.commit()
    world.power_cut()
    assert (world.values(), world.values(partition=1)) == ([b"a"], [b"b", b"c"])


def test_a_pending_marker_is_written_by_the_log_itself() -> None:
    world = a_world()
    _, quota = without_room_for_the_second_marker(world)
    world.owner.tick()
    assert world.values(partition=1) == []
    quota.make_room()
    world.owner.tick()
    assert world.values(partition=1) == [b"b"]


def with_offsets_and_a_pending_marker(world: PowerWorld) -> tuple[Client, Quota]:
    """Return a client that has committed offset 7 of T0, and a record in T1 whose marker is
    pending."""
    Client(world).append(*[b"a"] * 8)
    client = Client(world, "tx")
    world.owner.add_offsets(client.identity, "g", {T0: CommittedOffset(7)})
    client.append(b"b", partition=1)
    quota = no_room(world, folder(world, 1))
    with pytest.raises(DiskFull):
        client.commit()
    return client, quota


def shown_offset(world: PowerWorld) -> int:
    return world.owner.committed("g", [T0], require_stable=True)[T0].offset


def test_offsets_become_visible_only_after_the_records_committed_with_them() -> None:
    world = a_world()
    _, quota = with_offsets_and_a_pending_marker(world)
    for _ in range(2):
        with pytest.raises(CoordinatorLoading):
            shown_offset(world)
        world.owner.tick()
    assert world.owner.committed("g", [T0], require_stable=False) == {}
    quota.make_room()
    world.owner.tick()
    assert world.values(partition=1) == [b"b"]
    assert shown_offset(world) == 7


def test_offsets_become_visible_if_the_topic_of_the_pending_marker_is_deleted() -> None:
    world = a_world()
    world.owner.create_topic("u", 1)
    Client(world).append(*[b"a"] * 8)
    client = Client(world, "tx")
    world.owner.add_offsets(client.identity, "g", {T0: CommittedOffset(7)})
    client.append(b"u", topic="u")
    no_room(world, folder(world, 0, "u"))
    with pytest.raises(DiskFull):
        client.commit()
    world.owner.delete_topic("u")
    world.owner.tick()
    assert shown_offset(world) == 7


def test_a_new_member_waits_for_commits_without_offsets_of_the_previous_one() -> None:
    """With at_least_once the changes of stores are committed first, and the offsets after them."""
    world = a_world()
    member = world.owner.join_group("g", Subscription(["t"]))
    world.owner.heartbeat(member, 1, 0, [])
    client = Client(world, "tx")
    client.append(b"b", partition=1)
    world.owner.add_offsets(client.identity, "g", {}, member_id=member.member_id)
    quota = no_room(world, folder(world, 1))
    with pytest.raises(DiskFull):
        client.commit()
    world.owner.leave_group(member)
    with pytest.raises(CoordinatorLoading):
        world.owner.committed("g", [T0, T1])
    quota.make_room()
    world.owner.tick()
    assert (world.owner.committed("g", [T0, T1]), world.values(partition=1)) == ({}, [b"b"])


@pytest.mark.parametrize("end", ["crash", "power_cut"])
def test_offsets_become_visible_when_the_next_opening_has_written_the_pending_marker(
    end: str,
) -> None:
    world = a_world()
    with_offsets_and_a_pending_marker(world)
    getattr(world, end)()
    assert (shown_offset(world), world.values(partition=1)) == (7, [b"b"])


def test_the_offsets_of_the_next_transaction_wait_for_its_own_end() -> None:
    world = a_world()
    client, quota = with_offsets_and_a_pending_marker(world)
    quota.make_room()
    client.commit()
    world.owner.add_offsets(client.identity, "g", {T0: CommittedOffset(8)})
    for _ in range(2):
        world.owner.tick()  # finalizes the transaction before
        with pytest.raises(CoordinatorLoading):
            shown_offset(world)
    client.abort()
    assert shown_offset(world) == 7


@pytest.mark.parametrize("end", ["crash", "power_cut"])
def test_a_marker_pending_at_the_death_of_the_log_is_written_by_the_next_opening(end: str) -> None:
    world = a_world()
    without_room_for_the_second_marker(world)
    getattr(world, end)()
    assert (world.values(), world.values(partition=1)) == ([b"a"], [b"b"])


def test_a_new_transaction_waits_for_the_pending_marker_of_the_last_one() -> None:
    world = a_world()
    client, quota = without_room_for_the_second_marker(world)
    client.identity = client.identity._replace(epoch=client.identity.epoch + 1)
    client.sequences.clear()
    with pytest.raises(DiskFull):
        client.append(b"next")
    with pytest.raises(DiskFull):
        Client(world, "tx")  # its successor may not supersede the Prepare either
    quota.make_room()
    successor = Client(world, "tx")
    successor.append(b"next", partition=1)
    successor.abort()
    world.power_cut()
    assert (world.values(), world.values(partition=1)) == ([b"a"], [b"b"])


def test_an_abort_whose_marker_finds_no_room_stays_an_abort() -> None:
    world = a_world()
    client = Client(world, "tx")
    client.append(b"aborted")
    quota = no_room(world, folder(world))
    client.abort()
    with pytest.raises(DiskFull):
        client.append(b"next")
    quota.make_room()
    client.append(b"next")
    client.commit()
    assert world.values() == [b"next"]
    world.power_cut()
    assert world.values() == [b"next"]


def test_readers_get_past_an_abort_as_soon_as_there_is_room() -> None:
    world = a_world()
    client = Client(world, "tx")
    client.append(b"aborted")
    quota = no_room(world, folder(world))
    client.abort()
    quota.make_room()
    Client(world).append(b"plain")
    world.owner.tick()
    assert world.values() == [b"plain"]


def test_a_transaction_without_room_for_its_prepare_is_aborted_with_the_reason() -> None:
    world = a_world(Random(3))
    client = Client(world, "tx")
    client.append(b"a")
    no_room(world, folder(world, topic=TRANSACTION_STATE))
    with pytest.raises(DiskFull):
        client.commit()
    world.storage.hook = None
    with pytest.raises(TransactionAborted, match="No space left"):
        client.commit()
    again = Client(world, "tx")
    again.append(b"b")
    again.commit()
    world.power_cut()
    assert world.values() == [b"b"]


def test_offsets_without_room_are_not_committed() -> None:
    world = a_world()
    Client(world).append(b"a", b"b")
    world.owner.commit_offsets("g", {T0: CommittedOffset(1)})
    quota = no_room(world, folder(world, topic=CONSUMER_OFFSETS))
    with pytest.raises(DiskFull):
        world.owner.commit_offsets("g", {T0: CommittedOffset(2)})
    assert world.owner.committed("g")[T0].offset == 1
    quota.make_room()
    world.owner.commit_offsets("g", {T0: CommittedOffset(2)})
    assert world.owner.committed("g")[T0].offset == 2


# Topics, opening, closing -------------------------------------------------------------


@pytest.mark.parametrize("act", ["create", "alter", "delete"])
def test_a_change_of_a_topic_without_room_has_no_effect(act: str) -> None:
    def change(world: PowerWorld) -> None:
        if act == "create":
            world.owner.create_topic("new")
        elif act == "alter":
            world.owner.alter_topic("t", partitions=3)
        else:
            world.owner.delete_topic("t")

    for room in range(20):
        world = a_world()
        Client(world).append(b"a")
        quota = world.storage.hook = Quota(room, 1)
        before = world.owner.topics()
        try:
            change(world)
        except DiskFull:
            assert world.owner.topics() == before
            change(world)
        after = world.owner.topics()
        assert after != before
        world.power_cut()
        assert [topic.name for topic in world.owner.topics()] == [topic.name for topic in after]
        if not quota.refused:
            return
    raise AssertionError("a topic needs room without end")


def test_a_log_without_room_at_opening_opens_once_there_is_room() -> None:
    for room in range(BOUND):
        world = a_world()
        client = Client(world, "tx")
        client.append(b"a")
        client.commit()
        client.append(b"open")
        world.storage.power_cut()
        quota = world.storage.hook = Quota(room, 1)
        with contextlib.suppress(DiskFull):
            world.open()
        if quota.refused:
            world.open()
        assert world.values() == [b"a"]
        if not quota.refused:
            assert room > 0
            return
    raise AssertionError("an opening needs room without end")


def test_a_log_is_closed_on_a_full_disk_too_and_loses_nothing() -> None:
    world = a_world()
    client = Client(world, "tx")
    client.append(b"a")
    client.commit()
    owner = world.owner
    no_room(world)
    owner.close()
    with pytest.raises(StrandlineError):
        owner._log.catalog.get("t").partition(0).append(None)  # type: ignore[arg-type]
    world.storage.hook = None
    world.open()
    assert world.values() == [b"a"]


def test_retention_works_on_a_full_disk() -> None:
    world = a_world(segment_bytes="4096", retention_ms="1000", file_delete_delay_ms="0")
    client = Client(world, "tx")
    for _ in range(4):
        client.append(b"x" * 2000)
    client.commit()
    client.append(b"last", partition=1)
    world.clock.advance(60_000)
    no_room(world, folder(world, topic=TRANSACTION_STATE))
    for _ in range(3):
        world.owner.tick()
        world.clock.advance(60_000)
    assert world.owner.offsets([T0])[T0].log_start > 0


# Fsyncs, and what is cut short --------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_failed_fsync_fails_the_partition_even_if_the_disk_is_full(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(LocalStorage(tmp_path))
    world.owner.create_topic("t")
    client = Client(world)
    client.append(b"a")

    def fails(_: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr("strandline.changelog.local_file._sync_descriptor", fails)
        with pytest.raises(StorageFailed, match=r"\.log: .*open the log again") as caught:
            client.append(b"b")
    assert not isinstance(caught.value, DiskFull)
    with pytest.raises(PartitionPoisoned):
        client.append(b"b")
    world.owner.close()
    world.open()
    Client(world).append(b"c")
    assert world.values() in ([b"a", b"c"], [b"a", b"b", b"c"])
    world.owner.close()


def test_an_fsync_after_one_whose_failure_another_thread_got_acknowledges_nothing() -> None:
    world = a_world()
    client = Client(world)
    client.append(b"a")
    partition = world.owner._log.catalog.get("t").partition(0)

    def another_is_told(operation: Operation) -> None:
        if operation.kind == "fsync":
            partition.gate.poison(StorageFailed("cannot fsync: Input/output error"))

    world.storage.hook = another_is_told
    with pytest.raises(PartitionPoisoned):
        client.append(b"b")
    assert world.values() == [b"a"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("where", ["append", "noted", "appended"])
def test_an_append_cut_short_anywhere_is_neither_repeated_nor_overwritten(
    error: type[BaseException], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = a_world()
    client = Client(world)
    client.append(b"a")
    partition = world.owner._log.catalog.get("t").partition(0)
    target = {
        "append": partition.segments[-1].file,
        "noted": partition.segments[-1],
        "appended": partition.producers,
    }[where]
    real = getattr(target, where)

    def cut_short(*args: object, **options: object) -> None:
        real(*args, **options)
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(target, where, cut_short)
        with pytest.raises(error):
            client.append(b"b")
    with pytest.raises(PartitionPoisoned, match=error.__name__):
        client.append(b"b", sequence=1)
    world.crash()
    client.append(b"b", sequence=1)
    assert world.values() == [b"a", b"b"]


def test_many_threads_and_a_disk_that_fills_up_and_empties() -> None:
    world = a_world(segment_bytes="8192")
    chance = Random(5)

    def flicker(operation: Operation) -> None:
        if operation.kind in ("append", "create") and chance.random() < 0.3:
            raise DiskFull(f"cannot {operation.kind} {operation.path}: No space left on device")

    def write(client: Client, number: int) -> None:
        for n in range(40):
            for _ in range(BOUND):
                with contextlib.suppress(DiskFull):
                    client.append(b"%d-%d" % (number, n), sequence=n)
                    break

    clients = [Client(world) for _ in range(4)]
    world.storage.hook = flicker
    threads = [threading.Thread(target=write, args=(c, n)) for n, c in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    world.power_cut()
    found = [value or b"" for value in world.values()]
    for number in range(4):
        mine = [value for value in found if value.startswith(b"%d-" % number)]
        assert mine == [b"%d-%d" % (number, n) for n in range(40)]
