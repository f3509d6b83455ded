"""A pinned range reads the same until its pin is released or has expired."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.changelog.embedded.checking.findings import Severity
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.errors import (
    CorruptLog,
    InvalidConfig,
    InvalidRequest,
    OffsetOutOfRange,
    OwnerUnavailable,
    StorageFailed,
    UnknownPartition,
    UnknownPin,
    UnknownTopic,
)
from strandline.changelog.history import epoch_before
from strandline.changelog.layout import pin_file, pin_folder
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.pins import MAX_TIMEOUT_MS, PinName, PinnedRange
from strandline.changelog.records import Append, TopicPartition, columns_schema
from tests.cleaning import clean
from tests.crash.twin import Died, Operation, PowerStorage
from tests.log.kit import Client, World
from tests.log.power import PowerWorld, failing, stopping

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
PIN = PinName("query", "a", "b")
HOUR = 3_600_000
SMALL = {
    "cleanup.policy": "compact,delete",
    "segment.bytes": "4096",
    "index.interval.bytes": "512",
    "file.delete.delay.ms": "0",
    "retention.ms": "600000",
}
KEYS = [b"ebb", b"flow", b"tide"]


@pytest.fixture(params=["memory", "folder", "twin"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A log with the topic `t` of two partitions and many small segments, on each kind of
    storage."""
    storages = {"folder": lambda: LocalStorage(tmp_path / "log"), "twin": PowerStorage}
    kind = storages.get(request.param)
    world = World() if kind is None else World(storage=kind())
    world.owner.create_topic("t", 2, config=SMALL)
    return world


def fill(world: World, count: int = 60, *, topic: str = "t", partition: int = 0) -> None:
    """Append plain, committed and aborted batches of the same few keys."""
    plain = Client(world)
    writers = [plain, Client(world, "one"), Client(world, "two")]
    for number in range(count):
        client = writers[number % 3]
        values = [b"%d.%d" % (number, n) + b"." * 80 for n in range(3)]
        where: dict[str, Any] = {"topic": topic, "partition": partition}
        client.append(*values, key=KEYS[number % len(KEYS)], **where)
        if client is not plain:
            client.commit() if number % 2 else client.abort()


def committed(world: World, tp: TopicPartition = T0) -> PinnedRange:
    """Return the range of all committed records of a partition."""
    ends = world.owner.offsets([tp])[tp]
    return PinnedRange(ends.topic_id, ends.log_start, ends.last_stable_offset)


def hold(world: World, name: PinName = PIN, *tps: TopicPartition, timeout: int = HOUR) -> None:
    ranges = {tp: committed(world, tp) for tp in tps or (T0,)}
    assert world.owner.pins.hold(name, ranges, timeout_ms=timeout) == ranges


def pinned(
    world: World, name: PinName = PIN, tp: TopicPartition = T0, max_bytes: int = 1 << 20
) -> list[tuple[int, Any]]:
    """Return offsets and values of a pinned range."""
    found = world.owner.pins.use(name)[tp]
    position, seen = found.start, []
    while position < found.end:
        fetched = world.owner.pins.fetch(name, tp, position, max_bytes=max_bytes)
        for batch in fetched.batches:
            seen += [(r.offset, r.value) for r in batch.records() if r.offset < found.end]
        assert fetched.next_offset > position
        position = fetched.next_offset
    return seen


def shown(world: World, tp: TopicPartition = T0) -> list[tuple[int, Any]]:
    """Return offsets and values that a reader gets now."""
    position, seen = world.owner.offsets([tp])[tp].log_start, []
    while batches := (fetched := world.owner.fetch({tp: position})[tp]).batches:
        seen += [(r.offset, r.value) for batch in batches for r in batch.records()]
        position = fetched.next_offset
    return seen


def rewritten(world: World) -> None:
    assert clean(world.owner, T0).tally.superseded > 0


def everything_deleted(world: World) -> None:
    world.owner.delete_records(T0, -1)
    world.owner.tick()


