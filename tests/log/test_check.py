"""`check` finds every kind of damage, names its severity, and changes nothing."""

from __future__ import annotations

import pyarrow as pa
import pytest

from strandline.changelog.embedded import document
from strandline.changelog.embedded.checking.findings import MAX_PER_KIND, Severity
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.embedded.folder import CLEAN_KIND, CONFIG_KIND
from strandline.changelog.embedded.frame import encode, encode_marker, frame_parts
from strandline.changelog.embedded.manifest import Manifest
from strandline.changelog.embedded.scanning import CHUNK_BYTES
from strandline.changelog.embedded.topic import COPY_KIND, TopicMeta
from strandline.changelog.embedded.topic import KIND as CATALOG_KIND
from strandline.changelog.embedded.transaction_log import TransactionRecord
from strandline.changelog.layout import CATALOG, CLEAN, FOLDER_META, LOG_CONFIG, topic_copy
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.producer_state import ProducerStates
from strandline.changelog.records import CommittedOffset, ProducerIdentity, TopicPartition
from strandline.changelog.storage import Bytes, File
from tests.log.damage import (
    SMALL,
    append_frame,
    change_manifest,
    files,
    folder_of,
    found,
    log_file,
    only,
    paths,
    place,
    positions,
    report,
    rewrite,
)
from tests.log.kit import START_MS, Client, World, columns
from tests.log.power import PowerStorage, PowerWorld

pytestmark = pytest.mark.damages

T0 = TopicPartition("t", 0)
DAY = 24 * 60 * 60 * 1000


def a_log(*, segments: bool = True, storage: MemoryStorage | None = None) -> World:
    """Return a log with plain and transactional records, committed and aborted, and offsets."""
    world = World(storage or MemoryStorage())
    world.owner.create_topic("t", 1, config=SMALL if segments else None)
    plain, tx = Client(world), Client(world, "tx")
    for n in range(60):
        plain.append(b"%d" % n)
        tx.append(b"x%d" % n)
        tx.commit() if n % 3 else tx.abort()
    world.owner.commit_offsets("g", {T0: CommittedOffset(40)})
    return world


# Nothing wrong ------------------------------------------------------------------------


def test_a_log_closed_in_order_has_no_findings() -> None:
    world = a_log()
    world.owner.close()
    said = report(world)
    assert said.findings == []
    assert said.closed_in_order
    assert (said.topics, said.partitions) == (3, 3)
    assert said.segments > 5
    assert said.records == 60 + 60 + report_of_system_records(world)


def report_of_system_records(world: World) -> int:
    """Return the number of records in the log's own topics."""
    kept = {"__transaction_state", "__consumer_offsets"}
    checked = check_log(world.storage, clock=world.clock)
    return sum(
        len(batch)
        for scanned in checked.partitions.values()
        if scanned.meta.name in kept
        for batch in scanned.committed()
    )


def test_a_log_killed_between_two_appends_has_no_findings() -> None:
    said = report(a_log())
    assert said.findings == []
    assert not said.closed_in_order


def test_an_empty_folder_has_no_findings() -> None:
    assert check_log(MemoryStorage()).report.findings == []


def test_a_check_writes_nothing() -> None:
    world = PowerWorld()
    world.owner.create_topic("t", 1, config=SMALL)
    Client(world).append(b"a", b"b")
    world.storage.crash()
    before = {path: bytes(world.storage._names[path].content) for path in world.storage.paths()}
    operations = world.storage.operations
    check_log(world.storage, clock=world.clock)
    assert world.storage.operations == operations
    after = {path: bytes(world.storage._names[path].content) for path in world.storage.paths()}
    assert after == before


def test_reads_of_a_check_are_bounded() -> None:
    class Measuring(MemoryStorage):
        largest = 0

        def open(self, path: str, *, writable: bool = False) -> File:
            opened = super().open(path, writable=writable)
            read = opened.read

            def measured(position: int, size: int) -> Bytes:
                data = read(position, size)
                self.largest = max(self.largest, len(data))
                return data

            opened.read = measured  # type: ignore[method-assign]
            return opened

    storage = Measuring()
    world = World(storage)
    world.owner.create_topic("t")
    client = Client(world)
    for _ in range(7):
        client.append(b"x" * (1 << 20))
    log_file(world)[positions(log_file(world))[2] + 50] ^= 1
    storage.largest = 0
    check_log(storage, clock=world.clock)
    assert 1 << 20 < storage.largest <= CHUNK_BYTES + 200


