"""Chaos: one blow of each kind, or two minutes of them in the long form.

`make chaos MINUTES=30` runs the same for longer.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.chaos import NO_SMALL_DISK
from tests.forms import by_form
from tests.kafka.brokers import Running

pytestmark = pytest.mark.slow


def chaos(repository: Path, *arguments: str) -> tuple[int, str]:
    """Run chaos. Return its exit status and output."""
    command = [sys.executable, "-m", "tests.chaos.chaos", "--size", "1g", *arguments]
    done = subprocess.run(
        command, cwd=repository, capture_output=True, text=True, timeout=400, check=False
    )
    return done.returncode, done.stdout + done.stderr[-5_000:]


@pytest.mark.timeout(900)
def test_nothing_is_lost_and_nothing_doubled(repository: Path, tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    status, said = chaos(repository, "--minutes", by_form("0.05", "2"), "--keep", kept)
    assert status == 0, said
    assert "lost 0, doubled 0" in said
    assert "WRONG" not in said
    blows = [
        "kill worker",
        "kill owner",
        "kill in a pass",
        "kill in a commit",
        "take away",
        "freeze worker",
        "delete what was read",
    ]
    if NO_SMALL_DISK not in said or os.environ.get("CI") == "true":
        blows.append("fill disk")
    for blow in blows:
        assert f"× {blow}" in said, said
    for what in (
        "windows closed",
        "late words",
        "passes of the cleaner",
        "tombstones removed",
        "times killed in a commit",
    ):
        assert number_of(what, said) > 0, said


@pytest.mark.long
@pytest.mark.timeout(900)
def test_nothing_is_lost_and_nothing_doubled_on_kafka(repository: Path, running: Running) -> None:
    """This runs its own three brokers. It requests the shared one to be skipped without Kafka."""
    status, said = chaos(repository, "--kafka", "--minutes", "1", "--only", "kill")
    assert status == 0, said
    assert "lost 0, doubled 0" in said
    assert "WRONG" not in said
    for blow in ("kill broker", "kill worker", "kill in a commit"):
        assert f"× {blow}" in said, said


@pytest.mark.long
@pytest.mark.timeout(900)
def test_deleted_keys_reappear_in_workers_that_do_not_check_for_removed_tombstones(
    repository: Path,
) -> None:
    """Counter-example. A key must be deleted and purged meanwhile, so there are three tries."""
    for seed in ("1", "2", "3"):
        arguments = ("--minutes", "0.3", "--seed", seed, "--only", "take_away", "--careless")
        status, said = chaos(repository, *arguments)
        if status == 1 and re.search(r"WRONG state/pipeline/recent/.* has the key", said):
            return
    pytest.fail(f"no key came back: {said}")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_at_least_once_the_same_run_doubles_records_and_loses_none(repository: Path) -> None:
    """Counter-example: the run can detect doubled records."""
    arguments = ("--minutes", "0.1", "--only", "kill_in_a_commit")
    status, said = chaos(repository, "--guarantee", "at_least_once", *arguments)
    found = re.search(r"lost (\d+), doubled (\d+)", said)
    assert found is not None, said
    assert int(found[1]) == 0, said
    assert int(found[2]) > 0, said
    assert status == 1


def number_of(what: str, said: str) -> int:
    """Return a number from the report."""
    found = re.search(rf"([\d,]+) {re.escape(what)}", said)
    assert found is not None, said
    return int(found[1].replace(",", ""))
