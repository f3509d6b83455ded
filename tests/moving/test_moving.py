"""Moves between folders: results and refusals."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from strandline.changelog import scan
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import CorruptLog, InvalidRequest, InvalidTopic, UnknownTopic
from strandline.changelog.log import Log
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.moving import MovedLog, MoveReport, Selection, move, reading, verify_only
from strandline.changelog.records import Append, CommittedOffset, TopicPartition
from strandline.framework.positions import (
    InputProgress,
    PendingAtEnd,
    to_commit,
    translated,
    waiting_of,
)
from strandline.framework.task_positions import PartitionReader, positions_at
from tests.cleaning import Segments, clean, close_segment


class Through:
    """A broker with other answers to some calls."""

    def __init__(self, broker: Owner, **others: Any) -> None:
        self._broker = broker
        self._others = others

    def __getattr__(self, name: str) -> Any:
        return self._others[name] if name in self._others else getattr(self._broker, name)


@pytest.fixture
def owners() -> Iterator[list[Owner]]:
    """Logs in memory, closed after the test."""
    made: list[Owner] = []
    yield made
    for owner in made:
        owner.close()


@pytest.fixture
def owner(owners: list[Owner]) -> Owner:
    """The source of the move."""
    owners.append(Owner(MemoryStorage(), background=False))
    return owners[-1]


@pytest.fixture
def target(owners: list[Owner]) -> Owner:
    owners.append(Owner(MemoryStorage(), background=False))
    return owners[-1]


@pytest.fixture
def offsets_may_exceed_the_end() -> bool:
    return True


def moved(source: Any, target: Any, **chosen: Any) -> MoveReport:
    return move(MovedLog("here", source), MovedLog("there", target), Selection(**chosen))


def latest(log: Log, topic: str) -> dict[bytes, bytes]:
    """Return the last value of each key of a compacted topic."""
    table = log.read(topic)
    found = dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
    return {key: value for key, value in found.items() if value is not None}


# Compacted topics -----------------------------------------------------------------------


def test_the_remaining_records_of_a_compacted_topic_are_moved(target: Owner) -> None:
    changelog = Segments()
    for n in range(12):
        changelog.change(f"k{n % 3}", n)
    changelog.change("k1", None)
    changelog.clean()
    topic = changelog.partition.topic
    before = Log(changelog.owner).read(topic)
    assert len(before) < 13
    changelog.owner.commit_offsets("g", {changelog.partition: CommittedOffset(changelog.ends[-2])})
    moved(changelog.owner, target)
    there = Log(target)
    assert there.read(topic).drop_columns(["offset"]) == before.drop_columns(["offset"])
    position = target.committed("g")[changelog.partition].offset
    assert there.read(topic, start=position)["value"].to_pylist() == [None]
    changelog.owner.close()


def test_a_tombstone_removed_before_it_was_copied_is_detected(
    target: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy has the value by then, and would never learn of the deletion."""
    monkeypatch.setattr(reading, "ROUND_BYTES", 1)
    monkeypatch.setattr(scan, "MIN_PARTITION_BYTES", 1)
    changelog = Segments()
    changelog.change("stays", 1)
    changelog.change("goes", 2)
    moved(changelog.owner, target)  # copies the records so far
    changelog.delete_and_purge("goes")
    topic = changelog.partition.topic
    with pytest.raises(InvalidRequest, match="has to start over"):
        moved(changelog.owner, target)
    target.delete_topic(topic)
    moved(changelog.owner, target)
    assert latest(Log(target), topic) == {b"Qstays": b"\x01"} == latest(Log(changelog.owner), topic)
    changelog.owner.close()