def test_progress_ends_when_everything_was_read() -> None:
    world = a_log()
    seen: list[tuple[int, int]] = []
    check_log(world.storage, clock=world.clock, on_progress=lambda *counts: seen.append(counts))
    assert seen[-1][0] == seen[-1][1] > 0
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


# Frames -------------------------------------------------------------------------------


def test_a_torn_tail_is_a_note() -> None:
    world = a_log(segments=False)
    del log_file(world)[-30:]
    assert found(world) == [("note", "open transaction"), ("note", "torn tail")]
    world = a_log(segments=False)
    log_file(world).extend(b"SLF1" + bytes(200))
    assert found(world) == [("note", "torn tail")]


@pytest.mark.parametrize("byte", [0, 5, 30, 110], ids=["magic", "crc", "header", "payload"])
@pytest.mark.parametrize("segment", [0, -1], ids=["closed", "active"])
def test_a_damaged_record_is_named_with_its_offset_and_the_rest_is_read(
    byte: int, segment: int
) -> None:
    world = World()
    world.owner.create_topic("t", 1, config=SMALL)
    client = Client(world)
    for n in range(40):
        client.append(b"%d" % n)
    whole = report(world).records
    data = log_file(world, segment)
    first = int(paths(world, ".log")[segment].rpartition("/")[2][:20])
    data[positions(data)[2] + byte] ^= 1
    said = report(world)
    (damage,) = said.of(Severity.DAMAGE)
    assert (damage.kind, damage.partition) == ("records", T0)
    assert damage.offsets == (first + 2, first + 3)
    assert damage.file == paths(world, ".log")[segment]
    assert said.records == whole - 1


def test_two_damaged_places_are_two_findings_and_neighbours_are_one() -> None:
    world = World()
    world.owner.create_topic("t")
    client = Client(world)
    for n in range(9):
        client.append(b"%d" % n)
    data = log_file(world)
    for frame in (1, 2, 5):
        data[positions(data)[frame] + 7] ^= 1
    assert [one.offsets for one in report(world).of(Severity.DAMAGE)] == [(1, 3), (5, 6)]


def test_a_frame_within_a_record_is_not_taken_for_a_frame_of_the_log() -> None:
    world = World()
    world.owner.create_topic("t")
    client = Client(world)
    client.append(b"a")
    parts = frame_parts(encode(columns([b"inner"])), base_offset=0, place=place(world))[1]
    inner = b"".join(bytes(part) for part in parts)
    client.append(bytes(64 - 43 % 64) + inner)
    for word in (b"b", b"c"):
        client.append(word)
    data = log_file(world)
    data[positions(data)[1] + 5] ^= 1
    said = report(world)
    assert [one.offsets for one in said.of(Severity.DAMAGE)] == [(1, 2)]


def test_a_file_cut_short_after_an_orderly_end_is_damage() -> None:
    world = World()
    world.owner.create_topic("t")
    client = Client(world)
    client.append(b"a")
    client.append(b"b")
    world.owner.close()
    data = log_file(world)
    del data[positions(data)[1] :]
    damage = only(world, Severity.DAMAGE)
    assert damage.kind == "records"
    assert "it had 256 bytes and has 128" in damage.what


def test_a_closed_segment_that_is_missing_or_has_another_size_is_found() -> None:
    world = a_log()
    path = paths(world, ".log")[1]
    content = bytes(files(world)[path])
    entry = Manifest.load(world.storage, folder_of(world)).segments[1]
    files(world)[path].extend(bytes(64))
    assert only(world, Severity.REPAIRABLE).kind == "size"
    files(world)[path][:] = content[: positions(content)[-1]]
    assert only(world, Severity.DAMAGE).offsets == (entry.end_offset - 1, entry.end_offset)
    del files(world)[path]
    damage = only(world, Severity.DAMAGE)
    assert damage.offsets == (entry.base_offset, entry.end_offset)
    assert "missing" in damage.what