def grown_old(world: World) -> None:
    world.clock.advance(700_000)
    fill(world, 3)
    world.owner.tick()


def deleted(world: World) -> None:
    world.owner.delete_topic("t")


@pytest.mark.parametrize("fate", [rewritten, everything_deleted, grown_old, deleted])
def test_a_pinned_range_reads_the_same_after_any_change_of_the_log(world: World, fate: Any) -> None:
    fill(world)
    before = shown(world)
    assert len(world.owner._log.partition(T0).segments) > 3
    hold(world)
    fate(world)
    assert not world.owner._log.catalog.has("t") or shown(world) != before
    assert pinned(world) == before
    assert pinned(world, max_bytes=1) == before  # one batch per fetch
    world.reopen()
    assert pinned(world) == before


def test_a_part_of_a_partition_is_pinned_from_and_to_any_offset(world: World) -> None:
    fill(world)
    before, whole = shown(world), committed(world)
    chance = random.Random(7)
    spans = []
    for number in range(12):
        start, end = sorted(chance.randrange(whole.end + 1) for _ in range(2))
        name = PinName("query", "a", f"b{number}")
        span = {T0: PinnedRange(whole.topic_id, start, end)}
        assert world.owner.pins.hold(name, span, timeout_ms=HOUR) == span
        spans.append((name, start, end))
    rewritten(world)
    for name, start, end in spans:
        assert pinned(world, name) == [one for one in before if start <= one[0] < end]


def test_only_the_segments_of_a_range_are_kept(world: World) -> None:
    fill(world)
    first, *_ = world.owner._log.partition(T0).segments
    span = {T0: PinnedRange(committed(world).topic_id, 1, 2)}
    world.owner.pins.hold(PIN, span, timeout_ms=HOUR)
    links = [n for n in world.storage.list_dir(pin_folder(PIN)) if n.endswith(".log")]
    assert [name.endswith(first.name.log_file) for name in links] == [True]


def test_several_partitions_are_pinned_together(world: World) -> None:
    fill(world)
    fill(world, 5, partition=1)
    before = shown(world, T0), shown(world, T1)
    hold(world, PIN, T0, T1)
    deleted(world)
    assert (pinned(world, tp=T0), pinned(world, tp=T1)) == before


def test_the_active_segment_is_pinned_up_to_the_requested_end(world: World) -> None:
    client, opened = Client(world), Client(world, "one")
    client.append(b"1", b"2")
    hold(world)
    client.append(b"3")
    opened.append(b"4")
    world.owner.pins.hold(PinName("query", "b", "c"), {T0: committed(world)}, timeout_ms=HOUR)
    opened.commit()
    assert pinned(world, PinName("query", "b", "c")) == [(0, b"1"), (1, b"2"), (2, b"3")]


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_pin_survives_a_power_cut_with_all_its_files(durability: str) -> None:
    world = PowerWorld(durability=durability)
    world.owner.create_topic("t", 2, config=SMALL)
    fill(world, 20)
    before = shown(world)
    Client(world, "three").append(b"behind it, and not durable")
    hold(world)
    world.power_cut()
    assert pinned(world) == before


def test_a_pin_document_never_exists_without_its_links() -> None:
    world = PowerWorld()
    world.owner.create_topic("t", 2, config=SMALL)
    fill(world)
    before = shown(world)
    world.storage.hook = stopping("sync_dir", pin_folder(PIN))
    with pytest.raises(Died):
        hold(world)
    world.crash()
    assert world.storage.list_dir("pins") == []
    seen: list[str] = []

    def die_at_the_last(operation: Operation) -> None:
        seen.append(operation.path)
        if operation.kind == "sync_dir" and pin_file(PIN) in seen:
            raise Died

    world.storage.hook = die_at_the_last
    with pytest.raises(Died):
        hold(world)
    world.power_cut(keep=lambda change: change.path == pin_file(PIN))
    assert pinned(world) == before


