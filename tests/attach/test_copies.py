"""A copy of a folder in use is another log: changes to it never affect the original."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline import changelog
from strandline.changelog.directory import Identity
from strandline.changelog.embedded import document
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.embedded.context import LogContext
from strandline.changelog.embedded.folder import (
    FOLDER_KIND,
    MAX_ANCESTORS,
    FolderMeta,
    folder_meta,
)
from strandline.changelog.errors import StorageFailed, UnknownTopic
from strandline.changelog.flight import background
from strandline.changelog.flight import endpoint as endpoints
from strandline.changelog.flight.attach import attach_or_own
from strandline.changelog.local_storage import LocalStorage
from tests.attach.conftest import Process


def copied(folder: Path, *how: str) -> Path:
    """Copy a folder with everything, including sockets and times."""
    copy = folder.with_name("copy")
    subprocess.run(["cp", *(how or ["-a"]), str(folder), str(copy)], check=True)
    return copy


def meta(folder: Path) -> FolderMeta:
    return document.load(LocalStorage(folder), "strandline.meta", FOLDER_KIND, FolderMeta)


def stamps(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return inode, time and content of every file but the lock, which names its holder."""
    return {
        str(path): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def test_a_topic_deleted_in_a_copy_stays_in_the_original(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with changelog.open(folder) as original:
        original.create_topic("t")
        original.append("t", [{"value": b"a"}])
        copy = copied(folder)
        with changelog.open(copy) as log:
            log.delete_topic("t")
            with pytest.raises(UnknownTopic):
                log.topic("t")
        assert original.read("t")["value"].to_pylist() == [b"a"]
        with changelog.open(folder) as attached:
            attached.append("t", [{"value": b"b"}])
        assert original.read("t")["value"].to_pylist() == [b"a", b"b"]


@pytest.mark.parametrize("name", ["data", "x" * 150])
def test_opening_a_copy_leaves_the_sockets_of_the_original(name: str, tmp_path: Path) -> None:
    """With the long name the socket is in a folder of its own."""
    folder = tmp_path / name
    original = attach_or_own(folder)
    original.create_topic("t")
    socket = Path(json.loads((folder / "owner.json").read_text())["location"][12:])
    copy = copied(folder)
    second = attach_or_own(copy)
    assert second.owning
    assert socket.is_socket()
    attached = attach_or_own(folder)
    assert not attached.owning
    second.close()
    attached.close()
    assert socket.is_socket()
    original.close()
    assert not socket.exists()


def test_leftovers_of_a_killed_owner_are_removed_by_its_folder_and_not_by_a_copy(
    tmp_path: Path, start: Callable[..., Process]
) -> None:
    folder = tmp_path / ("x" * 150)
    process = start(folder=folder)
    private = Path(json.loads((folder / "owner.json").read_text())["location"][12:]).parent
    process.kill()
    attach_or_own(copied(folder)).close()
    assert private.exists()
    attach_or_own(folder).close()
    assert not private.exists()


def test_a_copy_gets_its_own_id_once_and_logs_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    with changelog.open(folder):
        copy = copied(folder)
    original = meta(folder)
    with caplog.at_level(logging.WARNING), changelog.open(copy):
        pass
    first = meta(copy)
    assert first.log_id != original.log_id
    assert [one.log_id for one in first.ancestors] == [original.log_id]
    assert f"copy of {original.log_id}" in caplog.text
    with changelog.open(copy):
        pass
    assert meta(copy) == first
    assert meta(folder) == original


def test_a_moved_folder_keeps_its_id(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    changelog.open(folder).close()
    before = meta(folder)
    moved = folder.rename(tmp_path / "elsewhere")
    changelog.open(moved).close()
    assert meta(moved) == before


def test_a_copy_in_place_of_the_removed_original_is_a_copy(tmp_path: Path) -> None:
    """File systems reuse inode numbers of removed folders; only the birth time differs."""
    folder = tmp_path / "data"
    changelog.open(folder).close()
    before = meta(folder)
    if not before.folder or not before.folder.born_ns:
        pytest.skip("this file system keeps no birth times")
    copy = copied(folder)
    shutil.rmtree(folder)
    subprocess.run(["cp", "-a", str(copy), str(folder)], check=True)
    changelog.open(folder).close()
    assert meta(folder).ancestors[-1].log_id == before.log_id


@pytest.mark.parametrize(
    ("known", "here", "same"),
    [
        ((1, 2, 3), (1, 2, 3), True),
        ((1, 2, 3), (9, 2, 3), True),  # device numbers may change with a boot
        ((1, 2, 3), (1, 2, 4), False),  # the inode number of a removed folder was reused
        ((1, 2, 3), (1, 5, 3), False),
        ((1, 2, 0), (1, 2, 0), True),
        ((1, 2, 0), (9, 2, 0), False),  # without a birth time the device decides
        (None, (1, 2, 3), True),  # a log of an older version adopts the folder it is in
    ],
)
def test_a_folder_is_the_same_by_inode_and_birth(
    known: tuple[int, int, int] | None, here: tuple[int, int, int], same: bool
) -> None:
    folder = None if known is None else Identity(*known)
    assert FolderMeta("id", 0, folder=folder).is_of(Identity(*here)) == same


def test_a_log_of_an_older_version_keeps_its_id_and_records_its_folder(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "data")
    storage.make_dir("")
    body = b'{"log_id": "0123", "created_ms": 1}'
    storage.create("strandline.meta").append(document.pack(FOLDER_KIND, body))
    changelog.open(tmp_path / "data").close()
    found = meta(tmp_path / "data")
    assert (found.log_id, found.folder, found.ancestors) == ("0123", storage.identity(), [])


def test_ancestors_are_bounded(tmp_path: Path) -> None:
    given = FolderMeta("0", 0)
    for number in range(1, 2 * MAX_ANCESTORS):
        given = given.of_copy(str(number), number)
    assert len(given.ancestors) == MAX_ANCESTORS
    assert given.ancestors[-1].log_id == str(2 * MAX_ANCESTORS - 2)


def test_checking_a_copy_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with changelog.open(folder) as log:
        log.create_topic("t")
        log.append("t", [{"value": b"a"}])
        copy = copied(folder)
        before = stamps(copy)
        check_log(LocalStorage(copy))
        assert stamps(copy) == before


def test_the_owner_of_the_original_is_not_asked_to_leave_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: asked.append((pid, number)))
    served = background.ServedOwner(folder, role=background.BACKGROUND)
    copy = copied(folder)
    assert not background.ask_to_leave(copy)
    assert asked == []
    assert background.ask_to_leave(folder)
    assert asked == [(os.getpid(), signal.SIGTERM)]
    served.close()


def test_a_copy_by_hard_links_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with changelog.open(folder) as log:
        log.create_topic("t")
        log.append("t", [{"value": b"a"}])
    copy = copied(folder, "-al")
    with pytest.raises(StorageFailed, match="copy by hard links"):
        changelog.open(copy)
    with changelog.open(folder) as log:
        assert log.read("t")["value"].to_pylist() == [b"a"]


def test_an_owner_that_lost_its_folder_does_not_touch_a_new_one_at_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    first = attach_or_own(folder)
    folder.rename(tmp_path / "old")
    second = attach_or_own(folder)
    first.close()
    third = attach_or_own(folder)
    assert not third.owning
    third.close()
    second.close()


def test_the_id_of_a_storage_without_copies_stays() -> None:
    from strandline.changelog.clock import SystemClock
    from strandline.changelog.memory_storage import MemoryStorage

    context = LogContext(MemoryStorage(), SystemClock())
    assert folder_meta(context) == folder_meta(context)


def test_an_endpoint_of_an_older_version_is_valid_next_to_its_socket(tmp_path: Path) -> None:
    for name in ("data", "copy"):
        (tmp_path / name).mkdir()
    location = f"grpc+unix://{tmp_path}/data/owner.sock"
    text = json.dumps({"location": location, "token": "t", "pid": 1, "started": "1"})
    for name in ("data", "copy"):
        (tmp_path / name / "owner.json").write_text(text)
    assert endpoints.read(tmp_path / "data") is not None
    assert endpoints.read(tmp_path / "copy") is None
