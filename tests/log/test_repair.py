"""`repair` salvages the readable records, names the rest, and never gives a wrong answer
silently."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import combinations

import pyarrow as pa
import pytest

from strandline.changelog.embedded.checking.findings import Severity
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.embedded.folder import save_log_config
from strandline.changelog.embedded.manifest import Manifest
from strandline.changelog.embedded.repairing.folder import NOT_REPAIRABLE, plan_of
from strandline.changelog.embedded.repairing.plan import RepairPlan, carry_out
from strandline.changelog.embedded.topic import TopicCatalog
from strandline.changelog.errors import CorruptLog, DiskFull, StrandlineError
from strandline.changelog.layout import (
    CATALOG,
    CLEAN,
    FOLDER_META,
    LOG_CONFIG,
    REPAIRED,
    topic_copy,
)
from strandline.changelog.log_config import LogConfig
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import CommittedOffset, TopicPartition
from tests.log.damage import SMALL, change_manifest, files, folder_of, log_file, paths, positions
from tests.log.kit import Client, World
from tests.log.power import Died, PowerStorage, PowerWorld, stopping_after

pytestmark = pytest.mark.damages

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SYSTEM = ("__transaction_state", "__consumer_offsets")


def a_log(storage: MemoryStorage | PowerStorage | None = None, records: int = 40) -> World:
    """Return a log with plain records, and transactions over two partitions, every third
    aborted."""
    world = (
        PowerWorld(storage)
        if isinstance(storage, PowerStorage)
        else World(storage or MemoryStorage())
    )
    world.owner.create_topic("t", 2, config=SMALL)
    plain, tx = Client(world), Client(world, "tx")
    for n in range(records):
        plain.append(b"p%d" % n)
        tx.append(b"x%d" % n)
        tx.append(b"y%d" % n, partition=1)
        world.owner.add_offsets(tx.identity, "g", {T1: CommittedOffset(n)})
        tx.commit() if n % 3 else tx.abort()
    return world


def plan(world: World) -> RepairPlan:
    checked = check_log(world.storage, clock=world.clock)
    return plan_of(checked, world.storage, world.clock)


def repair(world: World) -> RepairPlan:
    """Repair the world's folder, check that it is sound, and open it."""
    made = plan(world)
    carry_out(made, world.storage, world.clock)
    expect_sound(world)
    world.crash()
    expect_sound(world)
    return made


def expect_sound(world: World) -> None:
    said = check_log(world.storage, clock=world.clock).report
    wrong = [
        one
        for one in said.findings
        if one.severity > Severity.NOTE and one.kind not in NOT_REPAIRABLE
    ]
    assert wrong == []


def all_values(world: World) -> dict[TopicPartition, list[bytes | None]]:
    return {tp: world.values(*tp) for tp in (T0, T1)}


def records_of(world: World) -> dict[TopicPartition, dict[int, bytes | None]]:
    """Return the values that a read_committed reader gets, by offset."""
    seen: dict[TopicPartition, dict[int, bytes | None]] = {}
    for tp in (T0, T1):
        seen[tp] = {}
        position = world.owner.offsets([tp])[tp].log_start
        while True:
            fetched = world.owner.fetch({tp: position})[tp]
            for batch in fetched.batches:
                seen[tp] |= {record.offset: record.value for record in batch.records()}
            if fetched.next_offset == position:
                break
            position = fetched.next_offset
    return seen


def test_a_sound_log_is_not_changed() -> None:
    world = a_log()
    made = plan(world)
    assert (made.steps, made.losses, made.left) == ([], [], [])
    world.owner.close()
    assert plan(world).steps == []


# Single frames ------------------------------------------------------------------------


