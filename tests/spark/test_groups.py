"""Spark reads the state of streams: the rows that queries return, with real columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest

import strandline as sl
from strandline.changelog.log import Log
from strandline.framework.spark import tables
from strandline.framework.spark.options import SourceOptions
from tests.streams import test_aggregates as every
from tests.streams.test_aggregates import Reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

MERGEABLE = {n: one for n, (one, _) in every.AGGREGATES.items() if n != "made"}
NAMES = [*every.WINDOWS, "all"]


@pytest.fixture
def app(log: Log) -> Iterator[sl.App]:
    """An app that has aggregated the readings in each kind of window, and all of them."""
    made = sl.App("app", log=log, commit_records=7)
    topic = made.topic("readings", value=Reading, key="place", timestamp="at", partitions=2)
    stream = made.stream(topic, idle=None)
    for name, window in every.WINDOWS.items():
        windowed = stream.group_by("place", "day").window(window)
        windowed.agg(**MERGEABLE, name=name).to(f"{name}-out")
    stream.group_by("place", "day").agg(**MERGEABLE, name="all")
    reduced = sl.reducer(0, lambda old, _: old + 1, lambda old, new: old + new)
    for name in ("tumbling", "hopping"):
        stream.group_by("place").window(every.WINDOWS[name]).agg(n=reduced, name=f"{name}-made")
    topic.append(every.READINGS)
    made.run(until="idle", progress=False)
    yield made
    made.close()


@pytest.fixture
def options(tmp_path: Path) -> Callable[..., SourceOptions]:
    return lambda name, **more: SourceOptions.parse(
        {"path": str(tmp_path / "log"), "store": f"app/{name}", **more}
    )


def rows_of(log: Log, options: SourceOptions, target: pa.Schema | None = None) -> pl.DataFrame:
    """Return what the tasks of a read return together."""
    wanted = target or tables.store_schema(log.broker, options)
    tables.check_columns(log.broker, options, wanted)
    found = [
        batch
        for each in tables.plan_store(log.broker, options)
        for batch in tables.read_store(log.broker, each, wanted, options)
    ]
    frame = pl.from_arrow(pa.Table.from_batches(found, schema=wanted))
    assert isinstance(frame, pl.DataFrame)
    return frame


@pytest.mark.parametrize("name", NAMES)
def test_the_state_of_a_stream_has_the_rows_of_a_query(
    log: Log, app: sl.App, options: Any, name: str
) -> None:
    found = rows_of(log, options(name))
    wanted = app.query(name).to_polars()
    assert len(wanted) >= (1 if name == "sliding" else 3)
    start = [] if name == "all" else ["window_start"]
    assert found.sort(*start, "place", "day").equals(wanted)
    assert found.columns[:2] == ["place", "day"]


def test_a_schema_chooses_columns_or_the_stored_keys(log: Log, app: sl.App, options: Any) -> None:
    some = pa.schema([("rows", pa.int32()), ("place", pa.string())])
    found = rows_of(log, options("hopping"), some)
    assert found.sort("place", "rows").equals(
        app.query("hopping")
        .to_polars()
        .select(pl.col("rows").cast(pl.Int32), "place")
        .sort("place", "rows")
    )
    key = pa.struct([("_1", pa.int64()), ("_2", pa.string()), ("_3", pa.date32())])
    stored = rows_of(log, options("tumbling"), pa.schema([("key", key), ("partition", pa.int32())]))
    windows = app.query("tumbling").to_polars()
    starts = stored["key"].struct.field("_1").sort().to_list()
    assert starts == windows["window_start"].dt.epoch("ms").to_list()
    raw = tables.store_schema(log.broker, options("tumbling", decode="false"))
    assert raw.types == [pa.binary(), pa.binary(), pa.int32()]
    with pytest.raises(sl.InvalidConfig, match="has no column mean_delay; its columns are place"):
        rows_of(log, options("tumbling"), pa.schema([("mean_delay", pa.int64())]))


def test_functions_of_a_reducer_are_needed_to_merge_only(
    log: Log, app: sl.App, options: Any
) -> None:
    assert rows_of(log, options("tumbling-made"))["n"].sum() > 0
    with pytest.raises(sl.InvalidConfig, match="only the app's own functions can merge"):
        tables.store_schema(log.broker, options("hopping-made"))


@pytest.mark.long
@pytest.mark.spark
def test_spark_reads_open_windows(spark: SparkSession, tmp_path: Path, app: sl.App) -> None:
    reader = spark.read.format("strandline").option("store", "app/hopping")
    frame = reader.load(str(tmp_path / "log"))
    kinds = dict(frame.dtypes)
    assert (kinds["place"], kinds["day"], kinds["window_start"]) == ("string", "date", "timestamp")
    assert (kinds["rows"], kinds["list"], kinds["times"]) == (
        *("bigint", "array<string>", "array<timestamp>"),
    )
    found = frame.orderBy("window_start", "place", "day").select("place", "rows", "list").collect()
    wanted = app.query("hopping").to_polars().select("place", "rows", "list").rows()
    assert [tuple(row) for row in found] == wanted