def test_a_missing_active_segment_is_found() -> None:
    world = a_log()
    del files(world)[paths(world, ".log")[-1]]
    kinds = {(one.kind, one.partition) for one in report(world).of(Severity.DAMAGE)}
    assert kinds == {("records", T0), ("end", T0)}


def test_records_that_cannot_be_decoded_are_damage_although_their_checksum_is_right() -> None:
    world = World()
    world.owner.create_topic("t")
    Client(world).append(b"a")
    payload = encode(columns([b"b"]))
    message = b"\x93" + bytes(payload.parts[1])[1:]
    import crc32c

    crc = crc32c.crc32c(payload.parts[2], crc32c.crc32c(message))
    broken = payload._replace(parts=(b"", message, payload.parts[2]), crc=crc)
    parts = frame_parts(broken, base_offset=1, durable_end=1, place=place(world))[1]
    log_file(world).extend(b"".join(bytes(part) for part in parts))
    append_frame(world, b"c", base_offset=2, durable_end=2)
    assert only(world, Severity.DAMAGE).offsets == (1, 2)


def test_a_schema_missing_in_the_catalog_is_named_and_is_not_a_damaged_record() -> None:
    world = World()
    world.owner.create_topic("t", schema=pa.schema([("n", pa.int64())]))
    batch = columns([b"x"]).set_column(2, "value", pa.array([{"n": 1}]))
    append_holder(world)
    append_frame(world, batch=batch, base_offset=0, schema_id=2)
    damage = only(world, Severity.DAMAGE)
    assert damage.kind == "schema"
    assert "catalog" in damage.way_out


def append_holder(world: World) -> None:
    """Create the partition's folder, with an empty segment in it."""
    partition = world.owner._log.catalog.get("t").partition(0)
    world.storage.make_dir(partition.folder)
    partition.roll()


@pytest.mark.parametrize(
    ("kind", "header"),
    [
        ("leader epoch", {"base_offset": 1, "leader_epoch": 3, "durable_end": 1}),
        ("durable end", {"base_offset": 1, "durable_end": 2}),
        ("durable end", {"base_offset": 1, "durable_end": 0}),
    ],
)
def test_impossible_headers_are_found(kind: str, header: dict[str, int]) -> None:
    world = World()
    world.owner.create_topic("t")
    client = Client(world)
    client.append(b"a")
    append_frame(world, b"b", **header)
    append_frame(world, b"c", base_offset=2, durable_end=1)
    if header["durable_end"] == 0:  # a durable end below that of the frame before it
        append_frame(world, b"d", base_offset=3, durable_end=0)
    assert ("damage", kind) in found(world)


def test_many_findings_of_one_kind_in_a_file_are_partly_listed_and_all_counted() -> None:
    world = World()
    world.owner.create_topic("t")
    Client(world).append(b"a")
    for n in range(MAX_PER_KIND + 7):
        append_frame(world, b"b", base_offset=n + 1, leader_epoch=9, durable_end=1)
    said = report(world)
    wrong = [one for one in said.findings if one.file == paths(world, ".log")[0]]
    assert len(wrong) == MAX_PER_KIND
    assert said.left_out == 7


# The manifest -------------------------------------------------------------------------


def test_a_manifest_that_is_missing_or_damaged_can_be_rebuilt() -> None:
    world = a_log()
    path = f"{folder_of(world)}/manifest.meta"
    files(world)[path][-5] ^= 1
    assert found(world) == [("repairable", "manifest")]
    del files(world)[path]
    assert found(world) == [("repairable", "manifest")]


def test_an_empty_first_segment_without_a_manifest_is_a_note() -> None:
    world = World()
    world.owner.create_topic("t")
    append_holder(world)
    del files(world)[f"{folder_of(world)}/manifest.meta"]
    assert found(world) == [("note", "stray")]


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "topic_id", "0" * 32),
        lambda m: setattr(m, "partition", 1),
        lambda m: setattr(m, "epochs", [(1, 0), (0, 5)]),
        lambda m: setattr(m, "epochs", []),
        lambda m: setattr(m, "next_generation", 2),
        lambda m: setattr(m, "segments", m.segments[::-1]),
        lambda m: setattr(m, "segments", m.segments[:-1]),
        lambda m: setattr(m, "segments", m.segments[1:]),
        lambda m: setattr(m.segments[0], "end_offset", 10_000),
    ],
)
def test_a_manifest_that_contradicts_itself_or_its_folder_is_found(change: object) -> None:
    world = a_log()
    change_manifest(world, change)
    assert ("repairable", "manifest") in found(world)


