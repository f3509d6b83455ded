"""One fault at one place: a disk error, a death, a lost file, a second thread, a deletion.

A random story would find these cases only by luck, so each place where something once could go
wrong has its own test here.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from strandline.changelog.embedded.format import MAX_FRAME_BYTES
from strandline.changelog.errors import (
    CoordinatorLoading,
    CorruptLog,
    DiskFull,
    InvalidConfig,
    InvalidRecord,
    OffsetOutOfRange,
    OwnerUnavailable,
    PartitionPoisoned,
    ProducerFenced,
    StorageFailed,
    StrandlineError,
    UnknownTopic,
)
from strandline.changelog.layout import (
    CATALOG,
    FOLDER_META,
    TRANSACTION_STATE,
    partition_folder,
)
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.records import Append, CommittedOffset, TopicPartition
from strandline.changelog.storage import Bytes, File
from tests.log.kit import START_MS, Client, World, columns
from tests.log.power import (
    Died,
    Operation,
    PowerStorage,
    PowerWorld,
    doing,
    failing,
    stopping,
    stopping_after,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
DAY = 24 * 60 * 60 * 1000
BOUND = 10.0
"""Seconds after which a thread counts as hung."""
Eventually = Callable[..., None]


@pytest.fixture
def world() -> PowerWorld:
    """A log with the topic `t` of two partitions, on a storage that loses all unsynced data."""
    return a_world()


def a_world(partitions: int = 2, *, durability: str = "fsync", **config: str) -> PowerWorld:
    world = PowerWorld(durability=durability)
    settings = {name.replace("_", "."): value for name, value in config.items()}
    world.owner.create_topic("t", partitions, config=settings)
    return world


def folder(world: World, partition: int = 0, topic: str = "t") -> str:
    return partition_folder(world.owner.topic(topic).topic_id, partition)


def both(world: World) -> tuple[list[bytes | None], list[bytes | None]]:
    return world.values(), world.values(partition=1)


def logs(world: PowerWorld, partition: int = 0) -> list[str]:
    return world.storage.paths(folder(world, partition), ".log")


def dies(world: PowerWorld, kind: str, where: str, act: Callable[[], object]) -> None:
    """Kill the process in `act`, at the first operation of that kind."""
    world.storage.hook = stopping(kind, where)  # type: ignore[arg-type]
    with pytest.raises(Died):
        act()


# Markers ------------------------------------------------------------------------------


def a_commit_without_its_second_marker(
    world: PowerWorld, error: StorageFailed | None = None
) -> Client:
    client = Client(world, "tx")
    client.append(b"a")
    client.append(b"b", partition=1)
    world.owner.add_offsets(client.identity, "g", {T0: CommittedOffset(3)})
    world.storage.hook = failing("append", folder(world, 1), error=error)
    with pytest.raises(StorageFailed):
        client.commit()
    world.storage.hook = None
    return client


@pytest.mark.parametrize("error", [None, DiskFull("no room")], ids=["EIO", "full"])
@pytest.mark.parametrize("ticks", [0, 1, 3])
def test_a_transaction_whose_marker_could_not_be_written_is_completed_by_the_next_opening(
    world: PowerWorld, ticks: int, error: StorageFailed | None
) -> None:
    a_commit_without_its_second_marker(world, error)
    for _ in range(ticks):
        world.owner.tick()
    world.power_cut()
    assert both(world) == ([b"a"], [b"b"])
    assert world.owner.committed("g")[T0].offset == 3


def test_offsets_past_the_commit_point_are_visible_once_the_failed_marker_is_written(
    world: PowerWorld,
) -> None:
    client = a_commit_without_its_second_marker(world)
    client.commit()  # repeated, it reports the commit
    with pytest.raises(CoordinatorLoading):
        world.owner.committed("g")  # a reader that sees the offsets would expect the records
    with pytest.raises(StorageFailed, match="reopen"):
        Client(world, "tx")
    world.power_cut()
    assert world.owner.committed("g")[T0].offset == 3


def test_a_successor_does_not_supersede_a_prepare_whose_markers_are_not_durable(
    world: PowerWorld,
) -> None:
    client = Client(world, "tx")
    client.append(b"a")
    client.append(b"b", partition=1)
    client.commit()
    world.storage.hook = failing("fsync", folder(world, 1))
    world.owner.tick()
    world.storage.hook = None
    with pytest.raises(StorageFailed):
        Client(world, "tx")
    world.power_cut()
    assert both(world) == ([b"a"], [b"b"])


def test_a_marker_that_was_seen_and_lost_does_not_count_as_divergence(world: PowerWorld) -> None:
    client = Client(world, "tx")
    client.append(b"a")
    client.commit()
    seen = world.owner.offsets([T0])[T0]
    world.power_cut()
    now = world.owner.offsets([T0])[T0]
    assert world.values() == [b"a"]
    assert seen.last_stable_offset <= now.epoch_end(seen.leader_epoch)


def test_a_position_after_a_marker_of_recovery_does_not_count_as_divergence(
    world: PowerWorld,
) -> None:
    Client(world, "tx").append(b"a")
    world.owner.tick()
    world.crash()
    position = world.owner.fetch({T0: 0})[T0].next_offset
    ends = world.owner.offsets([T0])[T0]
    assert position <= ends.epoch_end(ends.leader_epoch)


# Commits that fail --------------------------------------------------------------------


def test_a_failed_fsync_of_one_partition_does_not_hold_back_readers_of_the_other(
    world: PowerWorld,
) -> None:
    client = Client(world, "tx")
    client.append(b"a")
    client.append(b"b", partition=1)
    world.storage.hook = failing("fsync", folder(world, 1))
    with pytest.raises(StorageFailed):
        client.commit()
    world.storage.hook = None
    Client(world).append(b"later")
    assert world.values() == [b"later"]


def test_a_producer_continues_after_a_commit_that_failed_before_the_commit_point(
    world: PowerWorld,
) -> None:
    client = Client(world, "tx")
    client.append(b"b", partition=1)
    world.storage.hook = failing("fsync", folder(world, 1))
    with pytest.raises(StorageFailed):
        client.commit()
    world.storage.hook = None
    client = Client(world, "tx")
    client.append(b"x")
    client.commit()
    assert world.values() == [b"x"]


def test_a_commit_in_doubt_has_no_answer_before_a_reopening(world: PowerWorld) -> None:
    client = Client(world, "tx")
    client.append(b"a")
    world.storage.hook = failing("fsync", folder(world, topic=TRANSACTION_STATE))
    with pytest.raises(StorageFailed):
        client.commit()
    world.storage.hook = None
    with pytest.raises(StorageFailed, match="reopen the log to find out"):
        client.commit()
    world.crash()  # the Prepare was written, and the page cache survives
    assert world.values() == [b"a"]


def test_offsets_are_not_visible_before_they_are_durable(world: PowerWorld) -> None:
    world.owner.commit_offsets("g", {T0: CommittedOffset(1)})
    world.storage.hook = failing("fsync", ".log")
    with pytest.raises(StorageFailed):
        world.owner.commit_offsets("g", {T0: CommittedOffset(9)})
    world.storage.hook = None
    assert world.owner.committed("g")[T0].offset == 1


def in_threads(*acts: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=act, daemon=True) for act in acts]
    for thread in threads:
        thread.start()
    return threads


def joined(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(BOUND)
        assert not thread.is_alive(), "a thread hangs"


class Commits:
    """Three producers: the first one's commit is held up until the others wait for the next
    round."""

    def __init__(self, world: PowerWorld, eventually: Eventually) -> None:
        self.world = world
        self.clients = [Client(world, name) for name in ("first", "a", "b")]
        for client in self.clients:
            for partition in (0, 1):
                client.append(str(client.transactional_id).encode(), partition=partition)
        self.acknowledged: list[bytes | None] = []
        self.held, self.go = threading.Event(), threading.Event()
        self._hold_the_first_fsync()
        self.threads = in_threads(lambda: self._commit(self.clients[0]))
        assert self.held.wait(BOUND)
        self.threads += in_threads(*(lambda c=c: self._commit(c) for c in self.clients[1:]))
        commits = world.owner._log.coordinator._commits
        eventually(lambda: len(commits._waiting) == 2, what="the two waiting for a round")

    def _hold_the_first_fsync(self) -> None:
        def hold() -> None:
            self.held.set()
            self.go.wait(BOUND)

        self.world.storage.hook = doing(hold, "fsync", "/0/")

    def _commit(self, client: Client) -> None:
        try:
            client.commit()
        except BaseException:
            return
        self.acknowledged.append(str(client.transactional_id).encode())

    def end(self) -> None:
        self.go.set()
        joined(self.threads)


def test_commits_that_arrive_together_share_a_round_and_are_all_durable(
    world: PowerWorld, eventually: Eventually
) -> None:
    commits = Commits(world, eventually)
    commits.end()
    world.power_cut()
    assert sorted(world.values(), key=str) == [b"a", b"b", b"first"]


def test_an_interrupted_round_of_commits_acknowledges_no_commit_that_is_not_durable(
    world: PowerWorld, eventually: Eventually
) -> None:
    commits = Commits(world, eventually)
    prepare = folder(world, topic=TRANSACTION_STATE)
    fsyncs: list[str] = []

    def interrupt(operation: Operation) -> None:
        if operation.kind == "fsync":
            fsyncs.append(operation.folder)
            if prepare in fsyncs[:-1]:  # the first commit's round is over, the next one runs
                world.storage.hook = None
                raise KeyboardInterrupt

    world.storage.hook = interrupt
    commits.end()
    assert commits.acknowledged == [b"first"]
    world.power_cut()
    assert set(commits.acknowledged) <= set(world.values())
    assert sorted(world.values(), key=str) == sorted(world.values(partition=1), key=str)


def test_commits_in_flight_when_the_log_is_closed_are_durable_if_acknowledged(
    world: PowerWorld, eventually: Eventually
) -> None:
    commits = Commits(world, eventually)
    closing = in_threads(world.owner.close)
    eventually(lambda: is_closed(world), what="the closing")
    commits.end()
    joined(closing)
    world.power_cut()
    assert set(commits.acknowledged) <= set(world.values())
    assert sorted(world.values(), key=str) == sorted(world.values(partition=1), key=str)


def is_closed(world: World) -> bool:
    try:
        world.owner.topics()
    except OwnerUnavailable:
        return True
    return False


# Names and identities -----------------------------------------------------------------


def test_a_transactional_id_cannot_be_a_key_of_the_logs_own(world: PowerWorld) -> None:
    with pytest.raises(InvalidConfig, match="printable"):
        Client(world, "\x00producer-ids")


def test_with_durability_os_no_producer_id_is_assigned_twice_even_after_a_power_cut() -> None:
    world = a_world(1, durability="os")
    before = {Client(world).identity.producer_id for _ in range(3)}
    world.power_cut()
    assert Client(world).identity.producer_id not in before


def test_a_transactional_id_idle_for_a_month_is_forgotten_and_may_start_again(
    world: PowerWorld,
) -> None:
    idle = Client(world, "tx")
    world.clock.advance(30 * DAY)
    world.owner.tick()
    with pytest.raises(ProducerFenced):
        idle.append(b"late")
    again = Client(world, "tx")
    assert again.identity.producer_id != idle.identity.producer_id
    again.append(b"a")
    again.commit()
    assert world.values() == [b"a"]


def test_a_backfill_of_old_records_does_not_expire_its_producer(world: PowerWorld) -> None:
    client = Client(world)
    client.append(b"a", times=START_MS - 3 * DAY)
    world.crash()
    world.owner.tick()
    assert client.append(b"a", times=START_MS - 3 * DAY, sequence=0).duplicate


def test_a_batch_without_a_sequence_is_refused(world: PowerWorld) -> None:
    producer = world.owner.init_producer()
    with pytest.raises(InvalidRecord, match="sequence"):
        world.owner.append([Append("t", 0, columns([b"a"]), producer)])


def test_no_topic_accepts_batches_too_large_to_be_read_again(world: PowerWorld) -> None:
    with pytest.raises(InvalidConfig, match=r"max\.message\.bytes"):
        world.owner.create_topic("large", config={"max.message.bytes": str(MAX_FRAME_BYTES)})


# Openings -----------------------------------------------------------------------------


def first_steps(world: PowerWorld) -> None:
    world.open()
    world.owner.create_topic("t", 2)
    client = Client(world, "tx")
    client.append(b"a")
    world.owner.add_offsets(client.identity, "g", {T0: CommittedOffset(1)})
    client.commit()


@pytest.mark.parametrize("death", ["crash", "power_cut"])
def test_a_death_anywhere_in_a_logs_first_steps_leaves_a_log_that_opens(death: str) -> None:
    for count in range(1_000):
        world = PowerWorld()
        world.owner.close()
        world.storage = PowerStorage()
        world.storage.hook = stopping_after(count)
        try:
            first_steps(world)
        except Died:
            getattr(world, death)()
        else:
            assert count > 30
            return
        if not any(topic.name == "t" for topic in world.owner.topics()):
            world.owner.create_topic("t", 2)
        client = Client(world, "tx")
        client.append(b"b")
        client.commit()
        assert world.values() in ([b"b"], [b"a", b"b"])


def test_recovered_records_are_durable_before_they_are_visible_or_acknowledged() -> None:
    world = a_world(1)
    client = Client(world)
    client.append(b"a")
    dies(world, "fsync", ".log", lambda: client.append(b"b"))
    world.crash()
    assert world.values() == [b"a", b"b"]
    assert client.append(b"b", sequence=1).duplicate
    dies(world, "fsync", ".log", lambda: Client(world).append(b"c"))
    world.power_cut()
    assert world.values() == [b"a", b"b"]


def test_a_new_segment_is_durable_before_the_manifest_names_it() -> None:
    world = a_world(1, segment_bytes="4096")
    client = Client(world)
    client.append(b"a")
    renamed: list[Operation] = []

    def hook(operation: Operation) -> None:
        if operation.kind == "rename" and operation.path.endswith("manifest.meta"):
            renamed.append(operation)
        if operation.kind == "sync_dir" and renamed:
            raise Died

    world.storage.hook = hook
    with pytest.raises(Died):
        client.append(b"x" * 4000)
    world.power_cut(keep=lambda change: change.kind == "rename")
    assert world.values() == [b"a"]


def test_a_leftover_segment_without_a_manifest_does_not_prevent_opening() -> None:
    world = a_world(1)
    dies(world, "create", "manifest.meta.tmp", lambda: Client(world).append(b"a"))
    world.crash()
    Client(world).append(b"a")
    assert world.values() == [b"a"]


def test_a_first_manifest_whose_rename_is_in_doubt_is_made_durable_by_the_next_opening() -> None:
    world = a_world(1)
    client = Client(world)
    world.storage.after = failing("rename", "manifest.meta", times=1)
    with pytest.raises(StorageFailed):
        client.append(b"a")
    world.reopen()
    assert Client(world).append(b"b").base_offset == 0
    world.power_cut(keep=lambda change: change.kind != "rename")
    assert world.values() == [b"b"]


def test_a_deletion_whose_manifest_is_in_doubt_is_durable_before_its_files_are_removed() -> None:
    world = a_world(1, segment_bytes="4096")
    client = Client(world)
    for number in range(4):
        client.append(b"%d" % number + b"." * 3_000)
    world.storage.after = failing("rename", "manifest.meta", times=1)
    with pytest.raises(StorageFailed):
        world.owner.delete_records(T0, 2)
    world.storage.after = None
    world.reopen()
    world.power_cut(keep=lambda change: change.kind != "rename")
    assert [value and value[:1] for value in world.values()] == [b"2", b"3"]


@pytest.mark.damages
@pytest.mark.parametrize("lost", [CATALOG, FOLDER_META, "manifest.meta"])
@pytest.mark.parametrize("how", ["crash", "reopen"])
def test_a_log_that_has_lost_a_required_file_is_refused_and_unchanged(lost: str, how: str) -> None:
    world = a_world(1)
    Client(world).append(b"a")
    path = f"{folder(world)}/{lost}" if lost == "manifest.meta" else lost
    records = logs(world)
    if how == "reopen":
        world.owner.close()
    world.storage.lose(path)
    with pytest.raises(CorruptLog, match="repair"):
        world.crash()
    assert set(records) <= set(world.storage.paths())


@pytest.mark.damages
def test_damage_in_the_last_record_of_a_log_closed_in_order_is_refused() -> None:
    world = a_world(1)
    Client(world).append(b"a", b"b")
    (path,) = logs(world)
    world.owner.close()
    world.storage.flip(path, -30)
    with pytest.raises(CorruptLog, match="closed in order"):
        world.open()


def test_a_log_closed_after_a_failed_write_is_recovered_by_the_next_opening() -> None:
    world = a_world(1)
    client = Client(world)
    client.append(b"a")
    world.storage.hook = failing("append", ".log")
    with pytest.raises(StorageFailed):
        client.append(b"b")
    world.storage.hook = None
    world.reopen()
    assert client.append(b"b", sequence=1).base_offset == 1
    assert world.values() == [b"a", b"b"]


# Retention ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["create", "append", "fsync", "rename", "sync_dir"])
def test_a_roll_that_fails_in_retention_leaves_the_log_whole(kind: str) -> None:
    world = a_world(1, retention_ms="1000", segment_bytes="4096")
    client = Client(world)
    client.append(b"a")
    world.clock.advance(10_000)
    world.storage.hook = failing(kind, folder(world), error=DiskFull("full"), times=1)  # type: ignore[arg-type]
    world.owner.tick()
    acknowledged = []
    for n in range(6):
        value = b"%d" % n + b"y" * 1500
        try:
            client.append(value, times=START_MS + 20_000)
        except PartitionPoisoned:
            break
        acknowledged.append(value)
    world.crash()
    assert [value for value in world.values() if value != b"a"] == acknowledged


def test_a_failed_fsync_in_the_roll_of_retention_is_not_retried() -> None:
    world = a_world(1, retention_ms="1000")
    client = Client(world)
    client.append(b"a")
    world.clock.advance(10_000)
    world.storage.hook = failing("fsync", ".log", times=1)
    world.owner.tick()
    with pytest.raises(PartitionPoisoned):
        client.append(b"b")


@pytest.mark.parametrize("kind", ["create", "append", "fsync", "rename", "sync_dir"])
def test_a_deletion_of_records_that_fails_loses_no_later_one(kind: str) -> None:
    world = a_world(1)
    client = Client(world)
    client.append(b"a")
    world.storage.hook = failing(kind, folder(world), error=DiskFull("full"), times=1)  # type: ignore[arg-type]
    with pytest.raises(StorageFailed):
        world.owner.delete_records(T0, -1)
    acknowledged = []
    try:
        client.append(b"b")
        acknowledged = [b"b"]
    except PartitionPoisoned:
        pass
    world.crash()
    assert [value for value in world.values() if value != b"a"] == acknowledged


def test_retention_that_failed_once_frees_the_space_later() -> None:
    world = a_world(1, retention_ms="1000", segment_bytes="4096", file_delete_delay_ms="0")
    client = Client(world)
    for _ in range(10):
        client.append(b"x" * 2000)
    client.append(b"last", times=START_MS + 5 * DAY)
    world.clock.advance(5 * DAY)
    world.storage.hook = failing("create", "manifest.meta.tmp", times=1)
    for _ in range(3):
        world.owner.tick()
        world.clock.advance(60_000)
    assert len(logs(world)) == 1


def test_a_partition_that_fails_does_not_keep_retention_from_the_others() -> None:
    world = a_world(2, retention_ms="1000", segment_bytes="4096")
    client = Client(world)
    client.append(b"x")
    client.append(b"x", partition=1)
    world.clock.advance(10 * DAY)
    world.storage.hook = failing("create", folder(world, 0))
    world.owner.tick()
    assert world.owner.offsets([T1])[T1].log_start == 1


def test_an_empty_segment_does_not_stop_retention_by_size() -> None:
    world = a_world(
        1,
        durability="os",
        segment_bytes="4096",
        retention_ms="-1",
        retention_bytes="8192",
        file_delete_delay_ms="0",
    )
    Client(world).append(b"x" * 3000)
    world.power_cut()  # the segment's name was synced, none of its bytes
    client = Client(world)
    for _ in range(30):
        client.append(b"x" * 3000)
    world.owner.tick()
    assert len(logs(world)) <= 4


def test_the_last_stable_offset_is_never_below_the_log_start(world: PowerWorld) -> None:
    Client(world, "tx").append(b"a")
    world.owner.tick()
    world.owner.delete_records(T0, -1)
    ends = world.owner.offsets([T0])[T0]
    assert ends.log_start <= ends.last_stable_offset <= ends.high_watermark


# Readers while the log changes --------------------------------------------------------


def test_a_reader_of_records_that_are_being_deleted_never_sees_aborted_ones() -> None:
    world = a_world(1, segment_bytes="4096")
    aborted, plain = Client(world, "tx"), Client(world)
    aborted.append(b"aborted" * 100)
    aborted.abort()
    for _ in range(10):
        plain.append(b"x" * 1000)
    world.storage.hook = doing(lambda: world.owner.delete_records(T0, 11), "read", ".log")
    batches = world.owner.fetch({T0: 0})[T0].batches
    shown = [value for batch in batches for value in batch.columns.column("value").to_pylist()]
    assert set(shown) <= {b"x" * 1000}


def test_a_reader_whose_segment_is_removed_reads_that_segment_or_gets_an_error(
    tmp_path: Path,
) -> None:
    storage = WatchedStorage(tmp_path)
    world = World(storage)
    config = {"segment.bytes": "4096", "file.delete.delay.ms": "0"}
    world.owner.create_topic("t", 1, config=config)
    client = Client(world)
    for _ in range(2):
        client.append(b"x" * 1500)

    def remove_and_write_others() -> None:
        client.append(b"y" * 3000)
        world.owner.delete_records(T0, 2)
        world.owner.tick()
        for n in range(3):  # open files that reuse released descriptors
            world.owner.create_topic(f"other-{n}")
            Client(world).append(b"secret" * 300, topic=f"other-{n}")

    storage.before_read = remove_and_write_others
    batches = world.owner.fetch({T0: 0})[T0].batches
    shown = [value for batch in batches for value in batch.columns.column("value").to_pylist()]
    assert shown == [b"x" * 1500] * 2
    world.owner.close()


def test_a_segment_removed_before_its_file_is_opened_is_out_of_range(tmp_path: Path) -> None:
    storage = WatchedStorage(tmp_path)
    world = World(storage)
    config = {"segment.bytes": "4096", "file.delete.delay.ms": "0"}
    world.owner.create_topic("t", 1, config=config)
    client = Client(world)
    for _ in range(3):
        client.append(b"x" * 3000)

    def remove() -> None:
        world.owner.delete_records(T0, 2)
        world.owner.tick()

    storage.before_open = remove
    with pytest.raises(OffsetOutOfRange, match="offsets 2 to 3, got 0"):
        world.owner.fetch({T0: 0})
    storage.before_open = lambda: world.owner.delete_topic("t")
    with pytest.raises(UnknownTopic):
        world.owner.offset_for_time(T0, 0)
    world.owner.close()


def test_a_fetch_at_the_last_stable_offset_reads_nothing() -> None:
    world = a_world(1)
    Client(world).append(b"a")
    open_ = Client(world, "tx")
    for _ in range(8):
        open_.append(b"x" * 100_000)
    world.owner.tick()
    read: list[Operation] = []
    world.storage.hook = lambda operation: read.append(operation)
    assert world.owner.fetch({T0: 1})[T0].batches == []
    assert read == []


def test_a_schema_can_be_extended_while_a_reader_reads() -> None:
    world = PowerWorld()
    old = pa.schema([("n", pa.int64())])
    new = pa.schema([("n", pa.int64()), ("m", pa.int64())])
    world.owner.create_topic("t", schema=old)
    producer = world.owner.init_producer()

    def batch(schema: pa.Schema, row: dict[str, int]) -> pa.RecordBatch:
        return pa.record_batch(
            {
                "timestamp": pa.array([START_MS], pa.int64()),
                "key": pa.array([b"k"], pa.binary()),
                "value": pa.array([row], pa.struct(list(schema))),
            }
        )

    def extend() -> None:
        world.owner.alter_topic("t", schema=new)
        columns_ = batch(new, {"n": 2, "m": 2})
        world.owner.append([Append("t", 0, columns_, producer, 1, schema_id=2)])

    world.owner.append([Append("t", 0, batch(old, {"n": 1}), producer, 0, schema_id=1)])
    world.storage.hook = doing(extend, "read", ".log")
    values: list[Any] = [*world.values()]
    assert values == [{"n": 1}, {"n": 2, "m": 2}]
    assert [*world.values()] == [{"n": 1, "m": None}, {"n": 2, "m": 2}]


@pytest.mark.damages
def test_a_file_truncated_from_outside_is_an_error_and_no_endless_loop(
    tmp_path: Path,
) -> None:
    world = World(LocalStorage(tmp_path))
    world.owner.create_topic("t")
    Client(world).append(b"a" * 100)
    (path,) = (tmp_path / folder(world)).glob("*.log")
    os.truncate(path, 0)
    with pytest.raises(CorruptLog, match="cut off"):
        world.values()
    world.owner.close()


# Descriptors and processes ------------------------------------------------------------


class WatchedStorage(LocalStorage):
    """A folder on disk in which something happens before the next opening, read or append of
    records."""

    before_open: Callable[[], object] | None = None
    before_read: Callable[[], object] | None = None
    before_append: Callable[[], object] | None = None

    def create(self, path: str) -> File:
        return cast("File", WatchedFile(self, super().create(path), path))

    def open(self, path: str, *, writable: bool = False) -> File:
        self.happens("before_open", path)
        return cast("File", WatchedFile(self, super().open(path, writable=writable), path))

    def happens(self, before: str, path: str) -> None:
        act = getattr(self, before)
        if act is not None and path.endswith(".log"):
            setattr(self, before, None)
            act()


class WatchedFile:
    def __init__(self, storage: WatchedStorage, file: File, path: str) -> None:
        self._storage, self._file, self._path = storage, file, path

    def append(self, *parts: bytes) -> int:
        self._storage.happens("before_append", self._path)
        return self._file.append(*parts)

    def read(self, position: int, size: int) -> Bytes:
        self._storage.happens("before_read", self._path)
        return self._file.read(position, size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_an_append_in_progress_when_the_log_is_closed_writes_to_no_other_file(
    tmp_path: Path, eventually: Eventually
) -> None:
    storage = WatchedStorage(tmp_path / "log")
    world = World(storage)
    world.owner.create_topic("t")
    client = Client(world)
    client.append(b"a")
    held, go = threading.Event(), threading.Event()
    acknowledged = [b"a"]

    def hold() -> None:
        held.set()
        go.wait(BOUND)

    def append() -> None:
        try:
            client.append(b"b")
        except StrandlineError:
            return
        acknowledged.append(b"b")

    storage.before_append = hold
    threads = in_threads(append)
    assert held.wait(BOUND)
    threads += in_threads(world.owner.close)
    eventually(lambda: is_closed(world), what="the closing")
    others = [os.open(tmp_path / f"other-{n}", os.O_RDWR | os.O_CREAT) for n in range(10)]
    go.set()
    joined(threads)
    for descriptor in others:
        os.close(descriptor)
    assert all(path.stat().st_size == 0 for path in tmp_path.glob("other-*"))
    world.open()
    assert world.values()[: len(acknowledged)] == acknowledged
    world.owner.close()


@pytest.mark.long
def test_a_log_can_have_more_partitions_than_a_process_may_open_files(
    tmp_path: Path, repository: Path
) -> None:
    program = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.records import Append
from strandline.changelog.local_file import Bytes
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.storage import File
from tests.log.kit import columns
owner = Owner(LocalStorage({str(tmp_path)!r}), background=False)
owner.create_topic("t", 100)
producer = owner.init_producer()
owner.append([Append("t", n, columns([b"a"]), producer, 0) for n in range(100)])
owner.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=repository, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_cannot_write_into_its_parents_log(tmp_path: Path) -> None:
    world = World(LocalStorage(tmp_path))
    world.owner.create_topic("t")
    client = Client(world)
    client.append(b"a")
    child = os.fork()
    if child == 0:
        try:
            client.append(b"child")
        except OwnerUnavailable:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    client.append(b"parent")
    assert world.values() == [b"a", b"parent"]
    world.owner.close()


# Deleted topics -----------------------------------------------------------------------


def test_a_death_between_the_deletion_of_a_topic_and_of_its_offsets_leaves_no_offsets() -> None:
    world = a_world(1)
    Client(world).append(b"a")
    world.owner.commit_offsets("g", {T0: CommittedOffset(1)})
    dies(world, "unlink", folder(world), lambda: world.owner.delete_topic("t"))
    world.crash()
    world.owner.create_topic("t")
    assert world.owner.committed("g") == {}
    assert world.values() == []


def test_offsets_in_a_transaction_are_deleted_with_their_topic(world: PowerWorld) -> None:
    client = Client(world, "tx")
    world.owner.add_offsets(client.identity, "g", {T0: CommittedOffset(7)})
    world.owner.delete_topic("t")
    client.commit()
    world.owner.create_topic("t")
    assert world.owner.committed("g") == {}


def test_a_topic_that_is_being_deleted_accepts_and_shows_no_records(world: PowerWorld) -> None:
    open_, plain = Client(world, "tx"), Client(world)
    open_.append(b"open")
    plain.append(b"a", partition=1)
    refused = []

    def use_it() -> None:
        for use in (
            lambda: plain.append(b"b"),
            lambda: open_.append(b"c"),
            lambda: world.owner.fetch({T0: 0}),
        ):
            with pytest.raises(UnknownTopic):
                use()
            refused.append(use)

    where = folder(world)
    world.storage.hook = doing(use_it, "unlink", where)
    world.owner.delete_topic("t")
    assert len(refused) == 3
    assert world.storage.paths(where) == []


def test_an_append_during_the_deletion_of_its_topic_leaves_nothing(world: PowerWorld) -> None:
    client = Client(world)
    client.append(b"a")
    where = folder(world)
    world.storage.hook = doing(lambda: world.owner.delete_topic("t"), "append", ".log")
    with contextlib.suppress(UnknownTopic):  # the deletion may have come first
        client.append(b"b")
    world.owner.create_topic("t")
    assert world.values() == []
    assert world.storage.paths(where) == []
    world.crash()
    assert world.values() == []


def test_a_topic_can_be_deleted_while_retention_runs(world: PowerWorld) -> None:
    world.owner.alter_topic("t", config={"retention.ms": "1000"})
    world.owner.create_topic("u", config={"retention.ms": "1000"})
    client = Client(world)
    client.append(b"a")
    client.append(b"a", topic="u")
    where = folder(world, topic="u")
    world.clock.advance(10 * DAY)
    world.storage.hook = doing(lambda: world.owner.delete_topic("u"), "create", folder(world))
    world.owner.tick()
    assert world.owner.offsets([T0])[T0].log_start == 1
    assert world.storage.paths(where) == []


def test_recovered_file_names_are_durable_before_anything_depends_on_them() -> None:
    world = a_world(1)
    renamed: list[Operation] = []

    def hook(operation: Operation) -> None:
        if operation.kind == "rename" and operation.path.startswith(folder(world)):
            renamed.append(operation)
        if operation.kind == "sync_dir" and renamed:
            raise Died

    world.storage.hook = hook
    with pytest.raises(Died):  # kill -9 before the name of the first manifest is synced
        Client(world).append(b"a")
    world.crash()
    Client(world).append(b"b")  # acknowledged
    world.power_cut()
    assert world.values() == [b"b"]


def test_a_deletion_of_a_topic_seen_after_a_kill_is_durable_before_its_files_are_removed() -> None:
    world = a_world(1)
    Client(world).append(b"a")
    dies(world, "sync_dir", "", lambda: world.owner.delete_topic("t"))
    world.storage.crash()
    world.storage.hook = stopping("sync_dir")  # dies in the opening, after removing the files
    with pytest.raises(Died):
        world.open()
    world.power_cut(keep=lambda change: change.kind == "unlink")
    assert [t.name for t in world.owner.topics() if t.name == "t"] in ([], ["t"])
    if [t.name for t in world.owner.topics() if t.name == "t"]:
        assert world.values() == [b"a"]


def test_a_fetch_over_several_segments_survives_the_removal_of_one(tmp_path) -> None:
    world = World(storage := WatchedStorage(tmp_path))
    world.owner.create_topic("t", 1, config={"segment.bytes": "4096", "file.delete.delay.ms": "0"})
    client = Client(world)
    for _ in range(5):
        client.append(b"x" * 3000)

    def remove() -> None:
        world.owner.delete_records(T0, 4)
        world.owner.tick()

    storage.before_read = remove
    with pytest.raises(OffsetOutOfRange, match="offsets 4 to 5, got 0"):
        world.owner.fetch({T0: 0})
    world.owner.close()
