"""A log opens after anything with all acknowledged records and nothing half, or is clearly
refused."""

from __future__ import annotations

import pytest

from strandline.changelog.embedded import document
from strandline.changelog.embedded.folder import FOLDER_KIND
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import (
    CorruptLog,
    FutureFormat,
    LogLocked,
    PartitionPoisoned,
    StorageFailed,
)
from strandline.changelog.layout import FOLDER_META, partition_folder
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import TopicPartition
from strandline.changelog.storage import Bytes, File
from tests.log.kit import Client, World

T0 = TopicPartition("t", 0)


def active_file(world: World, topic: str = "t") -> bytearray:
    assert isinstance(world.storage, MemoryStorage)
    folder = partition_folder(world.owner.topic(topic).topic_id, 0)
    names = [n for n in world.storage.list_dir(folder) if n.endswith(".log")]
    return world.storage._files[f"{folder}/{names[-1]}"]


def test_a_tail_torn_at_any_byte_is_cut_off_and_the_log_works() -> None:
    world = World()
    world.owner.create_topic("t")
    client = Client(world)
    client.append(b"a", b"b")
    whole = len(active_file(world))
    client.append(b"c")
    content = bytes(active_file(world))
    for cut in range(whole, len(content)):
        active_file(world)[:] = content[:cut]
        world.crash()
        assert world.values() == [b"a", b"b"]
        assert client.append(b"c", sequence=2).base_offset == 2
        assert world.values() == [b"a", b"b", b"c"]


def test_debris_after_the_end_never_becomes_visible() -> None:
    world = World()
    world.owner.create_topic("t")
    client = Client(world)
    for word in (b"a", b"b", b"c"):
        client.append(word)
    data = active_file(world)
    frame = len(data) // 3
    # The middle frame is torn. The last one, unsynced when it was written, follows it whole.
    last = bytes(data[2 * frame :])
    del data[frame:]
    world.crash()
    active_file(world).extend(bytes(frame) + last[:20])
    world.crash()
    assert world.values() == [b"a"]
    client.append(b"B", sequence=1)
    world.crash()
    assert world.values() == [b"a", b"B"]