@pytest.mark.parametrize("figure", ["end_offset", "max_timestamp"])
def test_figures_of_a_segment_that_contradict_its_frames_are_found(figure: str) -> None:
    world = a_log()
    entry = Manifest.load(world.storage, folder_of(world)).segments[1]
    value = getattr(entry, figure) - 1
    change_manifest(world, lambda m: setattr(m.segments[1], figure, value))
    assert ("repairable", "figures") in found(world)


def test_a_log_that_starts_after_its_end_is_found() -> None:
    world = a_log()
    change_manifest(world, lambda m: setattr(m, "log_start", 10_000))
    assert only(world, Severity.DAMAGE).kind == "end"


def test_files_that_neither_manifest_nor_catalog_list_are_notes() -> None:
    world = a_log()
    folder = folder_of(world)
    for name in ("manifest.meta.tmp", f"{7:020d}-00000099.log", f"{7:020d}-00000099.index"):
        files(world)[f"{folder}/{name}"] = bytearray(b"x")
    files(world)[f"topics/{'f' * 32}/0/manifest.meta"] = bytearray(b"x")
    assert found(world) == [("note", "stray"), ("note", "unlisted topic")]
    assert len(report(world).findings) == 4


# Side files ---------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".index", ".aborted", ".producers"])
def test_a_missing_side_file_is_a_note_and_opening_recreates_it(suffix: str) -> None:
    world = a_log()
    for path in paths(world, suffix):
        del files(world)[path]
    said = found(world)
    assert said
    assert {severity for severity, _ in said} == {"note"}
    world.crash()
    assert report(world).findings == []


@pytest.mark.parametrize(
    ("suffix", "severity"),
    [(".index", "note"), (".aborted", "repairable"), (".producers", "repairable")],
)
def test_an_unreadable_side_file_is_found(suffix: str, severity: str) -> None:
    world = a_log()
    files(world)[paths(world, suffix)[-1]][-1] ^= 1
    assert [word for word, _ in found(world)] == [severity]


@pytest.mark.parametrize("place", [0, 1, 2], ids=["offset", "position", "time before"])
def test_a_wrong_entry_of_an_index_is_found(place: int) -> None:
    world = a_log()

    def change(body: bytes) -> bytes:
        numbers = memoryview(bytearray(body)).cast("q")
        numbers[place * len(numbers) // 3 + 1] += 64
        return bytes(numbers)

    rewrite(world, paths(world, ".index")[1], "index", change)
    assert found(world) == [("repairable", "index")]


def test_an_index_that_points_past_the_end_is_found() -> None:
    world = a_log()

    def change(body: bytes) -> bytes:
        third = len(body) // 3
        return b"".join(
            body[n * third : (n + 1) * third] + (1 << 20).to_bytes(8, "little") for n in range(3)
        )

    rewrite(world, paths(world, ".index")[0], "index", change)
    assert found(world) == [("repairable", "index")]


@pytest.mark.parametrize("change", [lambda rows: rows[1:], lambda rows: [*rows, [77, 1, 2]]])
def test_an_aborted_index_that_contradicts_the_frames_is_found(change: object) -> None:
    world = a_log()
    change_rows(world, paths(world, ".aborted")[1], "aborted", change)
    assert found(world) == [("repairable", "aborted index")]


def test_aborted_transactions_whose_records_were_deleted_need_not_be_listed() -> None:
    world = World()
    world.owner.create_topic("t", 1, config={"segment.bytes": "4096"})
    tx = Client(world, "tx")
    tx.append(b"aborted")
    tx.abort()
    tx.append(b"kept")
    tx.commit()
    world.owner.delete_records(T0, 2)  # within the active segment, which stays
    for _ in range(5):
        tx.append(b"x" * 1_000)
        tx.commit()
    assert len(paths(world, ".aborted")) == 1
    world.owner.close()
    assert report(world).findings == []


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[1:],
        lambda rows: [*rows, [77, [0, [[0, 0, 5, 5]], START_MS, -1]]],
        lambda rows: [[rows[0][0], [9, *rows[0][1][1:]]], *rows[1:]],
        lambda rows: [[rows[0][0], [rows[0][1][0], rows[0][1][1][1:], 0, -1]], *rows[1:]],
        lambda rows: [[rows[0][0], [*rows[0][1][:3], 3]], *rows[1:]],
    ],
    ids=["one is missing", "one too many", "epoch", "batches", "open transaction"],
)
def test_a_snapshot_that_contradicts_the_frames_is_found(change: object) -> None:
    world = a_log()
    change_rows(world, paths(world, ".producers")[-1], "producers", change)
    assert found(world) == [("repairable", "producer snapshot")]


