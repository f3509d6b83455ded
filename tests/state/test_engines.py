"""The contract of every engine, and the additional one of RocksDB."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import rocksdict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.changelog.errors import (
    CorruptLog,
    FutureFormat,
    InvalidRequest,
    LogLocked,
    StorageFailed,
)
from strandline.statestore.engine import POSITION_KEY, Engine, StorePosition
from strandline.statestore.engines import rocksdb, rocksdb_options
from strandline.statestore.engines.memory import MemoryEngine
from strandline.statestore.engines.rocksdb import RocksEngine
from strandline.statestore.ranges import NO_RANGES, DeletedRanges

KEY = st.binary(min_size=1, max_size=3).map(lambda key: b"\x02" + key)
RANGES = st.lists(st.tuples(KEY, st.none() | KEY), max_size=2).map(DeletedRanges)
CHANGES = st.dictionaries(KEY, st.none() | st.binary(max_size=3), max_size=8)


def at(offset: int) -> StorePosition:
    return StorePosition("t1", 0, offset)


def write(
    engine: Engine,
    changes: dict[bytes, bytes | None],
    offset: int = 1,
    ranges: DeletedRanges = NO_RANGES,
) -> None:
    keys = sorted(changes)
    engine.write(keys, [changes[key] for key in keys], at(offset), ranges)


def entries(engine: Engine) -> list[tuple[bytes, bytes]]:
    return list(engine.scan(b"\x02", None, reverse=False))


@pytest.fixture(params=["memory", "rocksdb batches", "rocksdb files"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    kinds: dict[str, Callable[[], Engine]] = {
        "memory": MemoryEngine,
        "rocksdb batches": lambda: RocksEngine(tmp_path),
        "rocksdb files": lambda: RocksEngine(tmp_path, sst_from=1),
    }
    made = kinds[request.param]()
    yield made
    made.close()


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    writes=st.lists(st.tuples(CHANGES, RANGES), max_size=5),
    lower=KEY,
    upper=st.none() | KEY,
    probe=KEY,
)
def test_an_engine_is_a_sorted_mapping(
    engine: Engine,
    writes: list[tuple[dict[bytes, bytes | None], DeletedRanges]],
    lower: bytes,
    upper: bytes | None,
    probe: bytes,
) -> None:
    engine.wipe()
    model: dict[bytes, bytes | None] = {}
    for changes, ranges in writes:
        # Deletions in a range are left to the range, as a checkpoint does.
        left = {
            key: value for key, value in changes.items() if value is not None or key not in ranges
        }
        write(engine, left, ranges=ranges)
        model = {key: None if key in ranges else value for key, value in model.items()} | changes
    alive = {key: value for key, value in model.items() if value is not None}
    expected = sorted(
        item for item in alive.items() if lower <= item[0] and (upper is None or item[0] < upper)
    )
    assert list(engine.scan(lower, upper, reverse=False)) == expected
    assert list(engine.scan(lower, upper, reverse=True)) == expected[::-1]
    assert engine.get(probe) == alive.get(probe)
    assert engine.get_many([*model, probe]) == [alive.get(key) for key in [*model, probe]]


def test_a_write_stores_its_position_atomically(engine: Engine) -> None:
    assert engine.position() is None
    assert engine.is_empty()
    write(engine, {b"\x02a": b"1"}, offset=7)
    assert engine.position() == at(7)
    assert not engine.is_empty()
    engine.wipe()
    assert engine.position() is None
    assert entries(engine) == []


def test_a_scan_shows_the_moment_it_began(engine: Engine) -> None:
    write(engine, {b"\x02a": b"1", b"\x02b": b"1", b"\x02c": b"1"})
    scan = engine.scan(b"\x02", None, reverse=False)
    assert next(scan) == (b"\x02a", b"1")
    write(engine, {b"\x02b": None, b"\x02c": b"2", b"\x02d": b"2"}, offset=2)
    assert list(scan) == [(b"\x02b", b"1"), (b"\x02c", b"1")]
    assert entries(engine) == [(b"\x02a", b"1"), (b"\x02c", b"2"), (b"\x02d", b"2")]


def test_an_empty_value_is_a_value(engine: Engine) -> None:
    write(engine, {b"\x02a": b""})
    assert engine.get(b"\x02a") == b""
    assert entries(engine) == [(b"\x02a", b"")]


def test_the_position_is_not_an_entry(engine: Engine) -> None:
    write(engine, {b"\x02a": b"1"})
    assert list(engine.scan(b"", None, reverse=True)) == [(b"\x02a", b"1")]


def test_a_memory_engine_forgets_deleted_keys() -> None:
    engine = MemoryEngine()
    for number in range(0, 20_000, 100):
        keys = [b"%08d" % (number + at) for at in range(100)]
        engine.write(keys, [b"x"] * 100, StorePosition("t1", 0, number))
        before = engine.scan(b"", None, reverse=False)
        engine.write(keys, [None] * 100, StorePosition("t1", 0, number))
        assert [key for key, _ in before] == keys  # the scan shows the moment it began
    engine.write([b"a"], [b"1"], StorePosition("t1", 0, 20_000))
    assert engine.approximate_num_entries() < 2_000
    assert list(engine.scan(b"", None, reverse=False)) == [(b"a", b"1")]


def test_an_engine_estimates_its_number_of_keys(engine: Engine) -> None:
    write(engine, {b"\x02%d" % number: b"1" for number in range(100)})
    assert 90 <= engine.approximate_num_entries() <= 110


@pytest.mark.parametrize("sst_from", [1, 10_000], ids=["files", "batches"])
def test_written_entries_are_there_after_reopening(tmp_path: Path, sst_from: int) -> None:
    first = RocksEngine(tmp_path, sst_from=sst_from)
    write(first, {b"\x02a": b"1", b"\x02b": b"1"}, offset=3)
    write(first, {b"\x02a": None, b"\x02c": b"2"}, offset=5)
    first.close()
    second = RocksEngine(tmp_path)
    assert second.position() == at(5)
    assert entries(second) == [(b"\x02b", b"1"), (b"\x02c", b"2")]
    second.close()


def test_a_file_never_overtakes_a_batch(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path, sst_from=3)
    for offset in range(1, 40):
        many = offset % 2
        changes = {b"\x02%d" % key: b"%d" % offset for key in range(4 if many else 1)}
        write(engine, {**changes, b"\x02same": b"%d" % offset}, offset)
        engine.close()
        engine = RocksEngine(tmp_path, sst_from=3)
        assert engine.get(b"\x02same") == b"%d" % offset
        assert engine.position() == at(offset)
    engine.close()


def test_keys_out_of_order_are_refused_and_change_nothing(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path, sst_from=1)
    with pytest.raises(StorageFailed, match="ascending"):
        engine.write([b"\x02b", b"\x02a"], [b"1", b"1"], at(1))
    assert list((tmp_path / "tmp").iterdir()) == []
    assert entries(engine) == []
    assert engine.position() is None
    engine.close()


def test_a_folder_is_locked_by_one_engine(tmp_path: Path) -> None:
    holder = RocksEngine(tmp_path)
    write(holder, {b"\x02a": b"1"})
    with pytest.raises(LogLocked, match="another worker has it"):
        RocksEngine(tmp_path)
    holder.close()
    RocksEngine(tmp_path).close()


def test_closing_ends_open_scans_and_frees_the_folder(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path)
    write(engine, {b"\x02a": b"1", b"\x02b": b"1"})
    scan = engine.scan(b"\x02", None, reverse=False)
    next(scan)
    engine.close()
    engine.close()
    RocksEngine(tmp_path).close()
    assert list(scan) == []
    with pytest.raises(InvalidRequest, match="closed"):
        engine.get(b"\x02a")


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path)
    write(engine, {b"\x02a": b"1"})
    engine._db[POSITION_KEY] = msgspec.msgpack.encode((99, {"t1": 0}, 2.5))
    engine._db.flush()
    engine.close()
    with pytest.raises(FutureFormat, match="format 99"):
        RocksEngine(tmp_path)
    with pytest.raises(FutureFormat):  # nothing was moved aside
        RocksEngine(tmp_path)


def test_the_first_write_creates_the_database(tmp_path: Path) -> None:
    """A store without state costs neither files nor the time to open a database."""
    engine = RocksEngine(tmp_path)
    assert not (tmp_path / "db").exists()
    assert (engine.position(), engine.is_empty()) == (None, True)
    assert (engine.get(b"\x02a"), engine.get_many([b"\x02a", b"\x02b"])) == (None, [None, None])
    assert list(engine.scan(b"\x02", None, reverse=True)) == []
    assert engine.approximate_num_entries() == engine.disk_bytes() == 0
    engine.wipe()
    write(engine, {b"\x02a": b"1"})
    assert (tmp_path / "db").exists()
    assert engine.get(b"\x02a") == b"1"
    engine.wipe()
    assert (engine.get(b"\x02a"), engine.position()) == (None, None)
    engine.close()
    with pytest.raises(InvalidRequest, match="closed"):
        engine.get(b"\x02a")
    with pytest.raises(InvalidRequest, match="closed"):
        write(engine, {b"\x02a": b"1"})


@pytest.mark.parametrize("name", ["MANIFEST", "CURRENT"])
@pytest.mark.parametrize("content", [b"something else", None])
def test_a_damaged_database_is_moved_aside(
    tmp_path: Path, name: str, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    engine = RocksEngine(tmp_path)
    write(engine, {b"\x02a": b"1"})
    engine.close()
    (damaged,) = (path for path in (tmp_path / "db").iterdir() if path.name.startswith(name))
    if content is not None:
        damaged.write_bytes(content)
    else:
        damaged.unlink()
    with caplog.at_level(logging.WARNING):
        fresh = RocksEngine(tmp_path)
    assert fresh.is_empty()
    # without CURRENT RocksDB starts with an empty database
    if content is not None or name == "MANIFEST":
        assert "is damaged and is rebuilt from its changelog" in caplog.text
        assert (tmp_path / "db.damaged").exists()
    write(fresh, {b"\x02a": b"2"})
    fresh.close()


def test_damage_met_while_reading_leads_to_a_rebuild_at_the_next_open(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path, sst_from=1)
    write(engine, {b"\x02%05d" % number: b"1" * 50 for number in range(2_000)})
    engine.close()
    (table,) = (tmp_path / "db").glob("*.sst")
    content = bytearray(table.read_bytes())
    content[5_000:5_100] = b"\xaa" * 100
    table.write_bytes(content)
    engine = RocksEngine(tmp_path)
    with pytest.raises(CorruptLog, match="rebuilt from the changelog"):
        entries(engine)
    engine.close()
    engine = RocksEngine(tmp_path)
    assert engine.is_empty()
    engine.close()


WRITER = """
import sys
from strandline.statestore.engine import StorePosition
from strandline.statestore.engines.rocksdb import RocksEngine

