"""Consumers and groups detect that the log under them was replaced by another history."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from strandline.changelog.client.consumer import Consumer
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import OffsetOutOfRange
from strandline.changelog.flight.failover import FailoverBroker, LogLink
from strandline.changelog.records import CommittedOffset, TopicPartition
from strandline.changelog.storage import MemoryStorage
from tests.log.kit import Client, World

T0 = TopicPartition("t", 0)


class Restorable(World):
    """A log in memory that can be restored to an earlier state under its attached clients."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lost = False

    def kept(self) -> MemoryStorage:
        """Return a copy of the closed folder."""
        self.owner.close()
        kept = copy.deepcopy(self.storage)
        self.open()
        assert isinstance(kept, MemoryStorage)
        return kept

    def restore(self, kept: MemoryStorage) -> None:
        """Replace the folder by a copy, owned by a new process."""
        self.owner.close()
        self.storage = copy.deepcopy(kept)
        self.open()
        self.lost = True

    def write(self, *values: bytes) -> None:
        for value in values:
            Client(self).append(value)

    def attached(self) -> FailoverBroker:
        """Return a broker that finds the new owner by itself, as an attached process does."""

        def connect(_seconds: float) -> LogLink:
            return LogLink(self.owner, lambda: True, lambda: None)

        return FailoverBroker(connect, deadline=5, name="the test's log")


@pytest.fixture
def world() -> Iterator[Restorable]:
    made = Restorable()
    made.owner.create_topic("t")
    yield made
    made.owner.close()


def values(consumer: Consumer) -> list[bytes]:
    return [record.value for record in consumer.records(timeout=0)]


@pytest.mark.parametrize(
    ("policy", "then"), [("earliest", [b"a", b"x", b"y", b"z"]), ("latest", [])]
)
def test_a_consumer_of_a_restored_log_follows_its_reset_policy(
    world: Restorable, policy: str, then: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    world.write(b"a")
    backup = world.kept()
    world.write(b"b", b"c")
    consumer = Consumer(world.attached(), auto_offset_reset=policy)  # type: ignore[arg-type]
    consumer.subscribe("t")
    consumer.seek_to_beginning(T0)
    assert values(consumer) == [b"a", b"b", b"c"]
    world.restore(backup)
    world.write(b"x", b"y", b"z")
    assert values(consumer) == then
    assert "another history" in caplog.text


def test_a_consumer_without_a_reset_policy_raises_for_a_position_of_another_history(
    world: Restorable,
) -> None:
    world.write(b"a")
    backup = world.kept()
    world.write(b"b")
    consumer = Consumer(world.attached(), auto_offset_reset="none", group="g")
    consumer.assign([T0])
    consumer.seek(T0, 0)
    assert values(consumer) == [b"a", b"b"]
    world.restore(backup)
    world.write(b"x", b"y")
    with pytest.raises(OffsetOutOfRange, match="another history"):
        values(consumer)


def test_a_consumer_continues_if_both_histories_agree_up_to_its_position(world: Restorable) -> None:
    world.write(b"a", b"b")
    backup = world.kept()
    consumer = Consumer(world.attached())
    consumer.subscribe("t")
    assert values(consumer) == [b"a", b"b"]
    world.write(b"c")
    world.restore(backup)
    world.write(b"x")
    assert values(consumer) == [b"x"]
    world.write(b"y")
    world.reopen()
    assert values(consumer) == [b"y"]


def test_a_position_of_another_history_is_not_committed(world: Restorable) -> None:
    world.write(b"a")
    backup = world.kept()
    world.write(b"b")
    consumer = Consumer(world.attached(), group="g")
    consumer.assign([T0])
    values(consumer)
    world.restore(backup)
    world.write(b"x", b"y")
    world.owner.commit_offsets("g", {T0: CommittedOffset(1)})
    with pytest.raises(OffsetOutOfRange, match="another history of the log"):
        consumer.commit()
    assert world.owner.committed("g")[T0].offset == 1


def test_an_offset_committed_before_its_records_belongs_to_every_history(
    world: Restorable,
) -> None:
    world.owner.commit_offsets("g", {T0: CommittedOffset(2)})
    world.write(b"a")
    world.reopen()
    world.write(b"b", b"c")
    consumer = Consumer(world.attached(), group="g", auto_offset_reset="none")
    consumer.assign([T0])
    assert values(consumer) == [b"c"]


def test_offsets_restored_without_their_partition_are_detected(world: Restorable) -> None:
    """Only some folders of the log came from the backup."""
    world.write(b"a")
    backup = world.kept()
    world.write(b"b")
    world.owner.commit_offsets("g", {T0: CommittedOffset(2)})
    world.owner.close()
    later = copy.deepcopy(world.storage)
    assert isinstance(later, MemoryStorage)
    partition = f"topics/{Owner(copy.deepcopy(backup), background=False).topic('t').topic_id}/"
    world.storage = later
    for name in [name for name in later._files if name.startswith(partition)]:
        del later._files[name]
    restored = {n: f for n, f in backup._files.items() if n.startswith(partition)}
    later._files.update(copy.deepcopy(restored))
    later.unlink("clean")
    world.open()
    world.write(b"x", b"y")
    consumer = Consumer(world.attached(), group="g")
    consumer.assign([T0])
    (finding,) = check_log(copy.deepcopy(world.storage), clock=world.clock).report.findings
    assert (finding.kind, finding.severity.name) == ("group offset", "REPAIRABLE")
    assert "another history of the log" in finding.what
    assert values(consumer) == [b"a", b"x", b"y"]
    consumer.commit()
