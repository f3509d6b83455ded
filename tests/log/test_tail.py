"""A tail that may not be durable: after a failed fsync readers see data that is not on the disk.

Linux marks the pages of a failed fsync as clean, and the next fsync of the file succeeds at once.
An opening that has not seen the failure must therefore write the tail again before anything depends
on it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from strandline.changelog.errors import CorruptLog, StorageFailed
from strandline.changelog.layout import CONSUMER_OFFSETS, TRANSACTION_STATE
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import CommittedOffset, TopicPartition
from strandline.changelog.storage import Storage
from tests.log.damage import folder_of
from tests.log.kit import Client
from tests.log.power import Died, Operation, PowerStorage, PowerWorld, failing, stopping

T0 = TopicPartition("t", 0)


@pytest.fixture
def world() -> PowerWorld:
    """A log with a topic of one partition, on a storage that loses all unsynced data."""
    world = PowerWorld()
    world.owner.create_topic("t", config={"segment.bytes": "4096"})
    return world


def fails(world: PowerWorld, where: str, do: Callable[[], object]) -> None:
    """Let the disk fail at the first fsync of a file with `where` in its path."""
    world.storage.hook = failing("fsync", where, times=1)
    with pytest.raises(StorageFailed):
        do()
    world.storage.hook = None


def rewritten(world: PowerWorld) -> list[Operation]:
    """Crash and open the log. Return the bytes written again by the opening."""
    seen: list[Operation] = []
    world.storage.crash()
    world.storage.hook = lambda operation: seen.append(operation)
    world.open()
    world.storage.hook = None
    return [operation for operation in seen if operation.kind == "rewrite"]


def test_records_recovered_after_a_failed_fsync_survive_a_later_power_cut(
    world: PowerWorld,
) -> None:
    client = Client(world)
    client.append(b"a")
    fails(world, ".log", lambda: client.append(b"b"))
    world.crash()
    assert world.values() == [b"a", b"b"]
    world.power_cut()
    assert world.values() == [b"a", b"b"]


def test_records_survive_an_opening_whose_own_fsync_failed(world: PowerWorld) -> None:
    client = Client(world)
    client.append(b"a")
    fails(world, ".log", lambda: client.append(b"b"))
    world.storage.crash()
    fails(world, folder_of(world), world.open)
    world.crash()
    assert world.values() == [b"a", b"b"]
    world.power_cut()
    assert world.values() == [b"a", b"b"]


def test_a_recovered_batch_acknowledged_as_a_duplicate_survives(world: PowerWorld) -> None:
    client = Client(world)
    fails(world, ".log", lambda: client.append(b"a"))
    world.crash()
    assert client.append(b"a", sequence=0).duplicate
    world.power_cut()
    assert world.values() == [b"a"]


@pytest.mark.parametrize("failing_topic", ["t", TRANSACTION_STATE, CONSUMER_OFFSETS])
def test_a_transaction_keeps_the_outcome_that_the_first_opening_showed(
    world: PowerWorld, failing_topic: str
) -> None:
    world.owner.commit_offsets("g", {T0: CommittedOffset(0)})
    client = Client(world, "tx")
    client.append(b"a")
    world.owner.add_offsets(client.identity, "g", {T0: CommittedOffset(1)})
    fails(world, folder_of(world, failing_topic), client.commit)

    def seen() -> tuple[list[bytes | None], int]:
        return world.values(), world.owner.committed("g")[T0].offset

    world.crash()
    said = seen()
    assert said in (([b"a"], 1), ([], 0))
    world.power_cut()
    assert seen() == said


def test_a_commit_of_offsets_recovered_after_a_failed_fsync_survives(world: PowerWorld) -> None:
    world.owner.commit_offsets("g", {T0: CommittedOffset(0)})
    offsets = {T0: CommittedOffset(1)}
    where = folder_of(world, CONSUMER_OFFSETS)
    fails(world, where, lambda: world.owner.commit_offsets("g", offsets))
    world.crash()
    assert world.owner.committed("g")[T0].offset == 1
    world.power_cut()
    assert world.owner.committed("g")[T0].offset == 1


@pytest.mark.parametrize("seed", range(20))
def test_acknowledged_records_are_never_lost_while_the_tail_is_rewritten(seed: int) -> None:
    """A power cut in the middle of the rewriting takes nothing that was durable before."""
    world = PowerWorld(storage=PowerStorage(Random(seed)))
    world.owner.create_topic("t")
    for value in (b"a", b"b" * 5000, b"c"):
        Client(world).append(value)
    world.storage.crash()
    world.storage.hook = stopping("rewrite", folder_of(world))
    with pytest.raises(Died):
        world.open()
    world.power_cut()
    assert world.values() == [b"a", b"b" * 5000, b"c"]


def test_only_the_last_frame_is_rewritten(world: PowerWorld) -> None:
    client = Client(world)
    for number in range(200):  # several segments
        client.append(b"%d" % number)
    mine = [one for one in rewritten(world) if one.folder == folder_of(world)]
    assert len(mine) == 1, "each frame says that the one before it was durable"


def test_nothing_is_rewritten_after_an_orderly_close(world: PowerWorld) -> None:
    Client(world).append(b"a")
    world.owner.close()
    assert rewritten(world) == []


def test_a_tail_that_changes_while_it_is_rewritten_is_refused(world: PowerWorld) -> None:
    """The cached page was dropped in between, and the disk had other bytes."""
    Client(world).append(b"a")
    path = world.storage.paths(folder_of(world), ".log")[0]
    reads = 0

    def hook(operation: Operation) -> None:
        nonlocal reads
        if operation.kind == "read" and operation.path == path:
            reads += 1
            if reads == 2:
                world.storage.flip(path, 110)

    world.storage.crash()
    world.storage.hook = hook
    with pytest.raises(CorruptLog, match="checksum"):
        world.open()


@pytest.fixture(params=["local", "memory", "power"])
def any_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return {"local": LocalStorage(tmp_path), "memory": MemoryStorage(), "power": PowerStorage()}[
        request.param
    ]


def test_rewriting_moves_no_end(any_storage: Storage) -> None:
    file = any_storage.create("f")
    file.append(b"abc", b"def")
    file.rewrite(1, memoryview(b"bcd"))
    assert file.size() == 6
    assert file.append(b"g") == 6
    assert bytes(file.read(0, 100)) == b"abcdefg"
    file.close()
