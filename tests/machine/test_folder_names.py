"""Folders with names that are no text, or that look like something else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import strandline as sl

NAMES = [
    b"with space", b"new\nline", "münchen".encode(), b"bad\xff", b"-rf", b"%41#?x=1", b"a:b",
    b"'quoted\"", b"$HOME", b"\x1b[2J",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_an_app_runs_in_a_folder_of_any_name(tmp_path: Path, name: bytes) -> None:
    if sys.platform == "darwin" and b"\xff" in name:
        pytest.skip("APFS has no such names")
    folder = tmp_path / os.fsdecode(name)
    state = tmp_path / "state"  # RocksDB opens no folder whose name is not UTF-8
    with sl.App("shop", log=folder, state_dir=state, durability="os") as app:
        sales = app.topic("sales", value=int)
        totals = app.store("totals", value=int, default=0)

        @app.task(sales, stores=[totals])
        def add(record: sl.Record[str, int]) -> None:
            totals[record.key] += record.value

        sales.append([("york", 1), ("york", 2)])
        assert app.run(until="idle") == 2
        assert app.query(totals)["york"] == 3
    with sl.connect(folder) as log:
        assert log.store("shop/totals")["york"] == 3


@pytest.mark.parametrize("state", [None, "files"])
def test_files_stay_together_when_the_current_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    """As daemons change it. Before, stores and queries were in the new folder, the log was not."""
    (tmp_path / "first").mkdir()
    (tmp_path / "then").mkdir()
    monkeypatch.chdir(tmp_path / "first")
    with sl.App("shop", log="data", state_dir=state, durability="os") as app:
        sales = app.topic("sales", value=int)
        totals = app.store("totals", value=int, default=0)

        @app.task(sales, stores=[totals])
        def add(record: sl.Record[str, int]) -> None:
            totals[record.key] += record.value

        sales.append([("york", 1), ("york", 2)])
        monkeypatch.chdir(tmp_path / "then")
        assert app.run(until="idle") == 2
        assert app.query(totals)["york"] == 3
    assert not os.listdir(tmp_path / "then")
    stores = tmp_path / "first" / (f"{state}/shop" if state else "data/state/shop")
    assert (stores / "totals").is_dir()
