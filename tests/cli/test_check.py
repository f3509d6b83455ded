"""`strandline check DIR`, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline import changelog
from strandline.changelog.flight.background import BACKGROUND
from tests.cli.conftest import Command

pytestmark = pytest.mark.damages


@pytest.fixture
def closed(folder: Path) -> Path:
    """A log with a topic of two records, closed in order."""
    with changelog.open(folder) as log:
        log.create_topic("t")
        for word in ("a", "b"):
            log.append("t", [{"value": word.encode()}])
    return folder


def segment_of(folder: Path) -> Path:
    """Return the largest segment file, which is the topic's."""
    files = folder.glob("topics/*/0/*.log")
    return max(files, key=lambda path: path.stat().st_size)


def damage(folder: Path) -> None:
    path = segment_of(folder)
    content = bytearray(path.read_bytes())
    content[110] ^= 1
    path.write_bytes(content)


def test_a_sound_log_has_exit_code_0(strandline: Command, closed: Path) -> None:
    outcome = strandline("check", str(closed))
    assert outcome.code == 0
    assert "3 topics, 3 partitions" in outcome.out
    assert outcome.out.endswith("closed in order\nnothing is wrong\n")


def test_notes_and_repairable_damage_have_exit_code_1(strandline: Command, closed: Path) -> None:
    (closed / "topics" / ("0" * 32)).mkdir()
    outcome = strandline("check", str(closed))
    assert outcome.code == 1
    assert "NOTE  topics/000000" in outcome.out
    assert outcome.out.endswith("1 note\n")
    (closed / "strandline.meta").unlink()
    outcome = strandline("check", str(closed))
    assert (outcome.code, outcome.out.splitlines()[-1]) == (1, "1 repairable, 1 note")


def test_damage_has_exit_code_2_with_its_place_and_remedy(
    strandline: Command, closed: Path
) -> None:
    damage(closed)
    outcome = strandline("check", str(closed))
    assert outcome.code == 2
    first, what, way_out = outcome.out.splitlines()[:3]
    assert first == f"DAMAGE  t-0: {segment_of(closed).relative_to(closed)}"
    assert "offset 0" in what
    assert "strandline repair" in way_out


def test_the_report_is_available_as_json(strandline: Command, closed: Path) -> None:
    damage(closed)
    said = strandline("check", str(closed), "--json").json
    assert said["worst"] == "damage"
    assert said["closed_in_order"]
    (finding,) = said["findings"]
    assert (finding["topic"], finding["partition"], finding["offsets"]) == ("t", 0, [0, 1])
    assert said["records"] == 1 + 1  # the other record, and the block of producer ids


def test_an_owner_in_the_background_is_waited_for(
    folder: Path, strandline: Command, repository: Path, eventually: Callable[..., None]
) -> None:
    changelog.open(folder).close()
    owner = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "strandline.changelog.flight.background",
            str(folder),
            "--idle",
            "3",
        ],
        env={**os.environ, "PYTHONPATH": str(repository)},
    )
    try:
        eventually(lambda: BACKGROUND in (folder / "lock").read_text())
        outcome = strandline("check", str(folder))
        assert outcome.code == 0
        assert "waiting for the owner in the background" in outcome.err
    finally:
        owner.kill()
        owner.wait(10)


def test_an_open_log_is_not_checked(strandline: Command, closed: Path) -> None:
    with changelog.open(closed):
        outcome = strandline("check", str(closed))
    assert outcome.code == 3
    assert "pid" in outcome.err
    assert "stop that process" in outcome.err


def test_a_folder_without_a_log_is_refused(strandline: Command, tmp_path: Path) -> None:
    outcome = strandline("check", str(tmp_path))
    assert outcome.code == 3
    assert "holds no log" in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_a_bar_shows_the_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from strandline.framework.cli import offline

    shown: list[Callable[[], object]] = []
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with offline.ReadingBar("checking", after_seconds=0.0) as bar:
        bar(1, 10)
        shown.append(bar._shown)
        bar(10, 10)
    assert shown[0] is not None
    assert "checking" in capsys.readouterr().err
