"""A deleted key stays deleted, also in a store that was away while its tombstone was removed."""

from __future__ import annotations

import logging
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from strandline.changelog.client.consumer import Consumer
from strandline.changelog.errors import DiskFull, StorageFailed
from strandline.changelog.records import PartitionOffsets
from strandline.statestore import (
    PartitionStore,
    RestorePlan,
    StorePosition,
    StoreSpec,
    open_store,
    plan_restore,
    replay,
)
from strandline.statestore.engine import ENGINE_FORMAT
from strandline.statestore.engines.rocksdb import RocksEngine
from tests.cleaning import RETENTION_MS, CutShort, Segments, clean, ignore
from tests.state.kit import Meanwhile

SPEC: StoreSpec[str, int] = StoreSpec("s", key=str, value=int)
IN_MEMORY: StoreSpec[str, int] = StoreSpec("s", key=str, value=int, engine="memory")
LOG = PartitionOffsets(0, 100, 100, "t1", 0, purged_end=40, clean_end=60)


@pytest.fixture
def piecemeal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each fetch return one batch, which is written at once."""
    monkeypatch.setattr(replay, "FETCH_BYTES", 1)
    monkeypatch.setattr(replay, "CHUNK_RECORDS", 1)


@pytest.fixture
def changelog() -> Segments:
    return Segments()


def entries(store: PartitionStore[Any, Any]) -> dict[Any, Any]:
    return dict(store.all())


# Decisions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "action"),
    [
        (StorePosition("t1", 0, 39), "rebuild"),
        (StorePosition("t1", 0, 40), "resume"),
        (StorePosition("t1", 0, 5, settled_end=39), "rebuild"),
        (StorePosition("t1", 0, 5, settled_end=40), "resume"),
        (None, "fresh"),
    ],
)
def test_a_state_before_a_purged_tombstone_that_it_needs_starts_over(
    found: StorePosition | None, action: str
) -> None:
    assert plan_restore(found, LOG).action == action


def test_the_reason_for_a_rebuild_is_given_in_plain_words() -> None:
    assert plan_restore(StorePosition("t1", 0, 12), LOG) == RestorePlan(
        "rebuild",
        0,
        "it reaches to offset 12, and deletions from there to offset 40 may be gone from the log",
    )


def test_positions_of_earlier_formats_are_read() -> None:
    assert ENGINE_FORMAT == 4
    first = b"\x94\x01\xa2t1\x00\x07"
    assert StorePosition.from_bytes(first) == StorePosition("t1", 0, 7, settled_end=0)
    second = b"\x95\x02\xa2t1\x03\x07\x05"
    assert StorePosition.from_bytes(second) == StorePosition("t1", 3, 7, settled_end=5)
    third = b"\x96\x03\xa2t1\x03\x07\x05\xa1a"
    assert StorePosition.from_bytes(third) == StorePosition("t1", 3, 7, 5, "a")
    fourth = StorePosition("t1", 3, 7, settled_end=5, incarnation="a", partition=2)
    assert StorePosition.from_bytes(fourth.to_bytes()) == fourth


# Stores -----------------------------------------------------------------------------------


def test_an_engine_that_was_away_for_too_long_is_rebuilt(
    changelog: Segments, tmp_path: Path, *, guarded: bool
) -> None:
    changelog.change("zombie", 1)
    changelog.change("other", 2)
    store = changelog.open(SPEC, tmp_path)
    store.checkpoint()
    store.close()
    changelog.delete_and_purge("zombie")
    changelog.change("new", 3)
    store = open_store(SPEC, tmp_path, clock=changelog.clock)
    restored = changelog.restore(store)
    assert ("zombie" in store) is not guarded
    if guarded:
        assert restored.plan.action == "rebuild"
        assert entries(store) == changelog.model
        assert changelog.restore(store).plan.action == "resume"
    store.close()


def test_a_restore_that_failed_in_a_write_does_not_begin_above_what_was_written(
    changelog: Segments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changelog.change("zombie", 1)
    changelog.change("other", 2)
    write = RocksEngine._write_batch

    def full(*arguments: Any) -> None:
        write(*arguments)  # as a batch whose flush fails: the memtable has it
        raise DiskFull("so says the test")

    store = open_store(SPEC, tmp_path, clock=changelog.clock)
    with monkeypatch.context() as patched:
        patched.setattr(RocksEngine, "_write_batch", full)
        with pytest.raises(DiskFull):
            changelog.restore(store)
    changelog.delete_and_purge("zombie")
    changelog.change("new", 3)
    assert changelog.restore(store).plan.action == "rebuild"
    assert entries(store) == changelog.model
    store.close()


def test_an_engine_that_was_away_for_less_continues(changelog: Segments, tmp_path: Path) -> None:
    changelog.change("a", 1)
    changelog.change("b", 1)
    changelog.change("a", None)
    changelog.abort_one()
    store = changelog.open(SPEC, tmp_path)
    store.checkpoint()
    store.close()
    changelog.clean()
    assert changelog.clean(purge=True)  # a tombstone of a key that the engine has
    changelog.change("b", None)
    changelog.clean()  # its tombstone still exists
    store = open_store(SPEC, tmp_path, clock=changelog.clock)
    restored = changelog.restore(store)
    assert (restored.plan.action, restored.records) == ("resume", 1)
    assert entries(store) == {}
    store.close()


@pytest.mark.usefixtures("piecemeal")
@pytest.mark.parametrize("engine", ["rocksdb", "memory"])
def test_a_process_stopped_while_restoring_checks_again(
    changelog: Segments, tmp_path: Path, engine: Any, *, guarded: bool
) -> None:
    """After SIGSTOP for more than delete.retention.ms the remaining records lack the tombstone."""
    for number, key in enumerate(["zombie", "a", "b", "c"]):
        changelog.change(key, number)
    spec: StoreSpec[str, int] = StoreSpec("s", key=str, value=int, engine=engine)
    store = open_store(spec, tmp_path, clock=changelog.clock)
    broker = Meanwhile(changelog.owner, "fetch", 3, lambda: changelog.delete_and_purge("zombie"))
    restored = store.restore(broker, changelog.partition)
    assert ("zombie" in store) is not guarded
    if guarded:
        assert restored.plan == RestorePlan("fresh", 0)  # the first decision
        assert entries(store) == changelog.model
    store.close()


def test_a_tail_of_only_purged_tombstones_is_checked(
    changelog: Segments, tmp_path: Path, *, guarded: bool
) -> None:
    changelog.change("zombie", 1)
    store = changelog.open(SPEC, tmp_path)
    changelog.change("zombie", None)
    changelog.abort_one()
    changelog.clean()
    broker = Meanwhile(changelog.owner, "fetch", 1, lambda: changelog.clean(purge=True))
    restored = store.restore(broker, changelog.partition)
    assert restored.plan.action == "resume"
    assert restored.records == 0
    assert entries(store) == ({} if guarded else {"zombie": 1})
    store.close()


@pytest.mark.usefixtures("piecemeal")
def test_a_crash_before_the_check_leaves_no_state_that_lacks_a_deletion(
    changelog: Segments, tmp_path: Path, *, guarded: bool
) -> None:
    """The written position includes the end up to which the state is complete, for the next
    opening."""
    for key in ("zombie", "a", "b", "c"):
        changelog.change(key, 1)

    def purge() -> None:
        changelog.delete_and_purge("zombie")
        for key in ("d", "e"):
            changelog.change(key, 1)

    def die() -> None:
        raise StorageFailed("the process is gone")

    stopped = Meanwhile(changelog.owner, "fetch", 3, purge)
    # Without the check it would read past the tombstone.
    dying = Meanwhile(stopped, "fetch", 5, die)
    store = open_store(SPEC, tmp_path, clock=changelog.clock)
    reached: list[int] = []
    write = store._committed.engine.write

    def noted(keys: Any, values: Any, position: StorePosition) -> None:
        write(keys, values, position)
        reached.append(position.offset)

    store._committed.engine.write = noted  # type: ignore[method-assign]
    with pytest.raises(StorageFailed):
        store.restore(dying, changelog.partition)
    assert reached
    store.close()
    store = open_store(SPEC, tmp_path, clock=changelog.clock)
    changelog.restore(store)
    assert ("zombie" in store) is not guarded
    store.close()


@pytest.mark.usefixtures("piecemeal")
def test_tombstones_settled_at_the_beginning_may_be_purged_meanwhile(
    changelog: Segments, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise a restore would never end in a log whose tombstones are removed all the time."""
    for key in "abcdef":
        changelog.change(key, 1)
    changelog.change("e", None)
    changelog.abort_one()
    changelog.clean()
    store = open_store(IN_MEMORY, clock=changelog.clock)
    broker = Meanwhile(changelog.owner, "fetch", 2, lambda: changelog.clean(purge=True))
    restored = store.restore(broker, changelog.partition)
    assert changelog.log.purged_end > 10
    assert restored.records == 5
    assert entries(store) == changelog.model
    assert not caplog.records


