"""Spilling of keys that do not fit into the cleaner's memory, so that one pass covers all of
them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.changelog.embedded.checking.findings import Severity
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.embedded.cleaning import look
from strandline.changelog.embedded.cleaning.bounds import bounds_of
from strandline.changelog.embedded.cleaning.cleaner import clean
from strandline.changelog.embedded.cleaning.marks import FRAME_BITS
from strandline.changelog.embedded.cleaning.offset_map import ENTRY_BYTES, OffsetMap
from strandline.changelog.embedded.cleaning.passes import PassPace, PassResult
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.errors import DiskFull, StorageFailed
from strandline.changelog.layout import KEYS
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.records import Append, TopicPartition
from tests.crash.twin import Died, Hook, Kind, Operation
from tests.log.kit import START_MS, Client, World
from tests.log.power import PowerWorld, doing, failing

T0 = TopicPartition("t", 0)
MEMORY = 4096
"""Bytes of memory for a pass: 76 keys, and 4096 bits."""
ALL = 1 << 20
"""Bytes of memory for a pass: enough for all keys."""
CAPACITY = OffsetMap(MEMORY, base=0, seed=0).capacity
ROOM = MEMORY // 2 // ENTRY_BYTES
"""Number of keys that just fit in if they come at once."""
BITS = look.MAX_BITS_PER_BYTE * MEMORY // 2
ENTRY = 20
"""Bytes of a key in the file."""


@pytest.fixture
def world() -> PowerWorld:
    """A log with the compacted topic `t`, on a disk that can fail."""
    return world_of()


def world_of() -> PowerWorld:
    world = PowerWorld()
    config = {"cleanup.policy": "compact", "segment.bytes": "65536", "delete.retention.ms": "1000"}
    world.owner.create_topic("t", config=config)
    return world


def send(client: Client, keys: list[int]) -> None:
    """Append a batch with these keys. Each value is the number of its record."""
    base = client.sequences.get(T0, 0)
    columns = pa.record_batch(
        {
            "timestamp": pa.array([START_MS] * len(keys), pa.int64()),
            "key": pa.array([b"%d" % key for key in keys], pa.binary()),
            "value": pa.array([b"%d" % (base + n) for n in range(len(keys))], pa.binary()),
        }
    )
    client.sequences[T0] = base + len(keys)
    client.world.owner.append([Append(*T0, columns, client.identity, base, False, 0)])


def partition_of(world: World) -> Partition:
    return world.owner._log.catalog.get("t").partition(0)


def close_segment(world: World) -> Partition:
    """Roll the partition, so that all records can be cleaned."""
    partition = partition_of(world)
    if partition.segments[-1].size:
        partition.roll()
    return partition


def pass_of(world: World, memory: int = MEMORY, pace: PassPace = lambda _: None) -> PassResult:
    """Run one pass over all records."""
    partition, now = close_segment(world), world.clock.now_ms()
    return clean(partition, memory=memory, pace=pace, now_ms=now)


def left(world: World) -> dict[int, bytes]:
    """Return offsets and keys that a reader gets."""
    found, position = dict[int, bytes](), 0
    while True:
        fetched = world.owner.fetch({T0: position})[T0]
        for batch in fetched.batches:
            for record in batch.records():
                assert record.key is not None
                found[record.offset] = record.key
        if fetched.next_offset == position:
            return found
        position = fetched.next_offset


def last_of(keys: list[int], base: int = 0) -> dict[int, bytes]:
    """Return the offsets and keys that cleaning must keep of these keys."""
    last = {key: base + n for n, key in enumerate(keys)}
    return {offset: b"%d" % key for key, offset in sorted(last.items(), key=lambda one: one[1])}


def files(world: PowerWorld) -> list[str]:
    return [path for path in world.storage.paths("topics", ".tmp") if path.endswith(KEYS)]


# Kept records --------------------------------------------------------------------------


def test_one_pass_is_enough_for_any_number_of_different_keys(world: PowerWorld) -> None:
    keys = list(range(9 * CAPACITY + 5))
    send(Client(world), keys)
    done = pass_of(world)
    assert (done.whole, done.end, done.map_use) == (True, len(keys), 1.0)
    assert done.spilled_bytes == ENTRY * len(keys)
    assert left(world) == last_of(keys)


def test_a_hot_key_is_spilled_each_time_the_map_is_full(world: PowerWorld) -> None:
    keys = [n // 2 if n % 2 else -1 for n in range(8 * CAPACITY)]
    send(Client(world), keys)
    done = pass_of(world)
    assert done.whole
    assert ENTRY * 4 * CAPACITY < done.spilled_bytes <= ENTRY * (4 * CAPACITY + 6)
    assert left(world) == last_of(keys)


def test_keys_that_fit_are_not_spilled(world: PowerWorld) -> None:
    keys = [n % (CAPACITY // 2) for n in range(9 * CAPACITY)]
    send(Client(world), keys)
    world.storage.hook = failing("create", KEYS)
    done = pass_of(world)
    assert (done.whole, done.spilled_bytes) == (True, 0)
    assert left(world) == last_of(keys)


SECTIONS = st.lists(
    st.lists(st.integers(0, 3 * CAPACITY), min_size=1, max_size=4 * CAPACITY),
    min_size=1,
    max_size=3,
)


@given(sections=SECTIONS, memory=st.sampled_from([MEMORY // 4, MEMORY]))
def test_a_pass_keeps_the_last_record_of_every_key(sections: list[list[int]], memory: int) -> None:
    world = world_of()
    client, sent = Client(world), list[int]()
    with patch.object(look, "MAX_BITS_PER_BYTE", 20):
        for keys in sections:  # the clean part takes part in the next pass
            for at in range(0, len(keys), 50):
                send(client, keys[at : at + 50])
            sent += keys
            done = pass_of(world, memory)
            assert done.whole
            assert left(world) == last_of(sent)
            assert files(world) == []


def test_equal_keys_in_the_clean_part_are_both_superseded(world: PowerWorld) -> None:
    client = Client(world)
    send(client, [1, 1, 2, 3, 3])
    partition = close_segment(world)
    partition.note_cleaned(5)  # pretends that the partition is clean to here
    dirty = [1, 2, *range(10, 10 + 4 * CAPACITY)]
    send(client, dirty)
    done = pass_of(world)
    assert (done.start, done.whole) == (5, True)
    assert done.spilled_bytes > 0
    assert left(world) == {4: b"3", **last_of(dirty, base=5)}


def test_a_partly_clean_frame_keeps_the_last_records_of_both_parts(
    world: PowerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "MAX_BITS_PER_BYTE", 20)
    client = Client(world)
    first = [*range(30), 5, 6, 7]
    send(client, first)
    partition = close_segment(world)
    partition.note_cleaned(30)
    rest = [0, 31, *range(100, 100 + 3 * CAPACITY)]
    send(client, rest)
    done = pass_of(world)
    assert (done.start, done.whole) == (30, True)
    assert left(world) == last_of(first + rest)


def test_aborted_records_supersede_nothing_even_in_the_clean_part(
    world: PowerWorld,
) -> None:
    client, other = Client(world), Client(world, "tx")
    send(client, [1, 2])
    other.append(b"aborted", key=b"1")
    partition = close_segment(world)
    other.abort()  # its marker is beyond the first pass's view
    first = clean(partition, memory=ALL, pace=lambda _: None, now_ms=world.clock.now_ms())
    assert (first.end, first.tally.aborted) == (3, 0)
    send(client, list(range(10, 10 + 3 * CAPACITY)))
    done = pass_of(world)
    assert (done.whole, done.spilled_bytes > 0) == (True, True)
    assert done.tally.aborted == 1
    assert list(left(world).values())[:3] == [b"1", b"2", b"10"]


def test_the_keys_of_the_dirty_section_are_counted(world: PowerWorld) -> None:
    client = Client(world)
    send(client, list(range(1000, 1000 + CAPACITY)))
    pass_of(world, ALL)
    send(client, 2 * list(range(3 * CAPACITY)))
    partition = close_segment(world)
    bounds = bounds_of(partition, world.clock.now_ms())
    known = look.find_latest(partition, bounds, MEMORY, lambda _: None, PassResult())
    assert (known.latest.keys, known.latest.use, known.end) == (
        3 * CAPACITY,
        1.0,
        bounds.first_uncleanable,
    )


# End of a pass --------------------------------------------------------------------------


def test_a_pass_ends_before_it_needs_too_many_bits(world: PowerWorld) -> None:
    keys = list(range(BITS + 500))
    for at in range(0, len(keys), 1000):
        send(Client(world), keys[at : at + 1000])
    done = pass_of(world)
    assert (done.whole, done.end) == (False, BITS)
    second = pass_of(world)
    assert (second.start, second.whole) == (BITS, False)  # the clean part leaves no room for bits
    assert CAPACITY <= second.end - second.start <= ROOM
    assert second.spilled_bytes == 0
    assert left(world) == last_of(keys)


@pytest.mark.parametrize(("times", "spilling"), [(1.2, True), (4, False)])
def test_keys_are_spilled_only_if_the_pass_reaches_the_end_or_twice_as_far(
    world: PowerWorld, times: float, *, spilling: bool
) -> None:
    """Otherwise a large clean section would be read once more in each of many passes."""
    client = Client(world)
    send(client, list(range(BITS - FRAME_BITS - int(1.5 * ROOM))))
    pass_of(world, ALL)
    headers = [h for s in partition_of(world).segments for h in s.headers() if h.record_count]
    assert len(headers) == 1
    send(client, list(range(10_000, 10_000 + int(times * ROOM))))
    done = pass_of(world)
    assert (done.whole, done.spilled_bytes > 0) == (spilling, spilling)


@pytest.mark.parametrize("done_before", [0, 1, 3, 5, 10, 12])
def test_a_pass_without_disk_space_ends_at_a_full_map(world: PowerWorld, done_before: int) -> None:
    client = Client(world)
    before, after = list(range(2 * CAPACITY)), list(range(CAPACITY, 4 * CAPACITY))
    send(client, before)
    pass_of(world, ALL)
    send(client, after)
    operations: list[Operation] = []

    def full(operation: Operation) -> None:
        if operation.path.endswith(KEYS) and operation.kind in ("create", "append"):
            operations.append(operation)
            if len(operations) > done_before:
                raise DiskFull("no room")

    close_segment(world)
    world.storage.hook = full
    done = pass_of(world)
    world.storage.hook = None
    assert len(operations) == done_before + 1
    assert not done.whole
    assert CAPACITY <= done.end - done.start <= ROOM
    assert files(world) == []
    assert pass_of(world).whole
    assert left(world) == last_of(before + after)


# Fate of the file -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["create", "append"])
def test_another_failure_fails_the_pass_and_leaves_no_file(world: PowerWorld, kind: Kind) -> None:
    keys = list(range(3 * CAPACITY))
    send(Client(world), keys)
    close_segment(world)
    world.storage.hook = failing(kind, KEYS, error=StorageFailed("the disk fails"))
    with pytest.raises(StorageFailed, match="the disk fails"):
        pass_of(world)
    assert files(world) == []
    assert partition_of(world).gate.usable
    world.storage.hook = None
    assert pass_of(world).whole
    assert left(world) == last_of(keys)


def test_a_pass_that_is_cut_short_leaves_no_file(world: PowerWorld) -> None:
    send(Client(world), list(range(3 * CAPACITY)))
    seen = []

    def pace(nbytes: int) -> None:
        seen.append(files(world))
        if seen[-1] and nbytes == 0:
            raise CutShort

    with pytest.raises(CutShort):
        pass_of(world, pace=pace)
    assert seen[-1] != []
    assert files(world) == []


class CutShort(Exception):
    """Raised by a test to end a pass."""


def test_the_file_is_gone_before_anything_is_rewritten(world: PowerWorld) -> None:
    send(Client(world), list(range(3 * CAPACITY)))
    close_segment(world)
    seen = []
    world.storage.hook = doing(lambda: seen.append(files(world)), "create", ".log")
    assert pass_of(world).spilled_bytes > 0
    assert seen == [[]]


@pytest.mark.parametrize("death", ["kill", "power"])
def test_the_next_opening_removes_the_file_left_by_a_crash(world: PowerWorld, death: str) -> None:
    keys = list(range(3 * CAPACITY))
    send(Client(world), keys)
    close_segment(world)
    world.storage.hook = _dying_at_append(4)
    with pytest.raises(Died):
        pass_of(world)
    world.storage.hook = None
    world.storage.crash() if death == "kill" else world.storage.power_cut()
    found = check_log(world.storage, clock=world.clock).report.findings
    assert {one.severity for one in found} <= {Severity.NOTE}
    world.open()
    assert files(world) == []
    assert pass_of(world).whole
    assert left(world) == last_of(keys)


def _dying_at_append(number: int) -> Hook:
    count = [0]

    def hook(operation: Operation) -> None:
        if operation.path.endswith(KEYS) and operation.kind == "append":
            count[0] += 1
            if count[0] == number:
                raise Died("in the middle of a run")

    return hook


def test_a_file_that_could_not_be_removed_is_overwritten(world: PowerWorld) -> None:
    client = Client(world)
    send(client, list(range(3 * CAPACITY)))
    close_segment(world)
    removed = [0]

    def hook(operation: Operation) -> None:
        if operation.path.endswith(KEYS) and operation.kind == "unlink":
            removed[0] += 1
            if removed[0] == 1:
                raise StorageFailed("cannot remove it")

    world.storage.hook = hook
    assert pass_of(world).whole
    assert len(files(world)) == 1
    more = list(range(2 * CAPACITY, 5 * CAPACITY))
    send(client, more)
    assert pass_of(world).whole
    assert files(world) == []
    assert left(world) == last_of([*range(3 * CAPACITY), *more])


# Memory -------------------------------------------------------------------------------


@pytest.mark.long
def test_the_memory_of_a_pass_does_not_grow_with_the_log(tmp_path: Path) -> None:
    taken = [memory_of_a_pass(tmp_path / "small", 200_000, 100_000)]
    taken.append(memory_of_a_pass(tmp_path / "large", 400_000, 300_000))
    assert taken[1] < 1.05 * taken[0]


def memory_of_a_pass(folder: Path, clean_ones: int, dirty_ones: int) -> int:
    """Return the peak bytes of a pass with 1 MiB of memory, without Arrow's and Polars'."""
    world = World(LocalStorage(folder), durability="os")
    world.owner.create_topic("t", config={"cleanup.policy": "compact", "segment.bytes": "4194304"})
    client = Client(world)
    for first in range(0, clean_ones + dirty_ones, 10_000):
        if first == clean_ones > 0:
            pass_of(world, 1 << 28)
        send(client, list(range(first, first + 10_000)))
    close_segment(world)
    with patch.object(look, "MAX_BITS_PER_BYTE", 10):
        tracemalloc.start()
        try:
            done = pass_of(world, 1 << 20)
            taken = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    world.owner.close()
    assert done.whole
    assert done.spilled_bytes == ENTRY * (clean_ones + dirty_ones)
    return taken


VALUE = 12_000
"""Bytes. 32 such records make a frame of 384 kB, two of which fit into one read."""


@pytest.mark.parametrize("small_ones", [False, True], ids=["large frames", "small ones between"])
def test_the_memory_of_a_pass_does_not_grow_with_the_values(
    tmp_path: Path, *, small_ones: bool
) -> None:
    taken = arrow_memory_of_a_pass(tmp_path / "log", megabytes=24, small_ones=small_ones)
    assert taken < 10 << 20


def arrow_memory_of_a_pass(folder: Path, megabytes: int, *, small_ones: bool) -> int:
    """Return the peak bytes that Arrow holds for a pass, with 32 records of VALUE bytes to a frame.

    All records have one key. With `small_ones` one frame in four is small, and all of it stays.
    """
    world = World(LocalStorage(folder), durability="os")
    world.owner.create_topic("t", config={"cleanup.policy": "compact"})
    client, kept = Client(world), 0
    for number in range((megabytes << 20) // (32 * VALUE)):
        if not small_ones or number % 4:
            send_values(client, [b"same"] * 32, VALUE)
        else:
            kept += 40
            send_values(client, [b"%d" % (1000 * number + n) for n in range(40)], 1)
    close_segment(world)
    before, highest = pa.total_allocated_bytes(), 0

    def pace(_: int) -> None:
        nonlocal highest
        highest = max(highest, pa.total_allocated_bytes())

    pass_of(world, 1 << 20, pace)
    assert len(left(world)) == kept + 1
    world.owner.close()
    return highest - before


def send_values(client: Client, keys: list[bytes], size: int) -> None:
    base = client.sequences.get(T0, 0)
    times = pa.array([START_MS] * len(keys), pa.int64())
    columns = pa.record_batch(
        {"timestamp": times, "key": pa.array(keys), "value": pa.array([bytes(size)] * len(keys))}
    )
    client.sequences[T0] = base + len(keys)
    client.world.owner.append([Append(*T0, columns, client.identity, base, False, 0)])


def test_long_keys_are_gathered_up_to_some_bytes() -> None:
    """Otherwise a column of them would exceed Arrow's 2 GiB."""
    keys = [pa.array([b"%d" % n + bytes(1 << 20)]) for n in range(40)]
    frames = [(one, np.array([n])) for n, one in enumerate(keys)]
    pieces = list(look._pieces(frames))
    assert max(piece.nbytes for piece, _ in pieces) <= look.KEY_BYTES
    assert np.concatenate([numbers for _, numbers in pieces]).tolist() == list(range(40))
    assert pa.concat_arrays([piece for piece, _ in pieces]) == pa.concat_arrays(keys)