@pytest.mark.parametrize("byte", [5, 110], ids=["header", "payload"])
@pytest.mark.parametrize("number", [0, 1], ids=["one partition", "the other"])
def test_a_damaged_frame_loses_its_own_records_and_no_others(byte: int, number: int) -> None:
    """A lost marker loses no records, because the end of the transaction is known from
    elsewhere."""
    world = a_log(records=12)
    tp = TopicPartition("t", number)
    before = records_of(world)
    storage = world.storage
    assert isinstance(storage, MemoryStorage)
    original = {path: bytes(content) for path, content in storage._files.items()}
    damaged = 0
    for path in paths(world, ".log", partition=number):
        content = original[path]
        for position in positions(content)[:-2]:  # no frame says that the last ones were durable
            storage._files = {name: bytearray(data) for name, data in original.items()}
            storage._files[path][position + byte] ^= 1
            first = int.from_bytes(content[position + 24 : position + 32], "little")
            made = repair(world)
            assert made.steps
            assert any(f"{tp}: the records from offset {first}" in loss for loss in made.losses)
            after = records_of(world)
            before_here = {o: v for o, v in before[tp].items() if o != first}
            assert after == {**before, tp: before_here}
            damaged += 1
    assert damaged > 20


def test_producers_and_transactions_work_after_a_repair() -> None:
    world = a_log()
    data = log_file(world, 1)
    data[positions(data)[1] + 5] ^= 1
    repair(world)
    end = world.owner.offsets([T0])[T0].high_watermark
    tx = Client(world, "tx")
    appended = tx.append(b"new")
    tx.commit()
    assert appended.base_offset == end
    assert world.values()[-1] == b"new"
    world.reopen()
    assert world.values()[-1] == b"new"
    expect_sound(world)


def test_every_file_that_is_changed_or_removed_is_kept_as_it_was() -> None:
    world = a_log()
    data = log_file(world, 1)
    data[positions(data)[1] + 5] ^= 1
    del files(world)[FOLDER_META]
    world.owner.close()
    before = {path: bytes(content) for path, content in files(world).items()}
    made = repair_only(world)
    after = {path: bytes(content) for path, content in files(world).items()}
    kept = {p.split("/", 2)[2]: content for p, content in after.items() if p.startswith(REPAIRED)}
    changed = {path for path, content in before.items() if after.get(path) != content}
    assert changed
    assert changed <= kept.keys()
    assert all(kept[path] == before[path] for path in kept)
    assert len(made.steps) == 4


def repair_only(world: World) -> RepairPlan:
    made = plan(world)
    carry_out(made, world.storage, world.clock)
    return made


def test_a_second_repair_at_the_same_time_keeps_its_copies_apart() -> None:
    world = a_log()
    for _ in range(2):
        del files(world)[FOLDER_META]
        files(world)[f"{folder_of(world)}/manifest.meta"][-3] ^= 1
        repair_only(world)
    folders = {path.split("/")[1] for path in files(world) if path.startswith(REPAIRED)}
    assert len(folders) == 2


# Files --------------------------------------------------------------------------------


def test_a_log_repaired_after_losing_any_file_shows_the_same_or_names_the_losses() -> None:
    world = a_log()
    world.owner.close()
    without(world, 1)


@pytest.mark.long
@pytest.mark.slow
def test_a_log_repaired_after_losing_any_two_files_shows_the_same_or_names_the_losses() -> None:
    world = a_log(records=10)
    world.owner.close()
    without(world, 2)


def without(world: World, count: int) -> None:
    storage = world.storage
    assert isinstance(storage, MemoryStorage)
    world.open()
    before = records_of(world)
    world.owner.close()
    original = {path: bytes(content) for path, content in storage._files.items()}
    lossy = 0
    for lost in combinations(sorted(original), count):
        storage._files = {p: bytearray(c) for p, c in original.items() if p not in lost}
        made = repair(world)
        after = {tp: records_or_nothing(world, tp) for tp in (T0, T1)}
        for tp in (T0, T1):
            assert after[tp].items() <= before[tp].items()
        if after != before:
            lossy += 1
            assert made.losses, lost
    assert lossy


