"""A backup has the whole log at one moment, and a restored log is that log under its own id."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline import changelog
from strandline.changelog import backups
from strandline.changelog.backups.pruning import prune_store
from strandline.changelog.backups.restoring import MARK
from strandline.changelog.backups.store import BLOCK_BYTES, BLOCKS, Backup, BackupFile, BackupStore
from strandline.changelog.embedded import document, filesystem
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.embedded.filesystem import MountPoint
from strandline.changelog.embedded.folder import FOLDER_KIND, FolderMeta
from strandline.changelog.embedded.snapshots import LIFETIME_MS, Snapshot
from strandline.changelog.errors import (
    CorruptLog,
    DiskFull,
    InvalidConfig,
    InvalidRequest,
    LogLocked,
    StorageFailed,
)
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.log import Log
from strandline.changelog.records import CommittedOffset, TopicPartition
from tests.crash.twin import Died, PowerStorage
from tests.log.kit import Client, World
from tests.log.power import PowerWorld, failing, stopping_after

PARTITIONS = 3
GROUP = "readers"


def meta(folder: Path) -> FolderMeta:
    return document.load(LocalStorage(folder), "strandline.meta", FOLDER_KIND, FolderMeta)


def values(log: Log, topic: str) -> list[list[bytes]]:
    """Return the values that a read_committed reader sees, by partition."""
    table = log.read(topic)
    numbers, found = table["partition"].to_pylist(), table["value"].to_pylist()
    return [
        [value for number, value in zip(numbers, found, strict=True) if number == partition]
        for partition in range(PARTITIONS)
    ]


class Load:
    """Transactions that write the same value to all partitions of two topics, and an offset."""

    def __init__(self, log: Log) -> None:
        self.log = log
        for topic in ("left", "right"):
            config = {"segment.bytes": "16384"}
            log.create_topic(topic, PARTITIONS, config=config)
        self.producer = log.producer(transactional_id="load")
        self.done = 0

    def once(self) -> None:
        value, group = b"%d" % self.done, {TopicPartition("left", 0): CommittedOffset(self.done)}
        self.producer.begin_transaction()
        for topic in ("left", "right"):
            for partition in range(PARTITIONS):
                self.producer.send(topic, value.ljust(200, b" "), partition=partition)
        self.producer.send_offsets_to_transaction(group, GROUP)
        self.producer.commit_transaction()
        self.done += 1

    def close(self) -> None:
        self.producer.close()


def check_moment(folder: Path, at_least: int, at_most: int) -> None:
    """Check that the log in `folder` has `at_least` to `at_most` transactions, each whole."""
    checked = check_log(LocalStorage(folder)).report
    assert [finding for finding in checked.findings if finding.severity.name == "DAMAGE"] == []
    with changelog.open(folder) as log:
        everything = [*values(log, "left"), *values(log, "right")]
        first = everything[0]
        assert all(one == first for one in everything)
        assert first == [(b"%d" % number).ljust(200, b" ") for number in range(len(first))]
        assert at_least <= len(first) <= at_most
        committed = log.broker.committed(GROUP)
        assert [one.offset for one in committed.values()] == ([len(first) - 1] if first else [])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with changelog.open(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def load(log: Log) -> Iterator[Load]:
    made = Load(log)
    yield made
    made.close()


def test_a_restored_log_is_the_one_that_was_backed_up(tmp_path: Path, log: Log, load: Load) -> None:
    for _ in range(20):
        load.once()
    log.alter_config({"log.retention.hours": "24"})
    made = changelog.backup(tmp_path / "data", tmp_path / "to")
    load.once()
    restored = changelog.restore(tmp_path / "to", tmp_path / "again")
    check_moment(tmp_path / "again", 20, 20)
    with changelog.open(tmp_path / "again") as again:
        assert again.config().given == log.config().given != {}
        for topic in ("left", "right"):
            assert again.topic(topic).topic_id == log.topic(topic).topic_id
        again.append("left", [{"value": b"new"}])
    original = meta(tmp_path / "data")
    found = meta(tmp_path / "again")
    assert (made.log_id, restored.original_log_id) == (original.log_id, original.log_id)
    assert found.log_id == restored.log_id != original.log_id
    assert found.ancestors[-1].log_id == original.log_id
    assert not (tmp_path / "data/snapshots").exists() or not os.listdir(tmp_path / "data/snapshots")
    assert not (tmp_path / "again" / MARK).exists()


def test_backups_under_load_show_one_moment(tmp_path: Path, log: Log, load: Load) -> None:
    """Rolls and commits go on while the files are copied."""
    target = tmp_path / "to"
    stop, failures = threading.Event(), list[BaseException]()

    def write() -> None:
        try:
            while not stop.is_set():
                load.once()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    made = []
    try:
        for _ in range(5):
            before = load.done
            report = backups.backup(tmp_path / "data", target)
            made.append((report.name, before, load.done + 1))
    finally:
        stop.set()
        thread.join()
    assert failures == []
    for name, before, after in made:
        backups.restore(target, tmp_path / name, name=name)
        check_moment(tmp_path / name, before, after)


def test_an_open_transaction_is_aborted_in_the_restored_log(
    tmp_path: Path, log: Log, load: Load
) -> None:
    load.once()
    load.producer.begin_transaction()
    load.producer.send("left", b"open", partition=0)
    load.producer.flush()
    changelog.backup(tmp_path / "data", tmp_path / "to")
    load.producer.abort_transaction()
    changelog.restore(tmp_path / "to", tmp_path / "again")
    check_moment(tmp_path / "again", 1, 1)


@pytest.mark.long
def test_existing_blocks_are_not_copied_again(tmp_path: Path, log: Log, load: Load) -> None:
    for _ in range(80):
        load.once()
    to = tmp_path / "to"
    first = changelog.backup(tmp_path / "data", to)
    again = changelog.backup(tmp_path / "data", to)
    assert first.copied_bytes > 80 * 200 * 2 * PARTITIONS
    load.once()
    third = changelog.backup(tmp_path / "data", to)
    for later in (again, third):  # a file that was written to has a new last block
        assert later.copied_bytes < first.copied_bytes / 2
    assert [*BackupStore(LocalStorage(to)).names()] == [first.name, again.name, third.name]
    for report, count in ((first, 80), (again, 80), (third, 81)):
        changelog.restore(to, tmp_path / report.name, name=report.name)
        check_moment(tmp_path / report.name, count, count)


def test_a_log_without_new_records_is_copied_once(tmp_path: Path, log: Log) -> None:
    log.create_topic("t", config={"segment.bytes": "16384"})
    for number in range(50):
        log.append("t", [{"value": b"%d" % number * 1000}])
    first = changelog.backup(tmp_path / "data", tmp_path / "to")
    before = {path: path.stat().st_ino for path in blocks(tmp_path / "to")}
    again = changelog.backup(tmp_path / "data", tmp_path / "to")
    assert first.copied_bytes > 50_000
    assert (again.copied_bytes, again.bytes) == (0, first.bytes)
    assert {path: path.stat().st_ino for path in blocks(tmp_path / "to")} == before


def test_a_closed_log_can_be_backed_up(tmp_path: Path) -> None:
    with changelog.open(tmp_path / "data") as log:
        load = Load(log)
        load.once()
        load.close()
    changelog.backup(tmp_path / "data", tmp_path / "to")
    changelog.restore(tmp_path / "to", tmp_path / "again")
    check_moment(tmp_path / "again", 1, 1)


# Pruning ----------------------------------------------------------------------------------


def test_pruning_keeps_the_last_backups_and_their_blocks(
    tmp_path: Path, log: Log, load: Load
) -> None:
    to, data = tmp_path / "to", tmp_path / "data"
    names = []
    for _ in range(4):
        load.once()
        names.append(changelog.backup(data, to).name)
    assert [one.name for one in backups.stored_backups(to)] == names
    before = {path: path.stat().st_size for path in blocks(to)}
    report = changelog.prune(to, keep=2)
    assert (report.removed, report.kept) == (tuple(names[:2]), tuple(names[2:]))
    assert [one.name for one in backups.stored_backups(to)] == names[2:]
    gone = set(before) - set(blocks(to))
    assert report.blocks == len(gone) > 0
    assert report.freed_bytes == sum(before[path] for path in gone)
    for name, moment in zip(names[2:], (3, 4), strict=True):
        changelog.restore(to, tmp_path / name, name=name)
        check_moment(tmp_path / name, moment, moment)
    with pytest.raises(InvalidConfig, match="there is no backup"):
        changelog.restore(to, tmp_path / "gone", name=names[0])


def test_a_backup_after_pruning_has_a_later_number_and_all_its_blocks(
    tmp_path: Path, log: Log, load: Load
) -> None:
    to, data = tmp_path / "to", tmp_path / "data"
    for _ in range(2):
        load.once()
        changelog.backup(data, to)
    changelog.prune(to, keep=1)
    load.once()
    assert changelog.backup(data, to).name.endswith("-000003")
    assert changelog.prune(to, keep=1).removed
    changelog.restore(to, tmp_path / "again")
    check_moment(tmp_path / "again", 3, 3)


def test_pruning_removes_what_interrupted_backups_left(
    tmp_path: Path, log: Log, load: Load
) -> None:
    to, data = tmp_path / "to", tmp_path / "data"
    load.once()
    changelog.backup(data, to)
    before = blocks(to)
    store = BackupStore(LocalStorage(to))
    store.put(b"no backup has this")
    (before[0].parent / f"{'0' * 64}.tmp").write_bytes(b"part of a block")
    (before[0].parent / "notes.txt").write_text("not ours")
    report = changelog.prune(to, keep=5)
    assert (report.removed, report.blocks) == ((), 2)
    assert blocks(to) == sorted([*before, before[0].parent / "notes.txt"])


def test_pruning_removes_nothing_if_a_backup_to_keep_is_damaged(
    tmp_path: Path, log: Log, load: Load
) -> None:
    to, data = tmp_path / "to", tmp_path / "data"
    for _ in range(3):
        load.once()
        changelog.backup(data, to)
    *_, last = sorted(to.glob("*.backup"))
    last.write_bytes(last.read_bytes()[:-20])
    before = sorted(to.rglob("*"))
    with pytest.raises(CorruptLog, match="nothing was removed"):
        changelog.prune(to, keep=1)
    assert sorted(to.rglob("*")) == before


def test_wrong_calls_of_prune_are_refused(tmp_path: Path, log: Log, load: Load) -> None:
    load.once()
    to = tmp_path / "to"
    changelog.backup(tmp_path / "data", to)
    for keep in (0, -1, True, 1.5, "2"):
        with pytest.raises(InvalidConfig, match="keep must be a whole number from 1"):
            changelog.prune(to, keep=keep)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="not a backup folder"):
        changelog.prune(tmp_path / "data", keep=1)
    with BackupStore(LocalStorage(to)).locked("a backup"), pytest.raises(LogLocked):
        changelog.prune(to, keep=1)


def test_a_power_cut_at_any_step_of_pruning_leaves_only_whole_backups() -> None:
    count, is_done = 0, False
    while not is_done:
        storage = PowerStorage()
        BackupStore(storage).begin("0")
        names = [saved(BackupStore(storage), number) for number in range(1, 4)]
        storage.hook = stopping_after(count)
        with contextlib.suppress(Died):
            prune_store(BackupStore(storage), 1)
            is_done = True
        storage.hook = None
        storage.power_cut()
        store = BackupStore(storage)
        assert store.names()[-1] == names[-1]
        for name in store.names():
            for digest in store.load(name).files[0].blocks:
                store.block(digest)
        prune_store(store, 1)
        assert sum(len(storage.list_dir(f"{BLOCKS}/{at}")) for at in storage.list_dir(BLOCKS)) == 2
        count += 1
    assert count > 5


# Damage -----------------------------------------------------------------------------------


def blocks(to: Path) -> list[Path]:
    return sorted((to / BLOCKS).glob("*/*"))


@pytest.mark.parametrize("how", ["changed", "cut", "removed"])
def test_a_damaged_block_is_found_at_restore_and_written_again_by_a_backup(
    how: str, tmp_path: Path, log: Log, load: Load
) -> None:
    load.once()
    to, data = tmp_path / "to", tmp_path / "data"
    changelog.backup(data, to)
    store = BackupStore(LocalStorage(to))
    inside = f"topics/{log.topic('left').topic_id}/0/"
    (file,) = [
        file
        for file in store.load(store.names()[-1]).files
        if file.path.startswith(inside) and file.path.endswith(".log")
    ]
    (block,) = [path for path in blocks(to) if path.name == file.blocks[0]]
    content = block.read_bytes()
    if how == "removed":
        block.unlink()
    else:
        block.write_bytes(content[:-1] if how == "cut" else b"x" + content[1:])
    with pytest.raises(CorruptLog, match="block"):
        changelog.restore(to, tmp_path / "again")
    assert not [*tmp_path.glob("*again*")]
    report = changelog.backup(data, to)
    assert report.repaired_blocks == (how != "removed")
    changelog.restore(to, tmp_path / "again")
    check_moment(tmp_path / "again", 1, 1)


def test_a_backup_of_a_damaged_log_is_not_restored(tmp_path: Path, log: Log, load: Load) -> None:
    for _ in range(60):
        load.once()
    changelog.backup(tmp_path / "data", tmp_path / "to")
    store = BackupStore(LocalStorage(tmp_path / "to"))
    (name,) = store.names()
    backup = store.load(name)
    file = next(file for file in backup.files if file.path.endswith(".log") and file.closed)
    data = bytearray(store.block(file.blocks[0]))
    data[100] ^= 1
    file.blocks = [store.put(bytes(data))]
    name = store.save(backup)
    with pytest.raises(CorruptLog, match="damaged"):
        changelog.restore(tmp_path / "to", tmp_path / "again", name=name)
    assert not [*tmp_path.glob("*again*")]


@pytest.mark.parametrize(
    "path", ["../outside", "/tmp/x", "lock", "owner.json", "topics/x/0/manifest.meta", "state/a"]
)
def test_a_forged_backup_cannot_write_other_files(path: str, tmp_path: Path) -> None:
    store = BackupStore(LocalStorage(tmp_path / "to"))
    store.begin("0")
    file = BackupFile(path=path, size=1, content=b"x")
    store.save(Backup(taken_ms=0, log=FolderMeta("0", 0), files=[file]))
    with pytest.raises(CorruptLog, match="not a file of a log"):
        changelog.restore(tmp_path / "to", tmp_path / "again")
    assert [path.name for path in tmp_path.iterdir()] == ["to"]


# Refusals ---------------------------------------------------------------------------------


def test_only_folders_with_a_log_are_backed_up(tmp_path: Path, log: Log) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    for source, target, why in (
        ("kafka://localhost:9092", "to", "Kafka cluster has its own replicas"),
        ("strandline://localhost:7361", "to", "machine with the log.s files"),
        (tmp_path / "nothing", "to", "holds no log"),
        (tmp_path / "data", "kafka://localhost:9092", "is not a folder"),
        (tmp_path / "data", tmp_path / "data/backups", "one is inside the other"),
        (tmp_path / "data", tmp_path, "one is inside the other"),
        (tmp_path / "data", tmp_path / "other", "neither empty nor"),
    ):
        with pytest.raises(InvalidConfig, match=why):
            changelog.backup(source, target)
    assert not (tmp_path / "nothing").exists()
    assert os.listdir(tmp_path / "other") == ["file"]


def test_a_restore_needs_an_empty_target(tmp_path: Path, log: Log, load: Load) -> None:
    load.once()
    to = tmp_path / "to"
    with pytest.raises(InvalidConfig, match="not a backup folder"):
        changelog.restore(tmp_path / "data", tmp_path / "again")
    changelog.backup(tmp_path / "data", to)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place in (tmp_path / "data", to, tmp_path / "link"):
        with pytest.raises(InvalidConfig, match="is not an empty folder"):
            changelog.restore(to, place)
    with pytest.raises(InvalidConfig, match="no backup 'x'"):
        changelog.restore(to, tmp_path / "again", name="x")
    (tmp_path / ".again.restoring").mkdir()
    (tmp_path / ".again.restoring/mine").touch()
    with pytest.raises(InvalidConfig, match="in the way"):
        changelog.restore(to, tmp_path / "again")
    (tmp_path / "empty").mkdir()
    changelog.restore(to, tmp_path / "empty")
    check_moment(tmp_path / "empty", 1, 1)


def test_a_restore_beside_files_of_others_is_a_log_of_this_user_only(
    tmp_path: Path, log: Log, load: Load
) -> None:
    """As in /tmp. Before, the way out of the error was to take that folder from all other users."""
    load.once()
    changelog.backup(tmp_path / "data", tmp_path / "to")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    for to in (shared / "again", shared / "new/again"):
        changelog.restore(tmp_path / "to", to)
        assert to.stat().st_mode & 0o777 == 0o700
        check_moment(to, 1, 1)
    (shared / "open").mkdir()
    (shared / "open").chmod(0o777)
    changelog.restore(tmp_path / "to", shared / "open")
    assert (shared / "open").stat().st_mode & 0o777 == 0o700


def test_a_mount_point_is_refused_before_anything_is_copied(
    tmp_path: Path, log: Log, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    load.once()
    changelog.backup(tmp_path / "data", tmp_path / "to")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounts = [MountPoint("/", "ext4", "/dev/a"), MountPoint(os.path.realpath(disk), "xfs", "b")]
    monkeypatch.setattr(filesystem, "_mounts", lambda: mounts)
    monkeypatch.setattr(BackupStore, "block", pytest.fail)
    with pytest.raises(InvalidConfig, match=rf"{disk} is a mount point.*give .*{disk}/log"):
        changelog.restore(tmp_path / "to", disk)
    monkeypatch.undo()
    assert not os.listdir(disk)
    assert not (tmp_path / ".disk.restoring").exists()
    changelog.restore(tmp_path / "to", disk / "log")
    check_moment(disk / "log", 1, 1)


def test_only_one_backup_at_a_time_writes_to_a_folder(tmp_path: Path, log: Log) -> None:
    storage = LocalStorage(tmp_path / "to")
    storage.make_dir("")
    with BackupStore(storage).locked("another"), pytest.raises(LogLocked):
        changelog.backup(tmp_path / "data", tmp_path / "to")


# Snapshots, and faults at each step -------------------------------------------------------


def filled(world: World) -> Client:
    world.owner.create_topic("t", 2, config={"segment.bytes": "4096"})
    client = Client(world, "tx")
    for number in range(30):
        for partition in range(2):
            client.append(b"%d" % number + b"x" * 300, partition=partition)
        client.commit()
    return client


@pytest.mark.parametrize("kind", ["link", "create", "append", "fsync", "rename", "sync_dir"])
def test_a_failed_snapshot_leaves_nothing_and_the_log_works(kind: str) -> None:
    world = PowerWorld()
    client = filled(world)
    world.storage.hook = failing(kind, "snapshots/")  # type: ignore[arg-type]
    with pytest.raises(StorageFailed):
        world.owner.snapshots.take()
    world.storage.hook = None
    assert world.storage.list_dir("snapshots") == []
    client.append(b"after")
    client.commit()
    assert world.values()[-1] == b"after"
    world.owner.snapshots.release(world.owner.snapshots.take())


def test_a_snapshot_is_removed_after_its_timeout_and_with_its_owner() -> None:
    world = PowerWorld()
    filled(world)
    name = world.owner.snapshots.take()
    assert Snapshot.load(world.storage, name).files
    world.clock.advance(LIFETIME_MS)
    world.owner.tick()
    assert world.storage.list_dir("snapshots") == []
    world.owner.snapshots.take()
    world.crash()
    assert world.storage.list_dir("snapshots") == []
    with pytest.raises(InvalidRequest):
        world.owner.snapshots.release("../topics")


def test_a_crash_at_any_step_of_a_snapshot_loses_nothing() -> None:
    count = 0
    while True:
        world = PowerWorld()
        filled(world)
        before = world.values()
        world.storage.hook = stopping_after(count)
        try:
            world.owner.snapshots.take()
        except Died:
            world.storage.hook = None
            world.power_cut()
            assert world.values() == before
            count += 3
            continue
        break
    assert count > 30


def saved(store: BackupStore, number: int) -> str:
    """Save a backup with one block of its own and one that all backups share."""
    blocks = [store.put(b"shared"), store.put(b"%d" % number * 100)]
    file = BackupFile(path="x", size=0, blocks=blocks)
    return store.save(Backup(taken_ms=number, log=FolderMeta("0", 0), files=[file]))


def test_a_power_cut_at_any_step_leaves_only_whole_backups() -> None:
    count = 0
    while True:
        storage = PowerStorage()
        BackupStore(storage).begin("0")
        first = saved(BackupStore(storage), 1)
        storage.hook = stopping_after(count)
        try:
            second = saved(BackupStore(storage), 2)
        except Died:
            second = ""
        storage.hook = None
        storage.power_cut()
        store = BackupStore(storage)
        assert store.names() in ([first], [first, second], [first, "19700101T000000Z-000002"])
        for name in store.names():
            for digest in store.load(name).files[0].blocks:
                store.block(digest)
        saved(BackupStore(storage), 3)
        if second:
            break
        count += 1
    assert count > 8


@pytest.mark.parametrize("step", ["create", "rename", "make_dir", "sync_dir"])
def test_a_failed_restore_leaves_nothing(
    step: str, tmp_path: Path, log: Log, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    load.once()
    changelog.backup(tmp_path / "data", tmp_path / "to")
    real, number = getattr(LocalStorage, step), 1
    while True:
        left = [number]

        def refused(storage: LocalStorage, *arguments: object, left: list[int] = left) -> object:
            if "restoring" in f"{storage.root}{arguments}":
                left[0] -= 1
                if left[0] == 0:
                    raise DiskFull("no room")
            return real(storage, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, step, refused)
            with contextlib.suppress(DiskFull):
                changelog.restore(tmp_path / "to", tmp_path / "again")
        if left[0] > 0:
            break
        assert not (tmp_path / "again").exists()
        number += 1
    assert number > 1
    check_moment(tmp_path / "again", 1, 1)


def test_a_file_of_many_blocks_is_restored_whole(tmp_path: Path) -> None:
    with changelog.open(tmp_path / "data") as log:
        log.create_topic("t")
        given = [os.urandom(700_000) for _ in range(10)]
        for value in given:
            log.append("t", [{"value": value}])
        changelog.backup(tmp_path / "data", tmp_path / "to")
    assert max(path.stat().st_size for path in blocks(tmp_path / "to")) == BLOCK_BYTES
    changelog.restore(tmp_path / "to", tmp_path / "again")
    with changelog.open(tmp_path / "again") as log:
        assert log.read("t")["value"].to_pylist() == given
