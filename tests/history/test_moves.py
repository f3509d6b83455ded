"""A repeated move detects that the source, or the target, has another history since the last
time."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from strandline.changelog.errors import InvalidRequest
from strandline.changelog.log import Log
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.moving import MovedLog, move
from tests.log.kit import Client, World


@pytest.fixture
def source() -> Iterator[World]:
    made = World()
    made.owner.create_topic("t")
    yield made
    made.owner.close()


@pytest.fixture
def target() -> Iterator[World]:
    made = World()
    yield made
    made.owner.close()


def kept(world: World) -> MemoryStorage:
    world.owner.close()
    copied = copy.deepcopy(world.storage)
    world.open()
    assert isinstance(copied, MemoryStorage)
    return copied


def restore(world: World, storage: MemoryStorage) -> None:
    world.owner.close()
    world.storage = copy.deepcopy(storage)
    world.open()


def write(world: World, *values: bytes) -> None:
    for value in values:
        Client(world).append(value)


def moved(source: World, target: World) -> list[bytes]:
    move(MovedLog("the source", source.owner), MovedLog("the target", target.owner))
    found: list[bytes] = Log(target.owner).read("t")["value"].to_pylist()
    return found


def test_a_restored_source_is_not_copied_from_a_position_of_the_other_history(
    source: World, target: World
) -> None:
    write(source, b"a")
    backup = kept(source)
    write(source, b"b", b"c")
    assert moved(source, target) == [b"a", b"b", b"c"]
    restore(source, backup)
    write(source, *(b"%d" % n for n in range(9)))
    with pytest.raises(
        InvalidRequest, match="t-0: the copied records differ from those of the source now"
    ):
        moved(source, target)
    target.owner.delete_topic("t")
    assert moved(source, target) == [b"a", *(b"%d" % n for n in range(9))]


def test_a_restored_source_that_is_shorter_is_detected(source: World, target: World) -> None:
    write(source, b"a")
    backup = kept(source)
    write(source, b"b", b"c")
    moved(source, target)
    restore(source, backup)
    with pytest.raises(InvalidRequest, match="another history of the log"):
        moved(source, target)


def test_a_source_restored_to_where_it_was_copied_is_copied_further(
    source: World, target: World
) -> None:
    write(source, b"a", b"b")
    assert moved(source, target) == [b"a", b"b"]
    backup = kept(source)
    write(source, b"never copied")
    restore(source, backup)
    write(source, b"c")
    assert moved(source, target) == [b"a", b"b", b"c"]


def test_a_move_continues_from_the_records_of_a_restored_target(
    source: World, target: World
) -> None:
    write(source, b"a")
    moved(source, target)
    backup = kept(target)
    write(source, b"b")
    assert moved(source, target) == [b"a", b"b"]
    restore(target, backup)
    write(source, b"c")
    assert moved(source, target) == [b"a", b"b", b"c"]


def test_a_move_of_an_earlier_version_continues(source: World, target: World) -> None:
    """Its journal entries have no history, like those of a source on a cluster."""
    from strandline.changelog.moving import journal

    entry = journal._decoded(b"\x98\xa6copied\xa1s\x00\x05\x05\x92\x00\x90\x92\x00\x90\xc4\x00", 0)
    assert isinstance(entry, journal.RecordsCopied)
    assert (entry.position, entry.incarnation) == (5, "")