def records_or_nothing(world: World, tp: TopicPartition) -> dict[int, bytes | None]:
    try:
        return records_of(world)[tp]
    except StrandlineError:
        return {}  # the topic is lost, and was named


def test_damage_to_any_single_document_loses_nothing() -> None:
    world = a_log()
    before = all_values(world)
    storage = world.storage
    assert isinstance(storage, MemoryStorage)
    world.owner.close()
    original = {path: bytes(content) for path, content in storage._files.items()}
    for path in sorted(original):
        if not path.endswith(".log") and path != "lock":
            storage._files = {name: bytearray(data) for name, data in original.items()}
            storage._files[path][-4] ^= 1
            repair(world)
            assert all_values(world) == before, path


def test_a_missing_closed_segment_is_removed_from_the_log() -> None:
    world = a_log()
    before = records_of(world)
    entry = Manifest.load(world.storage, folder_of(world)).segments[1]
    del files(world)[f"{folder_of(world)}/{entry.name.log_file}"]
    made = repair(world)
    lost = range(entry.base_offset, entry.end_offset)
    expected = {o: v for o, v in before[T0].items() if o not in lost}
    assert records_of(world)[T0] == expected
    assert f"from offset {lost[0]} to offset {lost[-1]}" in made.losses[0]


def test_a_missing_first_segment_moves_the_start_of_the_log() -> None:
    world = a_log()
    entries = Manifest.load(world.storage, folder_of(world)).segments
    del files(world)[f"{folder_of(world)}/{entries[0].name.log_file}"]
    repair(world)
    assert world.owner.offsets([T0])[T0].log_start == entries[1].base_offset


def test_offsets_of_a_missing_active_segment_are_never_reused() -> None:
    world = a_log()
    ends = world.owner.offsets([T0])[T0]
    del files(world)[paths(world, ".log")[-1]]
    made = repair(world)
    assert any("continue at offset" in step.what for step in made.steps)
    after = world.owner.offsets([T0])[T0]
    assert after.leader_epoch > ends.leader_epoch
    assert Client(world).append(b"new").base_offset > 1 << 20
    assert after.epoch_end(ends.leader_epoch) <= ends.high_watermark


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_segment_that_is_missing_with_the_manifest_is_named(number: int) -> None:
    world = a_log()
    before = records_of(world)[T0]
    lost = paths(world, ".log")[number]
    base = int(lost.rpartition("/")[2].partition("-")[0])
    del files(world)[lost]
    del files(world)[f"{folder_of(world)}/manifest.meta"]
    made = repair(world)
    after = records_of(world)[T0]
    assert after.items() < before.items()
    assert any(loss.startswith(f"t-0: the records from offset {base} to ") for loss in made.losses)
    assert Client(world).append(b"new").base_offset > max(before)


def unnamed(made: RepairPlan, tp: TopicPartition, offsets: Iterable[int]) -> set[int]:
    """Return the offsets that no loss of the plan names."""
    text = rf"{tp}: the records from offset (\d+) to (?:offset (\d+)|the end)"
    found = [match for loss in made.losses if (match := re.match(text, loss))]
    named = [(int(match[1]), int(match[2] or 1 << 62)) for match in found]
    return {one for one in offsets if not any(first <= one <= last for first, last in named)}


@pytest.mark.parametrize("readable", [0, 1])
@pytest.mark.parametrize("number", [0, 1, -1])
def test_every_record_of_an_unreadable_segment_without_a_manifest_is_named(
    number: int, readable: int
) -> None:
    world = a_log()
    before = records_of(world)[T0]
    world.owner.close()  # after a kill, the end of the last segment may be a torn write
    path = paths(world, ".log")[number]
    content = files(world)[path]
    keep = positions(content)[readable]
    content[keep:] = b"?" * len(content[keep:])
    del files(world)[f"{folder_of(world)}/manifest.meta"]
    made = repair(world)
    after = records_of(world)[T0]
    assert after.items() < before.items()
    assert not unnamed(made, T0, before.keys() - after.keys())


