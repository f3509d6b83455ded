"""A lock is held until it is released or its process dies, and no longer."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.changelog.errors import DiskFull, LogLocked
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.lock import UNKNOWN, holder

BOUND_S = 60

FORKING = """
import os, sys
from strandline.changelog.local_storage import LocalStorage

lock = LocalStorage(sys.argv[1]).lock("lock", "the parent")
if os.fork() == 0:
    os.write(1, b"forked\\n")
    sys.stdin.read()
    os._exit(0)
if sys.argv[2] == "releases":
    lock.release()
    os.write(1, b"released\\n")
    sys.stdin.read()
os._exit(0)
"""


@pytest.mark.parametrize("how", ["releases", "ends"])
def test_a_forked_child_does_not_keep_its_parents_lock(
    tmp_path: Path, repository: Path, how: str
) -> None:
    storage = LocalStorage(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", FORKING, str(tmp_path), how],
        cwd=repository,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        if how == "ends":
            assert parent.wait(BOUND_S) == 0
            assert parent.stdout.readline() == b"forked\n"
        else:
            said = {parent.stdout.readline(), parent.stdout.readline()}
            assert said == {b"forked\n", b"released\n"}
        storage.lock("lock", "we").release()  # the child runs until its input ends


def test_a_lock_whose_note_cannot_be_written_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(DiskFull):
            storage.lock("lock", "a note")
    storage.lock("lock", "a note").release()


def test_the_note_is_the_last_holders(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    for note in ("a long note", "short", ""):
        storage.lock("lock", note).release()
        assert (tmp_path / "lock").read_text() == note


def test_a_process_that_has_ended_is_not_named_as_the_holder(tmp_path: Path) -> None:
    """The note of a dead holder stays until the next holder writes its own."""
    path, ended = tmp_path / "lock", subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(BOUND_S)
    path.write_text(f"pid {ended.pid}, owner, started 2026-01-01T00:00:00\n")
    assert holder(path) == holder(tmp_path / "no lock") == UNKNOWN
    with path.open("r+") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        with pytest.raises(LogLocked, match=UNKNOWN) as raised:
            LocalStorage(tmp_path).lock("lock", "mine\n")
        assert str(ended.pid) not in str(raised.value)
        path.write_text(f"pid {os.getppid()}, owner\n")
        with pytest.raises(LogLocked, match=rf"\(pid {os.getppid()}, owner\)"):
            LocalStorage(tmp_path).lock("lock", "mine\n")


def test_a_lock_released_twice_stays_with_its_next_holder(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    first = storage.lock("lock", "first")
    first.release()
    second = storage.lock("lock", "second")
    first.release()
    with pytest.raises(LogLocked, match="already locked by this process"):
        storage.lock("lock", "third")
    second.release()
