"""A store is restored to the content of its changelog, from any position of its engine."""

from __future__ import annotations

import dataclasses
import gc
import logging
import random
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import (
    CorruptLog,
    DiskFull,
    LogLocked,
    OffsetOutOfRange,
    RequestTimedOut,
    UnknownTopic,
)
from strandline.changelog.history import HistoryEpoch
from strandline.changelog.records import Append, PartitionOffsets, ProducerIdentity, TopicPartition
from strandline.statestore import (
    PartitionStore,
    ReplayProgress,
    Restored,
    RestorePlan,
    StorePosition,
    StoreSpec,
    open_store,
    plan_restore,
    replay,
    restore_all,
)
from strandline.statestore.engines.memory import MemoryEngine
from strandline.statestore.last_record import LastRecord
from strandline.statestore.latest import latest_per_key
from strandline.statestore.replay import TransactionOpen
from tests.forms import examples
from tests.state.kit import Changelog, Meanwhile, columns

SPEC: StoreSpec[str, int] = StoreSpec("s", key=str, value=int)


@pytest.fixture
def changelog() -> Changelog:
    return Changelog()


def in_memory() -> PartitionStore[Any, Any]:
    return open_store(StoreSpec("s", engine="memory"), clock=ManualClock())


def entries(store: PartitionStore[Any, Any]) -> dict[Any, Any]:
    return dict(store.all())


def delete_records(changelog: Changelog, before: int) -> None:
    """Delete the records before an offset, from a changelog whose values expire."""
    config = {"cleanup.policy": "compact,delete", "retention.ms": "-1"}
    changelog.owner.alter_topic(changelog.partition.topic, config=config)
    changelog.owner.delete_records(changelog.partition, before)


def filled(changelog: Changelog, folder: Path, keys: int = 20) -> dict[str, int]:
    """Create a folder whose engine is half-way through the changelog."""
    store = changelog.open(SPEC, folder)
    for number in range(keys):
        store[f"{number}"] = number
        changelog.commit(store)
        if number == keys // 2:
            store.checkpoint()
    del store["3"]
    changelog.commit(store)
    expected = entries(store)
    store.close()
    return expected


# The plan -----------------------------------------------------------------------------

LOG = PartitionOffsets(
    log_start=10, high_watermark=100, last_stable_offset=90, topic_id="t1", leader_epoch=3
)


def last(leader_epoch: int | None) -> LastRecord | None:
    """Return a record before the position, with that leader epoch."""
    return None if leader_epoch is None else LastRecord(49, leader_epoch)


@pytest.mark.parametrize(
    ("found", "epoch_before", "plan"),
    [
        (None, None, RestorePlan("fresh", 10)),
        (StorePosition("t1", 3, 50), None, RestorePlan("resume", 50)),
        (StorePosition("t1", 2, 50), 2, RestorePlan("resume", 50)),
        (StorePosition("t1", 2, 50), None, RestorePlan("resume", 50)),
        (StorePosition("t1", 3, 10), None, RestorePlan("resume", 10)),
        (StorePosition("t1", 3, 100), None, RestorePlan("resume", 100)),
        (StorePosition("t1", 3, 100, partition=2), None, RestorePlan("resume", 100)),
    ],
)
def test_a_valid_position_is_continued(
    found: StorePosition | None, epoch_before: int | None, plan: RestorePlan
) -> None:
    assert plan_restore(found, LOG, last(epoch_before), 2) == plan


@pytest.mark.parametrize(
    ("found", "epoch_before", "reason"),
    [
        (StorePosition("t0", 3, 50), None, "another topic"),
        (StorePosition("t1", 4, 50), None, "of leader epoch 4, the log only of 3"),
        (StorePosition("t1", 3, 101), None, "to offset 101, the log only to 100"),
        (StorePosition("t1", 3, 9), None, "to offset 9, the log begins at 10"),
        (StorePosition("t1", 2, 50), 3, "rewritten in epoch 3"),
        (StorePosition("t1", 3, 50, partition=1), None, "made from partition 1 of the changelog"),
    ],
)
def test_an_invalid_position_is_rebuilt(
    found: StorePosition, epoch_before: int | None, reason: str
) -> None:
    plan = plan_restore(found, LOG, last(epoch_before), 2)
    assert (plan.action, plan.start) == ("rebuild", 10)
    assert reason in plan.reason


