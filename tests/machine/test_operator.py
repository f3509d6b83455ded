"""Mistakes of operators: folders removed, moved or read-only, and sockets removed, while in use."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline import changelog
from strandline.changelog.errors import (
    DiskFull,
    FolderLost,
    LogLocked,
    OwnerUnavailable,
    StorageFailed,
    TooManyFiles,
    from_failed_sync,
    from_os_error,
)
from strandline.changelog.flight.attach import attach_or_own
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.records import TopicPartition
from tests.log.kit import Client, World

T0 = TopicPartition("t", 0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A log in a folder on disk, with the topic `t`."""
    made = World(LocalStorage(tmp_path / "log"))
    made.owner.create_topic("t", config={"segment.bytes": "4096"})
    yield made
    made.owner.close()


def root(world: World) -> Path:
    assert isinstance(world.storage, LocalStorage)
    return world.storage.root


# Messages -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "kind", "way_out"),
    [
        (errno.ENOSPC, DiskFull, "MiB free.*make room"),
        (errno.EDQUOT, DiskFull, "make room"),
        (errno.EFBIG, DiskFull, "ulimit -f"),
        (errno.EMFILE, TooManyFiles, "ulimit -n"),
        (errno.ENFILE, TooManyFiles, "ulimit -n"),
        (errno.EIO, StorageFailed, "device failed.*open the log again"),
        (errno.EROFS, StorageFailed, "mount it writable"),
        (errno.EACCES, StorageFailed, "belong to the user"),
        (errno.ENOENT, StorageFailed, "removed or moved"),
    ],
)
def test_every_refusal_names_the_call_the_path_the_reason_and_a_remedy(
    number: int, kind: type[StorageFailed], way_out: str, tmp_path: Path
) -> None:
    error = from_os_error(OSError(number, os.strerror(number)), "append to", f"{tmp_path}/x.log")
    assert type(error) is kind
    assert f"cannot append to {tmp_path}/x.log: {os.strerror(number)}" in str(error)
    with pytest.raises(kind, match=way_out):
        raise error
    assert type(from_failed_sync(OSError(number, "x"), "x.log")) is StorageFailed


# Read-only ----------------------------------------------------------------------------


def refusing(monkeypatch: pytest.MonkeyPatch, number: int, writing: Callable[[int], bool]) -> None:
    """Refuse to open files for writing and to create folders, as the system would."""
    real_open, real_mkdir = os.open, Path.mkdir

    def refused_open(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if writing(flags):
            raise OSError(number, os.strerror(number), str(path))
        return real_open(path, flags, *rest, **options)

    def refused_mkdir(path: Path, *rest: Any, **options: Any) -> None:
        if not path.exists():
            raise OSError(number, os.strerror(number), str(path))
        real_mkdir(path, *rest, **options)

    monkeypatch.setattr(os, "open", refused_open)
    monkeypatch.setattr(Path, "mkdir", refused_mkdir)


def writes(flags: int) -> bool:
    return bool(flags & (os.O_WRONLY | os.O_RDWR))


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_read_only_folder_is_reported_and_the_log_works_afterwards(
    number: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(world)
    client.append(b"a")
    with monkeypatch.context() as patched:
        refusing(patched, number, writes)
        with pytest.raises(StorageFailed, match=os.strerror(number)):
            client.append(b"x" * 5000)
        with pytest.raises(StorageFailed, match=os.strerror(number)):
            world.owner.create_topic("new")
        assert world.values() == [b"a"]
        world.owner._closed = True  # like a crash; an orderly close would have to write as well
        world.owner._log._lock.release()
        with pytest.raises(StorageFailed, match=os.strerror(number)):
            world.open()
    world.open()
    Client(world).append(b"x" * 5000)
    assert world.values() == [b"a", b"x" * 5000]


def test_a_new_segment_without_free_descriptors_is_refused_and_created_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(world)
    client.append(b"a")
    with monkeypatch.context() as patched:
        refusing(patched, errno.EMFILE, writes)
        with pytest.raises(TooManyFiles, match="ulimit -n"):
            client.append(b"x" * 5000)
    client.append(b"x" * 5000)
    assert world.values() == [b"a", b"x" * 5000]


# Removed and moved --------------------------------------------------------------------


@pytest.mark.damages
def test_nothing_is_acknowledged_in_a_folder_that_was_removed(world: World) -> None:
    client = Client(world)
    client.append(b"a")
    shutil.rmtree(root(world))
    with pytest.raises(StorageFailed, match="removed while the log was open"):
        client.append(b"b")
    with pytest.raises(StorageFailed, match="removed or moved"):
        world.owner.create_topic("new")


@pytest.mark.damages
def test_a_commit_in_a_folder_that_was_removed_is_not_acknowledged(world: World) -> None:
    client = Client(world, "tx")
    client.append(b"a")
    shutil.rmtree(root(world))
    with pytest.raises(StorageFailed, match="removed while the log was open"):
        client.commit()


def test_a_moved_folder_keeps_its_records_and_its_lock(world: World, tmp_path: Path) -> None:
    client = Client(world)
    client.append(b"a")
    moved = root(world).rename(tmp_path / "moved")
    with pytest.raises(FolderLost, match="removed or moved"):
        client.append(b"b")
    with pytest.raises(LogLocked):
        World(LocalStorage(moved))
    moved.rename(root(world))
    world.owner.close()
    world.open()
    assert world.values() in ([b"a"], [b"a", b"b"])  # the second append was not acknowledged


@pytest.mark.damages
def test_a_topic_deleted_during_a_commit_breaks_nothing(world: World) -> None:
    client = Client(world, "tx")
    client.append(b"a")
    world.owner.create_topic("other")
    client.append(b"b", topic="other")
    world.owner.delete_topic("t")
    client.commit()
    assert world.values("other") == [b"b"]


# Sockets ------------------------------------------------------------------------------


def test_an_owner_without_its_socket_is_named_and_attached_clients_continue(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with changelog.open(folder) as owner:
        owner.create_topic("t")
        owner.append("t", [{"value": b"a"}])
        sockets = list(folder.glob("*.sock"))
        for socket in sockets:
            socket.unlink()
        assert sockets
        with pytest.raises(OwnerUnavailable, match=f"pid {os.getpid()}, .*socket.* does not exist"):
            attach_or_own(folder, deadline=0.3)
        owner.append("t", [{"value": b"b"}])