def test_partitions_compacted_in_the_target_are_reported_as_not_compared(
    owner: Owner, target: Owner
) -> None:
    log = Log(owner)
    log.create_topic("t", config={"cleanup.policy": "compact"})
    for n in range(3):
        log.append("t", [{"key": b"k", "value": b"%d" % n}])
    moved(owner, target)
    places = MovedLog("here", owner), MovedLog("there", target)
    assert [topic.compared for topic in verify_only(*places).topics] == [True]
    tp = TopicPartition("t", 0)
    close_segment(target, tp)
    Log(target).append("t", [{"key": b"k", "value": b"later"}])
    close_segment(target, tp)
    clean(target, tp)
    assert [topic.compared for topic in verify_only(*places).topics] == [False]


# Typed topics ---------------------------------------------------------------------------


FLIGHT = pa.schema([pa.field("carrier", pa.string(), nullable=False), ("delay", pa.float64())])
ALL_KINDS = pa.schema(
    [
        ("carrier", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int32())),
        ("at", pa.timestamp("us", "UTC")),
        ("late", pa.bool_()),
        ("fare", pa.decimal128(9, 2)),
        ("place", pa.struct([("x", pa.float32()), ("name", pa.large_string())])),
        ("corners", pa.list_(pa.int16(), 2)),
    ]
)


def test_columns_of_all_kinds_stay_columns(owner: Owner, target: Owner) -> None:
    log = Log(owner)
    log.create_topic("flights", 2, schema=ALL_KINDS)
    row = {
        "carrier": "AA",
        "tags": ["a", None],
        "counts": [("x", 1)],
        "at": 7,
        "late": True,
        "fare": None,
        "place": {"x": 0.5, "name": "sea"},
        "corners": [1, 2],
    }
    log.append("flights", pa.Table.from_pylist([row, dict.fromkeys(row)] * 40, ALL_KINDS))
    moved(owner, target)
    there = Log(target)
    assert there.topic("flights").schema == ALL_KINDS
    assert there.read("flights").drop_columns(["offset"]) == log.read("flights").drop_columns(
        ["offset"]
    )


def test_records_with_fewer_columns_get_those_of_the_topic(owner: Owner, target: Owner) -> None:
    log = Log(owner)
    log.create_topic("flights", schema=FLIGHT)
    log.append("flights", [{"carrier": "AA", "delay": 1.0}])
    log.alter_topic("flights", schema=FLIGHT.append(pa.field("dest", pa.string())))
    log.append("flights", [{"carrier": "BB", "delay": None, "dest": "LHR"}])
    moved(owner, target)
    assert Log(target).read("flights")["value"].to_pylist() == [
        {"carrier": "AA", "delay": 1.0, "dest": None},
        {"carrier": "BB", "delay": None, "dest": "LHR"},
    ]
    log.alter_topic(
        "flights",
        schema=log.topic("flights").schema.append(pa.field("gate", pa.int8())),  # type: ignore[union-attr]
    )
    with pytest.raises(InvalidRequest, match="other columns"):
        moved(owner, target)


def test_a_typed_topic_without_a_form_for_the_cluster_is_refused_before_anything_is_moved(
    owner: Owner, target: Owner
) -> None:
    log = Log(owner)
    log.create_topic("bytes")
    log.create_topic("flights", schema=FLIGHT)
    cluster = MovedLog("there", Through(target, holds_columns=False))
    with pytest.raises(InvalidTopic, match="'flights' is typed .columns carrier, delay."):
        move(MovedLog("here", owner), cluster)
    assert [info.name for info in target.topics() if not info.internal] == []
    move(MovedLog("here", owner), cluster, Selection(["bytes"]))
    assert [info.name for info in target.topics() if not info.internal] == ["bytes"]


# Positions ------------------------------------------------------------------------------