def test_an_engine_with_more_of_an_epoch_than_the_log_is_rebuilt() -> None:
    """After a power cut with durability "os" the log continues at offsets that it has lost
    before."""
    log = dataclasses.replace(LOG, epochs=(HistoryEpoch(2, 0), HistoryEpoch(3, 60)))
    assert plan_restore(StorePosition("t1", 2, 60), log) == RestorePlan("resume", 60)
    plan = plan_restore(StorePosition("t1", 2, 61), log)
    assert plan.action == "rebuild"
    assert "to offset 61 of leader epoch 2, which the log has only to 60" in plan.reason


# Replay ---------------------------------------------------------------------------------


def test_a_lost_engine_is_rebuilt(changelog: Changelog, tmp_path: Path) -> None:
    expected = filled(changelog, tmp_path / "a")
    store = open_store(SPEC, tmp_path / "b", clock=changelog.clock)
    restored = changelog.restore(store)
    assert restored.plan == RestorePlan("fresh", 0)
    assert restored.records == 21
    assert entries(store) == expected
    store.close()


def test_only_the_tail_is_replayed(changelog: Changelog, tmp_path: Path) -> None:
    expected = filled(changelog, tmp_path)
    store = open_store(SPEC, tmp_path, clock=changelog.clock)
    restored = changelog.restore(store)
    assert restored.plan.action == "resume"
    assert restored.records == 10
    assert entries(store) == expected
    assert changelog.restore(store).records == 0
    store.close()


def test_a_crash_loses_no_committed_changes(changelog: Changelog, tmp_path: Path) -> None:
    store = changelog.open(SPEC, tmp_path)
    store["a"] = 1
    changelog.commit(store)
    store["a"] = 2
    store["b"] = 2
    changelog.abort(store)
    store["c"] = 3
    store.close()  # uncommitted
    again = changelog.open(SPEC, tmp_path)
    assert entries(again) == {"a": 1}
    again.close()


def test_an_empty_changelog_gives_an_empty_store(changelog: Changelog) -> None:
    store = changelog.open(StoreSpec("s", engine="memory"))
    assert entries(store) == {}
    assert store.position == StorePosition(
        changelog.owner.topic(changelog.partition.topic).topic_id, 0, 0, partition=0
    )


def test_a_tail_of_aborted_records_and_markers_does_not_delay_a_restore(
    changelog: Changelog,
) -> None:
    changelog.append([(b"Qa", b"\x01")])
    for _ in range(3):
        changelog.append([(b"Qa", b"\x02")], commit=False)
    store = changelog.open(StoreSpec("s", engine="memory"))
    assert entries(store) == {"a": 1}
    assert store.position is not None
    log = changelog.owner.offsets([changelog.partition])[changelog.partition]
    assert store.position.offset == log.last_stable_offset == log.high_watermark


def left_open(changelog: Changelog) -> ProducerIdentity:
    """Leave a transaction open in the changelog, as a dead producer would. Return its producer."""
    dead = changelog.owner.init_producer("app-1")
    changes = columns([b"Qa"], [b"\x09"])
    changelog.owner.append([Append(*changelog.partition, changes, dead, 0, True)])
    return dead


def test_an_open_transaction_with_nothing_after_it_is_not_waited_for(changelog: Changelog) -> None:
    changelog.append([(b"Qa", b"\x01")])
    left_open(changelog)
    changelog.append([(b"Qa", b"\x02")], commit=False)
    store = changelog.open(StoreSpec("s", engine="memory"))
    assert entries(store) == {"a": 1}


