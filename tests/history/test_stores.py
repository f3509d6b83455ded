"""A log restored from a backup has another history: no state of the first one is taken for its
own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.history.lives import Life, counts

BEFORE = ["a", "b", "a"]
FIRST = [f"first-{n}" for n in range(5)] + ["a"]
SECOND = [f"second-{n}" for n in range(40)] + ["b"]
EACH = sorted({*BEFORE, *FIRST, *SECOND})
"""Every key once. A task that counts them shows the stored count of each."""


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path / "log", tmp_path / "state")


def test_a_state_of_the_history_before_a_restore_is_replayed(life: Life) -> None:
    life.count(BEFORE)
    backup = life.kept("backup")
    assert life.count(FIRST) == counts(BEFORE, FIRST)
    life.restored_from(backup)
    # The new history grows past the position of the state before the state is opened.
    Life(life.log, life.state.parent / "elsewhere").count(SECOND)
    assert life.count(EACH) == counts(BEFORE, SECOND, EACH)


def test_two_histories_from_one_backup_do_not_share_a_state(life: Life) -> None:
    life.count(BEFORE)
    copy = Life(life.kept("copy"), life.state)
    assert life.count(FIRST) == counts(BEFORE, FIRST)
    Life(copy.log, life.state.parent / "elsewhere").count(SECOND)
    assert copy.count(EACH) == counts(BEFORE, SECOND, EACH)
    assert life.count(EACH) == counts(BEFORE, FIRST, EACH)


def test_a_state_as_old_as_the_backup_is_continued_in_both_histories(
    life: Life, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "strandline")
    life.count(BEFORE)
    copy = Life(life.kept("copy"), life.state.parent / "copied")
    shutil.copytree(life.state, copy.state)
    assert life.count(FIRST) == counts(BEFORE, FIRST)
    assert copy.count(SECOND) == counts(BEFORE, SECOND)
    assert "is rebuilt" not in caplog.text
