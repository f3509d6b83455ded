"""Corner cases of cleaning: batches seen in part, passes cut short, forgotten producers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from strandline.changelog.embedded.checking.findings import Severity
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.embedded.cleaning import rewriting
from strandline.changelog.embedded.cleaning.cleaner import clean
from strandline.changelog.embedded.cleaning.passes import PassResult
from strandline.changelog.embedded.cleaning.schedule import Cleaners
from strandline.changelog.embedded.manifest import NO_HORIZON
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.topic import OpenTopic
from strandline.changelog.errors import DiskFull, StorageFailed
from strandline.changelog.layout import KEYS
from strandline.changelog.records import Append, Appended, TopicPartition
from strandline.changelog.storage import Bytes
from tests.crash.twin import Hook, Kind, Operation, PowerFile
from tests.log.kit import START_MS, Client, World
from tests.log.power import PowerWorld

T0 = TopicPartition("t", 0)
DAY_MS = 24 * 60 * 60 * 1000
ONE_KEY = 1
"""Bytes of memory for a map with room for one key."""


@pytest.fixture
def world() -> PowerWorld:
    """A log with the compacted topic `t`, on a disk that can fail."""
    world = PowerWorld()
    config = {"cleanup.policy": "compact", "segment.bytes": "4096", "delete.retention.ms": "1000"}
    world.owner.create_topic("t", config=config)
    return world


DELETING = {"cleanup.policy": "compact,delete", "retention.ms": "-1"}
"""Settings with which records of a compacted topic can be deleted, and only on request."""


def send(client: Client, *records: tuple[bytes | None, bytes | None]) -> Appended:
    """Append a batch of (key, value)."""
    keys, values = zip(*records, strict=True)
    columns = pa.record_batch(
        {
            "timestamp": pa.array([START_MS] * len(keys), pa.int64()),
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
    )
    base = client.sequences.get(T0, 0)
    client.sequences[T0] = base + len(keys)
    transactional = client.transactional_id is not None
    request = Append(*T0, columns, client.identity, base, transactional)
    return client.world.owner.append([request])[0]


def partition_of(world: World) -> Partition:
    return world.owner._log.catalog.get("t").partition(0)


def pass_of(world: World, memory: int) -> PassResult:
    """Run one pass with `memory` bytes for keys over all records."""
    partition = partition_of(world)
    if partition.segments[-1].size:
        partition.roll()
    now = world.clock.now_ms()
    return clean(partition, memory=memory, pace=lambda _: None, now_ms=now)


def left(world: World, start: int = 0) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return offsets, keys and values that a reader gets from an offset on."""
    found = []
    while True:
        fetched = world.owner.fetch({T0: start})[T0]
        found += [(r.offset, r.key, r.value) for b in fetched.batches for r in b.records()]
        if fetched.next_offset == start:
            return found
        start = fetched.next_offset


def test_a_reader_after_the_last_remaining_record_of_a_batch_continues_at_the_next_batch(
    world: PowerWorld,
) -> None:
    send(
        Client(world), (b"a", b"1"), (b"b", b"1"), (b"c", b"1")
    )  # the batch stays, because it is the producer's last
    send(Client(world), (b"b", b"2"), (b"c", b"2"))
    world.owner.clean(["t"])
    rest = [(3, b"b", b"2"), (4, b"c", b"2")]
    assert left(world) == [(0, b"a", b"1"), *rest]
    assert [left(world, start) for start in range(1, 5)] == [rest, rest, rest, rest[1:]]
    assert world.owner.offset_for_time(T0, START_MS) == 0


def test_a_tombstone_gets_its_horizon_from_the_pass_that_reaches_it(
    world: PowerWorld,
) -> None:
    send(Client(world), (b"b", b"1"))
    send(Client(world), (b"a", None), (b"b", None))
    while not pass_of(world, ONE_KEY).whole and partition_of(world).manifest.clean_end < 2:
        pass
    assert partition_of(world).manifest.clean_end == 2  # in the middle of the batch
    world.clock.advance(1001)
    world.owner.clean(["t"])
    assert [(key, value) for _, key, value in left(world)] == [(b"a", None), (b"b", None)]
    world.clock.advance(1000)
    world.owner.clean(["t"])
    assert left(world) == []