def test_commits_after_an_open_transaction_are_waited_for(
    changelog: Changelog, caplog: pytest.LogCaptureFixture
) -> None:
    changelog.append([(b"Qa", b"\x01")])
    dead = left_open(changelog)
    changelog.append([(b"Qa", b"\x02"), (b"Qb", b"\x02")])
    seen: list[ReplayProgress] = []
    waits = replay.LOG_WAIT_AFTER_S
    end = Meanwhile(
        changelog.owner,
        *("fetch", waits + 3),
        lambda: changelog.owner.end_transaction(dead, commit=False),
    )
    store = in_memory()
    with caplog.at_level(logging.WARNING, logger="strandline"):
        restored = store.restore(end, changelog.partition, seen.append)
    assert entries(store) == {"a": 2, "b": 2}
    assert (
        restored.position.offset
        == changelog.owner.offsets([changelog.partition])[changelog.partition].last_stable_offset
    )
    assert len(seen) > waits  # the progress function could have ended it each time
    [said] = caplog.records
    assert "waits for a transaction that is open from offset 2 on" in said.getMessage()


def test_a_standby_copy_does_not_wait_for_open_transactions(changelog: Changelog) -> None:
    changelog.append([(b"Qa", b"\x01")])
    left_open(changelog)
    changelog.append([(b"Qa", b"\x02")])
    store = in_memory()
    store.restore(changelog.owner, changelog.partition, wait=None)
    assert entries(store) == {"a": 1}


def test_a_transaction_that_never_ends_is_not_waited_for_for_ever(
    changelog: Changelog,
) -> None:
    left_open(changelog)
    changelog.append([(b"Qa", b"\x02")])
    with pytest.raises(RequestTimedOut, match="a transaction is open there"):
        in_memory().restore(changelog.owner, changelog.partition, wait=5)


def test_a_restore_that_meets_an_open_transaction_continues_later(
    changelog: Changelog,
) -> None:
    changelog.append([(b"Qa", b"\x01"), (b"Qb", b"\x01")])
    dead = left_open(changelog)
    changelog.append([(b"Qa", b"\x02")])
    store, seen = in_memory(), list[ReplayProgress]()
    for _ in range(2):
        with pytest.raises(TransactionOpen, match="a transaction is open there") as met:
            store.restore(changelog.owner, changelog.partition, seen.append, wait=0)
        assert (met.value.partition, met.value.offset) == (changelog.partition, 3)
        assert entries(store) == {"a": 1, "b": 1}
    assert max(progress.records for progress in seen) == 2
    changelog.owner.end_transaction(dead, commit=False)
    restored = store.restore(changelog.owner, changelog.partition, wait=0)
    assert (restored.plan.action, restored.plan.start, restored.records) == ("resume", 3, 1)
    assert entries(store) == {"a": 2, "b": 1}


def test_a_plain_batch_after_an_open_transaction_counts_as_committed(changelog: Changelog) -> None:
    left_open(changelog)
    plain = changelog.owner.init_producer()
    changelog.owner.append([Append(*changelog.partition, columns([b"Qa"], [b"\x02"]), plain, 0)])
    ends = changelog.owner.offsets([changelog.partition])[changelog.partition]
    assert (ends.last_stable_offset, ends.committed_end, ends.high_watermark) == (0, 2, 2)


