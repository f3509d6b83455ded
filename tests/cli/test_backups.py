"""`strandline backup`, `restore` and `backups`: a log is backed up, restored, and backups pruned."""

from __future__ import annotations

from pathlib import Path

from strandline import changelog
from strandline.changelog.log import Log
from tests.cli.conftest import Command


def test_a_log_is_backed_up_listed_pruned_and_restored(
    strandline: Command, log: Log, folder: Path, tmp_path: Path
) -> None:
    to, again = str(tmp_path / "to"), tmp_path / "again"
    log.create_topic("sales")
    names = []
    for number in range(3):
        log.append("sales", [{"key": b"k", "value": b"%d" % number}])
        names.append(strandline("backup", str(folder), to, "--json").json["name"])
    listed = strandline("backups", "list", to)
    assert listed.code == 0
    assert [name in listed.out for name in names] == [True] * 3
    rows = strandline("backups", "list", to, "--json").json
    assert [row["name"] for row in rows] == names
    assert [row["taken_ms"] for row in rows] == sorted(row["taken_ms"] for row in rows)
    pruned = strandline("backups", "prune", to, "--keep", "2")
    assert f"removed {names[0]}" in pruned.out
    assert "backups: 1 removed, 2 kept" in pruned.out
    assert strandline("backups", "prune", to, "--keep", "1", "--json").json["removed"] == names[1:2]
    assert strandline("restore", to, str(again)).code == 0
    with changelog.open(again) as restored:
        assert restored.read("sales")["value"].to_pylist() == [b"0", b"1", b"2"]


def test_wrong_calls_are_refused(strandline: Command, log: Log, tmp_path: Path) -> None:
    for command in (["list"], ["prune", "--keep", "1"]):
        refused = strandline("backups", command[0], str(tmp_path / "missing"), *command[1:])
        assert refused.code != 0
        assert "not a backup folder" in refused.err
        assert not (tmp_path / "missing").exists()
    assert strandline("backups", "prune", str(tmp_path), "--keep", "0").code == 2
