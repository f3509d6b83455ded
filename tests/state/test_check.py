"""`check` compares every store with its changelog, and changes nothing in either."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.checking.findings import CheckReport, Finding
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.records import Append, TopicPartition
from strandline.statestore import StoreSpec
from strandline.statestore.checking.stores import check_stores
from strandline.statestore.engine import StorePosition
from strandline.statestore.engines.rocksdb import RocksEngine
from strandline.statestore.ordered import encode_str
from tests.cleaning import clean, close_segment
from tests.state.kit import Changelog, columns

pytestmark = pytest.mark.damages

TOPIC = "app-s-changelog"
SPEC: StoreSpec[str, int] = StoreSpec("s", key=str, value=int)


class Shop(Changelog):
    """A log folder with one store in it, checkpointed now and then."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock(1_000_000)
        self.owner = Owner(LocalStorage(root), clock=self.clock, background=False)
        self.owner.create_topic(TOPIC, 1, config={"cleanup.policy": "compact"})
        self.partition = TopicPartition(TOPIC, 0)
        self.producer = self.owner.init_producer("app-0")
        self.sequences = {}
        store = self.open(SPEC, self.folder)
        for number in range(30):
            store[f"k{number % 20}"] = number
            if number == 25:
                del store["k3"]
            self.abort(store) if number % 7 == 0 else self.commit(store)
            if number == 27:
                store.checkpoint()
        store.close()

    @property
    def folder(self) -> Path:
        return self.root / "state" / "app" / "s" / "0"

    def change(self, keys: list[bytes], values: list[bytes | None]) -> None:
        """Write directly into the engine, at its position."""
        engine = RocksEngine(self.folder)
        position = engine.position()
        assert position is not None
        engine.write(keys, values, position)
        engine.close()

    def at(self, position: StorePosition) -> None:
        """Give the engine another position."""
        engine = RocksEngine(self.folder)
        engine.write([], [], position)
        engine.close()

    @property
    def position(self) -> StorePosition:
        engine = RocksEngine(self.folder)
        found = engine.position()
        engine.close()
        assert found is not None
        return found

    def report(self, fold_bytes: int = 64 << 20) -> CheckReport:
        self.owner.close()
        checked = check_log(LocalStorage(self.root), clock=self.clock)
        check_stores(self.root, checked, fold_bytes=fold_bytes)
        return checked.report

    def finding(self) -> Finding:
        (finding,) = self.report().findings
        return finding


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "log")


@pytest.mark.parametrize("fold_bytes", [64 << 20, 40], ids=["in memory", "on disk"])
def test_a_store_that_matches_its_changelog_has_no_findings(shop: Shop, fold_bytes: int) -> None:
    said = shop.report(fold_bytes)
    assert said.findings == []
    assert said.stores == 1


def test_a_check_changes_no_file(shop: Shop) -> None:
    shop.owner.close()
    before = stamps(shop.root)
    shop.report()
    assert stamps(shop.root) == before


def stamps(root: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            state = path.stat()
            found[str(path)] = (state.st_ino, state.st_size, state.st_mtime_ns)
    return found


@pytest.mark.parametrize("fold_bytes", [64 << 20, 40], ids=["in memory", "on disk"])
@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("k1", b"\x63", "another value for the key 'k1'"),
        ("k1", None, "lacks the key 'k1'"),
        ("k19", None, "lacks the key 'k19'"),
        ("k3", b"\x63", "has the key 'k3'"),
        ("zzz", b"\x63", "has the key 'zzz'"),
    ],
)
def test_a_store_that_differs_from_its_changelog_is_found(
    shop: Shop, key: str, value: bytes | None, problem: str, fold_bytes: int
) -> None:
    shop.change([encode_str(key)], [value])
    (finding,) = shop.report(fold_bytes).findings
    assert (finding.severity.name, finding.kind) == ("REPAIRABLE", "store")
    assert problem in finding.what
    assert finding.file == "state/app/s/0"


def test_a_store_that_lacks_changes_before_its_position_is_found(shop: Shop) -> None:
    position = shop.position
    shop.at(replace(position, offset=position.offset + 5))
    assert "differs from its changelog" in shop.finding().what


def test_a_store_without_its_changelog_is_a_note(shop: Shop) -> None:
    shop.owner.delete_topic(TOPIC)
    assert (shop.finding().severity.name, shop.finding().kind) == ("NOTE", "store")


def test_a_store_of_another_partition_is_a_note(shop: Shop) -> None:
    shop.at(replace(shop.position, offset=1000, partition=1))
    assert (shop.finding().severity.name, shop.finding().kind) == ("NOTE", "store")
    assert "is of partition 1 of its changelog" in shop.finding().what


