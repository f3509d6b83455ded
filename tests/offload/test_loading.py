"""Loads of topics into files and tables: columns, times, sizes of files, and continued runs."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.log import Log
from strandline.framework.offload.api import Format
from strandline.framework.offload.target import PartitionBy
from tests.offload.kit import (
    FORMATS,
    HOUR_MS,
    PERIODS,
    SALE,
    START_MS,
    append,
    by_pattern,
    committed,
    create,
    delta,
    iceberg,
    iceberg_table,
    manifests,
    places,
    sales,
    stored,
    utc,
)

pytestmark = pytest.mark.parametrize("form", FORMATS)


def test_a_typed_topic_gives_its_columns_and_the_place_of_each_record(
    log: Log, to: Path, form: Format
) -> None:
    create(log, "t", 2, schema=SALE)
    append(log, "t", sales(0, 10), 2)
    log.append("t", [{"user": 10, "amount": 2.5, "name": "z"}], key="user", timestamp=START_MS)
    report = sl.offload("t", to, log=log, format=form)
    assert (report.topic, report.rows, report.commits, report.gaps) == ("t", 11, 1, ())
    found = stored(form, to)
    partition = "_topic_partition" if form == "iceberg" else "_partition"
    assert found.column_names == [
        *(partition, "_offset", "_timestamp", "_key", "_tombstone", "_headers"),
        *SALE.names,
    ]
    assert places(found) == committed(log, "t")
    rows = {row["user"]: row for row in found.to_pylist()}
    rows[3]["_headers"] = rows[3]["_headers"] or None  # PyIceberg reads a null list as an empty one
    assert rows[3] == {
        partition: 1,
        "_offset": 1,
        "_timestamp": utc(START_MS + 3_000),
        "_key": None,
        "_tombstone": False,
        "_headers": None,
        "user": 3,
        "amount": 0.75,
        "name": "name-3",
    }
    assert rows[10]["_key"] is not None


def test_a_topic_of_bytes_gives_keys_values_and_headers(log: Log, to: Path, form: Format) -> None:
    create(log, "t")
    producer = log.producer()
    producer.send("t", b"v", key=b"k", timestamp=START_MS, headers=[("h", b"x"), ("n", None)])
    producer.send("t", None, key=b"k", timestamp=START_MS + 1)
    producer.send("t", b"w", timestamp=START_MS + 2)
    producer.close()
    assert sl.offload("t", to, log=log, format=form).rows == 3
    rows = sorted(stored(form, to).to_pylist(), key=lambda row: row["offset"])
    for row in rows:
        row["headers"] = row["headers"] or None  # PyIceberg reads a null list as an empty one
    headers = [{"key": "h", "value": b"x"}, {"key": "n", "value": None}]
    assert rows == [
        {
            "partition": 0,
            "offset": number,
            "timestamp": utc(START_MS + number),
            "key": key,
            "value": value,
            "headers": heads,
        }
        for number, (key, value, heads) in enumerate(
            [(b"k", b"v", headers), (b"k", None, None), (None, b"w", None)]
        )
    ]


def test_a_tombstone_of_a_typed_topic_is_marked(log: Log, to: Path, form: Format) -> None:
    required = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    create(log, "t", schema=required)
    producer = log.producer()
    producer.send("t", {"n": 1}, key=b"k")
    producer.send("t", None, key=b"k")
    producer.close()
    sl.offload("t", to, log=log, format=form)
    rows = sorted(stored(form, to).to_pylist(), key=lambda row: row["_offset"])
    assert [(row["_key"], row["_tombstone"], row["n"]) for row in rows] == [
        (b"k", False, 1),
        (b"k", True, None),
    ]


def test_nested_decimal_and_time_columns_come_back_as_they_are(
    log: Log, to: Path, form: Format
) -> None:
    schema = pa.schema(
        [
            ("price", pa.decimal128(12, 2)),
            ("at", pa.timestamp("us", tz="UTC")),
            ("local", pa.timestamp("us")),
            ("day", pa.date32()),
            ("tags", pa.list_(pa.string())),
            ("place", pa.struct([("x", pa.int32()), ("names", pa.list_(pa.string()))])),
            ("counts", pa.map_(pa.string(), pa.int64())),
            ("small", pa.int8()),
            ("plus", pa.uint32()),
            ("flag", pa.bool_()),
            ("raw", pa.binary()),
        ]
    )
    row: dict[str, Any] = {
        "price": Decimal("12.34"),
        "at": utc(START_MS),
        "local": dt.datetime(2024, 1, 2, 3, 4, 5, 6),
        "day": dt.date(2024, 2, 29),
        "tags": ["a", "b"],
        "place": {"x": 1, "names": ["n"]},
        "counts": [("k", 2)],
        "small": -7,
        "plus": 4_000_000_000,
        "flag": True,
        "raw": b"\x00\xff",
    }
    create(log, "t", schema=schema)
    log.append("t", pa.Table.from_pylist([row, dict.fromkeys(row)], schema))
    sl.offload("t", to, log=log, format=form)
    table = _plain(form, to)
    first, second = table.select(schema.names).to_pylist()
    first["counts"] = list(first["counts"])
    assert first == row
    assert second == dict.fromkeys(row)


def _plain(form: Format, to: Path) -> pa.Table:
    """Return the rows by the format's own reader, because Polars has no maps."""
    if form == "delta":
        return pa.table(delta(to).to_pyarrow_table())
    return iceberg(to) if form == "iceberg" else pq.read_table(next(iter(to.rglob("*.parquet"))))


