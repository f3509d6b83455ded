"""Swapped files of a log: foreign records are never shown, before repair and after it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest

from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.embedded.repairing.folder import plan_of
from strandline.changelog.embedded.repairing.plan import carry_out
from strandline.changelog.errors import CorruptLog
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import TopicPartition
from tests.log.damage import files, folder_of
from tests.log.kit import Client, World

pytestmark = pytest.mark.damages

CONFIG = {"segment.bytes": "4096", "index.interval.bytes": "512", "retention.ms": "-1"}
KINDS = [".log", ".index", ".aborted", ".producers", "manifest.meta"]
PLACES = [("t", 0), ("t", 1), ("u", 0)]


def filled(records: int = 24) -> World:
    """Return a log with the same history in three partitions, so that files of one fit into
    another."""
    world = World()
    world.owner.create_topic("t", 2, config=CONFIG)
    world.owner.create_topic("u", 1, config=CONFIG)
    plain, tx = Client(world), Client(world, "tx")
    for number in range(records):
        for topic, partition in PLACES:
            value = f"{topic}{partition} {number:03} ".encode() * 20
            client = tx if number % 3 == 1 else plain
            client.append(value, topic=topic, partition=partition)
        if number % 3 == 1:
            tx.abort() if number % 2 else tx.commit()
    return world


def names(world: World, suffix: str, place: tuple[str, int]) -> list[str]:
    folder = folder_of(world, *place) + "/"
    return sorted(
        path for path in files(world) if path.startswith(folder) and path.endswith(suffix)
    )


def pairs(suffix: str) -> Iterator[tuple[str, str]]:
    """Yield pairs of files of one kind to swap: across partitions, topics, and within one
    partition."""
    world = filled()
    world.owner.close()
    every = [names(world, suffix, place) for place in PLACES]
    for one, other in combinations(every, 2):
        yield from zip(one, other, strict=True)
    yield from combinations(every[0], 2)


def values(world: World) -> dict[tuple[str, int], list[bytes | None]]:
    return {place: world.values(*place) for place in PLACES}


def nothing_foreign(world: World, before: dict[tuple[str, int], list[bytes | None]]) -> None:
    """Check that each partition shows only records that were written and committed there."""
    for place in PLACES:
        try:
            shown = world.values(*place)
        except CorruptLog:
            continue
        assert set(shown) <= set(before[place]), place
        assert shown == [value for value in before[place] if value in set(shown)], place


def reads_from_everywhere(world: World) -> None:
    """Check that a fetch begins with the first record at or after its offset."""
    for topic, number in PLACES:
        tp = TopicPartition(topic, number)
        end = world.owner.offsets([tp])[tp].high_watermark
        offsets = [record.offset for batch in fetched(world, tp, 0) for record in batch.records()]
        for offset in range(end):
            following = [one for one in offsets if one >= offset]
            batches = world.owner.fetch({tp: offset})[tp].batches
            first = next((r.offset for batch in batches for r in batch.records()), None)
            assert first == (following[0] if following else None)


def fetched(world: World, tp: TopicPartition, position: int) -> Iterator:  # type: ignore[type-arg]
    while True:
        part = world.owner.fetch({tp: position})[tp]
        yield from part.batches
        if part.next_offset == position:
            return
        position = part.next_offset


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("orderly", [True, False])
def test_swapped_files_never_show_foreign_records(kind: str, *, orderly: bool) -> None:
    source = filled()
    before = values(source)
    if orderly:
        source.owner.close()
    images = {path: bytes(content) for path, content in files(source).items()}
    seen = 0
    for one, other in pairs(kind):
        storage = MemoryStorage()
        world = World(storage)
        world.owner.close()
        swapped = {**images, one: images[other], other: images[one]}
        storage._files = {path: bytearray(content) for path, content in swapped.items()}
        seen += 1
        try:
            world.open()
        except CorruptLog:
            assert kind in (".log", "manifest.meta"), "the others are created again"
            assert bytes(storage._files[one]) == images[other], "nothing was cut off"
        else:
            nothing_foreign(world, before)
            if kind != ".log":
                assert values(world) == before
                reads_from_everywhere(world)
                continue
        checked = check_log(storage, clock=world.clock)
        carry_out(plan_of(checked, storage, world.clock), storage, world.clock)
        storage.crash()
        world.open()
        nothing_foreign(world, before)
    assert seen > 2
