"""Limits of table formats and their libraries: refused before a table is touched."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest

import strandline as sl
from strandline.changelog.errors import (
    InvalidConfig,
    InvalidRecord,
    SchemaMismatch,
    StorageFailed,
)
from strandline.changelog.log import Log
from strandline.framework.offload import iceberg
from strandline.framework.offload.api import Format
from strandline.framework.offload.target import PartitionBy
from tests.offload.kit import FORMATS, committed, create, places, stored

YEAR_10000_MS = 253_402_300_800_000


def one_record(log: Log, topic: str = "t", ms: int = 1_700_000_000_000) -> None:
    log.append(topic, [{"value": b"v", "timestamp": ms}])


# Paths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("delta", "per%20cent"),
        ("delta", "back\\slash"),
        ("delta", "new\nline"),
        ("delta", "\udcff"),
        ("iceberg", "per%20cent"),
        ("iceberg", "lake?mode=x"),
        ("iceberg", "h#sh"),
        ("iceberg", "new\nline"),
        ("iceberg", "\udcff"),
    ],
)
def test_a_path_that_a_library_misreads_is_refused(
    log: Log, tmp_path: Path, form: Format, name: str
) -> None:
    """Before, the catalog of `lake?mode=x` was a file `lake` beside the folder."""
    create(log, "t")
    one_record(log)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InvalidConfig, match="reads as something else"):
        sl.offload("t", tmp_path / name, log=log, format=form)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("form", "name"),
    [
        *((form, name) for form in FORMATS for name in ("a b", "ü", "100%", "a'b", "[x]", "a:b")),
        *(("parquet", name) for name in ("per%20cent", "lake?x=1", "h#sh", "back\\slash")),
        *(("delta", name) for name in ("lake?x=1", "h#sh")),
        ("iceberg", "back\\slash"),
    ],
)
def test_other_paths_are_used_as_they_are(
    log: Log, tmp_path: Path, form: Format, name: str
) -> None:
    create(log, "t")
    for rows in (1, 1, 0):
        if rows:
            one_record(log)
        assert sl.offload("t", tmp_path / name, log=log, format=form).rows == rows
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["log", name])


# Times ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "by"),
    [("delta", "day"), ("delta", "hour"), ("iceberg", "none"), ("iceberg", "day")],
)
def test_a_time_after_the_year_9999_leaves_the_table_readable(
    log: Log, to: Path, form: Format, by: PartitionBy
) -> None:
    """Before, no reader could read the table any more after such a record."""
    create(log, "t")
    one_record(log)
    sl.offload("t", to, log=log, format=form, partition_by=by)
    loaded = committed(log, "t")
    one_record(log, ms=YEAR_10000_MS)
    for _ in range(2):
        with pytest.raises(
            InvalidRecord, match=r"partition 0 has a record .*timestamp is 10000-01-01"
        ):
            sl.offload("t", to, log=log, format=form, partition_by=by)
        assert places(stored(form, to)) == loaded


@pytest.mark.parametrize(
    ("form", "by"), [("delta", "none"), ("parquet", "none"), ("parquet", "hour")]
)
def test_other_targets_take_any_time(log: Log, to: Path, form: Format, by: PartitionBy) -> None:
    create(log, "t")
    one_record(log, ms=YEAR_10000_MS)
    assert sl.offload("t", to, log=log, format=form, partition_by=by).rows == 1


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.timestamp("us"), YEAR_10000_MS * 1000),
        (pa.timestamp("us", "UTC"), -62_135_596_800_000_001),
        (pa.date32(), 2_932_897),
    ],
)
def test_a_time_that_iceberg_cannot_have_is_an_error_of_the_records(
    log: Log, to: Path, kind: pa.DataType, value: int
) -> None:
    create(log, "t", schema=pa.schema([("at", kind)]))
    number = pa.int32() if kind == pa.date32() else pa.int64()
    log.append("t", pa.table({"at": pa.array([value], number).view(kind)}))
    with pytest.raises(InvalidRecord, match="not in the years 1 to 9999"):
        sl.offload("t", to, log=log, format="iceberg")
    assert [*to.rglob("part-*")] == []


# Columns -------------------------------------------------------------------------------------


def test_columns_that_differ_by_case_only_are_refused_by_delta(log: Log, to: Path) -> None:
    create(log, "t", schema=pa.schema([("a", pa.int64()), ("A", pa.int64())]))
    log.append("t", pa.table({"a": [1], "A": [2]}))
    with pytest.raises(SchemaMismatch, match="'A'.*the same for Delta Lake"):
        sl.offload("t", to, log=log, format="delta", partition_by="day")
    assert [*to.rglob("part-*")] == []
    assert not (to / "_delta_log").exists()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "kind",
    [pa.struct([]), pa.struct([("a", pa.struct([]))]), pa.decimal128(5, -2)],
    ids=str,
)
def test_a_column_that_parquet_does_not_have_is_named(
    log: Log, to: Path, form: Format, kind: pa.DataType
) -> None:
    create(log, "t", schema=pa.schema([("x", kind)]))
    log.append("t", pa.table({"x": pa.nulls(1, kind)}))
    with pytest.raises(SchemaMismatch, match="column 'x' is"):
        sl.offload("t", to, log=log, format=form)
    assert [*to.rglob("part-*")] == []


PERIOD = pa.field("period", pa.int64())


@pytest.mark.parametrize("by", ["day", "hour"])
@pytest.mark.parametrize("later", [False, True])
def test_an_iceberg_table_that_is_divided_by_time_can_have_a_column_period(
    log: Log, to: Path, by: PartitionBy, later: bool
) -> None:
    """Before, every run added a file, and then could not make its commit."""
    first = pa.schema([("a", pa.int64())])
    create(log, "t", schema=first if later else first.append(PERIOD))
    log.append("t", [{"a": 1}])
    assert sl.offload("t", to, log=log, format="iceberg", partition_by=by).rows == 1
    log.alter_topic("t", schema=first.append(PERIOD))
    log.append("t", [{"a": 2, "period": 3}])
    assert sl.offload("t", to, log=log, format="iceberg", partition_by=by).rows == 1
    assert set(stored("iceberg", to)["period"].to_pylist()) == {None, 3}


def test_a_column_with_the_name_of_a_hidden_partition_is_refused_before_anything_is_written(
    log: Log, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hidden partition of tables by earlier versions is called `period`."""
    create(log, "t", schema=pa.schema([("a", pa.int64())]))
    log.append("t", [{"a": 1}])
    with monkeypatch.context() as earlier:
        earlier.setattr(iceberg, "PERIOD_COLUMNS", {"day": {"period": pa.date32()}})
        sl.offload("t", to, log=log, format="iceberg", partition_by="day")
    log.append("t", [{"a": 2}])
    assert sl.offload("t", to, log=log, format="iceberg", partition_by="day").rows == 1
    log.alter_topic("t", schema=pa.schema([("a", pa.int64()), PERIOD]))
    log.append("t", [{"a": 3, "period": 3}])
    before = {*to.rglob("*")}
    with pytest.raises(SchemaMismatch, match="partition called 'period'.*load into another folder"):
        sl.offload("t", to, log=log, format="iceberg", partition_by="day")
    assert {*to.rglob("*")} == before


# The catalog ---------------------------------------------------------------------------------


def test_a_catalog_that_cannot_be_opened_is_named_with_the_reason(
    log: Log, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a full disk was reported as a wrong option of the catalog."""
    create(log, "t")
    connect = sqlite3.dbapi2.connect

    def full(*arguments: object, **options: object) -> object:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(sqlite3.dbapi2, "connect", full)
    with pytest.raises(StorageFailed, match=r"catalog\.db: database or disk is full"):
        sl.offload("t", to, log=log, format="iceberg")
    monkeypatch.setattr(sqlite3.dbapi2, "connect", connect)
    one_record(log)
    assert sl.offload("t", to, log=log, format="iceberg").rows == 1
