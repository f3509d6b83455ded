"""Segments: rolling, indexes, seeking by offset and time, retention, the size of fetches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.changelog.embedded import partition, retention
from strandline.changelog.embedded.format import HEADER_SIZE
from strandline.changelog.errors import OffsetOutOfRange
from strandline.changelog.layout import partition_folder
from strandline.changelog.memory_storage import MemoryFile
from strandline.changelog.records import Fetched, TopicPartition
from strandline.changelog.storage import Bytes
from tests.log.kit import START_MS, Client, World

T0 = TopicPartition("t", 0)
DAY_MS = 24 * 60 * 60 * 1000


def world_with(**config: str) -> World:
    world = World()
    settings = {name.replace("_", "."): value for name, value in config.items()}
    world.owner.create_topic("t", 1, config=settings)
    return world


def segments_of(world: World) -> list[str]:
    topic_id = world.owner.topic("t").topic_id
    names = world.storage.list_dir(partition_folder(topic_id, 0))
    return [name for name in names if name.endswith(".log")]


def segment_paths(world: World) -> list[str]:
    folder = partition_folder(world.owner.topic("t").topic_id, 0)
    return [f"{folder}/{name}" for name in segments_of(world)]


def fetch(world: World, offset: int, **options: int) -> Fetched:
    return world.owner.fetch({T0: offset}, **options)[T0]  # type: ignore[arg-type]


def test_a_segment_rolls_before_it_would_exceed_its_size() -> None:
    world = world_with(segment_bytes="4096")
    client = Client(world)
    for _ in range(40):
        client.append(b"x" * 200)
    sizes = [world.storage.open(path).size() for path in segment_paths(world)]
    assert len(sizes) > 2
    assert max(sizes) <= 4096


def test_a_segment_rolls_before_it_has_too_many_frames_counted_over_openings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition, "MAX_SEGMENT_FRAMES", 10)
    world = world_with()
    for _ in range(7):  # with 5 frames each
        client = Client(world)
        for _ in range(5):
            client.append(b"x")
        world.crash()
    counts = [
        sum(1 for _ in segment.frames(0, 1 << 20))
        for segment in world.owner._log.partition(T0).segments
    ]
    assert sum(counts) == 35
    assert max(counts) == 10


def test_headers_are_read_without_their_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_with()
    client = Client(world)
    for count in (1, 40, 3):
        client.append(*[b"x" * 100] * count)
    [segment] = world.owner._log.partition(T0).segments
    expected = [frame.header for frame in segment.frames(0, 1 << 20)]
    sizes, read = list[int](), MemoryFile.read

    def counted(file: MemoryFile, position: int, size: int) -> Bytes:
        sizes.append(size)
        return read(file, position, size)

    monkeypatch.setattr(MemoryFile, "read", counted)
    assert list(segment.headers()) == expected
    assert sizes == [HEADER_SIZE] * 3


def test_a_segment_rolls_by_message_time_not_by_the_clock() -> None:
    world = world_with(segment_ms="1000")
    client = Client(world)
    client.append(b"a", times=START_MS)
    world.clock.advance(DAY_MS)
    client.append(b"b", times=START_MS + 1000)
    assert len(segments_of(world)) == 1
    client.append(b"c", times=START_MS + 1001)
    assert len(segments_of(world)) == 2


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=25), reopen=st.booleans())
def test_a_fetch_from_any_offset_returns_every_record_from_there(
    sizes: list[int], reopen: bool
) -> None:
    world = world_with(segment_bytes="4096", index_interval_bytes="512")
    client = Client(world)
    expected = [b"%d-%d" % (batch, n) for batch, size in enumerate(sizes) for n in range(size)]
    position = 0
    for size in sizes:
        client.append(*expected[position : position + size])
        position += size
    if reopen:
        world.crash()
    for offset in {0, 1, len(expected) // 2, len(expected) - 1}:
        seen: list[bytes] = []
        at = offset
        while at < len(expected):
            fetched = fetch(world, at, max_bytes=700)
            assert fetched.batches[0].base_offset == at
            seen += [v for b in fetched.batches for v in b.columns.column("value").to_pylist()]
            at = fetched.next_offset
        assert seen == expected[offset:]


def test_a_fetch_at_the_end_is_empty_and_beyond_it_out_of_range() -> None:
    world = world_with()
    Client(world).append(b"a")
    assert fetch(world, 1).batches == []
    with pytest.raises(OffsetOutOfRange, match="offsets 0 to 1, got 2"):
        fetch(world, 2)


@pytest.mark.parametrize("max_bytes", [1_000, 10_000, 64_000, 1_000_000])
def test_sequential_reading_reads_every_byte_once(
    max_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_with(segment_bytes="100000")
    client = Client(world)
    for n in range(60):
        client.append(b"x" * (5_000 + 97 * n))
    sizes = [world.storage.open(path).size() for path in segment_paths(world)]
    read: list[int] = []
    true_read = MemoryFile.read

    def counted(file: MemoryFile, position: int, size: int) -> Bytes:
        read.append(size)
        return true_read(file, position, size)

    monkeypatch.setattr(MemoryFile, "read", counted)
    at = 0
    while batches := fetch(world, at, max_bytes=max_bytes).batches:
        at = batches[-1].last_offset + 1
    assert at == 60
    assert sum(read) == sum(sizes)
    assert max(read) <= max(max_bytes, 11_000)


def test_a_batch_larger_than_max_bytes_is_returned_whole() -> None:
    world = world_with()
    client = Client(world)
    client.append(b"x" * 100_000, b"y")
    client.append(b"z")
    fetched = fetch(world, 0, max_bytes=1000)
    assert [len(batch) for batch in fetched.batches] == [2]
    assert fetched.next_offset == 2


def test_seeking_by_time_finds_the_first_record_that_is_late_enough() -> None:
    world = world_with(segment_bytes="4096")
    client = Client(world)
    times = [START_MS + (n * 7 if n % 5 else n * 3) for n in range(300)]
    for n, time in enumerate(times):
        client.append(b"%d" % n, times=time)
    for wanted in (START_MS - 1, START_MS + 1, START_MS + 700, START_MS + 1500, max(times)):
        expected = next(n for n, time in enumerate(times) if time >= wanted)
        assert world.owner.offset_for_time(T0, wanted) == expected
    assert world.owner.offset_for_time(T0, max(times) + 1) is None


def test_seeking_by_time_stops_at_the_last_stable_offset() -> None:
    world = world_with()
    client = Client(world, "tx")
    client.append(b"a")
    world.owner.tick()
    assert world.owner.offset_for_time(T0, START_MS) is None
    assert world.owner.offset_for_time(T0, START_MS, isolation="read_uncommitted") == 0
    client.abort()
    assert world.owner.offset_for_time(T0, START_MS) is None


class TestRetention:
    """Whole segments are deleted from the front, up to the first one to keep."""

    def fill(self, world: World, count: int = 60) -> Client:
        client = Client(world)
        for n in range(count):
            client.append(b"x" * 500, times=START_MS + n * 1000)
        return client

    def test_expired_segments_are_deleted(self) -> None:
        world = world_with(segment_bytes="4096", retention_ms="100000")
        self.fill(world)
        world.clock.advance(130_000)
        world.owner.tick()
        start = world.owner.offsets([T0])[T0].log_start
        assert 0 < start <= 31
        with pytest.raises(OffsetOutOfRange):
            fetch(world, 0)
        world.crash()
        assert world.owner.offsets([T0])[T0].log_start == start

    def test_retention_by_size_never_goes_below_the_limit(self) -> None:
        world = world_with(segment_bytes="4096", retention_bytes="10000", retention_ms="-1")
        self.fill(world)
        world.owner.tick()
        folder = partition_folder(world.owner.topic("t").topic_id, 0)
        world.clock.advance(60_001)
        world.owner.tick()
        kept = sum(world.storage.open(f"{folder}/{n}").size() for n in segments_of(world))
        assert 10_000 <= kept < 10_000 + 4096

    def test_a_log_whose_records_have_all_expired_is_empty_at_the_same_end(self) -> None:
        world = world_with(segment_bytes="4096", retention_ms="1000")
        client = self.fill(world)
        world.clock.advance(DAY_MS)
        world.owner.tick()
        ends = world.owner.offsets([T0])[T0]
        assert ends.log_start == ends.high_watermark == 60
        client.append(b"next", times=START_MS + DAY_MS)
        assert world.values() == [b"next"]

    def test_files_are_removed_after_the_delay(self) -> None:
        world = world_with(segment_bytes="4096", retention_ms="1000", file_delete_delay_ms="5000")
        self.fill(world)
        before = len(segments_of(world))
        world.clock.advance(DAY_MS)
        world.owner.tick()
        assert len(segments_of(world)) == before + 1
        world.clock.advance(20_000)
        world.owner.tick()
        assert len(segments_of(world)) == 1

    def test_retention_stops_at_an_open_transaction(self) -> None:
        world = world_with(segment_bytes="4096", retention_ms="1000")
        client = Client(world, "tx", timeout_ms=900_000)
        client.append(b"open")
        self.fill(world)
        world.clock.advance(600_000)
        world.owner.tick()
        assert world.owner.offsets([T0])[T0].log_start == 0
        client.commit()
        assert world.values()[0] == b"open"

    def test_retention_does_not_apply_to_a_compacted_topic(self) -> None:
        world = world_with(segment_bytes="4096", retention_ms="1000", cleanup_policy="compact")
        self.fill(world)
        world.clock.advance(DAY_MS)
        world.owner.tick()
        assert world.owner.offsets([T0])[T0].log_start == 0


class TestDeleteRecords:
    """`delete_records` moves the log start durably, if the policy lets records be deleted."""

    @pytest.mark.parametrize("policy", ["delete", "compact,delete"])
    def test_the_new_log_start_survives_a_reopening(self, policy: str) -> None:
        world = world_with(segment_bytes="4096", cleanup_policy=policy)
        client = Client(world)
        for n in range(50):
            client.append(b"%d" % n)
        assert world.owner.delete_records(T0, 33) == 33
        world.crash()
        assert world.values() == [b"%d" % n for n in range(33, 50)]
        with pytest.raises(OffsetOutOfRange):
            fetch(world, 32)

    def test_records_can_be_deleted_up_to_the_high_watermark(self) -> None:
        world = world_with()
        Client(world).append(b"a", b"b")
        with pytest.raises(OffsetOutOfRange, match="high watermark is 2"):
            world.owner.delete_records(T0, 3)
        assert world.owner.delete_records(T0, -1) == 2
        assert world.owner.delete_records(T0, 1) == 2
        assert world.values() == []

    def test_small_deletions_at_the_end_write_one_file_and_large_ones_free_their_segment(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = world_with()
        client = Client(world)
        monkeypatch.setattr(retention, "ROLLED_BYTES", 2_000)
        names, sizes = set[str](), list[int]()
        for number in range(20):
            client.append(b"%0200d" % number)
            world.owner.delete_records(T0, -1)
            assert world.values() == []
            active = max(segment_paths(world))
            names.add(active)
            sizes.append(world.storage.open(active).size())
        assert 1 < len(names) < 10
        assert max(sizes) < 2_000
        world.crash()
        client.append(b"later")
        assert world.values() == [b"later"]