def test_partitions_that_changed_places_are_empty_after_a_repair() -> None:
    """Their records belong to other offsets of the topic, and a group has read some of them."""
    world = a_log()
    before = records_of(world)
    one, other = folder_of(world), folder_of(world).removesuffix("0") + "1"
    moved = {}
    for path in [path for path in files(world) if path.startswith((f"{one}/", f"{other}/"))]:
        folder, _, name = path.rpartition("/")
        moved[f"{other if folder == one else one}/{name}"] = files(world).pop(path)
    files(world).update(moved)
    made = repair(world)
    assert records_of(world) == {T0: {}, T1: {}}
    for tp, records in before.items():
        assert not unnamed(made, tp, records)


def test_after_a_lost_manifest_any_record_may_have_been_cleaned() -> None:
    """Otherwise a store that had been away would continue, and keep keys deleted meanwhile."""
    world = a_log()
    active = int(paths(world, ".log")[-1].rpartition("/")[2].partition("-")[0])
    del files(world)[f"{folder_of(world)}/manifest.meta"]
    repair(world)
    made = world.owner.offsets([T0])[T0]
    assert made.purged_end == made.superseding_end == active > 0
    assert made.must_start_over(active - 1)
    assert not made.must_start_over(active)
    assert not made.must_start_over(0, made.settled_end), "who begins with nothing is not held up"


def test_a_partition_without_any_files_is_missed_after_an_orderly_close() -> None:
    world = World()
    world.owner.create_topic("t")
    Client(world).append(b"a")
    world.owner.close()
    for path in paths(world, ""):
        del files(world)[path]
    with pytest.raises(CorruptLog, match=r"manifest.meta is missing though .*strandline repair"):
        world.open()
    made = repair(world)
    assert made.losses == ["t-0: the records from offset 0 to the end of the log"]
    assert Client(world).append(b"new").base_offset > 1


def test_a_topic_without_its_folder_after_an_unclean_stop_is_named_as_lost() -> None:
    world = World()
    world.owner.create_topic("t", 2)
    world.owner.create_topic("other")
    Client(world).append(b"a")
    for path in paths(world, ""):
        del files(world)[path]
    del files(world)[topic_copy(world.owner.topic("t").topic_id)]
    with pytest.raises(CorruptLog, match=r"the folder of topic 't', .*strandline repair"):
        world.crash()
    made = repair(world)
    assert made.losses == [
        f"t-{number}: the records from offset 0 to the end of the log" for number in (0, 1)
    ]
    assert Client(world).append(b"new").base_offset > 1


@pytest.mark.parametrize("left", [0, 1])
def test_a_closed_segment_cut_between_two_frames_gets_an_index_of_its_own(left: int) -> None:
    world = a_log()
    content = log_file(world, 0)
    del content[positions(content)[left] :]
    made = repair(world)
    assert made.losses
    assert world.values("t", 1)


def test_damage_to_a_tail_that_was_durable_at_the_close_is_repaired() -> None:
    world = a_log()
    before = records_of(world)[T0]
    end = world.owner.offsets([T0])[T0].high_watermark
    world.owner.close()
    data = log_file(world)
    del data[positions(data)[-3] + 7 :]
    made = repair(world)
    assert any("to the end of the log" in loss for loss in made.losses)
    after = records_of(world)[T0]
    assert after.items() <= before.items()
    assert max(before.keys() - after.keys()) >= end - 3
    assert Client(world).append(b"new").base_offset > end