@pytest.mark.parametrize("by", PERIODS)
def test_each_run_continues_where_the_last_one_ended(
    log: Log, to: Path, form: Format, by: PartitionBy
) -> None:
    create(log, "t", 3, schema=SALE)
    loaded = 0
    for count in (50, 0, 1, 200):
        append(log, "t", sales(loaded, count, every_ms=HOUR_MS), 3)
        report = sl.offload("t", to, log=log, format=form, partition_by=by)
        assert report.rows == count
        assert report.commits == (1 if count else 0)
        loaded += count
    found = stored(form, to)
    assert places(found) == committed(log, "t")
    assert sorted(found["user"].to_pylist()) == list(range(251))


@pytest.mark.parametrize("by", ["day", "hour"])
def test_files_are_divided_by_the_time_of_their_records(
    log: Log, to: Path, form: Format, by: PartitionBy
) -> None:
    create(log, "t", schema=SALE)
    moments = sales(0, 300, every_ms=HOUR_MS // 2)
    append(log, "t", moments.take(pa.array([*range(0, 300, 2), *range(1, 300, 2)])), 1)
    sl.offload("t", to, log=log, format=form, partition_by=by)
    found = stored(form, to)
    assert places(found) == committed(log, "t")
    for file in to.rglob("*.parquet"):
        table = pq.ParquetFile(file).read()
        times = table["_timestamp"].to_pylist()
        offsets = table["_offset"].to_pylist()
        assert offsets == sorted(offsets)
        (day,) = {time.date() for time in times}
        prefix = "utc_" if form == "parquet" else "_"
        assert f"{prefix}day={day}" in file.parts
        if by == "hour":
            (hour,) = {time.hour for time in times}
            assert f"{prefix}hour={hour}" in file.parts
    if form != "iceberg":
        assert [row[f"{prefix}day"] for row in found.to_pylist()] == [
            row["_timestamp"].date() for row in found.to_pylist()
        ]


def test_readers_leave_out_days_that_they_do_not_ask_for(log: Log, to: Path, form: Format) -> None:
    create(log, "t", schema=SALE)
    append(log, "t", sales(0, 240, every_ms=HOUR_MS), 1)
    sl.offload("t", to, log=log, format=form, partition_by="day")
    day = utc(START_MS).date() + dt.timedelta(days=3)
    begin, end = (
        dt.datetime.combine(day + dt.timedelta(days=n), dt.time(), dt.UTC) for n in (0, 1)
    )
    if form == "iceberg":
        from pyiceberg.catalog import load_catalog

        with load_catalog("strandline", type="sql", uri=f"sqlite:///{to}/catalog.db") as catalog:
            scan = catalog.load_table("default.t").scan(
                f"_timestamp >= '{begin.isoformat()}' and _timestamp < '{end.isoformat()}'"
            )
            assert len(list(scan.plan_files())) == 1
            assert len(scan.to_arrow()) == 24
    elif form == "delta":
        dataset = delta(to).to_pyarrow_dataset()
        assert len([*dataset.get_fragments(pc.field("_day") == day)]) == 1
        assert pl.scan_delta(str(to)).filter(pl.col("_day") == day).collect().height == 24
    else:
        counted = duckdb.sql(
            f"SELECT count(*) FROM read_parquet('{to}/**/*.parquet') WHERE utc_day = '{day}'"
        )
        assert counted.fetchall() == [(24,)]
        read = pl.scan_parquet(f"{to}/**/*.parquet", hive_partitioning=True)
        assert read.filter(pl.col("utc_day") == day).collect().height == 24


def test_readers_find_rows_by_each_column(log: Log, to: Path, form: Format) -> None:
    """Before, readers of delta-rs found no row of Delta Lake by a column of the topic."""
    create(log, "t", schema=SALE)
    append(log, "t", sales(0, 20), 1)
    sl.offload("t", to, log=log, format=form, max_file_rows=10)
    rows = stored(form, to).to_pylist()
    found = {"user": 3, "amount": 0.75, "name": "name-3", "_offset": 3, "_tombstone": False}
    for name, value in found.items():
        assert _counted(form, to, name, value) == sum(row[name] == value for row in rows), name
    if form == "delta":  # also beside files of another program, which have bounds of each column
        delta(to).optimize.compact()
        append(log, "t", sales(20, 20), 1)
        sl.offload("t", to, log=log, format=form)
        assert [_counted(form, to, "user", number) for number in (3, 33)] == [1, 1]


def _counted(form: Format, to: Path, name: str, value: Any) -> int:
    """Return the number of rows with a value, as a reader of the format finds them."""
    if form == "iceberg":
        with iceberg_table(to) as table:
            return len(table.scan(f"{name} = {value!r}").to_arrow())
    found = delta(to).to_pyarrow_dataset() if form == "delta" else ds.dataset(to, format=form)
    return int(found.count_rows(filter=pc.field(name) == value))


def test_files_are_closed_at_their_limits(log: Log, to: Path, form: Format) -> None:
    create(log, "t", schema=SALE)
    append(log, "t", sales(0, 1_000), 1)
    report = sl.offload("t", to, log=log, format=form, max_file_rows=300, commit_records=700)
    assert (report.rows, report.files, report.commits) == (1_000, 4, 2)
    sizes = sorted(pq.ParquetFile(file).metadata.num_rows for file in to.rglob("*.parquet"))
    assert sizes == [100, 300, 300, 300]
    assert places(stored(form, to)) == committed(log, "t")
    by_size = sl.offload("t", to.with_name("small"), log=log, format=form, max_file_bytes=1)
    assert by_size.rows == 1_000


def test_an_empty_topic_gives_an_empty_target(log: Log, to: Path, form: Format) -> None:
    create(log, "t", 2, schema=SALE)
    report = sl.offload("t", to, log=log, format=form, partition_by="day")
    assert (report.rows, report.files, report.commits) == (0, 0, 1)
    assert len(stored(form, to)) == 0
    assert sl.offload("t", to, log=log, format=form, partition_by="day").commits == 0
    append(log, "t", sales(0, 3), 2)
    assert sl.offload("t", to, log=log, format=form, partition_by="day").rows == 3
    assert places(stored(form, to)) == committed(log, "t")


def test_only_committed_records_are_loaded(log: Log, to: Path, form: Format) -> None:
    create(log, "t")
    log.append("t", [{"value": b"0"}])
    aborted = log.producer(transactional_id="aborted")
    aborted.begin_transaction()
    aborted.send("t", b"aborted")
    aborted.flush()
    aborted.abort_transaction()
    log.append("t", [{"value": b"1"}])
    pending = log.producer(transactional_id="open")
    pending.begin_transaction()
    pending.send("t", b"2")
    pending.flush()
    log.append("t", [{"value": b"3"}])
    assert sl.offload("t", to, log=log, format=form).rows == 2
    assert sorted(stored(form, to)["value"].to_pylist()) == [b"0", b"1"]
    pending.commit_transaction()
    assert sl.offload("t", to, log=log, format=form).rows == 2
    assert sorted(stored(form, to)["value"].to_pylist()) == [b"0", b"1", b"2", b"3"]
    assert places(stored(form, to)) == committed(log, "t")
    aborted.close()
    pending.close()


def test_many_partitions_are_loaded_by_few_tasks(log: Log, to: Path, form: Format) -> None:
    create(log, "t", 64, schema=SALE)
    append(log, "t", sales(0, 640), 64)
    report = sl.offload("t", to, log=log, format=form, tasks=3)
    assert (report.rows, report.files) == (640, 64)
    log.alter_topic("t", partitions=70)
    append(log, "t", sales(640, 70), 70)
    assert sl.offload("t", to, log=log, format=form).rows == 70
    assert places(stored(form, to)) == committed(log, "t")


def test_a_declared_topic_is_decoded(tmp_path: Path, to: Path, form: Format) -> None:
    @dataclass
    class Trip:
        origin: str
        minutes: int

    with changelog.open(tmp_path / "log") as log:
        app = sl.App("shop", log=log)
        trips = app.topic("t", key=str, value=Trip, serde="json")
        counts = app.topic("counts", key=str, value=int)
        raw = app.topic("raw", key=str, value=dict)
        trips.append([("AA", Trip("JFK", 7))])
        counts.append([("AA", 7)])
        raw.append([("AA", {"n": 7})])
        sl.offload(trips, to, format=form)
        (row,) = stored(form, to).to_pylist()
        assert (row["_key"], row["origin"], row["minutes"]) == ("AA", "JFK", 7)
        path = tmp_path / "counts"
        sl.offload(counts, path, format="parquet")
        (row,) = by_pattern(path).to_pylist()
        assert (row["key"], row["value"]) == ("AA", 7)
        path = tmp_path / "raw"
        sl.offload(raw, path, format="parquet")
        (row,) = by_pattern(path).to_pylist()
        assert (row["key"], row["value"]) == ("AA", b"\x81\xa1n\x07")


def test_columns_that_were_added_are_null_in_earlier_rows(log: Log, to: Path, form: Format) -> None:
    create(log, "t", schema=SALE)
    append(log, "t", sales(0, 2), 1)
    sl.offload("t", to, log=log, format=form, partition_by="day")
    log.alter_topic("t", schema=SALE.append(pa.field("note", pa.string())))
    append(log, "t", sales(2, 1), 1)
    row = {"user": 3, "amount": 0.0, "name": "n", "note": "new", "timestamp": START_MS}
    append(log, "t", pa.Table.from_pylist([row]), 1)
    assert sl.offload("t", to, log=log, format=form, partition_by="day").rows == 2
    found = sorted(stored(form, to).to_pylist(), key=lambda row: row["user"])
    assert [row["note"] for row in found] == [None, None, None, "new"]
    append(log, "t", sales(4, 1), 1)
    assert sl.offload("t", to, log=log, format=form, partition_by="day").rows == 1


def test_the_progress_names_the_history_of_each_partition(log: Log, to: Path, form: Format) -> None:
    create(log, "t", 2, schema=SALE)
    append(log, "t", sales(0, 11), 2)
    sl.offload("t", to, log=log, format=form)
    for number, bounds in log.offsets("t").items():
        at = _progress(form, to)["partitions"][str(number)]
        epoch = bounds.epoch_before(bounds.last_stable_offset)
        assert at == {
            "offset": bounds.last_stable_offset,
            "leader_epoch": epoch.number,
            "incarnation": epoch.incarnation,
        }
    assert _progress(form, to)["topic_id"] == log.topic("t").topic_id


def _progress(form: Format, to: Path) -> dict[str, Any]:
    import json

    if form == "delta":
        return json.loads(delta(to).history(1)[0]["strandline.offload"])
    if form == "iceberg":
        from pyiceberg.catalog import load_catalog

        with load_catalog("strandline", type="sql", uri=f"sqlite:///{to}/catalog.db") as catalog:
            snapshot = catalog.load_table("default.t").current_snapshot()
            assert snapshot is not None
            assert snapshot.summary is not None
            return json.loads(snapshot.summary["strandline.offload"])
    return [*manifests(to)][-1]["progress"]