engine = RocksEngine(sys.argv[1], sst_from=50)
for offset in range((engine.position() or StorePosition("t1", 0, 0)).offset + 1, 1_000_000):
    keys = [b"\\x02%04d" % key for key in range(100 if offset % 3 else 10)]
    values = [None if key and offset % 2 else b"%d" % offset for key in range(len(keys))]
    engine.write(keys, values, StorePosition("t1", 0, offset))
    print(offset, flush=True)
"""


def written_by(offset: int) -> list[tuple[bytes, bytes]]:
    """Return the entries after the writer's last write, the one at `offset`."""
    state: dict[bytes, bytes] = {}
    for number in range(max(1, offset - 12), offset + 1):
        for key in range(100 if number % 3 else 10):
            state.pop(b"\x02%04d" % key, None)
            if not (key and number % 2):
                state[b"\x02%04d" % key] = b"%d" % number
    return sorted(state.items())


def test_a_killed_process_leaves_the_state_of_its_position(tmp_path: Path) -> None:
    for kill_after in (1, 7, 20):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        told = [int(line) for _, line in zip(range(kill_after), writer.stdout, strict=False)][-1]
        writer.kill()
        told = int((writer.stdout.read().split() or [str(told)])[-1])
        writer.wait()
        writer.stdout.close()
        engine = RocksEngine(tmp_path)
        position = engine.position()
        assert position is not None
        assert position.offset >= told  # acknowledged writes are durable
        assert entries(engine) == written_by(position.offset)
        engine.close()