def test_a_typed_topic_is_read_with_the_columns_that_it_had(world: World) -> None:
    schema = pa.schema([("n", pa.int64())])
    world.owner.create_topic("typed", 1, schema=schema)
    tp = TopicPartition("typed", 0)
    value = pa.array([{"n": 1}, None], pa.struct(list(schema)))
    columns = pa.record_batch(
        [pa.array([0, 0], pa.int64()), pa.array([b"k", b"k"], pa.binary()), value],
        schema=columns_schema(value.type, headers=False),
    )
    producer = world.owner.init_producer()
    world.owner.append([Append("typed", 0, columns, producer, 0, schema_id=1)])
    hold(world, PIN, tp)
    wider = pa.schema([*schema, ("more", pa.string())])
    world.owner.alter_topic("typed", schema=wider)
    assert pinned(world, tp=tp) == [(0, {"n": 1}), (1, None)]


# Names, and how long -----------------------------------------------------------------------


def test_an_existing_pin_of_the_same_name_is_kept(world: World) -> None:
    fill(world)
    before = shown(world)
    hold(world)
    was = world.owner.pins.use(PIN)
    rewritten(world)
    Client(world).append(b"later")
    assert world.owner.pins.hold(PIN, {T0: committed(world)}, timeout_ms=1) == was
    assert pinned(world) == before


def test_a_newer_pin_of_a_holder_replaces_its_earlier_pins(world: World) -> None:
    fill(world, 6)
    names = [PinName("query", "a", "b"), PinName("query", "a", "c"), PinName("other", "a", "b")]
    for name in names:
        hold(world, name)
    assert [shown(world)] * 3 == [pinned(world, name) for name in names]
    hold(world, further := PinName("query", "b", "d"))
    for name in names[:2]:
        with pytest.raises(UnknownPin, match=str(name)):
            world.owner.pins.use(name)
        assert not world.storage.exists(pin_folder(name))
    assert pinned(world, names[2]) == pinned(world, further) == shown(world)


def test_a_released_pin_is_gone_with_its_files(world: World) -> None:
    fill(world, 6)
    hold(world, PIN)
    hold(world, other := PinName("query", "a", "c"))
    world.owner.pins.release("query", "b")
    world.owner.pins.release("query", "b")
    with pytest.raises(UnknownPin):
        world.owner.pins.fetch(PIN, T0, 0, max_bytes=1)
    assert pinned(world, other) == shown(world)
    world.owner.pins.release("query", "c")
    assert world.storage.list_dir("pins") == []


def test_an_unused_pin_is_removed_after_its_timeout(world: World) -> None:
    fill(world, 6)
    hold(world)
    for _ in range(3):
        world.clock.advance(HOUR - 1)
        world.owner.tick()
        world.owner.pins.use(PIN)
        world.reopen()
    world.clock.advance(HOUR)
    world.owner.tick()
    with pytest.raises(UnknownPin, match="timed out"):
        world.owner.pins.use(PIN)
    assert world.storage.list_dir("pins") == []


def test_an_expired_pin_is_removed_at_the_next_opening(world: World) -> None:
    hold(world)
    world.owner.close()
    world.clock.advance(HOUR)
    world.open()
    assert world.storage.list_dir("pins") == []


def test_a_clock_that_is_set_back_does_not_extend_a_pin(world: World) -> None:
    hold(world)
    world.owner.close()
    world.clock.advance(-1000 * HOUR)
    world.open()
    world.clock.advance(HOUR)
    world.owner.tick()
    assert world.storage.list_dir("pins") == []


