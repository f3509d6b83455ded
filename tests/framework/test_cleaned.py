"""Readers of a changelog while it is cleaned: copies, views, queries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import DiskFull
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import TopicPartition
from strandline.framework.container import standbys as standbys_module
from strandline.framework.container.folders import StoreFolders
from strandline.framework.container.standbys import Standbys
from strandline.framework.querying.folded import ReplayedSource
from strandline.statestore import StoreSpec, replay
from strandline.statestore.engines.rocksdb import RocksEngine
from strandline.statestore.reader import KeyRange
from tests.cleaning import Segments, clean, close_segment
from tests.state.kit import Meanwhile

Eventually = Callable[..., None]

SPEC: StoreSpec[str, int] = StoreSpec("s", key=str, value=int)


@pytest.fixture
def changelog(monkeypatch: pytest.MonkeyPatch) -> Segments:
    """A changelog with some keys, one of them to be deleted. Records are fetched one by one."""
    monkeypatch.setattr(replay, "FETCH_BYTES", 1)
    monkeypatch.setattr(replay, "CHUNK_RECORDS", 1)
    made = Segments()
    for number, key in enumerate(["a", "zombie", "b", "c"]):
        made.change(key, number)
    return made


class Stopped:
    """A stop by SIGSTOP, as other processes see it."""

    def __init__(self) -> None:
        self.reached, self.continued = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.continued.wait(30)


@pytest.fixture
def stopped() -> Iterator[Stopped]:
    made = Stopped()
    yield made
    made.continued.set()


@pytest.mark.parametrize("on_disk", [True, False], ids=["on disk", "in memory"])
def test_a_copy_that_was_stopped_for_longer_than_tombstones_stay_starts_over(
    changelog: Segments,
    tmp_path: Path,
    stopped: Stopped,
    eventually: Eventually,
    *,
    on_disk: bool,
    guarded: bool,
) -> None:
    folders = StoreFolders(tmp_path if on_disk else None, changelog.clock)
    broker: Any = Meanwhile(changelog.owner, "fetch", 3, stopped)
    standbys = Standbys(broker, changelog.clock, folders)
    standbys.follow({changelog.partition: SPEC})
    assert stopped.reached.wait(30)
    changelog.delete_and_purge("zombie")
    changelog.change("d", 4)
    stopped.continued.set()
    end = changelog.log.last_stable_offset
    eventually(lambda: standbys.positions().get(changelog.partition) == end, what="a warm copy")
    with standbys._at_work:
        copy = standbys._copies[changelog.partition]
        assert ("zombie" in copy.store) is not guarded
        if guarded:
            assert dict(copy.store.all()) == changelog.model
    standbys.close()


def test_a_copy_that_was_released_for_longer_than_tombstones_stay_starts_over(
    changelog: Segments, tmp_path: Path, eventually: Eventually, *, guarded: bool
) -> None:
    """The copy is released, and another worker that opens its files afterwards finds them too
    old."""
    folders = StoreFolders(tmp_path, changelog.clock)
    standbys = Standbys(changelog.owner, changelog.clock, folders)
    standbys.follow({changelog.partition: SPEC})
    end = changelog.log.last_stable_offset
    eventually(lambda: standbys.positions().get(changelog.partition) == end, what="a warm copy")
    standbys.release([changelog.partition])
    standbys.close()
    changelog.delete_and_purge("zombie")
    store = folders.open(SPEC, 0)
    restored = store.restore(changelog.owner, changelog.partition)
    assert restored.plan.action == ("rebuild" if guarded else "resume")
    assert ("zombie" in store) is not guarded
    store.close()


def test_a_copy_of_another_history_of_the_log_starts_over(
    changelog: Segments, tmp_path: Path, eventually: Eventually
) -> None:
    """The log was restored from a backup, and has grown past the position of the copy since."""

    def follow(of: Segments) -> dict[str, int]:
        standbys = Standbys(of.owner, of.clock, StoreFolders(tmp_path, of.clock))
        standbys.follow({of.partition: SPEC})
        end = of.log.last_stable_offset
        eventually(lambda: standbys.positions().get(of.partition) == end, what="a warm copy")
        with standbys._at_work:
            found = dict(standbys._copies[of.partition].store.all())
        standbys.close()
        return found

    assert follow(changelog) == changelog.model
    other = Segments()
    other.reopened()  # by another incarnation of the log, as after a restore
    for number in range(20):
        other.change(f"key {number}", number)
    assert other.partition == changelog.partition
    assert other.log.last_stable_offset > changelog.log.last_stable_offset
    assert follow(other) == other.model
    store = StoreFolders(tmp_path, other.clock).open(SPEC, 0)
    assert store.restore(other.owner, other.partition).plan.action == "resume"
    assert dict(store.all()) == other.model
    store.close()


def test_a_copy_that_found_the_disk_full_is_opened_again_without_deleted_keys(
    changelog: Segments, tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that failed may have changed the memtable, and deletions were removed since then."""
    monkeypatch.setattr(standbys_module, "INTERVAL_S", 0.01)
    write, broken = RocksEngine._write_batch, list[RocksEngine]()
    has_failed, purged = threading.Event(), threading.Event()

    def write_batch(engine: RocksEngine, *arguments: Any) -> None:
        if engine not in broken:
            write(engine, *arguments)
        if not broken or engine in broken:
            broken.append(engine)
            has_failed.set()
            assert purged.wait(30)
            raise DiskFull("so says the test")

    monkeypatch.setattr(RocksEngine, "_write_batch", write_batch)
    standbys = Standbys(changelog.owner, changelog.clock, StoreFolders(tmp_path, changelog.clock))
    standbys.follow({changelog.partition: SPEC})
    assert has_failed.wait(30)
    changelog.delete_and_purge("zombie")
    changelog.change("d", 4)
    purged.set()
    end = changelog.log.last_stable_offset
    eventually(lambda: standbys.positions().get(changelog.partition) == end, what="a warm copy")
    with standbys._at_work:
        assert dict(standbys._copies[changelog.partition].store.all()) == changelog.model
    standbys.close()