def test_leftovers_of_a_crash_are_removed_at_open(tmp_path: Path) -> None:
    RocksEngine(tmp_path).close()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "1.sst").write_bytes(b"half a file")
    engine = RocksEngine(tmp_path, sst_from=1)
    assert not (tmp_path / "tmp").exists()
    write(engine, {b"\x02a": b"1"})
    assert list((tmp_path / "tmp").iterdir()) == []
    engine.close()


def test_files_do_not_accumulate_on_level_0(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path, sst_from=1)
    for number in range(60):
        write(engine, {b"\x02a": b"1", b"\x02%d" % number: b"1"}, offset=number)
        assert engine.level0_files() <= rocksdb.MAX_LEVEL0_FILES + 1
    engine.close()


def test_a_write_waits_for_compaction_and_logs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = RocksEngine(tmp_path, sst_from=1)
    monkeypatch.setattr(rocksdb, "MAX_LEVEL0_FILES", -1)
    monkeypatch.setattr(rocksdb, "BACK_PRESSURE_SECONDS", 0.05)
    with pytest.raises(StorageFailed, match="compaction did not catch up"):
        write(engine, {b"\x02a": b"1"})
    assert engine.is_empty()
    engine.close()


def test_readers_see_no_database_that_is_being_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, options = RocksEngine(tmp_path), rocksdb.write_options
    seen: list[Any] = []

    def while_opening() -> rocksdict.WriteOptions:
        seen.append((engine.get(b"\x02a"), entries(engine), engine.is_empty(), engine._db))
        return options()

    monkeypatch.setattr(rocksdb, "write_options", while_opening)
    write(engine, {b"\x02a": b"1"})
    assert seen == [(None, [], True, None)]
    assert entries(engine) == [(b"\x02a", b"1")]
    engine.close()