def change_rows(world: World, path: str, kind: str, change: object) -> None:
    import msgspec

    rewrite(world, path, kind, lambda body: msgspec.json.encode(change(msgspec.json.decode(body))))


def test_producers_removed_by_retention_and_a_day_of_silence_are_not_missed() -> None:
    world = World()
    config = {**SMALL, "retention.ms": str(DAY), "segment.ms": str(10 * DAY)}
    world.owner.create_topic("t", 1, config={**config, "file.delete.delay.ms": "0"})
    tx, other, gone = Client(world, "tx"), Client(world), Client(world)
    gone.append(b"x" * 5000)
    tx.append(b"open for long", times=START_MS)
    for n in range(60):
        other.append(b"%d" % n, times=START_MS)
    tx.abort()
    for n in range(8):
        world.clock.advance(DAY // 2)
        for _ in range(20):
            other.append(b"n%d" % n, times=world.clock.now_ms())
        world.owner.tick()
    assert world.owner.offsets([T0])[T0].log_start > 0
    gone.append(b"back after days", sequence=7, times=world.clock.now_ms())
    for _ in range(60):
        other.append(b"end", times=world.clock.now_ms())
    assert report(world).findings == []


# Producers ----------------------------------------------------------------------------


def test_a_repeated_or_missing_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerStates, "check", lambda *_: None)
    for sequence in (1, 3):
        world = World()
        world.owner.create_topic("t")
        client = Client(world)
        client.append(b"a", b"b")
        client.append(b"c", sequence=sequence)
        assert found(world) == [("damage", "producer")]
        assert only(world, Severity.DAMAGE).offsets == (2, 3)


def test_a_decreasing_epoch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerStates, "check", lambda *_: None)
    world = World()
    world.owner.create_topic("t")
    client = Client(world)
    client.append(b"a", identity=ProducerIdentity(client.identity.producer_id, 4))
    client.append(b"b", sequence=0)
    assert found(world) == [("damage", "producer")]


def test_a_transaction_that_begins_before_the_last_has_ended_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ProducerStates, "check", lambda *_: None)
    world = World()
    world.owner.create_topic("t")
    tx = Client(world, "tx")
    tx.append(b"a")
    append_frame(
        world,
        b"b",
        base_offset=1,
        durable_end=0,
        transactional=True,
        producer_id=tx.identity.producer_id,
        producer_epoch=tx.identity.epoch + 1,
        base_sequence=0,
    )
    assert ("damage", "transaction") in found(world)


# Transactions -------------------------------------------------------------------------


def test_an_open_transaction_is_a_note() -> None:
    world = World()
    world.owner.create_topic("t")
    Client(world, "tx").append(b"a")
    note = only(world, Severity.NOTE)
    assert note.kind == "open transaction"
    assert "aborts" in note.way_out


def test_a_commit_whose_marker_opening_writes_is_a_note() -> None:
    world = committed_without_its_marker()
    note = only(world, Severity.NOTE)
    assert note.kind == "open transaction"
    assert "committed" in note.what


def committed_without_its_marker() -> World:
    world = World()
    world.owner.create_topic("t")
    tx = Client(world, "tx")
    tx.append(b"a")
    tx.commit()
    data = log_file(world)
    del data[positions(data)[-1] :]
    return world


