"""`strandline repair DIR`, as a user runs it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import strandline as sl
from strandline import changelog
from strandline.framework.testing import TestDriver
from strandline.statestore.engines.rocksdb import RocksEngine
from strandline.statestore.ordered import encode_str
from tests.cli.conftest import Command

pytestmark = pytest.mark.damages


@pytest.fixture
def damaged(folder: Path) -> Path:
    """A log with a topic of three records, the second of which is damaged."""
    with changelog.open(folder) as log:
        log.create_topic("t")
        for word in (b"a", b"b", b"c"):
            log.append("t", [{"value": word}])
    path = max(folder.glob("topics/*/0/*.log"), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[int.from_bytes(content[12:16], "little") + 110] ^= 1
    path.write_bytes(content)
    return folder


def values(folder: Path) -> list[bytes]:
    with changelog.open(folder) as log:
        return list(log.to_polars("t")["value"].cast(pl.Binary))


def test_repair_without_confirmation_shows_its_plan_and_does_nothing(
    strandline: Command, damaged: Path
) -> None:
    outcome = strandline("repair", str(damaged))
    assert outcome.code == 2
    assert "rewrite 00000000000000000000-00000001.log" in outcome.out
    assert "t-0: the records from offset 1 to offset 1" in outcome.out
    assert "--yes" in outcome.err
    assert not (damaged / "repaired").exists()
    assert strandline("check", str(damaged)).code == 2


def test_a_confirmed_repair_keeps_copies_of_changed_files(
    strandline: Command, damaged: Path
) -> None:
    outcome = strandline("repair", str(damaged), "--yes")
    assert outcome.code == 0
    assert "done; what was there before is in repaired/" in outcome.out
    assert len(list(damaged.glob("repaired/*/topics/*/0/*.log"))) == 1
    assert values(damaged) == [b"a", b"c"]
    assert strandline("check", str(damaged)).code == 0
    assert strandline("repair", str(damaged)).out.endswith("there is nothing to repair\n")


def test_the_plan_is_available_as_json(strandline: Command, damaged: Path) -> None:
    said = strandline("repair", str(damaged), "--yes", "--json").json
    assert said["done"]
    assert said["kept"].startswith("repaired/")
    assert len(said["steps"]) == 2
    assert said["losses"][0].startswith("t-0: the records from offset 1")
    assert said["check"]["worst"] in (None, "note")


def test_an_open_log_is_not_repaired(strandline: Command, damaged: Path) -> None:
    (damaged / "strandline.meta").unlink()
    with changelog.open(damaged.parent / "other"):
        outcome = strandline("repair", str(damaged.parent / "other"), "--yes")
    assert outcome.code == 3
    assert "stop that process" in outcome.err


def test_a_store_that_differs_is_moved_away_and_restored(strandline: Command, folder: Path) -> None:
    app = sl.App("shop", log=str(folder))
    words = app.topic("words", value=int)
    seen = app.store("seen", key=str, value=int, default=0)

    @app.task(words, stores=[seen])
    def count(record: sl.Record[str, int]) -> None:
        seen[record.key] += 1

    root = folder.parent
    with TestDriver(app, folder=root) as driver:
        driver.run([("a", 1), ("b", 1), ("a", 1)])
        for instance in driver.worker.instances:
            for store in instance.all_stores:
                store.checkpoint()
    assert strandline("check", str(folder)).code == 0
    assert strandline("check", str(folder), "--json").json["stores"] > 0
    for database in folder.glob("state/shop/seen/*/db"):
        engine = RocksEngine(database.parent)
        position = engine.position()
        assert position is not None
        engine.write([encode_str("a")], [b"\x63"], position)
        engine.close()
    assert strandline("check", str(folder)).code == 1
    outcome = strandline("repair", str(folder), "--yes")
    assert "move state/shop/seen/" in outcome.out
    assert list(folder.glob("repaired/*/state/shop/seen/*/db"))
    with TestDriver(app, folder=root) as driver:
        assert driver.store(seen) == {"a": 2, "b": 1}
