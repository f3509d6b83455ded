"""Backups and restores killed at any moment, and owners killed meanwhile."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline import changelog
from strandline.changelog import backups
from strandline.changelog.backups.store import BackupStore
from strandline.changelog.local_storage import LocalStorage
from tests.backups.test_backups import check_moment
from tests.forms import by_form

ROUNDS = by_form(1, 8)
BOUND_S = 60


@contextmanager
def process(repository: Path, script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start a process that does not outlive the test."""
    command = [sys.executable, str(repository / "tests/backups" / script), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield started
    finally:
        started.kill()
        started.wait(BOUND_S)
        assert started.stdout is not None
        started.stdout.close()


def lines(started: subprocess.Popen[str], count: int) -> list[str]:
    """Return the next `count` lines of its output, or fewer if it ends."""
    assert started.stdout is not None
    found = []
    for _ in range(count):
        line = started.stdout.readline()
        if not line:
            break
        found.append(line.strip())
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    with changelog.open(folder) as log:
        for topic in ("left", "right"):
            log.create_topic(topic, 3, config={"segment.bytes": "16384"})
    return folder


@pytest.mark.long
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_killed_backup_leaves_whole_backups_and_a_working_log(
    seed: int, tmp_path: Path, data: Path, repository: Path
) -> None:
    chance, to = random.Random(seed), tmp_path / "to"
    with process(repository, "writer.py", data, 0) as writer:
        assert lines(writer, 20)
        for _ in range(3):
            with process(repository, "victim.py", "backup", data, to) as victim:
                lines(victim, chance.randrange(30))
        report = backups.backup(data, to)
        assert report.name == BackupStore(LocalStorage(to)).names()[-1]
        assert lines(writer, 5)
    for name in BackupStore(LocalStorage(to)).names():
        backups.restore(to, tmp_path / name, name=name)
        check_moment(tmp_path / name, 20, 1 << 30)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_an_owner_killed_during_a_backup_leaves_no_partial_backup(
    seed: int, tmp_path: Path, data: Path, repository: Path
) -> None:
    chance, to = random.Random(seed), tmp_path / "to"
    with process(repository, "writer.py", data, 0) as writer:
        assert lines(writer, 20)
        with process(repository, "victim.py", "backup", data, to) as victim:
            lines(victim, chance.randrange(20))
            writer.kill()
            writer.wait(BOUND_S)
            (*_, last) = lines(victim, 1 << 20)
    names = BackupStore(LocalStorage(to)).names()
    assert last == "done" if names else last.startswith(("StorageFailed", "OwnerUnavailable"))
    again = backups.backup(data, to)
    for name in {*names, again.name}:
        backups.restore(to, tmp_path / name, name=name)
        check_moment(tmp_path / name, 20, 1 << 30)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_killed_restore_leaves_nothing_or_the_whole_log(
    seed: int, tmp_path: Path, data: Path, repository: Path
) -> None:
    chance, to, again = random.Random(seed), tmp_path / "to", tmp_path / "again"
    with process(repository, "writer.py", data, 0) as writer:
        assert lines(writer, 20)
        backups.backup(data, to)
    for _ in range(4):
        with process(repository, "victim.py", "restore", to, again) as victim:
            lines(victim, chance.randrange(40))
        if again.exists():
            break
    else:
        backups.restore(to, again)
    check_moment(again, 20, 1 << 30)
