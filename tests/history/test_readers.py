"""Consumers and groups detect that the log under them was replaced by another history."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.changelog.client.consumer import Consumer
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import OffsetOutOfRange
from strandline.changelog.flight.client import FlightBroker
from strandline.changelog.flight.connection_target import ConnectionTarget
from strandline.changelog.flight.failover import FailoverBroker, LogLink
from strandline.changelog.flight.server import FlightEndpoint
from strandline.changelog.history import continues, epoch_before
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import Append, CommittedOffset, TopicPartition
from strandline.statestore.changelogged import Changelogged
from strandline.statestore.engines.memory import MemoryEngine
from strandline.statestore.restore import restore
from tests.attach.conftest import TOKEN
from tests.log.kit import Client, World, columns

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


def test_a_consumer_whose_position_is_after_the_end_of_a_restored_log_warns(
    world: Restorable, caplog: pytest.LogCaptureFixture
) -> None:
    world.write(b"a")
    backup = world.kept()
    world.write(b"b", b"c")
    consumer = Consumer(world.attached(), auto_offset_reset="latest")
    consumer.subscribe("t")
    consumer.seek_to_beginning(T0)
    assert values(consumer) == [b"a", b"b", b"c"]
    world.restore(backup)
    world.write(b"x")
    assert values(consumer) == []
    assert "it is after the end" in caplog.text


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


def test_a_position_that_was_looked_up_but_not_read_names_its_history(world: Restorable) -> None:
    world.write(b"a")
    backup = world.kept()
    world.write(b"b")
    world.owner.commit_offsets("g", {T0: CommittedOffset(2)})
    consumer = Consumer(world.attached(), group="g", auto_offset_reset="none")
    consumer.assign([T0])
    assert consumer.position(T0) == 2
    world.restore(backup)
    world.write(b"x", b"y")
    with pytest.raises(OffsetOutOfRange, match="another history"):
        values(consumer)


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


def lives_of_markers(folder: Path) -> None:
    """Write a log whose first opening has committed a record, and whose others only aborted."""
    for opening in range(3):
        owner = Owner(LocalStorage(folder), durability="os", background=False)
        if opening == 0:
            owner.create_topic("t")
        producer = owner.init_producer(f"x{opening}")
        owner.append([Append("t", 0, columns([b"a"], key=b"k"), producer, 0, True)])
        owner.end_transaction(producer, commit=opening == 0)
        owner.close()


@pytest.mark.parametrize("reads_files", [True, False])
@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
def test_a_fetch_that_skips_markers_names_the_epochs_from_its_first_offset(
    tmp_path: Path, reads_files: bool, max_bytes: int
) -> None:
    """Otherwise a reader would take the epochs of the markers for another history."""
    folder = tmp_path / "log"
    lives_of_markers(folder)
    owner = Owner(LocalStorage(folder), durability="os", background=False)
    location = f"grpc+unix://{tmp_path}/s"
    endpoint = FlightEndpoint(owner, location, token=TOKEN, locate=owner.locate)
    target = ConnectionTarget(location, TOKEN, "the log", folder=folder if reads_files else None)
    attached = FlightBroker(target, deadline=10)
    try:
        ends = attached.offsets([T0])[T0]
        assert [epoch.start for epoch in ends.epochs] == [0, 2, 4]
        for broker in (attached, owner):
            for offset in range(ends.high_watermark):
                fetched = broker.fetch({T0: offset}, max_bytes=max_bytes)[T0]
                assert (fetched.next_offset > 1) is (offset > 0 or max_bytes > 1)
                incarnation = ends.epoch_before(offset).incarnation
                assert continues(fetched.epochs, offset, incarnation)
                after = epoch_before(fetched.epochs, fetched.next_offset)
                assert after == ends.epoch_before(fetched.next_offset)
        state = Changelogged(MemoryEngine())
        assert restore(state, attached, T0).position.offset == ends.high_watermark
        assert restore(state, attached, T0).plan.action == "resume"
        consumer = Consumer(attached, auto_offset_reset="earliest")
        consumer.assign([T0])
        assert values(consumer) == [b"a"]
        assert consumer.position(T0) == ends.high_watermark
    finally:
        attached.close()
        endpoint.close()
        owner.close()
