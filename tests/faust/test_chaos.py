"""Chaos of Faust workers: one blow of each kind, and a counter-example.

`make faust-chaos MINUTES=10` runs the same for longer.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def chaos(repository: Path, *arguments: str) -> tuple[int, str]:
    """Run chaos. Return its exit status and output."""
    command = [sys.executable, "-m", "tests.faust.chaos", "--minutes", "0.3", *arguments]
    done = subprocess.run(
        command, cwd=repository, capture_output=True, text=True, timeout=380, check=False
    )
    return done.returncode, done.stdout + done.stderr[-8_000:]


def figures(said: str) -> tuple[int, int]:
    """Return how many outputs were lost, and how many doubled."""
    found = re.search(r"lost (\d+), doubled (\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])


def test_nothing_is_lost_and_nothing_doubled(repository: Path, tmp_path: Path) -> None:
    status, said = chaos(repository, "--keep", str(tmp_path / "kept"))
    assert status == 0, said
    assert figures(said) == (0, 0)
    assert "WRONG" not in said
    for blow in ("kill worker", "kill in a commit", "freeze worker", "kill owner", "lose disk"):
        assert f"× {blow}" in said, said


def test_offsets_that_are_committed_after_the_outputs_double_records(repository: Path) -> None:
    """Counter-example: the oracle sees outputs that came twice, and tables that count twice."""
    status, said = chaos(repository, "--careless", "--only", "kill_in_a_commit")
    lost, doubled = figures(said)
    assert (status, lost) == (1, 0), said
    assert doubled > 0
    assert "WRONG table totals" in said
    assert "WRONG totals in workers" in said