def test_a_store_that_reaches_further_than_its_changelog_shows_that_the_log_lost_something(
    shop: Shop,
) -> None:
    position = shop.position
    shop.at(replace(position, offset=1000))
    said = {(one.severity.name, one.kind) for one in shop.report().findings}
    assert said == {("DAMAGE", "end"), ("NOTE", "store")}


def test_a_changelog_without_its_beginning_is_compared_from_its_start(shop: Shop) -> None:
    shop.owner.alter_topic(
        shop.partition.topic, config={"cleanup.policy": "compact,delete", "retention.ms": "-1"}
    )
    shop.owner.delete_records(shop.partition, 5)
    assert shop.report().findings == []
    shop.change([encode_str("k9")], [b"\x63"])
    assert "'k9'" in shop.finding().what


def test_records_superseded_after_the_stores_position_may_be_missing_in_the_changelog(
    shop: Shop,
) -> None:
    """The store is as of the 28th change; the next one has replaced that of k9."""
    close_segment(shop.owner, shop.partition)
    assert clean(shop.owner, shop.partition).tally.superseded > 0
    assert shop.report().findings == []
    shop.change([encode_str("k1")], [b"\x63"])
    assert "another value for the key 'k1'" in shop.finding().what


def test_a_store_that_may_lack_a_deletion_is_a_note(shop: Shop) -> None:
    shop.append([(encode_str("k1"), None)])
    close_segment(shop.owner, shop.partition)
    clean(shop.owner, shop.partition)
    assert shop.report().findings == []
    shop.owner = Owner(LocalStorage(shop.root), clock=shop.clock, background=False)
    assert clean(shop.owner, shop.partition, purge=True).tally.tombstones == 2  # also that of k3
    finding = shop.finding()
    assert finding.severity.name == "NOTE"
    assert "deletions from there to offset" in finding.what


@pytest.mark.parametrize("damage", ["CURRENT", "MANIFEST", ".sst"])
def test_an_unreadable_database_is_found(shop: Shop, damage: str) -> None:
    for file in (shop.folder / "db").iterdir():
        if damage in file.name:
            content = bytearray(file.read_bytes())
            content[: len(content) // 2] = bytes(len(content) // 2)
            file.write_bytes(content)
    finding = shop.finding()
    assert (finding.severity.name, finding.kind) == ("REPAIRABLE", "store")


def test_a_database_whose_creation_was_killed_is_empty(shop: Shop) -> None:
    database = shop.folder / "db"
    for file in database.iterdir():
        if file.suffix == ".sst":
            file.unlink()
    assert (shop.finding().severity.name, shop.finding().kind) == ("REPAIRABLE", "store")
    (database / "CURRENT").unlink()
    assert shop.report().findings == []


def test_a_database_without_a_position_is_found(shop: Shop) -> None:
    import rocksdict

    database = rocksdict.Rdict(str(shop.folder / "db"), rocksdict.Options(raw_mode=True))
    del database[b"\x00position"]
    database.close()
    assert "no position" in shop.finding().what


def test_a_store_that_met_damage_before_is_a_note(shop: Shop) -> None:
    (shop.folder / "damaged").touch()
    assert shop.finding().severity.name == "NOTE"


def test_a_store_whose_changelog_is_damaged_is_not_trusted(shop: Shop) -> None:
    path = next(shop.root.glob(f"topics/{shop.owner.topic(TOPIC).topic_id}/0/*.log"))
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    assert {one.kind for one in shop.report().findings} >= {"records", "store"}


def test_a_folder_without_a_store_is_ignored(shop: Shop) -> None:
    (shop.root / "state" / "app" / "s" / "notes").mkdir()
    (shop.root / "state" / "app" / "s" / "file").touch()
    assert shop.report().findings == []


def test_the_folder_next_to_a_locked_one_is_checked_too(shop: Shop) -> None:
    store = shop.open(SPEC, shop.folder.with_name("0.2"))
    store.checkpoint()
    store.close()
    said = shop.report()
    assert (said.stores, said.findings) == (2, [])


def test_commits_after_a_transaction_left_open_are_compared(shop: Shop) -> None:
    """A worker has died in a commit, another one has continued, and the log was not reopened
    since."""
    dead = shop.owner.init_producer("app-1")
    left = columns([encode_str("k1")], [b"\x07"])
    shop.owner.append([Append(*shop.partition, left, dead, 0, transactional=True)])
    store = shop.open(SPEC, shop.folder)
    store["k2"] = 99
    shop.commit(store)
    store.checkpoint()
    store.close()
    (note,) = shop.report().findings
    assert (note.severity.name, note.kind) == ("NOTE", "open transaction")
    shop.change([encode_str("k4")], [b"\x63"])
    _, finding = shop.report().findings
    assert "another value for the key 'k4'" in finding.what