def test_a_prepare_past_the_end_of_a_partition_no_longer_prevents_opening() -> None:
    world = World()
    world.owner.create_topic("t", 2)
    tx = Client(world, "tx")
    tx.append(b"a")
    tx.append(b"b", partition=1)
    tx.commit()
    log_file(world, partition=1).clear()
    with pytest.raises(CorruptLog, match="committed transaction"):
        world.crash()
    assert isinstance(world.storage, MemoryStorage)
    world.storage.crash()
    made = repair(world)
    assert "t-1: the records between offset 0 and 1" in made.losses[0]
    assert "'tx'" in made.losses[0]
    assert world.values() == [b"a"]
    assert world.values(partition=1) == []
    tx = Client(world, "tx")
    tx.append(b"c", partition=1)
    tx.commit()
    assert world.values(partition=1) == [b"c"]


def test_a_group_whose_offset_is_past_the_repaired_end_misses_no_new_records() -> None:
    world = World()
    world.owner.create_topic("t")
    client = Client(world)
    for _ in range(3):
        client.append(b"a")
    world.owner.commit_offsets("g", {T0: CommittedOffset(3)})
    data = log_file(world)
    del data[positions(data)[1] :]
    made = repair(world)
    assert "group 'g'" in made.losses[0]
    assert Client(world).append(b"new").base_offset > 3


# Lost ends of transactions ------------------------------------------------------------


def spoil_marker(world: World, partition: int, number: int) -> None:
    """Damage a marker, the `number`-th of the partition."""
    data = log_file(world, partition=partition)
    markers = [at for at in positions(data) if data[at + 17] == 3]
    data[markers[number] + 5] ^= 1


def two_transactions(*, first_commits: bool, then: bool = True) -> World:
    """Return a log. t-0: a (first) M [b (second) M] and a plain record; t-1: the same
    transactions."""
    world = World()
    world.owner.create_topic("t", 2)
    tx = Client(world, "tx")
    for word, commit in ((b"a", first_commits), (b"b", True))[: 1 + then]:
        tx.append(word)
        tx.append(word, partition=1)
        tx.commit() if commit else tx.abort()
    plain = Client(world)
    for _ in range(2):
        plain.append(b"plain")
    Client(world, "tx")  # finalizes, so that no Prepare is live
    return world


@pytest.mark.parametrize("first_commits", [True, False])
@pytest.mark.parametrize("then", [True, False], ids=["another follows", "the last one"])
def test_a_lost_marker_of_a_transaction_is_written_as_it_was(
    *, first_commits: bool, then: bool
) -> None:
    world = two_transactions(first_commits=first_commits, then=then)
    before = world.values()
    spoil_marker(world, 0, 0)
    repair(world)
    assert world.values() == before
    assert world.values(partition=1) == before[:-2]


def test_with_a_damaged_transaction_log_other_partitions_decide_how_a_transaction_ended() -> None:
    for commits in (True, False):
        world = two_transactions(first_commits=commits)
        before = world.values()
        spoil_marker(world, 0, 0)
        data = log_file(world, topic="__transaction_state")
        for position in positions(data)[:-1]:
            data[position + 5] ^= 1
        made = repair(world)
        assert world.values() == before
        assert not any("is unknown" in loss for loss in made.losses)


def test_a_transaction_of_unknown_outcome_counts_as_aborted_and_is_named() -> None:
    world = two_transactions(first_commits=True)
    spoil_marker(world, 0, 0)
    spoil_marker(world, 1, 0)
    data = log_file(world, topic="__transaction_state")
    for position in positions(data)[:-1]:
        data[position + 5] ^= 1
    made = repair(world)
    named = [loss for loss in made.losses if "is unknown" in loss]
    assert [loss.partition(":")[0] for loss in named] == ["t-0", "t-1"]
    assert world.values() == [b"b", b"plain", b"plain"]


def test_a_commit_whose_prepare_is_lost_gets_its_missing_markers() -> None:
    world = World()
    world.owner.create_topic("t", 2)
    tx = Client(world, "tx")
    tx.append(b"a")
    tx.append(b"b", partition=1)
    tx.commit()
    Client(world, "tx2"), Client(world, "tx3")
    data = log_file(world, partition=1)
    del data[positions(data)[-1] :]
    log = log_file(world, topic="__transaction_state")
    ids, started, prepared, completed, *others = positions(log)
    assert len(others) == 2
    for position in (prepared, completed):
        log[position + 5] ^= 1
    assert ids < started
    repair(world)
    assert world.values() == [b"a"]
    assert world.values(partition=1) == [b"b"]


