"""Extents tell how many bytes lie between two offsets, and cover every offset."""

from __future__ import annotations

import pytest

from strandline.changelog.embedded import extents
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import UnknownTopic
from strandline.changelog.extents import Extent, OffsetSpan
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import TopicPartition
from tests.spark.writing import Writer

T = TopicPartition("t", 0)
SMALL = {"segment.bytes": "200000", "index.interval.bytes": "4096"}


@pytest.fixture
def log(storage: MemoryStorage) -> Owner:
    owner = Owner(storage, background=False)
    owner.create_topic("t", 1, config=SMALL)
    writer = Writer(owner)
    for _ in range(100):
        writer.write([(b"k", b"x" * 100)] * 100)
    return owner


def found(log: Owner, start: int, end: int, size: int = 1) -> list[Extent]:
    return log.extents({T: OffsetSpan(start, end)}, extent_bytes=size)[T]


def test_extents_begin_at_the_first_offset_and_are_in_order(log: Owner) -> None:
    for start, end in ((0, 10_000), (150, 9_950), (9_999, 10_000)):
        offsets = [each.offset for each in found(log, start, end)]
        assert offsets[0] == start
        assert offsets == sorted(set(offsets))
        assert offsets[-1] < end


def test_their_sizes_add_up_to_the_bytes_of_the_segments(log: Owner) -> None:
    files = sum(segment.size for segment in log._log.partition(T).segments)
    assert sum(each.size for each in found(log, 0, 10_000)) == files
    half = sum(each.size for each in found(log, 2_500, 7_500))
    assert half == pytest.approx(files / 2, rel=0.02)


def test_a_part_of_a_large_batch_is_a_part_of_its_bytes(log: Owner) -> None:
    log.create_topic("one", 1)
    Writer(log).write([(b"k", b"x" * 1000)] * 1000, "one")
    one = TopicPartition("one", 0)
    for start, end, size in ((0, 1000, 1_000_000), (0, 100, 100_000), (400, 600, 200_000)):
        (found,) = log.extents({one: OffsetSpan(start, end)}, extent_bytes=1)[one]
        assert found.offset == start
        assert found.size == pytest.approx(size, rel=0.1)


def test_a_larger_size_gives_fewer_extents(log: Owner) -> None:
    assert len(found(log, 0, 10_000, 1 << 20)) < len(found(log, 0, 10_000, 1))


def test_an_answer_is_bounded(log: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = len(log._log.partition(T).segments)
    monkeypatch.setattr(extents, "MAX_EXTENTS", 2)
    assert len(found(log, 0, 10_000)) <= 2 + segments


def test_offsets_that_are_not_there_have_no_extent(log: Owner) -> None:
    assert found(log, 10_000, 20_000) == found(log, 5, 5) == found(log, 5, 4) == []
    with pytest.raises(UnknownTopic):
        log.extents({TopicPartition("no", 0): OffsetSpan(0, 1)}, extent_bytes=1)
