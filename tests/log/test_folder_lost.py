"""An owner whose folder or lock was moved from its path stops, and changes nothing in either
place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strandline.changelog.directory import Directory
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.errors import CorruptLog, FolderLost, StorageFailed
from strandline.changelog.local_storage import LocalStorage
from strandline.statestore.engine import StorePosition
from tests.log.kit import Client, World
from tests.state.test_folders import at_once

POSITION = StorePosition("0" * 32, 0, 1)

pytestmark = pytest.mark.damages


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    made = World(LocalStorage(folder))
    made.owner.create_topic("t", config={"segment.bytes": "4096"})
    yield made
    made.owner.close()


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def moved(folder: Path) -> None:
    folder.rename(folder.with_name("old"))


def moved_and_replaced(folder: Path) -> None:
    moved(folder)
    World(LocalStorage(folder)).owner.close()


def removed_and_replaced(folder: Path) -> None:
    shutil.rmtree(folder)
    World(LocalStorage(folder)).owner.close()


def lock_removed(folder: Path) -> None:
    (folder / "lock").unlink()


def lock_replaced(folder: Path) -> None:
    (folder / "lock").rename(folder / "lock.old")
    (folder / "lock").write_text("")


def topics_moved(folder: Path) -> None:
    (folder / "topics").rename(folder / "aside")


def topics_replaced(folder: Path) -> None:
    shutil.copytree(folder / "topics", folder / "saved")
    topics_moved(folder)
    (folder / "saved").rename(folder / "topics")


LOSSES = [
    *(moved, moved_and_replaced, removed_and_replaced, lock_removed, lock_replaced),
    *(topics_moved, topics_replaced),
]


@pytest.mark.parametrize("lose", LOSSES)
def test_nothing_is_acknowledged_or_changed_once_the_folder_is_lost(
    lose: Callable[[Path], None], world: World, folder: Path
) -> None:
    client = Client(world)
    client.append(b"a")
    lose(folder)
    before = content(folder.parent)
    for change in (
        lambda: world.owner.create_topic("new"),
        lambda: world.owner.delete_topic("t"),
        lambda: world.owner.alter_config({"log.retention.hours": "1"}),
    ):
        with pytest.raises(FolderLost, match="nothing more is written"):
            change()
    assert content(folder.parent) == before
    with pytest.raises(StorageFailed):
        client.append(b"b")
    world.owner.tick()
    for call in (world.owner.topics, world.values, lambda: client.append(b"c")):
        with pytest.raises(FolderLost):
            call()
    before = content(folder.parent)
    world.owner.close()
    assert content(folder.parent) == before


def test_an_owner_stays_stopped_when_its_folder_is_put_back(world: World, folder: Path) -> None:
    moved(folder)
    world.owner.tick()
    folder.with_name("old").rename(folder)
    world.owner.tick()
    with pytest.raises(FolderLost):
        world.owner.create_topic("new")
    world.owner.close()
    assert [topic.name for topic in world.open().topics() if not topic.internal] == ["t"]


def test_topics_that_were_moved_away_do_not_begin_again_at_offset_0(
    world: World, folder: Path
) -> None:
    Client(world).append(b"a", b"b")
    topics_moved(folder)
    world.owner.tick()
    world.owner.close()
    for _ in range(2):  # a refused opening makes no folder that the next one takes for the topic's
        with pytest.raises(CorruptLog, match=r"is missing, .* put it back .*strandline repair"):
            World(LocalStorage(folder))
    assert not (folder / "topics").exists()
    (folder / "aside").rename(folder / "topics")
    again = World(LocalStorage(folder))
    assert again.values() == [b"a", b"b"]
    again.owner.close()


SECOND = """
import sys
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import LogLocked
from strandline.changelog.local_storage import LocalStorage

try:
    Owner(LocalStorage(sys.argv[1]), background=False)
except LogLocked:
    print("locked")