# System topics ------------------------------------------------------------------------


def test_any_damaged_frame_of_a_system_topic_is_repaired_and_named() -> None:
    world = a_log(records=8)
    before = all_values(world)
    storage = world.storage
    assert isinstance(storage, MemoryStorage)
    original = {path: bytes(content) for path, content in storage._files.items()}
    for topic in SYSTEM:
        path = paths(world, ".log", topic)[0]
        for position in positions(original[path])[:-2]:
            storage._files = {name: bytearray(data) for name, data in original.items()}
            storage._files[path][position + 5] ^= 1
            made = repair(world)
            assert any(topic in loss for loss in made.losses)
            assert all_values(world) == before
            tx = Client(world, "tx")
            tx.append(b"new")
            tx.commit()


def test_no_producer_id_is_assigned_twice_after_the_transaction_log_was_damaged() -> None:
    world = a_log(records=4)
    known = Client(world).identity.producer_id
    data = log_file(world, topic="__transaction_state")
    data[positions(data)[0] + 5] ^= 1
    repair(world)
    assert Client(world).identity.producer_id > known + 1000


def test_exactly_the_groups_whose_commit_was_lost_are_named() -> None:
    world = World()
    world.owner.create_topic("t")
    Client(world).append(*[b"%d" % n for n in range(9)])
    for group, offset in (("old", 1), ("lost", 2), ("lost", 5), ("fine", 3), ("fine", 4)):
        world.owner.commit_offsets(group, {T0: CommittedOffset(offset)})
    data = log_file(world, topic="__consumer_offsets")
    data[positions(data)[2] + 5] ^= 1
    made = repair(world)
    (named,) = [loss for loss in made.losses if "groups" in loss]
    assert "lost in t-0 (at 2)" in named
    assert "old in t-0 (at 1)" in named
    assert "fine" not in named
    assert world.owner.committed("lost")[T0].offset == 2
    assert world.owner.committed("fine")[T0].offset == 4


# The catalog --------------------------------------------------------------------------


def test_a_lost_catalog_is_restored_with_settings_and_schemas() -> None:
    world = a_log()
    world.owner.create_topic("typed", schema=pa.schema([("n", pa.int64())]))
    world.owner.alter_topic("t", config={"retention.ms": "12345"}, partitions=3)
    before = [(info.name, info.topic_id, info.config) for info in world.owner.topics()]
    values = all_values(world)
    del files(world)[CATALOG]
    repair(world)
    after = [(info.name, info.topic_id, info.config) for info in world.owner.topics()]
    assert after == before
    assert world.owner.topic("t").partitions == 3
    assert world.owner.topic("typed").schema == pa.schema([("n", pa.int64())])
    assert all_values(world) == values


def test_a_topic_whose_copy_is_lost_too_keeps_its_records_and_loses_its_settings() -> None:
    world = a_log()
    values = all_values(world)
    del files(world)[CATALOG]
    del files(world)[topic_copy(world.owner.topic("t").topic_id)]
    made = repair(world)
    assert any("topic 't': its settings" in loss for loss in made.losses)
    assert world.owner.topic("t").config == {"retention.ms": "-1"}
    assert all_values(world) == values


def test_nothing_is_deleted_after_the_log_settings_were_lost() -> None:
    world = a_log()
    world.owner.alter_config({"log.retention.ms": "1000", "log.segment.bytes": "5000"})
    files(world)[LOG_CONFIG][-2] ^= 1
    made = repair(world)
    assert any("strandline config set" in loss for loss in made.losses)
    assert world.owner.describe_config() == {"log.retention.ms": "-1"}
    kept = [path for path in files(world) if path.startswith(REPAIRED)]
    assert [path.rpartition("/")[2] for path in kept] == [LOG_CONFIG]


