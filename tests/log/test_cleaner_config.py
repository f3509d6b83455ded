"""The cleaner follows the current settings of the log and of the topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from strandline.changelog.cleaning import CleaningStatus
from strandline.changelog.client.producer import Producer
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.log import Log
from strandline.changelog.memory_storage import MemoryStorage
from tests.log.kit import START_MS, Client, World

COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "4096", "retention.ms": "-1"}
Eventually = Callable[..., None]


def dirty(world: World, records: int = 40) -> Client:
    """Create a compacted topic with many records of one key."""
    world.owner.create_topic("c", config=COMPACTED)
    client = Client(world)
    for number in range(records):
        client.append(b"%03d" % number * 100, topic="c")
    return client


def later(world: World, ms: int) -> int:
    """Advance the clock. Return the number of records left."""
    world.clock.advance(ms)
    world.owner.tick()
    return len(world.values("c"))


def test_the_cleaner_can_be_turned_off_and_on(world: World) -> None:
    world.owner.alter_config({"log.cleaner.enable": "false"})
    dirty(world)
    assert later(world, 60_000) == 40
    world.owner.alter_config({"log.cleaner.enable": None})
    assert later(world, 60_000) < 40


def test_a_shorter_backoff_also_shortens_the_current_one(world: World) -> None:
    world.owner.alter_config({"log.cleaner.backoff.ms": "3600000"})
    world.owner.tick()
    dirty(world)
    assert later(world, 60_000) == 40
    world.owner.alter_config({"log.cleaner.backoff.ms": "50000"})
    assert later(world, 0) < 40


def test_the_memory_for_keys_bounds_the_keys_of_a_pass_without_a_file(world: World) -> None:
    world.owner.alter_config({"log.cleaner.dedupe.buffer.size": "4096"})
    world.owner.create_topic("c", config=COMPACTED)
    client = Client(world)
    for number in range(600):
        client.append(b"x" * 50, topic="c", key=b"%d" % (number % 300))
    world.owner.clean(["c"])
    last = status(world.owner).last
    assert last is not None
    assert last.spilled_bytes > 0, "there was room for all keys"
    assert len(world.values("c")) == 300
    world.owner.alter_config({"log.cleaner.dedupe.buffer.size": None})
    for number in range(300):
        client.append(b"y" * 50, topic="c", key=b"%d" % number)
    world.owner.clean(["c"])
    last = status(world.owner).last
    assert last is not None
    assert (last.whole, last.spilled_bytes, last.superseded) == (True, 0, 300)
    assert last.end - last.start == 300


def test_the_memory_for_keys_bounds_a_pass(world: World) -> None:
    world.owner.alter_config({"log.cleaner.dedupe.buffer.size": "4096"})
    world.owner.create_topic("c", config=COMPACTED)
    client = Client(world)
    for _ in range(9):  # a pass keeps a bit per record in at most a quarter of its memory
        client.append(*[b"x" for _ in range(500)], topic="c")
    for number in range(100):
        client.append(b"x", topic="c", key=b"%d" % number)
    world.owner.clean(["c"])
    last = status(world.owner).last
    assert last is not None
    assert (last.whole, last.spilled_bytes) == (True, 0)
    assert last.start > 4096
    assert len(world.values("c")) == 101


def test_the_ratio_of_the_log_applies_to_a_topic_without_one(world: World) -> None:
    world.owner.alter_config({"log.cleaner.min.cleanable.ratio": "1.0"})
    dirty(world)
    assert later(world, 60_000) == 40
    world.owner.alter_topic("c", config={"min.cleanable.dirty.ratio": "0.1"})
    assert later(world, 60_000) < 40


def test_records_without_a_key_are_removed_and_counted_after_a_change_to_compact(
    world: World,
) -> None:
    world.owner.create_topic("c", config={"segment.bytes": "4096"})
    client = Client(world)
    for number in range(40):
        client.append(b"x" * 300, topic="c", key=b"k" if number % 2 else None)
    world.owner.alter_topic("c", config={"cleanup.policy": "compact"})
    world.owner.clean(["c"])
    last = status(world.owner).last
    assert last is not None
    assert (last.keyless, last.superseded) == (20, 19)
    assert len(world.values("c")) == 1


def test_nothing_is_removed_from_a_topic_that_is_no_longer_compacted(
    slowly_cleaned: Owner, eventually: Eventually
) -> None:
    owner = slowly_cleaned
    owner.alter_topic("c", config={"cleanup.policy": "delete"})
    assert not of_topic(owner)
    owner.alter_config({"log.cleaner.io.max.bytes.per.second": None})
    eventually(lambda: not owner._log.cleaners._busy)
    assert left(owner) == 40
    owner.alter_topic("c", config={"cleanup.policy": "compact"})
    owner.clean(["c"])
    eventually(lambda: left(owner) == 1)


def test_a_lifted_io_limit_lets_a_waiting_cleaner_continue(
    slowly_cleaned: Owner, eventually: Eventually
) -> None:
    owner = slowly_cleaned
    owner.alter_config({"log.cleaner.io.max.bytes.per.second": None})
    eventually(lambda: left(owner) == 1)


def test_a_topic_can_be_deleted_while_the_cleaner_waits_in_it(
    slowly_cleaned: Owner, eventually: Eventually
) -> None:
    owner = slowly_cleaned
    owner.delete_topic("c")
    assert not of_topic(owner)


@pytest.fixture
def slowly_cleaned(eventually: Eventually) -> Iterator[Owner]:
    """A log whose cleaner is in the middle of the topic `c`, and would stay there for days."""
    owner = Owner(MemoryStorage(), background=True)
    try:
        owner.alter_config({"log.cleaner.io.max.bytes.per.second": "1"})
        owner.create_topic("c", config=COMPACTED)
        with Producer(owner) as producer:
            for number in range(40):
                producer.append_columns("c", [b"k"], [b"%03d" % number * 100], [START_MS])
        owner.clean(["c"])
        eventually(lambda: status(owner).done_bytes > 0)
        yield owner
    finally:
        owner.close()


def left(owner: Owner) -> int:
    return Log(owner).read("c").num_rows


def of_topic(owner: Owner) -> list[CleaningStatus]:
    return [one for one in owner.cleaning() if one.topic == "c"]


def status(owner: Owner) -> CleaningStatus:
    (one,) = of_topic(owner)
    return one