def test_a_batch_emptied_by_an_interrupted_pass_has_no_horizon(
    world: PowerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(Client(world), (b"a", None))  # the batch stays, because it is the producer's last
    with monkeypatch.context() as patch:
        patch.setattr(Partition, "note_cleaned", _failing)
        with pytest.raises(StorageFailed):
            pass_of(world, 1 << 16)
    assert partition_of(world).segments[0].delete_horizon != NO_HORIZON
    send(Client(world), (b"a", b"2"))
    world.owner.clean(["t"])
    assert left(world) == [(1, b"a", b"2")]
    assert {segment.delete_horizon for segment in partition_of(world).segments} == {NO_HORIZON}


def _failing(*_: Any) -> None:
    raise StorageFailed("the disk fails")


def test_records_of_an_open_transaction_across_the_log_start_stay_in_the_transaction(
    world: PowerWorld,
) -> None:
    client = Client(world, "tx")
    send(client, (b"a", b"1"), (b"b", b"1"))
    send(client, (b"c", b"1"))
    partition_of(world).roll()
    world.owner.alter_topic("t", config=DELETING)
    world.owner.delete_records(T0, 1)
    assert partition_of(world).last_stable_offset == 1
    pass_of(world, 1 << 16)
    client.abort()
    assert left(world, 1) == []
    world.owner.clean(["t"])
    assert left(world, 1) == []


def test_the_log_start_moves_to_the_requested_offset_even_if_its_records_are_gone(
    world: PowerWorld,
) -> None:
    world.owner.alter_topic("t", config={"cleanup.policy": "delete"})
    send(Client(world), (b"a", b"1"), (None, b"1"), (None, b"2"))
    world.owner.alter_topic("t", config={"cleanup.policy": "compact"})
    world.clock.advance(DAY_MS + 1)
    world.owner.tick()  # the producer is forgotten, so that its batch need not stay
    world.owner.clean(["t"])
    assert partition_of(world).segments[0].end_offset == 1
    world.owner.alter_topic("t", config=DELETING)
    assert [world.owner.delete_records(T0, to) for to in (1, 2, 3)] == [1, 2, 3]


@pytest.fixture
def emptied(world: PowerWorld) -> PowerWorld:
    """A log whose first segment was emptied by cleaning, with records after it."""
    both = {"cleanup.policy": "compact,delete", "retention.ms": "-1", "file.delete.delay.ms": "0"}
    world.owner.alter_topic("t", both)
    for key, value in ((b"a", b"1"), (b"c", b"2"), (b"a", b"3")):
        send_and_clean(world, key, value)
    send(Client(world), (b"b", b"4"))
    assert [one.base_offset for one in partition_of(world).segments] == [0, 1, 2, 3]
    assert [one.size > 0 for one in partition_of(world).segments] == [False, True, True, True]
    return world


def send_and_clean(world: PowerWorld, key: bytes, value: bytes) -> None:
    """Write and clean a segment of one record whose producer is forgotten, so its batch need not
    stay."""
    send(Client(world), (key, value))
    partition_of(world).roll()
    world.clock.advance(DAY_MS + 1)
    world.owner.tick()
    pass_of(world, 1 << 16)


def test_retention_without_a_limit_never_moves_the_log_start(emptied: PowerWorld) -> None:
    emptied.clock.advance(DAY_MS)
    emptied.owner.tick()
    assert emptied.owner.offsets([T0])[T0].log_start == 0
    assert [value for _, _, value in left(emptied, 0)] == [b"2", b"3", b"4"]


def test_empty_segments_go_with_the_first_one_after_them_that_retention_deletes(
    emptied: PowerWorld,
) -> None:
    emptied.owner.alter_topic("t", {"retention.ms": "1000"})
    emptied.clock.advance(20_000)
    emptied.owner.tick()
    assert emptied.owner.offsets([T0])[T0].log_start == 4
    assert len(partition_of(emptied).segments) == 1


def test_empty_segments_do_not_hold_up_retention_by_size(emptied: PowerWorld) -> None:
    size = partition_of(emptied).segments[-1].size
    emptied.owner.alter_topic("t", {"retention.bytes": str(size)})
    emptied.clock.advance(20_000)
    emptied.owner.tick()
    assert emptied.owner.offsets([T0])[T0].log_start == 3
    assert [value for _, _, value in left(emptied, 3)] == [b"4"]


def test_neighbouring_empty_segments_become_one(emptied: PowerWorld) -> None:
    partition_of(emptied).roll()
    for number in range(5):
        send_and_clean(emptied, b"a", b"%d" % number)
        send_and_clean(emptied, b"d%d" % number, b"")
        empty = [one.size == 0 for one in partition_of(emptied).segments[:-1]]
        assert not any(one and other for one, other in pairwise(empty))
    assert [key for _, key, _ in left(emptied)] == [b"c", b"b", *DS[:4], b"a", DS[4]]


DS = [b"d%d" % number for number in range(5)]


def test_a_pass_leaves_a_single_empty_segment_alone(emptied: PowerWorld) -> None:
    before, *_ = partition_of(emptied).segments
    done = pass_of(emptied, 1 << 16)
    assert partition_of(emptied).segments[0] is before
    assert before not in done.replaced


def test_records_without_a_key_are_counted_by_the_pass_that_removes_them(
    world: PowerWorld,
) -> None:
    world.owner.alter_topic("t", config={"cleanup.policy": "delete"})
    send(Client(world), (b"a", b"1"), (b"b", b"1"), (None, b"1"), (b"c", b"1"), (None, b"2"))
    world.owner.alter_topic("t", config={"cleanup.policy": "compact"})
    passes = [pass_of(world, ONE_KEY) for _ in range(3)]
    assert [(one.end, one.tally.keyless) for one in passes] == [(1, 0), (3, 1), (5, 1)]
    assert [one.tally.superseded for one in passes] == [0, 0, 0]


def test_check_accepts_an_older_marker_that_cleaning_has_left_of_a_forgotten_producer(
    world: PowerWorld,
) -> None:
    client = Client(world, "tx")
    send(client, (b"a", b"1"))
    client.commit()
    pass_of(world, 1 << 16)  # the marker stays, because it is the producer's last
    send(client, (b"a", b"2"))
    client.abort()
    partition_of(world).roll()  # the snapshot has the producer
    world.clock.advance(DAY_MS + 1)
    world.owner.tick()
    done = pass_of(world, 1 << 16)
    assert done.left_alone == 1, "no key was written, so nothing in the first segment can go"
    world.owner.close()
    report = check_log(world.storage, clock=world.clock).report
    assert [str(one) for one in report.findings if one.severity != Severity.NOTE] == []


def test_a_cleaned_segment_is_as_old_as_its_records(world: PowerWorld) -> None:
    # check takes a producer that is missing in a snapshot for forgotten only after a day idle
    send(Client(world), (b"a", b"1"))
    partition_of(world).roll()
    made = partition_of(world).segments[0].created_ms
    world.clock.advance(DAY_MS + 1)
    world.owner.tick()
    send(Client(world), (b"a", b"2"))
    world.owner.clean(["t"])
    first, *_ = partition_of(world).segments
    assert (first.created_ms, left(world)) == (made, [(1, b"a", b"2")])


def test_files_replaced_by_a_failed_pass_are_removed_after_the_delay(world: PowerWorld) -> None:
    clients = [Client(world) for _ in range(3)]
    for number in range(9):  # a segment each, of which two thirds stay
        send(clients[number % 3], (b"a", bytes(800)), (b"%d" % number, bytes(2400)))
    world.storage.hook = _second_manifest_finds_no_room()
    world.owner.clean(["t"])
    world.storage.hook = None
    [status] = [one for one in world.owner.cleaning() if one.topic == "t"]
    assert (status.state, status.reason) == ("failed", "no room")
    world.clock.advance(60_001)  # file.delete.delay.ms
    world.owner._log.maintenance.tick()
    partition = partition_of(world)
    listed = {segment.path for segment in partition.segments}
    assert set(world.storage.paths(partition.folder, ".log")) == listed
    world.owner.clean(["t"])
    assert [key for _, key, _ in left(world)] == [*(b"%d" % n for n in range(8)), b"a", b"8"]


@pytest.mark.parametrize(
    "steps",
    [
        [("read", ".log")],
        [("create", KEYS), ("read", ".log")],
        [("create", KEYS), ("unlink", KEYS), *4 * [("read", ".log")]],
    ],
    ids=["while dirty keys are read", "while clean keys are read", "while segments are rewritten"],
)
def test_a_pass_whose_segments_retention_removes_begins_again(
    world: PowerWorld, steps: list[tuple[Kind, str]]
) -> None:
    deletes = {"cleanup.policy": "compact,delete", "retention.ms": "60000"}
    world.owner.alter_topic("t", {**deletes, "file.delete.delay.ms": "0"})
    world.owner.alter_config({"log.cleaner.dedupe.buffer.size": "4096"})
    client = Client(world)
    for number in range(200):
        if number == 60:
            world.owner.clean(["t"])
            world.clock.advance(30_000)
        key = b"again" if 60 <= number < 110 else b"%d" % number
        client.append(bytes(100), key=key, times=world.clock.now_ms())
    kept = left(world, 120)

    def expire() -> None:
        world.clock.advance(30_001)
        world.owner._log.maintenance.tick()
        world.owner.delete_records(T0, 120)
        world.owner._log.maintenance.tick()

    partition_of(world).roll()  # before the hook sees its files
    world.storage.hook = _doing_after(steps, expire)
    world.owner.clean(["t"])
    world.storage.hook = None
    [status] = [one for one in world.owner.cleaning() if one.topic == "t"]
    assert (status.state, status.failures, status.dirty_bytes) == ("idle", 0, 0)
    assert partition_of(world).log_start == 120
    assert left(world, 120) == kept
    world.owner._log.maintenance.tick()
    listed = {segment.path for segment in partition_of(world).segments}
    assert set(world.storage.paths(partition_of(world).folder, ".log")) == listed


def _doing_after(steps: list[tuple[Kind, str]], action: Callable[[], None]) -> Hook:
    """Run `action` before the last of several operations, the others of which come first."""
    left = list(steps)

    def hook(operation: Operation) -> None:
        if left and operation.kind == left[0][0] and left[0][1] in operation.path:
            left.pop(0)
            if not left:
                action()

    return hook


def test_a_pass_names_a_segment_that_is_gone(world: PowerWorld) -> None:
    send(Client(world), (b"a", b"1"), (b"a", b"2"))
    partition_of(world).roll()
    path = partition_of(world).segments[0].path
    world.storage.rename(path, f"{path}.away")
    world.owner.clean(["t"])
    [status] = [one for one in world.owner.cleaning() if one.topic == "t"]
    world.storage.rename(f"{path}.away", path)
    assert status.state == "failed"
    assert "the segment is gone" in status.reason


def _second_manifest_finds_no_room() -> Any:
    count = [0]

    def hook(operation: Operation) -> None:
        if operation.kind == "rename" and "topics/" in operation.path:
            count[0] += operation.path.endswith("manifest.meta")
            if count[0] == 3 and operation.path.endswith(
                "manifest.meta"
            ):  # the first manifest is the roll's
                raise DiskFull("no room")

    return hook


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("death", ["kill", "power"])
def test_the_log_recovers_from_a_swap_whose_sync_failed(
    world: PowerWorld, death: str, *, rolled: bool
) -> None:
    for value in (b"1", b"2"):
        send(Client(world), (b"a", value), (b"b", value))
    partition_of(world).roll()
    world.storage.hook = _folder_is_not_synced_after_the_rename()
    with pytest.raises(StorageFailed):
        pass_of(world, 1 << 16)
    world.storage.hook = None
    send(Client(world), (b"c", b"3"))
    if rolled:
        partition_of(world).roll()
        send(Client(world), (b"d", b"4"))
    last = {key: value for _, key, value in left(world)}
    world.crash() if death == "kill" else world.power_cut()
    assert {key: value for _, key, value in left(world)} == last
    world.owner.clean(["t"])
    assert {key: value for _, key, value in left(world)} == last
    assert len(left(world)) == len(last)


def _folder_is_not_synced_after_the_rename() -> Any:
    renamed: list[Operation] = []

    def hook(operation: Operation) -> None:
        if operation.kind == "rename" and operation.path.endswith("manifest.meta"):
            renamed.append(operation)
        if operation.kind == "sync_dir" and len(renamed) == 1:
            renamed.append(operation)
            raise StorageFailed("cannot sync the folder")

    return hook


def test_a_partition_that_is_less_dirty_does_not_wait_for_ever(
    world: PowerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another partition is as dirty again whenever the cleaner looks."""
    owner, client = world.owner, Client(world)
    owner.create_topic("busy", config={"cleanup.policy": "compact", "segment.bytes": "4096"})
    for number in range(80):
        client.append(b"." * 200, key=b"%d" % number)
    owner.clean(["t"])
    for topic in ("t", "busy"):
        for number in range(120):
            client.append(b"." * 200, topic=topic, key=b"%d" % number)
    ratios = {status.topic: status.ratio for status in owner.cleaning()}
    assert 0.5 < ratios["t"] < ratios["busy"]
    chosen = []

    def begin(cleaners: Cleaners, topic: OpenTopic, partition: Partition, _: object) -> None:
        chosen.append(topic.meta.name)
        cleaners._progresses[partition].due_ms = None
        cleaners._busy = 1

    monkeypatch.setattr(Cleaners, "_begin", begin)
    for _ in range(4):
        owner._log.cleaners._busy = 0
        world.clock.advance(15_000)
        owner.tick()
    assert chosen[0] == "busy"
    assert "t" in chosen


def test_a_rewritten_segment_is_synced_piece_by_piece(
    world: PowerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the sync at the end of a segment would keep the disk busy and delay every
    commit."""
    monkeypatch.setattr(rewriting, "WRITE_BACK_BYTES", 1_000)
    monkeypatch.setattr(rewriting, "MAX_WRITE_BACKS", 3)
    monkeypatch.setattr(rewriting, "MERGED_BYTES", 400)
    world.owner.alter_topic("t", {"segment.bytes": "1000000"})
    client = Client(world)
    for number in range(100):
        send(client, (b"%d" % number, b"v" * 100))
    disk = Disk(monkeypatch)
    pass_of(world, 1 << 20)
    assert disk.written > 10_000
    assert disk.given_back == sorted(disk.given_back), "each piece once, in order"
    assert len(disk.given_back) > 9
    assert disk.most_unsynced < 3 * 1_000 + 2 * 1_000
    assert len(left(world)) == 100


class Disk:
    """Watches the bytes of a new file that are written and not yet synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written = self.synced = self.most_unsynced = 0
        self.given_back: list[int] = []
        append, sync = PowerFile.append, PowerFile.sync

        def appending(file: PowerFile, *parts: Bytes) -> int:
            if file._path.endswith(".log"):
                self.written += sum(map(len, parts))
                self.most_unsynced = max(self.most_unsynced, self.written - self.synced)
            return append(file, *parts)

        def syncing(file: PowerFile) -> None:
            sync(file)
            self.synced = self.written

        def giving(file: PowerFile, position: int) -> None:
            self.given_back.append(position)

        monkeypatch.setattr(PowerFile, "append", appending)
        monkeypatch.setattr(PowerFile, "sync", syncing)
        monkeypatch.setattr(PowerFile, "write_back", giving)