def test_a_lost_folder_meta_forgets_no_settings() -> None:
    world = a_log()
    world.owner.alter_config({"log.retention.ms": "1000"})
    del files(world)[FOLDER_META]
    repair(world)
    assert world.owner.describe_config() == {"log.retention.ms": "1000"}
    del files(world)[LOG_CONFIG]
    with pytest.raises(CorruptLog, match="missing though there were settings"):
        world.crash()


def test_a_deleted_topic_does_not_reappear() -> None:
    world = a_log()
    world.owner.create_topic("gone")
    Client(world).append(b"a", topic="gone")
    world.owner.delete_topic("gone")
    del files(world)[CATALOG]
    repair(world)
    assert [info.name for info in world.owner.topics()] == sorted(["t", *SYSTEM])


def test_a_catalog_that_does_not_list_a_topic_with_records_deletes_nothing() -> None:
    """It is that of another log, or was copied before the topic was created."""
    world = a_log()
    earlier = bytes(files(world)[CATALOG])
    world.owner.create_topic("new")
    Client(world).append(b"a", topic="new")
    world.owner.create_topic("empty")
    world.owner.close()
    before = {path for path in files(world) if path.endswith(".log")}
    files(world)[CATALOG][:] = earlier
    with pytest.raises(CorruptLog, match=r"topics.meta does not list .*strandline repair"):
        world.reopen()
    assert {path for path in files(world) if path.endswith(".log")} == before
    found = check_log(world.storage, clock=world.clock).report.findings
    assert [one.kind for one in found if one.severity > Severity.NOTE] == ["catalog"]
    made = repair(world)
    assert made.losses == []
    assert world.values("new", 0) == [b"a"]
    assert {"t", "new"} <= {info.name for info in world.owner.topics()}


def test_a_topic_whose_deletion_fails_keeps_its_records_and_its_copy() -> None:
    world = a_log()
    copy = topic_copy(world.owner.topic("t").topic_id)

    def refuse(*_: object) -> None:
        raise DiskFull("no room")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(DiskFull):
        patch.setattr(TopicCatalog, "_save", refuse)
        world.owner.delete_topic("t")
    assert copy in files(world)
    assert records_of(world)[T1]
    world.owner.delete_topic("t")
    world.reopen()
    assert [info.name for info in world.owner.topics()] == sorted(SYSTEM)


def test_two_folders_with_one_topic_name_are_resolved_by_moving_the_emptier_one_aside() -> None:
    world = a_log()
    values = all_values(world)
    copy = bytes(files(world)[topic_copy(world.owner.topic("t").topic_id)])
    other = "f" * 32
    meta = world.owner._log.catalog.get("t").meta
    import msgspec

    msgspec.structs.replace(meta, topic_id=other).save_copy(world.storage)
    del files(world)[CATALOG]
    made = repair(world)
    assert any(other in loss for loss in made.losses)
    assert world.owner.topic("t").topic_id == meta.topic_id
    assert all_values(world) == values
    kept = [p for p in files(world) if p.startswith(REPAIRED) and p.endswith(topic_copy(other))]
    assert len(kept) == 1
    assert copy


def test_an_unidentifiable_folder_is_moved_aside() -> None:
    world = a_log()
    files(world)[f"topics/{'e' * 32}/0/{0:020d}-00000001.log"] = bytearray(b"who am I?")
    del files(world)[CATALOG]
    made = repair(world)
    assert any("e" * 32 in loss for loss in made.losses)
    kept = [path for path in files(world) if path.startswith(REPAIRED) and "e" * 32 in path]
    assert len(kept) == 1


def test_contradictions_are_named_and_left() -> None:
    world = a_log()
    change_manifest(world, lambda m: setattr(m, "epochs", [(0, 0), (1, 20)]))
    made = plan(world)
    assert made.steps == []
    assert any("leader epoch" in left for left in made.left)