def test_a_scan_passes_no_deletions_outside_of_its_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = RocksEngine(tmp_path)
    around = [b"\x02%s%04d" % (at, number) for at in (b"a", b"c") for number in range(1_000)]
    kept = {b"\x02b1": b"1", b"\x02b2": b"2", b"\x02d": b"3"}
    write(engine, dict.fromkeys(around, b"1") | kept, offset=1)
    engine._db.set_options({"disable_auto_compactions": "true"})  # one would drop the deletions
    write(engine, dict.fromkeys(around), offset=2)

    usual = rocksdict.ReadOptions

    def failing_after_ten_deletions() -> rocksdict.ReadOptions:
        options = usual()
        options.set_max_skippable_internal_keys(10)
        return options

    monkeypatch.setattr(rocksdict, "ReadOptions", failing_after_ten_deletions)
    for lower, upper in ((b"\x02b", b"\x02c"), (b"\x02b1", b"\x02b2"), (b"\x02b2", b"\x02b3")):
        expected = [one for one in kept.items() if lower <= one[0] < upper]
        assert list(engine.scan(lower, upper, reverse=False)) == expected
    with pytest.raises(StorageFailed):  # from here to the next key are deletions
        list(engine.scan(b"\x02b2", None, reverse=False))
    engine.close()


def test_a_store_has_its_settings_after_reopening_as_well(tmp_path: Path) -> None:
    for offset in (1, 2):
        engine = RocksEngine(tmp_path, sst_from=1)
        write(engine, {b"\x02%d" % offset: b"1"}, offset)
        written = max(tmp_path.glob("*/OPTIONS-*"), key=lambda file: file.name).read_text()
        tables = written[written.index('[TableOptions/BlockBasedTable "default"]') :]
        chosen = dict(re.findall(r"^ *(\w+)=(.*)$", tables, re.MULTILINE))
        assert chosen["filter_policy"] != "nullptr"
        assert chosen["partition_filters"] == "true"
        assert chosen["index_type"] == "kTwoLevelIndexSearch"
        cache = engine._db.property_int_value("rocksdb.block-cache-capacity")
        assert cache == rocksdb_options.SharedMemory.block_cache_bytes
        engine.close()


def test_all_stores_of_a_process_share_one_cache() -> None:
    assert rocksdb_options.SharedMemory.get() is rocksdb_options.SharedMemory.get()
    rocksdb_options.configure_memory(block_cache_bytes=64 << 20, memtable_bytes=32 << 20)
    assert rocksdb_options.SharedMemory.get().memtables.get_buffer_size() == 32 << 20
    rocksdb_options.configure_memory(block_cache_bytes=128 << 20, memtable_bytes=64 << 20)