def test_a_recreated_topic_is_another_one(
    changelog: Changelog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(changelog, tmp_path)
    changelog.owner.delete_topic(changelog.partition.topic)
    changelog.owner.create_topic(changelog.partition.topic)
    changelog.append([(b"Qz", b"\x01")])
    store = open_store(SPEC, tmp_path, clock=changelog.clock)
    with caplog.at_level(logging.INFO, logger="strandline"):
        restored = changelog.restore(store)
    assert restored.plan.action == "rebuild"
    assert "another topic" in restored.plan.reason
    [said] = [one for one in caplog.records if "is rebuilt" in one.getMessage()]
    told = (str(changelog.partition), restored.plan.reason)
    assert (said.__dict__["partition"], said.__dict__["reason"]) == told
    assert entries(store) == {"z": 1}
    store.close()


def test_a_log_that_begins_after_the_engine_rebuilds_it(
    changelog: Changelog, tmp_path: Path
) -> None:
    filled(changelog, tmp_path)
    end = changelog.append([(b"Qz", b"\x01")])
    delete_records(changelog, end - 1)
    store = open_store(SPEC, tmp_path, clock=changelog.clock)
    assert changelog.restore(store).plan.action == "rebuild"
    assert entries(store) == {"z": 1}
    store.close()


def test_records_without_a_key_are_no_changelog(changelog: Changelog) -> None:
    changelog.owner.create_topic("plain")
    other = TopicPartition("plain", 0)
    batch = columns([b"a"], [b"\x01"]).set_column(1, "key", pa.array([None], pa.binary()))
    changelog.append_columns(batch, partition=other)
    store = in_memory()
    with pytest.raises(CorruptLog, match="records without a key"):
        store.restore(changelog.owner, other)


def test_a_store_in_use_can_be_restored_to_changes_by_others(
    changelog: Changelog, tmp_path: Path
) -> None:
    store = changelog.open(SPEC, tmp_path)
    store["a"] = store["b"] = 1
    changelog.commit(store)  # the change waits for a checkpoint
    store["b"] = 9  # uncommitted
    changelog.append([(b"Qa", b"\x02"), (b"Qc", b"\x03")])
    assert changelog.restore(store).records == 2
    assert entries(store) == {"a": 2, "b": 1, "c": 3}
    assert store["a"] == 2
    store.close()
    again = changelog.open(SPEC, tmp_path)
    assert entries(again) == {"a": 2, "b": 1, "c": 3}
    again.close()


def test_a_missing_changelog_is_an_error(changelog: Changelog) -> None:
    store = in_memory()
    with pytest.raises(UnknownTopic):
        store.restore(changelog.owner, TopicPartition("none", 0))


def test_a_damaged_engine_is_rebuilt(
    changelog: Changelog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = filled(changelog, tmp_path)
    for manifest in (tmp_path / "db").glob("MANIFEST*"):
        manifest.write_bytes(b"garbage")
    with caplog.at_level(logging.WARNING):
        store = changelog.open(SPEC, tmp_path)
    assert "damaged" in caplog.text
    assert entries(store) == expected
    store.close()


def test_a_stalled_process_does_not_block_the_next_one(
    changelog: Changelog, tmp_path: Path
) -> None:
    expected = filled(changelog, tmp_path / "0")
    stalled = changelog.open(SPEC, tmp_path / "0")
    taken_over = changelog.open(SPEC, tmp_path / "0")
    assert entries(taken_over) == expected
    taken_over.close()
    stalled.close()


# Chunks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 7, 1_000_000])
@pytest.mark.parametrize("engine", ["rocksdb", "memory"])
def test_chunks_add_up_to_the_whole_changelog(
    changelog: Changelog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, engine: Any
) -> None:
    monkeypatch.setattr(replay, "CHUNK_RECORDS", chunk)
    monkeypatch.setattr(replay, "FETCH_BYTES", 1)
    monkeypatch.setattr(replay, "PIECE_RECORDS", 3)
    expected = filled(changelog, tmp_path / "a")
    seen: list[ReplayProgress] = []
    store: PartitionStore[str, int] = open_store(
        StoreSpec("s", value=int, engine=engine), tmp_path / "b"
    )
    restored = store.restore(changelog.owner, changelog.partition, seen.append)
    assert entries(store) == expected
    assert seen[-1].records == restored.records == 21
    assert seen[-1].remaining <= 1  # the last marker
    assert [p.records for p in seen] == sorted({p.records for p in seen})
    store.close()


def test_a_large_chunk_becomes_one_file(changelog: Changelog, tmp_path: Path) -> None:
    chance = random.Random(7)
    expected: dict[str, bytes] = {}
    for _ in range(2):  # the second time keys change, appear and are deleted
        changes: list[tuple[bytes, bytes | None]] = []
        for number in chance.sample(range(20_000), 15_000):
            value = None if number % 7 == 0 else chance.randbytes(number % 3)
            changes.append((b"Q%d" % number, value))
            expected.pop(str(number), None)
            expected |= {} if value is None else {str(number): value}
        changelog.append(changes)
    store: PartitionStore[str, bytes] = open_store(StoreSpec("s", value=bytes), tmp_path)
    assert changelog.restore(store).records == 30_000
    engine: Any = store._committed.engine
    assert engine.level0_files() == 0  # a flushed batch would be on this level
    assert entries(store) == expected
    store.close()


def test_a_column_is_read_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "PIECE_RECORDS", 3)
    items = [None, b"", b"1", b"2", b"3", b"4", b"5"]
    for end in range(len(items) + 1):
        column = replay.ArrowColumn[Any](pa.array(items[:end], pa.binary()))
        assert [*column] == items[:end]
        assert len(column) == end


def test_an_interrupted_restore_continues(
    changelog: Changelog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "CHUNK_RECORDS", 1)
    monkeypatch.setattr(replay, "FETCH_BYTES", 1)
    expected = filled(changelog, tmp_path / "a")
    store = open_store(SPEC, tmp_path / "b", clock=changelog.clock)
    engine = store._committed.engine
    written = engine.write
    left = iter(range(8))

    def write(*args: Any) -> None:
        if next(left, None) is None:
            raise DiskFull("no space")
        written(*args)

    monkeypatch.setattr(engine, "write", write)
    with pytest.raises(DiskFull):
        changelog.restore(store)
    store.close()
    store = open_store(SPEC, tmp_path / "b", clock=changelog.clock)
    restored = changelog.restore(store)
    assert restored.plan.action == "resume"
    assert restored.records == 21 - 8
    assert entries(store) == expected
    store.close()


def test_a_replay_overtaken_by_deletion_starts_over(changelog: Changelog, tmp_path: Path) -> None:
    filled(changelog, tmp_path)
    end = changelog.append([(b"Qz", b"\x01")])
    broker = Meanwhile(
        changelog.owner,
        "fetch",
        1,
        lambda: delete_records(changelog, end - 1),
    )
    store = open_store(SPEC, tmp_path, clock=changelog.clock)
    restored = store.restore(broker, changelog.partition)
    assert restored.plan.action == "resume"  # the first decision
    assert entries(store) == {"z": 1}
    store.close()


def test_a_log_that_is_replaced_by_another_history_after_a_replay_is_replayed() -> None:
    """The last look at the log is of the process that has taken over a restored copy."""
    ours, theirs = Changelog(), Changelog()
    theirs.reopened()  # another opening of the log writes its records
    assert ours.append([(b"Qa", b"\x01")]) == theirs.append([(b"Qa", b"\x02")])
    theirs.append([(b"Qb", b"\x02")])
    broker = Meanwhile(ours.owner, "offsets", 2, lambda: setattr(broker, "_broker", theirs.owner))
    store = in_memory()
    store.restore(broker, ours.partition)
    assert entries(store) == {"a": 2, "b": 2}


def test_a_restore_to_the_end_never_waits_for_records(
    changelog: Changelog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the engine's position there are only markers and aborted records."""
    filled(changelog, tmp_path)
    store = changelog.open(SPEC, tmp_path)
    store["half"] = 1
    changelog.commit(store)
    store.checkpoint()
    store.close()
    changelog.append([(b"Qx", b"\x01")], commit=False)
    waits = []

    def fetch(*args: Any, timeout: float = 0.0, **kwargs: Any) -> Any:
        waits.append(timeout)
        return Owner.fetch(changelog.owner, *args, timeout=timeout, **kwargs)

    monkeypatch.setattr(changelog.owner, "fetch", fetch)
    store = changelog.open(SPEC, tmp_path)
    assert store["half"] == 1
    assert set(waits) == {0.0}
    store.close()


def test_a_log_that_makes_no_progress_is_an_error(
    changelog: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    changelog.append([(b"Qa", b"\x01")])
    stuck = changelog.owner.fetch({TopicPartition(changelog.partition.topic, 0): 2})
    monkeypatch.setattr(
        changelog.owner, "fetch", lambda *_, **__: {p: _stay(f) for p, f in stuck.items()}
    )
    store = in_memory()
    with pytest.raises(RequestTimedOut, match="stands still at offset 0"):
        changelog.restore(store)


def _stay(fetched: Any) -> Any:
    return dataclasses.replace(fetched, next_offset=0, batches=[])


def test_an_offset_out_of_range_that_is_no_deletion_is_passed_on(changelog: Changelog) -> None:
    changelog.append([(b"Qa", b"\x01")])

    def fail() -> None:
        raise OffsetOutOfRange("elsewhere")

    store = in_memory()
    with pytest.raises(OffsetOutOfRange):
        store.restore(Meanwhile(changelog.owner, "fetch", 1, fail), changelog.partition)


def test_several_partitions_are_restored_together(tmp_path: Path) -> None:
    changelog = Changelog(partitions=5)
    stores = []
    for number in range(5):
        partition = TopicPartition(changelog.partition.topic, number)
        changelog.append([(b"Qp", bytes((number,)))], partition=partition)
        stores.append((open_store(SPEC, tmp_path / str(number)), partition))
    restored: list[Restored] = restore_all(stores, changelog.owner, wait=5)
    assert [one.records for one in restored] == [1] * 5
    assert [store["p"] for store, _ in stores] == list(range(5))
    for store, _ in stores:
        store.close()


def test_a_store_in_use_is_not_opened_twice(changelog: Changelog, tmp_path: Path) -> None:
    from strandline.statestore.engines.rocksdb import RocksEngine

    changelog.append([(b"Qa", b"\x01")])
    store = changelog.open(SPEC, tmp_path)
    with pytest.raises(LogLocked):
        RocksEngine(tmp_path)
    store.close()


def test_progress_has_the_rate_and_the_remaining_time() -> None:
    progress = ReplayProgress(TopicPartition("t", 0), records=500, remaining=1_000, seconds=2.0)
    assert (progress.rate, progress.seconds_left) == (250.0, 4.0)
    assert ReplayProgress(TopicPartition("t", 0), 0, 10, 0.0).seconds_left is None


# Columns --------------------------------------------------------------------------------


@settings(max_examples=examples(100))
@given(
    prefix=st.binary(max_size=10),
    keys=st.lists(st.binary(max_size=40) | st.lists(st.sampled_from(b"\x00\x01")).map(bytes)),
    longest=st.sampled_from([3, 7, 8, 20, 40]),
    even=st.booleans(),
    repeats=st.sampled_from([1, 100]),  # with few repeats equal keys stay in order by chance
    cut=st.integers(0, 3),
)
@example(  # lengths that take two bytes
    prefix=b"p" * 300,
    keys=[b"a", b"aaaaaaa2", b"aaaaaaa3"],
    longest=40,
    even=False,
    repeats=1,
    cut=0,
)
def test_columns_are_reduced_to_the_last_of_each_key(
    prefix: bytes, keys: list[bytes], longest: int, even: bool, repeats: int, cut: int
) -> None:
    names = [prefix + key[:longest].ljust(longest * even, b"a") for key in keys] * repeats
    values = [None if n % 5 == 0 else b"%d" % n for n in range(len(names))]
    expected = dict(sorted(dict(zip(names[cut:], values[cut:], strict=True)).items()))
    sliced = pa.array(names, pa.binary())[cut:], pa.array(values, pa.binary())[cut:]
    latest = [column.to_pylist() for column in latest_per_key(*sliced)]
    assert latest == [list(expected), list(expected.values())]


def test_a_failed_restore_leaves_no_thread_to_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The collector would wait for the thread anywhere, even inside the start of another thread."""
    monkeypatch.setattr(replay, "CHUNK_RECORDS", 1)
    changelog = Changelog()
    for number in range(5):
        changelog.append([(b"Qk%d" % number, b"\x01")])
    store = open_store(
        StoreSpec("s", key=str, value=int, engine="memory"), None, clock=changelog.clock
    )

    def full(*_: object) -> None:
        raise DiskFull("so says the test")

    monkeypatch.setattr(MemoryEngine, "write", full)
    gc.disable()
    try:
        with pytest.raises(DiskFull) as caught:
            changelog.restore(store)
        assert caught.tb is not None  # and with it everything it references
        assert not [t.name for t in threading.enumerate() if t.name.startswith("replay")]
    finally:
        gc.enable()