def test_the_positions_of_each_task_are_moved_too(owner: Owner, target: Owner) -> None:
    log = Log(owner)
    log.create_topic("in")
    tp = TopicPartition("in", 0)
    with log.producer(transactional_id="p") as producer:
        for n in range(6):  # offsets 0, 2, 4 …
            with producer.transaction():
                producer.send("in", b"%d" % n)
    progress = [
        InputProgress("stopped", tp, CommittedOffset(4), window_pending=True),
        InputProgress("at the end", tp, CommittedOffset(12), next_timer=1_763_857_918_000),
    ]
    owner.commit_offsets("app", to_commit(progress))
    owner.commit_offsets("other", {tp: CommittedOffset(6, "a note")})
    moved(owner, target, metadata=translated)
    app, other = (target.committed(group) for group in ("app", "other"))
    there = Log(target).read("in")
    assert there["offset"].to_pylist() == [0, 1, 2, 3, 4, 5]
    tasks = [PartitionReader(name, ()) for name in ("stopped", "at the end")]
    end = target.offsets([tp])[tp].last_stable_offset
    assert app[tp].offset == 2
    assert positions_at("app", tp, app[tp], tasks) == {"stopped": 2, "at the end": end}
    assert waiting_of(app[tp]) == PendingAtEnd(("stopped",), {"at the end": 1_763_857_918_000})
    assert (other[tp].offset, other[tp].metadata) == (3, "a note")


def test_only_the_chosen_groups_and_topics_are_moved(owner: Owner, target: Owner) -> None:
    log = Log(owner)
    for name in ("a", "b"):
        log.create_topic(name)
        log.append(name, [{"value": b"1"}])
        for group in ("g", "h"):
            owner.commit_offsets(group, {TopicPartition(name, 0): CommittedOffset(1)})
    moved(owner, target, topics=["b"], groups=["h"])
    assert [info.name for info in target.topics() if not info.internal] == ["b"]
    assert target.groups() == ["h"]
    assert {tp.topic for tp in target.committed("h")} == {"b"}
    with pytest.raises(UnknownTopic, match="there are: a, b"):
        moved(owner, target, topics=["c"])


# The journal ------------------------------------------------------------------------------


def test_the_journal_matches_the_documented_format(owner: Owner, target: Owner) -> None:
    log = Log(owner)
    log.create_topic("t", 2)
    log.append("t", [{"value": b"1"}, {"value": b"2"}], partition=1)
    owner.commit_offsets("g", {TopicPartition("t", 1): CommittedOffset(1)})
    moved(owner, target)
    table = Log(target).read("__strandline_moves")
    begun, made, copied, verified, positions, finished = map(
        msgspec.msgpack.decode, table["value"].to_pylist()
    )
    kinds = ["begun", "made", "copied", "verified", "positions", "finished"]
    assert [key.decode() for key in table["key"].to_pylist()] == kinds
    here, there = owner.topic("t").topic_id, target.topic("t").topic_id
    assert begun == ["begun", here, "t", 0, [0, 0]]
    assert made[:3] == ["made", here, there]
    assert made[3]["retention.ms"] == "604800000"
    assert copied[:5] == ["copied", here, 1, 2, 2]
    assert copied[5] == copied[6]
    assert copied[6][0] == 2
    raw = pa.decompress(
        copied[7][8:], int.from_bytes(copied[7][:8], "little"), codec="zstd", asbytes=True
    )
    assert struct.unpack("<3q", raw) == (0, 0, 2)
    assert verified == ["verified", here, False]
    assert positions == ["positions", "g", [["t", 1, 1, ""]]]
    assert finished == ["finished", [here], []]


# Changes during a move ------------------------------------------------------------------


def test_records_deleted_by_retention_meanwhile_are_skipped(
    owner: Owner, target: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "ROUND_BYTES", 1)
    monkeypatch.setattr(scan, "MIN_PARTITION_BYTES", 1)
    log = Log(owner)
    log.create_topic("t")
    for n in range(5):
        log.append("t", [{"value": b"%d" % n}])
    owner.commit_offsets("g", {TopicPartition("t", 0): CommittedOffset(2)})

    def fetch(positions: dict[TopicPartition, int], **options: Any) -> Any:
        """Fetch, and delete the three records after the first one."""
        if positions == {TopicPartition("t", 0): 1}:
            owner.delete_records(TopicPartition("t", 0), 4)
        return owner.fetch(positions, **options)

    moved(Through(owner, fetch=fetch), target)
    there = Log(target).read("t")
    assert there["value"].to_pylist() == [b"0", b"4"]
    position = target.committed("g")[TopicPartition("t", 0)].offset
    assert Log(target).read("t", start=position)["value"].to_pylist() == [b"4"]


