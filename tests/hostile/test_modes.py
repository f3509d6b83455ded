"""Files are accessible to their owner only, for any umask and any mode of the given folder."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

pytestmark = pytest.mark.damages

OTHERS = stat.S_IRWXG | stat.S_IRWXO


@pytest.mark.parametrize("umask", ["000", "022"])
def test_other_users_can_read_and_write_nothing(
    tmp_path: Path, umask: str, repository: Path
) -> None:
    """RocksDB chooses the modes of its files itself; its folder is closed to others."""
    command = [sys.executable, "-m", "tests.hostile.making", str(tmp_path / "log"), umask]
    ran = subprocess.run(
        command, cwd=repository, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"when"')]
    assert [line["when"] for line in lines] == ["open", "repaired"]
    for line in lines:
        modes = line["modes"]
        bad = {path: oct(mode) for path, mode in modes.items() if is_open(path, modes)}
        assert not bad
    everything = " ".join(path for line in lines for path in line["modes"])
    for kind in (".log", ".index", ".aborted", ".producers", ".meta", "owner.json", ".sock",
                 "owner.log", "lock", ".sst", "repaired/"):  # fmt: skip
        assert kind in everything, f"the test makes no {kind}"


def is_open(path: str, modes: dict[str, int]) -> bool:
    """Return True if others can access the file: it is open, and so are all folders above it in the
    log."""
    if path == ".":
        return False  # the user has made the folder itself
    inside = [path, *(str(parent) for parent in PurePosixPath(path).parents)][:-1]
    shut = [one for one in inside if not modes[one] & OTHERS]
    rocks = PurePosixPath(path).parent.name in ("db", "tmp", "db.damaged")
    return not shut if rocks else path not in shut
