"""Files are their owner's only, whatever the umask and whatever the folder that was given."""

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
def test_nobody_else_can_read_or_write_anything(
    tmp_path: Path, umask: str, repository: Path
) -> None:
    """RocksDB makes files as it likes; theirs lie in a folder that is closed."""
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
    """Whether others get at a file: it is open, and so are all folders of the log above it."""
    if path == ".":
        return False  # the folder itself is as the user has made it
    inside = [path, *(str(parent) for parent in PurePosixPath(path).parents)][:-1]
    shut = [one for one in inside if not modes[one] & OTHERS]
    rocks = PurePosixPath(path).parent.name in ("db", "tmp", "db.damaged")
    return not shut if rocks else path not in shut