# Reports ----------------------------------------------------------------------------------


def test_spilled_and_reread_bytes_are_reported_to_the_pace() -> None:
    told = []
    for memory in (ALL, MEMORY):
        world, paced = world_of(), list[int]()
        send(Client(world), list(range(5 * CAPACITY)))
        done = pass_of(world, memory, paced.append)
        told.append(sum(paced))
    assert done.spilled_bytes == ENTRY * 5 * CAPACITY
    assert told[1] == told[0] + 2 * done.spilled_bytes


def test_the_work_of_a_pass_grows_as_it_spills(world: PowerWorld) -> None:
    client = Client(world)
    send(client, list(range(CAPACITY)))
    pass_of(world, ALL)
    clean_bytes = sum(segment.size for segment in partition_of(world).segments)
    send(client, list(range(3 * CAPACITY)))
    done = pass_of(world)
    assert done.spilled_bytes == ENTRY * 4 * CAPACITY  # includes the clean section's
    assert done.to_do == clean_bytes + 2 * done.spilled_bytes


def test_the_status_reports_the_spilled_bytes(world: PowerWorld) -> None:
    world.owner.alter_config({"log.cleaner.dedupe.buffer.size": str(MEMORY)})
    send(Client(world), list(range(3 * CAPACITY)))
    world.owner.clean(["t"])
    [status] = [one for one in world.owner.cleaning() if one.topic == "t"]
    assert status.last is not None
    assert (status.last.whole, status.last.map_use) == (True, 1.0)
    assert status.last.spilled_bytes == ENTRY * 3 * CAPACITY