# Refusals and leftovers --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "span", "timeout", "error"),
    [
        (PinName("..", "a", "b"), (0, 1), HOUR, InvalidRequest),
        (PinName("query", "a/b", "c"), (0, 1), HOUR, InvalidRequest),
        (PinName("query", "a", ""), (0, 1), HOUR, InvalidRequest),
        (PinName("Query", "a", "b"), (0, 1), HOUR, InvalidRequest),
        (PIN, (0, 1), 0, InvalidConfig),
        (PIN, (0, 1), MAX_TIMEOUT_MS + 1, InvalidConfig),
        (PIN, (0, 1_000), HOUR, OffsetOutOfRange),
        (PIN, (-1, 1), HOUR, OffsetOutOfRange),
        (PIN, (2, 1), HOUR, OffsetOutOfRange),
    ],
)
def test_a_failed_pin_leaves_nothing(
    world: World, name: PinName, span: tuple[int, int], timeout: int, error: type[Exception]
) -> None:
    fill(world, 3)
    ranges = {T0: PinnedRange(committed(world).topic_id, *span)}
    with pytest.raises(error):
        world.owner.pins.hold(name, ranges, timeout_ms=timeout)
    assert world.storage.list_dir("pins") == []


def test_another_topic_of_the_same_name_is_not_pinned(world: World) -> None:
    fill(world, 3)
    old = committed(world)
    deleted(world)
    world.owner.create_topic("t", 2, config=SMALL)
    fill(world, 3)
    with pytest.raises(UnknownTopic, match="created again"):
        world.owner.pins.hold(PIN, {T0: old}, timeout_ms=HOUR)


def test_a_range_of_another_history_is_not_pinned(world: World) -> None:
    fill(world, 3)
    epoch = epoch_before(world.owner.offsets([T0])[T0].epochs, committed(world).end)
    own = committed(world)._replace(leader_epoch=epoch.number, incarnation=epoch.incarnation)
    other = own._replace(incarnation="of a copy")
    with pytest.raises(OffsetOutOfRange, match="cannot pin offsets .* of another history"):
        world.owner.pins.hold(PIN, {T0: other}, timeout_ms=HOUR)
    assert world.storage.list_dir("pins") == []
    assert world.owner.pins.hold(PIN, {T0: own}, timeout_ms=HOUR) == {T0: committed(world)}


def test_a_pin_holds_exactly_the_requested_range(world: World) -> None:
    fill(world, 3)
    hold(world)
    with pytest.raises(UnknownPartition, match="t-1"):
        world.owner.pins.fetch(PIN, T1, 0, max_bytes=1)
    with pytest.raises(OffsetOutOfRange, match="pinned from 0"):
        world.owner.pins.fetch(PIN, T0, 1_000, max_bytes=1)


def test_a_closed_log_has_no_pins(world: World) -> None:
    hold(world)
    world.owner.close()
    with pytest.raises(OwnerUnavailable):
        world.owner.pins.use(PIN)


def test_the_error_about_missing_hard_links_suggests_a_remedy() -> None:
    world = PowerWorld()
    world.owner.create_topic("t", 2, config=SMALL)
    fill(world, 3)
    world.storage.hook = failing("link")
    with pytest.raises(StorageFailed, match=r"hard links.*pinTimeoutMs 0"):
        hold(world)
    assert world.storage.list_dir("pins") == []
    world.storage.hook = None
    hold(world)
    assert pinned(world) == shown(world)


def test_a_pin_that_cannot_be_removed_is_removed_later() -> None:
    world = PowerWorld()
    world.owner.create_topic("t", 2, config=SMALL)
    fill(world, 3)
    hold(world)
    world.storage.hook = failing("unlink", "pins/")
    world.owner.pins.release("query", "b")
    world.storage.hook = None
    world.clock.advance(HOUR)
    world.owner.tick()
    assert world.storage.list_dir("pins") == []


def test_opening_removes_files_left_by_a_crash_and_no_foreign_ones(world: World) -> None:
    fill(world, 3)
    hold(world)
    whole = PinName("query", "a", "whole")
    hold(world, whole)
    world.owner.close()
    world.storage.unlink(pin_file(PIN))
    world.storage.make_dir("pins/query/of somebody else")
    world.storage.create("pins/query/of somebody else/file").close()
    world.open()
    assert world.storage.list_dir("pins/query") == ["a-whole", "of somebody else"]
    assert pinned(world, whole) == shown(world)