@pytest.mark.damages
def test_damage_below_a_durable_offset_is_refused_not_cut_off() -> None:
    world = World()
    world.owner.create_topic("t")
    client = Client(world)
    for word in (b"a", b"b", b"c"):
        client.append(word)
    data = active_file(world)
    data[len(data) // 3 + 110] ^= 0xFF
    with pytest.raises(CorruptLog, match="durable"):
        world.crash()


@pytest.mark.damages
def test_a_log_with_a_commit_whose_data_is_missing_is_refused() -> None:
    world = World()
    world.owner.create_topic("t")
    client = Client(world, "tx")
    client.append(b"a")
    client.commit()
    active_file(world).clear()
    with pytest.raises(CorruptLog, match="committed transaction"):
        world.crash()


def test_a_damaged_record_is_an_error_not_a_wrong_answer() -> None:
    world = World()
    world.owner.create_topic("t")
    Client(world).append(b"a")
    active_file(world)[110] ^= 1
    with pytest.raises(CorruptLog, match="checksum"):
        world.values()


def test_lost_indexes_and_snapshots_are_rebuilt() -> None:
    world = World()
    world.owner.create_topic("t", 1, config={"segment.bytes": "4096"})
    client, tx = Client(world), Client(world, "tx")
    for n in range(100):
        client.append(b"%d" % n)
        tx.append(b"aborted")
        tx.abort()
    assert isinstance(world.storage, MemoryStorage)
    for name in list(world.storage._files):
        if name.endswith((".index", ".aborted", ".producers")):
            world.storage.unlink(name)
    world.crash()
    assert world.values() == [b"%d" % n for n in range(100)]
    assert client.append(b"99", sequence=99).duplicate


@pytest.mark.damages
@pytest.mark.parametrize("suffix", [".index", ".aborted", ".producers"])
def test_a_damaged_side_file_is_rebuilt(suffix: str) -> None:
    world = World()
    world.owner.create_topic("t", 1, config={"segment.bytes": "4096"})
    client, tx = Client(world), Client(world, "tx")
    for n in range(100):
        client.append(b"%d" % n)
        tx.append(b"aborted")
        tx.abort()
    assert isinstance(world.storage, MemoryStorage)
    for name, content in world.storage._files.items():
        if name.endswith(suffix):
            content[-1] ^= 0xFF
    world.crash()
    assert world.values() == [b"%d" % n for n in range(100)]


def test_each_opening_that_appends_begins_a_leader_epoch_and_others_write_nothing() -> None:
    world = World()
    world.owner.create_topic("t")
    client = Client(world)
    client.append(b"a")
    first = world.owner.offsets([T0])[T0].epochs
    assert [(epoch.number, epoch.start) for epoch in first] == [(0, 0)]
    assert world.reopen().offsets([T0])[T0].epochs == first
    assert world.crash().offsets([T0])[T0].epochs == first
    client.append(b"b")
    world.reopen()
    client = Client(world)
    client.append(b"c")
    ends = world.owner.offsets([T0])[T0]
    assert [(epoch.number, epoch.start) for epoch in ends.epochs] == [(0, 0), (1, 1), (2, 2)]
    assert len({epoch.incarnation for epoch in ends.epochs} - {""}) == 3
    assert (ends.epoch_end(0), ends.epoch_end(1)) == (1, 2)


def test_an_append_is_answered_with_the_leader_epoch_it_was_written_in() -> None:
    world = World()
    world.owner.create_topic("t")
    client = Client(world)
    assert client.append(b"a").leader_epoch == 0
    world.crash()
    assert client.append(b"b").leader_epoch == 1
    assert client.append(b"a", sequence=0)[:4] == (0, 0, True, 0)


def test_with_durability_os_the_leader_epoch_also_rises_by_one_at_the_recovered_end() -> None:
    world = World(durability="os")
    world.owner.create_topic("t")
    world.owner.create_topic("open")
    client, tx = Client(world), Client(world, "tx")
    client.append(b"a", b"b")
    tx.append(b"never committed", topic="open")
    open_0 = TopicPartition("open", 0)
    for lives in (1, 2):
        found = world.owner.offsets([T0])[T0].high_watermark
        world.crash()
        ends = world.owner.offsets([T0, open_0])
        assert [end.leader_epoch for end in ends.values()] == [lives, lives]
        assert ends[T0].epoch_end(lives - 1) == found
        Client(world).append(b"c")


def test_with_durability_os_an_offset_once_seen_is_never_used_again() -> None:
    world = World(durability="os")
    world.owner.create_topic("t")
    client = Client(world)
    client.append(b"a", b"b")
    seen_end = world.owner.offsets([T0])[T0].high_watermark
    assert seen_end == 2
    active_file(world).clear()  # a power cut took all unsynced bytes
    world.crash()
    offset = Client(world).append(b"c").base_offset
    assert offset >= seen_end
    assert world.values() == [b"c"]
    assert world.owner.fetch({T0: seen_end})[T0].batches[0].base_offset == offset


@pytest.mark.damages
def test_a_folder_of_a_future_format_is_refused() -> None:
    world = World()
    content = document.pack(FOLDER_KIND, b"{}").replace(b"strandline log 1", b"strandline log 2")
    assert isinstance(world.storage, MemoryStorage)
    world.storage._files[FOLDER_META][:] = content
    with pytest.raises(FutureFormat, match="version 2"):
        world.crash()


@pytest.mark.damages
def test_a_frame_of_a_future_version_is_refused() -> None:
    import crc32c

    world = World()
    world.owner.create_topic("t")
    Client(world).append(b"a")
    data = active_file(world)
    data[16] = 9
    data[4:8] = crc32c.crc32c(bytes(data[8:104])).to_bytes(4, "little")
    with pytest.raises(FutureFormat, match="frame version 9"):
        world.crash()


def test_a_second_owner_is_refused_with_the_name_of_the_first(tmp_path) -> None:  # type: ignore[no-untyped-def]
    owner = Owner(LocalStorage(tmp_path), background=False)
    with pytest.raises(LogLocked, match="pid"):
        Owner(LocalStorage(tmp_path), background=False)
    owner.close()
    Owner(LocalStorage(tmp_path), background=False).close()


class FailingStorage(MemoryStorage):
    """Memory whose files fail at the next `append` or `sync` on request."""

    def __init__(self) -> None:
        super().__init__()
        self.fail_append: StorageFailed | None = None
        self.fail_sync: StorageFailed | None = None

    def create(self, path: str) -> File:
        return _FailingFile(super().create(path), self)

    def open(self, path: str, *, writable: bool = False) -> File:
        return _FailingFile(super().open(path, writable=writable), self)


class _FailingFile:
    def __init__(self, file: File, storage: FailingStorage) -> None:
        self._file, self._storage = file, storage

    def append(self, *parts: Bytes) -> int:
        if self._storage.fail_append:
            raise self._storage.fail_append
        return self._file.append(*parts)

    def sync(self) -> None:
        if self._storage.fail_sync:
            raise self._storage.fail_sync
        self._file.sync()

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        return getattr(self._file, name)


def test_a_failed_write_raises_and_the_log_works_after_a_reopening() -> None:
    storage = FailingStorage()
    world = World(storage)
    world.owner.create_topic("t")
    client = Client(world)
    client.append(b"a")
    storage.fail_append = StorageFailed("cannot append to x: Input/output error")
    with pytest.raises(StorageFailed):
        client.append(b"b")
    storage.fail_append = None
    with pytest.raises(PartitionPoisoned, match="Input/output error"):
        client.append(b"b", sequence=1)
    assert world.values() == [b"a"]
    world.crash()
    client.append(b"b", sequence=1)
    assert world.values() == [b"a", b"b"]


def test_a_failed_fsync_is_never_retried_as_if_nothing_had_happened() -> None:
    storage = FailingStorage()
    world = World(storage)
    world.owner.create_topic("t")
    client = Client(world)
    client.append(b"a")
    storage.fail_sync = StorageFailed("cannot fsync x: Input/output error")
    with pytest.raises(StorageFailed):
        client.append(b"b")
    storage.fail_sync = None
    with pytest.raises(PartitionPoisoned):
        client.append(b"b", sequence=1)
    assert world.values() == [b"a"]


def test_a_failed_fsync_at_commit_leaves_nothing_of_the_transaction() -> None:
    storage = FailingStorage()
    world = World(storage)
    world.owner.create_topic("t", 2)
    client = Client(world, "tx")
    client.append(b"a")
    client.append(b"b", partition=1)
    storage.fail_sync = StorageFailed("cannot fsync x: Input/output error")
    with pytest.raises(StorageFailed):
        client.commit()
    storage.fail_sync = None
    world.crash()
    assert world.values() == world.values(partition=1) == []


def test_a_segment_closed_without_a_record_is_opened_again() -> None:
    world = World(durability="os")
    world.owner.create_topic("t")
    client = Client(world)
    client.append(b"a")
    for _ in range(2):  # each unclean start skips the reserved offsets, with a roll
        world.crash()
    client.append(b"b")
    world.crash()
    assert world.values() == [b"a", b"b"]