def test_a_commit_marker_lost_after_its_prepare_was_finalized_is_an_error() -> None:
    world = committed_without_its_marker()
    client = Client(world, "tx")  # finalizes the last transaction, and replaces its state record
    assert client.identity.epoch > 0
    finding = only(world, Severity.REPAIRABLE)
    assert finding.kind == "open transaction"
    assert "before the log is opened" in finding.way_out


def test_a_partition_that_ends_before_the_end_in_a_prepare_is_found() -> None:
    world = World()
    world.owner.create_topic("t", 2)
    tx = Client(world, "tx")
    tx.append(b"a")
    tx.append(b"b", partition=1)
    tx.commit()
    log_file(world, partition=1).clear()
    damage = only(world, Severity.DAMAGE)
    assert (damage.kind, damage.offsets) == ("end", (0, 1))
    assert damage.partition == TopicPartition("t", 1)
    assert "'tx'" in damage.what


def test_a_transaction_that_ends_twice_is_found() -> None:
    world = World()
    world.owner.create_topic("t")
    tx = Client(world, "tx")
    tx.append(b"a")
    partition = world.owner._log.catalog.get("t").partition(0)
    partition.append_marker(tx.identity._replace(epoch=tx.identity.epoch + 1), commit=False)
    tx.commit()
    assert found(world) == [("damage", "producer")]


def test_partitions_that_disagree_about_a_transaction_are_found() -> None:
    world = World()
    world.owner.create_topic("t", 2)
    tx = Client(world, "tx")
    tx.append(b"a")
    tx.append(b"b", partition=1)
    tx.commit()
    data = log_file(world, partition=1)
    del data[positions(data)[-1] :]
    marker = encode_marker(commit=False, coordinator_epoch=0, timestamp=START_MS)
    identity = {"producer_id": tx.identity.producer_id, "producer_epoch": tx.identity.epoch}
    where = {"base_offset": 1, "durable_end": 1, "place": place(world, partition=1)}
    parts = frame_parts(marker, transactional=True, **where, **identity)[1]
    data.extend(b"".join(bytes(part) for part in parts))
    outcome = only(world, Severity.DAMAGE)
    assert outcome.kind == "outcome"
    assert "aborted in t-1 and committed in t-0" in outcome.what


def test_a_commit_without_a_prepare_is_found() -> None:
    world = World()
    world.owner.create_topic("t")
    tx = Client(world, "tx")
    tx.append(b"a")
    partition = world.owner._log.catalog.get("t").partition(0)
    partition.append_marker(tx.identity._replace(epoch=tx.identity.epoch + 1), commit=True)
    partition.sync()
    assert found(world) == [("damage", "outcome")]


def test_an_epoch_assigned_twice_is_found() -> None:
    world = World()
    log = world.owner._log.coordinator._log
    for epoch in (3, 2):
        log.write([("tx", TransactionRecord("empty", 0, epoch, epoch, 1000))], sync=True)
    assert ("damage", "epoch") in found(world)


def test_producer_ids_that_were_never_reserved_are_found() -> None:
    world = World()
    world.owner.create_topic("t")
    Client(world).append(b"a", identity=ProducerIdentity(5000, 0))
    assert found(world) == [("repairable", "producer ids")]


def test_a_damaged_record_of_a_system_topic_is_found() -> None:
    for topic in ("__transaction_state", "__consumer_offsets"):
        world = a_log()
        data = log_file(world, topic=topic)
        data[positions(data)[0] + 110] ^= 1
        append_offsets = [one.partition for one in report(world).of(Severity.DAMAGE)]
        if topic == "__consumer_offsets":
            # the only record, and no later frame says that it was durable
            assert append_offsets == []
        else:
            assert TopicPartition(topic, 0) in append_offsets


def test_a_group_offset_beyond_the_end_of_its_partition_is_found() -> None:
    world = World()
    world.owner.create_topic("t")
    Client(world).append(b"a")
    world.owner.commit_offsets("g", {T0: CommittedOffset(1)})
    assert report(world).findings == []
    world.owner.commit_offsets("g", {T0: CommittedOffset(2)})
    finding = only(world, Severity.REPAIRABLE)
    assert (finding.kind, finding.offsets) == ("group offset", (1, 2))
    world.owner.delete_topic("t")
    world.owner.create_topic("t")
    assert report(world).findings == []