"""


def test_a_folder_without_its_lock_file_gets_no_second_owner(
    world: World, folder: Path, repository: Path
) -> None:
    client = Client(world)
    client.append(b"a")
    lock_removed(folder)
    command = [sys.executable, "-c", SECOND, str(folder)]
    second = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=60)
    assert (second.stdout, second.stderr) == ("locked\n", "")
    world.owner.close()
    again = World(LocalStorage(folder))
    assert again.values() == [b"a"]
    again.owner.close()
    assert check_log(LocalStorage(folder)).report.findings == []


def test_an_owner_that_lost_its_folder_does_not_damage_the_one_at_its_path(
    world: World, folder: Path
) -> None:
    """Each owner writes to its own folder: records acknowledged by the second one stay durable."""
    first = Client(world)
    first.append(b"first")
    moved(folder)
    second = World(LocalStorage(folder))
    second.owner.create_topic("t")
    Client(second).append(b"second")
    with pytest.raises(FolderLost):
        first.append(b"x" * 5000)
    world.owner.tick()
    world.owner.close()
    assert second.values() == [b"second"]
    second.owner.close()
    assert check_log(LocalStorage(folder)).report.findings == []
    old = World(LocalStorage(folder.with_name("old")))
    assert old.values()[0] == b"first"
    old.owner.close()


def test_a_reader_that_holds_the_folder_reads_what_it_opened(world: World, folder: Path) -> None:
    reader = LocalStorage(folder)
    assert reader.list_dir("topics")
    moved(folder)
    folder.mkdir()
    (folder / "strandline.meta").write_text("another log")
    found = bytes(reader.open("strandline.meta").read(0, 1 << 16))
    assert found == (folder.with_name("old") / "strandline.meta").read_bytes()


def test_a_relative_path_is_resolved_when_the_storage_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = LocalStorage("data")
    storage.make_dir("")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    storage.make_dir("a/b")
    storage.create("a/b/c").append(b"x")
    assert content(tmp_path) == {"data/a/b/c": b"x"}


@pytest.mark.parametrize("kernel", [True, False])
def test_no_symbolic_link_is_followed_by_any_way_of_opening(
    kernel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths are resolved by the kernel where it has openat2, and otherwise by Strandline."""
    if not kernel:
        monkeypatch.setattr("strandline.changelog.directory._syscall", None)
    storage = LocalStorage(tmp_path / "in")
    storage.make_dir("a/b")
    storage.create("a/b/file").append(b"x")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/file").write_bytes(b"out")
    os.symlink(tmp_path / "out", tmp_path / "in/a/link")
    os.symlink(tmp_path / "out/file", tmp_path / "in/a/file")
    os.mkfifo(tmp_path / "in/a/pipe")
    assert bytes(storage.open("a/b/file").read(0, 9)) == b"x"
    with pytest.raises(FileNotFoundError):
        storage.open("a/c/file")
    for path in ("a/link/file", "a/file"):
        for open_ in (storage.open, lambda path: storage.open(path, writable=True)):
            with pytest.raises(StorageFailed, match="symbolic link"):
                open_(path)
    for path in ("../out/file", "a/../../out/file"):
        with pytest.raises((StorageFailed, FileNotFoundError)):
            storage.open(path)
    with pytest.raises(StorageFailed, match="no regular file"):
        storage.open("a/pipe")
    for named in (storage.make_dir, storage.remove_tree, storage.list_dir, storage.sync_dir):
        with pytest.raises(StorageFailed):
            named("a/link")
    with pytest.raises(StorageFailed):
        storage.create("a/link/new")
    storage.remove_tree("a")
    assert content(tmp_path / "out") == {"file": b"out"}
    assert storage.list_dir("") == []


def test_the_descriptors_of_storages_are_closed_with_them(tmp_path: Path) -> None:
    def opened() -> int:
        """Return the number of descriptors that this process has in the folder."""
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        there = str(tmp_path)
        return sum(os.path.realpath(link).startswith(there) for link in links)

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("this needs /proc")
    storage = LocalStorage(tmp_path / "in")
    storage.make_dir("a/b")
    before = opened()
    for _ in range(50):
        other = LocalStorage(tmp_path / "in")
        other.make_dir("a/b/c")
        other.lock("lock", "us", whole=True).release()
        with pytest.raises(StorageFailed):
            other.sync_dir("nothing")
        assert not other.exists("a/b/d")
    del other
    assert opened() == before


def test_a_folder_and_its_copy_have_different_identities(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    first = Directory(tmp_path / "one").identity()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert Directory(tmp_path / "two").identity() != first
    (tmp_path / "one").rename(tmp_path / "three")
    assert Directory(tmp_path / "three").identity() == first


@pytest.mark.parametrize("has_state", [True, False])
def test_a_store_whose_folder_was_replaced_writes_into_neither(
    tmp_path: Path, has_state: bool
) -> None:
    engine = at_once(tmp_path / "0")
    if has_state:
        engine.write([b"k"], [b"v"], POSITION)
    (tmp_path / "0").rename(tmp_path / "old")
    (tmp_path / "0/db").mkdir(parents=True)
    (tmp_path / "0/db/CURRENT").touch()
    for write in (lambda: engine.write([b"k"], [b"v"], POSITION), engine.wipe, engine.remove):
        with pytest.raises(FolderLost):
            write()
    assert (tmp_path / "0/db/CURRENT").exists()
    if not has_state:  # no database was opened at the path
        assert [one.name for one in (tmp_path / "0/db").iterdir()] == ["CURRENT"]
    assert (tmp_path / "old/db/CURRENT").exists() is has_state
    engine.close()
