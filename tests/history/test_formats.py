"""Files of versions without incarnations are read and trusted; the new ones are bounded and
checked."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from strandline.changelog.embedded import document
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.embedded.manifest import KIND
from strandline.changelog.embedded.offsets import _decode_value
from strandline.changelog.errors import FutureFormat
from strandline.changelog.history import (
    FIRST,
    MAX_EPOCHS,
    REBUILT,
    Epochs,
    HistoryEpoch,
    epoch_before,
    epoch_of,
    epochs_within,
    with_epoch,
)
from strandline.changelog.layout import MANIFEST, partition_folder
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import PartitionOffsets, ReadPosition, TopicPartition
from strandline.framework.spark.offsets import from_json, to_json
from tests.log.damage import change_manifest, files
from tests.log.kit import Client, World

T0 = TopicPartition("t", 0)


@pytest.fixture
def old() -> World:
    """A log whose manifests have version 1, from before incarnations."""
    world = World()
    world.owner.create_topic("t")
    Client(world).append(b"a", b"b")
    world.owner.close()
    assert isinstance(world.storage, MemoryStorage)
    for path, content in world.storage._files.items():
        if path.endswith(MANIFEST):
            manifest = msgspec.json.decode(document.unpack(KIND, bytes(content), path))
            manifest["epochs"] = [epoch[:2] for epoch in manifest["epochs"]]
            packed = document.pack(KIND, msgspec.json.encode(manifest))
            content[:] = packed.replace(b"manifest 2", b"manifest 1")
    return world


def manifest_line(world: World, topic_id: str) -> bytes:
    content = files(world)[f"{partition_folder(topic_id, 0)}/{MANIFEST}"]
    return bytes(content).partition(b"\n")[0]


def test_an_old_log_is_read_and_only_an_append_rewrites_its_manifest(old: World) -> None:
    owner = old.open()
    topic_id = owner.topic("t").topic_id
    assert old.values() == [b"a", b"b"]
    assert owner.offsets([T0])[T0].epochs == FIRST
    assert b"manifest 1" in manifest_line(old, topic_id)
    Client(old).append(b"c")
    assert b"manifest 2" in manifest_line(old, topic_id)
    epochs = old.reopen().offsets([T0])[T0].epochs
    assert [(epoch.number, epoch.start, bool(epoch.incarnation)) for epoch in epochs] == [
        (0, 0, False),
        (1, 2, True),
    ]
    assert old.values() == [b"a", b"b", b"c"]
    old.owner.close()


def test_a_later_version_of_a_manifest_is_refused() -> None:
    packed = document.pack(KIND, b"{}").replace(b"manifest 2", b"manifest 3")
    with pytest.raises(FutureFormat, match="manifest version 3, this Strandline reads up to 2"):
        document.unpack(KIND, packed, "m")


@pytest.mark.parametrize(
    ("offset", "epoch", "trusted"), [(2, 0, True), (3, 0, False), (3, 1, False)]
)
def test_an_old_position_is_trusted_up_to_the_first_record_with_an_incarnation(
    old: World, offset: int, epoch: int, *, trusted: bool
) -> None:
    owner = old.open()
    Client(old).append(b"c", b"d")
    position = ReadPosition(offset, owner.topic("t").topic_id, epoch)
    assert (owner.offsets([T0])[T0].divergence(position) == "") is trusted
    owner.close()


def test_old_checkpoints_of_spark_and_old_commits_of_groups_are_read() -> None:
    stored = {
        "version": 1,
        "topics": {"t": {"id": "0f", "partitions": {"0": {"offset": 7, "leader_epoch": 3}}}},
        "holder": "77",
        "pinned": True,
    }
    reached = from_json(stored)
    assert reached.positions == {T0: ReadPosition(7, "0f", 3, "")}
    assert to_json(reached) == stored
    value = _decode_value(msgspec.msgpack.encode([7, "mine", "0f", 1_700_000_000_000]))
    assert (value.committed.offset, value.committed.incarnation) == (7, "")


def test_the_list_of_epochs_is_bounded_and_forgotten_epochs_are_not_trusted() -> None:
    epochs: Epochs = (HistoryEpoch(0, 0, "i0"),)
    for n in range(1, MAX_EPOCHS + 10):
        epochs = with_epoch(epochs, n * 10, f"i{n}", 0)
    assert len(epochs) == MAX_EPOCHS
    assert all(a.number < b.number and a.start < b.start for a, b in pairwise(epochs))
    end = epochs[-1].start + 5
    log = PartitionOffsets(0, end, end, "id", epochs[-1].number, epochs)
    assert "older than the 2000 openings" in log.divergence(ReadPosition(55, "id", 5, "i5"))
    assert log.divergence(ReadPosition(55, "id", 5)) != ""
    known = epochs[1]
    assert (
        log.divergence(ReadPosition(known.start + 5, "id", known.number, known.incarnation)) == ""
    )


def test_epochs_of_deleted_segments_are_forgotten() -> None:
    epochs = (HistoryEpoch(0, 0, "a"), HistoryEpoch(1, 40, "b"), HistoryEpoch(2, 60, "c"))
    kept = with_epoch(epochs, 90, "d", 50)
    assert [epoch.incarnation for epoch in kept] == ["b", "c", "d"]


@pytest.mark.parametrize("offset", range(8))
def test_a_part_of_the_epochs_identifies_positions_like_the_whole_list(offset: int) -> None:
    epochs = (HistoryEpoch(0, 0, "a"), HistoryEpoch(1, 3, "b"), HistoryEpoch(4, 5, "c"))
    for limit in range(offset, 8):
        part = epochs_within(epochs, offset, limit)
        for at in range(offset, limit + 1):
            assert epoch_before(part, at) == epoch_before(epochs, at)
    assert epoch_of(epochs, offset).start <= offset


@pytest.mark.damages
@pytest.mark.parametrize(
    ("epochs", "problem"),
    [
        (
            (HistoryEpoch(0, 0, "a"), HistoryEpoch(1, 1, "a")),
            "two leader epochs of one incarnation",
        ),
        ((HistoryEpoch(0, 0, "a"), HistoryEpoch(1, 1)), "without an incarnation after one with it"),
        ((HistoryEpoch(0, 1, "a"),), "no leader epoch for its first offset"),
        ((HistoryEpoch(1, 0, "a"), HistoryEpoch(1, 1, "b")), "do not ascend"),
    ],
)
def test_check_finds_epochs_that_contradict_each_other(epochs: Epochs, problem: str) -> None:
    world = World()
    world.owner.create_topic("t")
    Client(world).append(b"a", b"b")
    world.owner.close()
    change_manifest(world, lambda manifest: setattr(manifest, "epochs", epochs))
    said = [one.what for one in check_log(world.storage, clock=world.clock).report.findings]
    assert any(problem in what for what in said), said


def test_leader_epochs_distinguish_histories_after_a_manifest_was_rebuilt() -> None:
    epochs = (HistoryEpoch(0, 0, REBUILT), HistoryEpoch(1, 40, REBUILT), HistoryEpoch(2, 60, "c"))
    log = PartitionOffsets(0, 90, 90, "id", 2, epochs)
    assert log.divergence(ReadPosition(60, "id", 1, "lost")) == ""
    assert "which the log has only to 60" in log.divergence(ReadPosition(61, "id", 1, "lost"))
    assert "another history" in log.divergence(ReadPosition(61, "id", 2, "other"))
