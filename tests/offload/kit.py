"""Targets read as other systems read them, and topics to be loaded."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from strandline.changelog.log import Log
from strandline.framework.offload.api import Format
from strandline.framework.offload.target import PartitionBy

FORMATS: list[Format] = ["parquet", "delta", "iceberg"]
PERIODS: list[PartitionBy] = ["none", "day", "hour"]

SALE = pa.schema([("user", pa.int64()), ("amount", pa.float64()), ("name", pa.string())])
START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def sales(first: int, count: int, *, every_ms: int = 1_000) -> pa.Table:
    """Return numbered rows of a typed topic, with their times."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "user": pa.array(numbers, pa.int64()),
            "amount": [number / 4 for number in numbers],
            "name": [f"name-{number % 7}" for number in numbers],
            "timestamp": [START_MS + number * every_ms for number in numbers],
        }
    )


def create(log: Log, topic: str, partitions: int = 1, *, schema: pa.Schema | None = None) -> None:
    """Create a topic that keeps records of any time."""
    log.create_topic(topic, partitions, schema=schema, config={"retention.ms": "-1"})


def append(log: Log, topic: str, rows: pa.Table, partitions: int) -> None:
    """Append rows to the partitions of a topic, in turn."""
    for partition in range(partitions):
        part = rows.take(pa.array(range(partition, len(rows), partitions), pa.int64()))
        if len(part):
            log.append(topic, part, timestamp="timestamp", partition=partition)


def places(table: pa.Table) -> list[tuple[int, int]]:
    """Return partition and offset of each row, sorted."""
    typed = "_offset" in table.column_names
    names = ("_partition", "_offset") if typed else ("partition", "offset")
    if "_topic_partition" in table.column_names:
        names = ("_topic_partition", "_offset")
    return sorted(zip(*(table[name].to_pylist() for name in names), strict=True))


def committed(log: Log, topic: str) -> list[tuple[int, int]]:
    """Return partition and offset of each committed record."""
    return places(log.read(topic))


def stored(form: Format, path: Path) -> pa.Table:
    """Return all rows of a target, as a reader of its format sees them."""
    if form == "delta":
        return duckdb.from_arrow(delta(path).to_pyarrow_dataset()).to_arrow_table()
    if form == "iceberg":
        return iceberg(path)
    seen = by_pattern(path)
    assert places(seen) == places(by_manifests(path))
    return seen


def by_pattern(path: Path) -> pa.Table:
    """Return what DuckDB reads with a pattern; an empty table without columns if it has no file."""
    if not [*path.rglob("*.parquet")]:
        return pa.table({"_partition": [], "_offset": []})
    return duckdb.sql(
        f"FROM read_parquet('{path}/**/*.parquet', union_by_name = true)"
    ).to_arrow_table()


def manifests(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the manifests of a Parquet target in order."""
    for file in sorted((path / "_strandline/commits").iterdir()):
        yield json.loads(file.read_bytes())


def by_manifests(path: Path) -> pa.Table:
    """Return the rows of the files that the manifests list, and check what they say of them."""
    tables = [pa.table({"_partition": [], "_offset": []})]
    for manifest in manifests(path):
        for file in manifest["files"]:
            table = pq.ParquetFile(path / file["path"]).read()
            assert (path / file["path"]).stat().st_size == file["size"]
            assert len(table) == file["rows"]
            found = places(table)
            assert found[0] == (file["partition"], file["first_offset"])
            assert found[-1] == (file["partition"], file["last_offset"])
            first_two = table.select([0, 1])
            tables.append(first_two.rename_columns(["_partition", "_offset"]))
    return pa.concat_tables(tables, promote_options="permissive")


@contextmanager
def iceberg_table(path: Path, name: str = "default.t") -> Iterator[Any]:
    """Yield an Iceberg table in the catalog of its folder."""
    with load_catalog("strandline", type="sql", uri=f"sqlite:///{path}/catalog.db") as catalog:
        yield catalog.load_table(name)


def iceberg(path: Path, name: str = "default.t") -> pa.Table:
    """Return the rows of an Iceberg table in the catalog of its folder."""
    with iceberg_table(path, name) as table:
        rows: pa.Table = table.scan().to_arrow()
        return rows


def iceberg_files(path: Path) -> list[str]:
    """Return the files of an Iceberg table."""
    with iceberg_table(path) as table:
        return [task.file.file_path for task in table.scan().plan_files()]


def delta(path: Path) -> DeltaTable:
    """Return a Delta Lake table."""
    return DeltaTable(str(path))


def data_files(path: Path) -> set[str]:
    """Return the names of all files of records in a target, whether committed or not."""
    return {file.name for file in path.rglob("part-*")}


def utc(ms: int) -> dt.datetime:
    """Return a moment as readers see it."""
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)


def content(to: Path) -> dict[Path, bytes]:
    """Return every file of a folder, except for the lock and SQLite's own."""
    kept = {"lock", "catalog.db"}
    return {f: f.read_bytes() for f in to.rglob("*") if f.is_file() and f.name not in kept}


@contextmanager
def refused(to: Path, error: type[Exception], match: str) -> Iterator[None]:
    """Expect an error that leaves the folder as it was."""
    before = content(to)
    with pytest.raises(error, match=match):
        yield
    assert content(to) == before