def test_many_small_batches_are_merged_into_few(owner: Owner, target: Owner) -> None:
    log = Log(owner)
    log.create_topic("t", 2)
    for n in range(40):
        more = {"headers": [("n", b"%d" % n)]} if n % 3 else {}
        log.append("t", [{"value": b"%d" % n, "headers": [], **more}], partition=n % 2)
    appended: list[int] = []

    def append(appends: list[Append]) -> Any:
        appended.extend(a.columns.num_rows for a in appends if a.topic == "t")
        return target.append(appends)

    moved(owner, Through(target, append=append))
    assert appended == [20, 20]
    there, here = (Log(broker).read("t").to_pylist() for broker in (target, owner))
    assert [(row["value"], row["headers"] or []) for row in there] == [
        (row["value"], row["headers"] or []) for row in here
    ]


# Refusals -------------------------------------------------------------------------------


def test_a_copy_that_differs_is_an_error_with_both_figures(owner: Owner, target: Owner) -> None:
    log = Log(owner)
    log.create_topic("t", 2)
    log.append("t", [{"key": b"%d" % n, "value": b"right"} for n in range(50)])

    def wrong(appends: list[Append]) -> Any:
        """Append with one value of partition 1 changed."""
        return target.append(
            [_spoilt(a) if (a.topic, a.partition) == ("t", 1) else a for a in appends]
        )

    with pytest.raises(
        CorruptLog, match=r"t-1: \d+ records with checksum \w{16} .* checksum \w{16}"
    ):
        moved(owner, Through(target, append=wrong))
    assert target.topic("t").effective.retention_ms == -1  # the topic does not get its settings


def _spoilt(append: Append) -> Append:
    values = append.columns.column("value").to_pylist()
    spoilt = pa.array([*values[:-1], b"wrong"], pa.binary())
    columns = append.columns.set_column(2, append.columns.schema.field(2), spoilt)
    return replace(append, columns=columns)


def test_transactions_that_stay_open_are_named(
    owner: Owner, target: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_WAIT_S", 0.0)
    log = Log(owner)
    log.create_topic("t")
    with log.producer(transactional_id="p") as producer:
        producer.begin_transaction()
        producer.send("t", b"open")
        producer.flush()
        log.append("t", [{"value": b"behind it"}])
        with pytest.raises(InvalidRequest, match="transactions are open: t-0 from offset 0"):
            moved(owner, target)
        producer.commit_transaction()
    assert moved(owner, target).copied == 2


def test_a_foreign_topic_of_the_same_name_is_not_changed(owner: Owner, target: Owner) -> None:
    log = Log(owner)
    log.create_topic("t")
    log.append("t", [{"value": b"1"}])
    moved(owner, target)
    target.delete_topic("t")
    target.create_topic("t")
    with pytest.raises(InvalidRequest, match="is not a copy of the one"):
        moved(owner, target)


def test_comparing_a_topic_that_was_not_moved_is_refused(owner: Owner, target: Owner) -> None:
    Log(owner).create_topic("t")
    with pytest.raises(InvalidRequest, match="'t' of here was not moved to there"):
        verify_only(MovedLog("here", owner), MovedLog("there", target))


def test_partitions_added_to_the_source_later_are_created(owner: Owner, target: Owner) -> None:
    log = Log(owner)
    log.create_topic("t")
    log.append("t", [{"value": b"1"}])
    moved(owner, target)
    log.alter_topic("t", partitions=3)
    log.append("t", [{"value": b"2"}], partition=2)
    assert moved(owner, target).copied == 1
    assert Log(target).read("t")["partition"].to_pylist() == [0, 2]