def test_a_query_of_the_changelogs_never_finds_deleted_keys(
    changelog: Segments, *, guarded: bool
) -> None:
    folded = ReplayedSource(changelog.owner, changelog.partition.topic, 1)
    assert folded.read([0], [b"Qzombie"]) == {0: [b"\x01"]}
    changelog.delete_and_purge("zombie")
    assert folded.read([0], [b"Qzombie"]) == {0: [None if guarded else b"\x01"]}
    entries, _ = folded.page(0, KeyRange(), 10)
    assert (b"Qzombie" in dict(entries)) is not guarded


def test_a_query_of_the_changelogs_finds_no_keys_deleted_while_it_reads(
    changelog: Segments, *, guarded: bool
) -> None:
    def purge() -> None:
        changelog.delete_and_purge("zombie")
        changelog.change("d", 4)

    broker: Any = Meanwhile(changelog.owner, "fetch", 3, purge)
    entries, _ = ReplayedSource(broker, changelog.partition.topic, 1).page(0, KeyRange(), 10)
    values = dict(entries)
    assert (b"Qzombie" in values) is not guarded
    if guarded:
        wanted = {b"Q" + k.encode(): bytes((v,)) for k, v in changelog.model.items()}
        assert values == wanted


def test_a_long_lived_view_drops_deleted_keys(storage: MemoryStorage, *, guarded: bool) -> None:
    owner = Owner(storage, background=False)
    app = sl.App("app", log=owner)
    events = app.topic("events", key=str, value=int)
    last = app.store("last", key=str, value=int)

    @app.task(events, stores=[last])
    def remember(record: sl.Record[str, int]) -> None:
        if record.value:
            last[record.key] = record.value
        else:
            last.delete(record.key)

    tp = TopicPartition("app-last-changelog", 0)

    def handle(*records: tuple[str, int]) -> None:
        events.append(list(records))
        app.run(until="idle", progress=False)
        close_segment(owner, tp)

    with app:
        handle(("a", 1), ("zombie", 2))
        view = app.query(last)
        assert view.to_dict() == {"a": 1, "zombie": 2}
        handle(("zombie", 0))
        handle(("b", 3))
        clean(owner, tp)
        assert clean(owner, tp, purge=True).tally.tombstones == 1
        zombie = {} if guarded else {"zombie": 2}
        assert view.to_dict() == {"a": 1, "b": 3} | zombie
        assert app.query(last).to_dict() == {"a": 1, "b": 3}
    owner.close()
