"""Backups of a table's partition: what the changelog has got since is replayed, and no more."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.faust.faust_workers import FaustLog, eventually, free_port, page, worker
from tests.systems import System

CHANGELOG = "backed-up-totals-changelog"
KEYS = [f"k{number}" for number in range(30)]


def add(log: FaustLog, keys: list[str], expected: dict[str, int]) -> None:
    """Append one record for each key, and add it to the expected totals."""
    records = [{"value": b"1", "key": json.dumps(key).encode()} for key in keys]
    log.append("source", records, key="key")
    for key in keys:
        expected[json.dumps(key)] = expected.get(json.dumps(key), 0) + 1


@pytest.mark.slow
@pytest.mark.long_on_kafka
def test_a_restored_table_replays_only_what_came_after_its_backup(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    data, port = tmp_path / "data", free_port()
    settings = {"FAUST_DATA": str(data)}
    expected: dict[str, int] = {}
    log.create("source", 1)
    with worker("sample_backup", system, tmp_path, web=port, **settings) as running:
        for keys in (KEYS, KEYS[:4], KEYS[:3]):
            add(log, keys, expected)
            eventually(lambda: log.latest(CHANGELOG) == expected)
            assert eventually(lambda: page(port, "/backup/")) == {"done": True}
        add(log, KEYS[:2], expected)
        eventually(lambda: log.latest(CHANGELOG) == expected)
        running.kill()
    backups = next(data.glob("**/table-backups/totals/0"))
    assert sorted(path.name for path in backups.iterdir()) == ["2", "3"]

    # 0 for the newest. Each round adds a record that the next one replays too.
    for chosen, replayed in (("0", 2), ("2", 3 + 2 + 1), ("3", 2 + 2)):
        shutil.rmtree(next(data.glob("**/tables")))
        restoring = {**settings, "FAUST_RESTORE": chosen}
        with worker("sample_backup", system, tmp_path, **restoring) as running:
            eventually(lambda: "restored:" in running.text())
            found = re.search(r"totals-changelog-0 restored: (\d+) records", running.text())
            assert found is not None
            assert int(found[1]) == replayed
            add(log, [KEYS[0]], expected)
            eventually(lambda: log.latest(CHANGELOG) == expected)
            assert running.stop() == 0


@pytest.mark.long_on_kafka
def test_a_backup_that_does_not_exist_is_refused(tmp_path: Path, system: System) -> None:
    settings = {"FAUST_DATA": str(tmp_path / "data"), "FAUST_RESTORE": "7"}
    with worker("sample_backup", system, tmp_path, **settings) as running:
        assert running.ended(60) != 0
    assert "partition 0 of table 'totals' has no backup 7" in running.text()