@pytest.mark.usefixtures("piecemeal")
def test_tombstones_not_settled_at_the_beginning_may_not_be_purged_meanwhile(
    changelog: Segments, monkeypatch: pytest.MonkeyPatch, *, guarded: bool
) -> None:
    """The tombstone existed when the restore began, and so did the value that it deletes."""
    if not guarded:
        monkeypatch.undo()  # the other side of the rule is left out here
        monkeypatch.setattr(replay, "FETCH_BYTES", 1)
        monkeypatch.setattr(PartitionOffsets, "settled_end", LOG.high_watermark)
    for key in ("zombie", "a", "b"):
        changelog.change(key, 1)
    changelog.change("zombie", None)
    changelog.abort_one()

    def purge() -> None:
        changelog.clean()
        assert changelog.clean(purge=True) == 1

    store = open_store(IN_MEMORY, clock=changelog.clock)
    store.restore(Meanwhile(changelog.owner, "fetch", 2, purge), changelog.partition)  # type: ignore[arg-type]
    assert ("zombie" in store) is not guarded


@pytest.mark.usefixtures("piecemeal")
def test_a_restore_interrupted_below_the_purged_end_continues(
    changelog: Segments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in "abcdef":
        changelog.change(key, 1)
    changelog.delete_and_purge("e")
    store = open_store(SPEC, tmp_path, clock=changelog.clock)

    def fail() -> None:
        raise StorageFailed("the process is gone")

    with pytest.raises(StorageFailed):
        store.restore(Meanwhile(changelog.owner, "fetch", 4, fail), changelog.partition)
    store.close()
    store = open_store(SPEC, tmp_path, clock=changelog.clock)
    assert store.position is not None
    assert 0 < store.position.offset < changelog.log.purged_end
    restored = changelog.restore(store)
    assert restored.plan.action == "resume"
    assert entries(store) == changelog.model
    store.close()


def test_a_restarted_restore_is_logged(
    changelog: Segments, caplog: pytest.LogCaptureFixture
) -> None:
    changelog.change("zombie", 1)
    store = changelog.open(IN_MEMORY)
    changelog.change("zombie", None)
    changelog.abort_one()
    changelog.clean()
    broker = Meanwhile(changelog.owner, "fetch", 1, lambda: changelog.clean(purge=True))
    with caplog.at_level(logging.WARNING, logger="strandline"):
        store.restore(broker, changelog.partition)
    assert "starts over: deletions up to offset 3 were removed" in caplog.text
    assert "delete.retention.ms should be longer" in caplog.text
    assert caplog.records[0].__dict__["partition"] == str(changelog.partition)


@pytest.mark.usefixtures("piecemeal")
@pytest.mark.parametrize("goes_on", [True, False], ids=["", "without reading on"])
def test_a_state_read_during_cleaning_shows_one_moment(
    changelog: Segments, monkeypatch: pytest.MonkeyPatch, *, goes_on: bool
) -> None:
    """A value superseded after the captured end is missing before it: neither value would be
    seen."""
    for key in "akz":
        changelog.change(key, 1)
    if not goes_on:
        ignore(monkeypatch, "superseding_end")

    def supersede() -> None:
        changelog.change("b", 1)  # keeps a reader that only waits for a marker going
        changelog.change("k", 2)
        changelog.change("c", 1)
        changelog.clean()

    store = open_store(IN_MEMORY, clock=changelog.clock)
    store.restore(Meanwhile(changelog.owner, "fetch", 2, supersede), changelog.partition)
    assert store.position is not None
    assert ("k" in store) is goes_on
    if goes_on:
        assert entries(store) == changelog.as_of(store.position.offset) == changelog.model


# A user's own table ------------------------------------------------------------------------


def follow(consumer: Consumer, changelog: Segments) -> dict[bytes, bytes]:
    """Return the table that a plain consumer builds as in docs/guide/clients.md."""
    tp = changelog.partition
    table: dict[bytes, bytes] = {}
    settled = consumer.offsets([tp])[tp].settled_end
    while consumer.lag()[tp]:
        before = consumer.position(tp)
        batches = consumer.poll()
        ends = consumer.offsets([tp])[tp]
        if ends.must_start_over(before, settled):
            table, settled = {}, ends.settled_end
            consumer.seek_to_beginning(tp)
            continue
        for batch in batches:
            for record in batch.records():
                if record.value is None:
                    table.pop(record.key or b"", None)
                else:
                    table[record.key or b""] = record.value
    return table


def test_a_consumer_can_detect_purged_tombstones_and_is_not_stopped(
    changelog: Segments, *, guarded: bool
) -> None:
    for number, key in enumerate(["a", "zombie", "b", "c", "d"]):
        changelog.change(key, number)

    def purge() -> None:
        changelog.delete_and_purge("zombie")

    broker: Any = Meanwhile(changelog.owner, "fetch", 4, purge)
    with Consumer(broker, max_bytes=1, max_partition_bytes=1, clock=changelog.clock) as consumer:
        consumer.assign([changelog.partition])
        table = follow(consumer, changelog)
    assert (b"Qzombie" in table) is not guarded
    if guarded:
        assert table == {b"Q" + k.encode(): bytes((v,)) for k, v in changelog.model.items()}


# Random changes ---------------------------------------------------------------------------


class Busy:
    """A broker before whose calls anything may happen to the changelog, or the restore may end."""

    def __init__(self, changelog: Segments, chance: random.Random) -> None:
        self._changelog, self._chance = changelog, chance
        self.left = 25

    def __getattr__(self, name: str) -> Any:
        while self.left and self._chance.random() < 0.5:
            self.left -= 1
            happen(self._changelog, self._chance)
        if self._chance.random() < 0.02:
            raise StorageFailed("the process is gone")
        return getattr(self._changelog.owner, name)


def happen(changelog: Segments, chance: random.Random) -> None:
    key = chance.choice("abcd")
    what = chance.choice(["put", "put", "delete", "clean", "purge", "purge"])
    if what == "put":
        changelog.change(key, chance.randrange(100))
    elif what == "delete":
        changelog.change(key, None)
    else:
        # A purge removes the tombstones left by earlier passes.
        if what == "purge":
            changelog.clock.advance(2 * RETENTION_MS)
        frames = chance.choice([None, None, chance.randrange(60)])
        with suppress(CutShort):
            clean(changelog.owner, changelog.partition, frames=frames)


def wrong(seed: int) -> str:
    """Restore a state now and then during random changes. Return a description of its first
    error."""
    chance = random.Random(seed)
    changelog = Segments()
    store = open_store(IN_MEMORY, clock=changelog.clock)
    for _ in range(5):
        for _ in range(chance.randrange(6)):
            happen(changelog, chance)
        broker: Any = Busy(changelog, chance)
        try:
            reached = store.restore(broker, changelog.partition).position
        except StorageFailed:
            continue  # the next restore continues with the written part
        expected = changelog.as_of(reached.offset)
        if (found := entries(store)) != expected:
            return f"seed {seed}, offset {reached.offset}: {found}, not {expected}"
    return ""


@pytest.mark.long
@pytest.mark.usefixtures("piecemeal")
def test_a_state_shows_one_moment_after_any_changes_meanwhile() -> None:
    assert [told for seed in range(60) if (told := wrong(seed))] == []


@pytest.mark.usefixtures("piecemeal")
@pytest.mark.parametrize("ignored", ["purged_end", "superseding_end"])
def test_without_either_rule_a_state_mixes_moments(
    monkeypatch: pytest.MonkeyPatch, ignored: str
) -> None:
    ignore(monkeypatch, ignored)
    assert any(map(wrong, range(60)))