def test_a_wrong_note_of_an_orderly_close_is_removed() -> None:
    world = a_log()
    before = all_values(world)
    world.owner.close()
    files(world)[CLEAN][-4] ^= 1
    repair(world)
    assert all_values(world) == before


# Crashes ------------------------------------------------------------------------------


def several_wounds(world: PowerWorld) -> None:
    storage = world.storage
    world.owner.close()
    storage.crash()
    segments = storage.paths(folder_of(world), ".log")
    storage.flip(segments[1], 200)
    storage.lose(storage.paths(folder_of(world, partition=1), ".log")[-1])
    storage.flip(f"{folder_of(world, '__consumer_offsets')}/manifest.meta", -5)
    storage.lose(CATALOG)


@pytest.mark.parametrize("death", ["crash", "power_cut"])
def test_a_repair_that_dies_anywhere_can_be_run_again(death: str) -> None:
    def wounded() -> PowerWorld:
        world = a_log(PowerStorage(), records=14)
        assert isinstance(world, PowerWorld)
        several_wounds(world)
        return world

    world = wounded()
    repair(world)
    expected = all_values(world)
    deaths = 0
    for count in range(0, 1000, 3):
        world = wounded()
        world.storage.hook = stopping_after(count)
        try:
            repair_only(world)
        except Died:
            getattr(world.storage, death)()
            deaths += 1
        else:
            break
        repair(world)
        assert all_values(world) == expected, count
    assert deaths > 20


def unreadable(world: World) -> None:
    """Damage the settings of the log."""
    world.owner.alter_config({"log.retention.ms": "5"})
    files(world)[LOG_CONFIG][-2] ^= 1


def unconfigured(world: World) -> None:
    """Delete the settings of the log."""
    world.owner.alter_config({"log.retention.ms": "5"})
    del files(world)[LOG_CONFIG]


def contradicted(world: World) -> None:
    """Let a topic contradict the log's settings, by a settings document from elsewhere."""
    world.owner.alter_topic("t", config={"min.compaction.lag.ms": "10"})
    config = LogConfig({"log.cleaner.max.compaction.lag.ms": "9"})
    save_log_config(world.storage, config)


def wounds() -> list[Callable[[World], object]]:
    """Return kinds of damage that keep a log from opening, one for each error message."""

    def flip(path: Callable[[World], str], at: int) -> Callable[[World], object]:
        def wound(world: World) -> None:
            files(world)[path(world)][at] ^= 1

        return wound

    return [
        lambda world: files(world).pop(FOLDER_META),
        flip(lambda _: FOLDER_META, -2),
        flip(lambda _: FOLDER_META, 0),
        lambda world: files(world).pop(CATALOG),
        flip(lambda _: CATALOG, -2),
        unreadable,
        unconfigured,
        contradicted,
        lambda world: files(world).pop(f"{folder_of(world)}/manifest.meta"),
        flip(lambda world: f"{folder_of(world)}/manifest.meta", -2),
        lambda world: files(world).pop(paths(world, ".log")[0]),
        lambda world: files(world).pop(paths(world, ".log")[-1]),
        lambda world: files(world)[paths(world, ".log")[0]].extend(b"x"),
        lambda world: files(world)[paths(world, ".log")[0]].pop(),
        flip(lambda world: paths(world, ".log")[-1], 120),
        flip(lambda world: paths(world, ".log", "__transaction_state")[-1], 120),
        flip(lambda world: paths(world, ".log", "__consumer_offsets")[-1], 120),
    ]


@pytest.mark.parametrize("number", range(len(wounds())))
def test_repair_fixes_every_damage_whose_error_recommends_it(number: int) -> None:
    world = a_log()
    wounds()[number](world)
    with pytest.raises(CorruptLog, match="strandline repair"):
        world.crash()
    assert isinstance(world.storage, MemoryStorage)
    world.storage.crash()
    repair(world)