# The folder ---------------------------------------------------------------------------


def test_a_catalog_that_is_missing_or_damaged_can_be_rebuilt_from_the_copies() -> None:
    world = a_log()
    files(world)[CATALOG][-3] ^= 1
    assert found(world) == [("repairable", "catalog")]
    del files(world)[CATALOG]
    assert found(world) == [("repairable", "catalog")]


def test_a_catalog_without_copies_loses_settings() -> None:
    world = a_log()
    del files(world)[CATALOG]
    del files(world)[topic_copy(world.owner.topic("t").topic_id)]
    damage = only(world, Severity.DAMAGE)
    assert damage.kind == "catalog"
    assert "settings of t " in damage.what


def test_a_copy_that_is_missing_or_older_is_a_note_and_a_damaged_one_repairable() -> None:
    world = a_log()
    path = topic_copy(world.owner.topic("t").topic_id)
    content = bytes(files(world)[path])
    meta = TopicMeta.load_copy(world.storage, world.owner.topic("t").topic_id)
    meta.config = {}
    meta.save_copy(world.storage)
    assert found(world) == [("note", "topic copy")]
    world.crash()
    assert bytes(files(world)[path]) == content
    files(world)[path][-1] ^= 1
    assert found(world) == [("repairable", "topic copy")]
    del files(world)[path]
    assert found(world) == [("note", "topic copy")]
    assert document.load(world.storage, CATALOG, CATALOG_KIND, list[TopicMeta])
    world.crash()
    assert document.unpack(COPY_KIND, bytes(files(world)[path]), path)


def test_unreadable_settings_of_the_log_are_found() -> None:
    world = a_log()
    world.owner.alter_config({"log.retention.ms": "5"})
    assert found(world) == []
    files(world)[LOG_CONFIG][-3] ^= 1
    assert found(world) == [("damage", "settings")]
    del files(world)[LOG_CONFIG]
    assert found(world) == [("damage", "settings")]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"log.retention.ms": "soon"}, "whole number"),
        ({"log.from.later": "1"}, "no log setting is called"),
        ({"log.cleaner.max.compaction.lag.ms": "9"}, "contradicts the settings of topic 't'"),
    ],
)
def test_invalid_settings_of_the_log_are_found(given: dict[str, str], said: str) -> None:
    world = a_log()
    world.owner.alter_topic("t", config={"min.compaction.lag.ms": "10"})
    document.save(world.storage, LOG_CONFIG, CONFIG_KIND, given)
    damage = only(world, Severity.DAMAGE)
    assert damage.kind == "settings"
    assert said in damage.what


def test_a_folder_beyond_the_partitions_of_its_topic_is_found() -> None:
    world = a_log()
    files(world)[f"{folder_of(world)[:-1]}7/manifest.meta"] = bytearray()
    assert found(world) == [("damage", "unlisted partition")]


def test_a_lost_folder_meta_is_found() -> None:
    world = a_log()
    del files(world)[FOLDER_META]
    assert found(world) == [("repairable", "folder")]


def test_a_damaged_or_wrong_note_of_an_orderly_close_is_found() -> None:
    world = a_log()
    world.owner.close()
    content = bytes(files(world)[CLEAN])
    files(world)[CLEAN][-3] ^= 1
    assert found(world) == [("repairable", "clean")]
    files(world)[CLEAN][:] = content
    rewrite(world, CLEAN, CLEAN_KIND, lambda body: body.replace(b"topics/", b"topics/0", 1))
    assert ("repairable", "clean") in found(world)
    files(world)[CLEAN][:] = document.pack(CLEAN_KIND, b"{}")
    assert found(world) == [("repairable", "size")]


def test_the_check_works_on_a_folder_that_lost_its_power() -> None:
    world = PowerWorld(PowerStorage())
    world.owner.create_topic("t")
    client = Client(world)
    client.append(b"a")
    world.storage.power_cut()
    assert check_log(world.storage, clock=world.clock).report.findings == []