@pytest.mark.damages
def test_a_damaged_pin_is_removed_without_harm_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    world = PowerWorld()
    world.owner.create_topic("t", 2, config=SMALL)
    fill(world, 3)
    hold(world)
    world.owner.close()
    world.storage.flip(pin_file(PIN), -1)
    world.open()
    assert "pin query/a-b is lost" in caplog.text
    with pytest.raises(UnknownPin):
        world.owner.pins.use(PIN)
    assert len(shown(world)) == 6


@pytest.mark.damages
def test_damage_in_a_pinned_file_is_named() -> None:
    world = PowerWorld()
    world.owner.create_topic("t", 2, config=SMALL)
    fill(world)
    hold(world)
    first, *_ = world.owner._log.partition(T0).segments
    world.storage.flip(first.path, 150)
    with pytest.raises(CorruptLog, match="pins/query/a-b/"):
        pinned(world)


def test_a_pin_with_a_missing_link_counts_as_missing(world: World) -> None:
    fill(world)
    hold(world)
    links = [n for n in world.storage.list_dir(pin_folder(PIN)) if n.endswith(".log")]
    world.storage.unlink(f"{pin_folder(PIN)}/{links[-1]}")
    with pytest.raises(UnknownPin):
        pinned(world)
    world.reopen()
    assert world.storage.list_dir("pins") == []


def found_by_check(world: World) -> list[tuple[str, str]]:
    findings = check_log(world.storage, clock=world.clock).report.findings
    assert {found.severity for found in findings} <= {Severity.NOTE}
    return [(found.file, found.what) for found in findings if found.kind == "pin"]


def test_check_verifies_pins_and_reports_sound_ones_as_no_damage(world: World) -> None:
    fill(world)
    hold(world)
    hold(world, unfinished := PinName("query", "a", "c"))
    hold(world, torn := PinName("query", "a", "d"))
    world.owner.close()
    assert found_by_check(world) == []
    world.storage.unlink(pin_file(unfinished))
    links = [n for n in world.storage.list_dir(pin_folder(torn)) if n.endswith(".log")]
    world.storage.unlink(f"{pin_folder(torn)}/{links[0]}")
    (_, first), (_, second) = found_by_check(world)
    assert "incomplete" in first
    assert f"{links[0]} is missing" in second
    world.open()
    world.owner.close()
    assert found_by_check(world) == []


def test_pins_created_while_the_log_is_written_and_cleaned_are_complete(tmp_path: Path) -> None:
    world = World(storage=LocalStorage(tmp_path / "log"))
    world.owner.create_topic("t", 1, config={**SMALL, "min.cleanable.dirty.ratio": "1"})
    stop, cleaned, client = threading.Event(), 0, Client(world)

    def write(numbers: Iterable[int]) -> None:
        for number in numbers:
            if stop.is_set():
                return
            client.append(b"%d" % number, key=KEYS[number % len(KEYS)])

    def sweep() -> None:
        nonlocal cleaned
        while not stop.is_set():
            cleaned += clean(world.owner, T0).tally.superseded

    write(range(100))
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(write, count(100)), pool.submit(sweep)]
        try:
            for number in range(15):
                name = PinName("query", f"a{number}", "b")
                hold(world, name)
                first, end = pinned(world, name), world.owner.pins.use(name)[T0].end
                before = cleaned
                deadline = time.monotonic() + 10
                while cleaned == before and time.monotonic() < deadline:
                    assert pinned(world, name) == first
                if (
                    world.owner.offsets([T0])[T0].superseding_end <= end
                ):  # otherwise it would be cleaned at once
                    last = [int(value) for _, value in first[-3:]]
                    assert last == list(range(end - 3, end))
        finally:
            stop.set()
    for one in running:
        one.result()
    assert cleaned > 300
