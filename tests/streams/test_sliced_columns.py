"""Columns that are parts of others, wherever their buffers begin: Polars misread some of them."""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import strandline as sl
from strandline.framework.container import batch_size
from strandline.framework.testing import TestDriver
from strandline.statestore.frames import frame_of

PAIR = pa.list_(pa.int64(), 2)
COLUMNS = {
    "int64": pa.array([1, 2, 3, None, 5], pa.int64()),
    "int16": pa.array([1, 2, 3, None, 5], pa.int16()),
    "float64": pa.array([1.0, 2.0, 3.0, None, 5.0]),
    "bool": pa.array([True, False, True, None, True]),
    "date": pa.array([1, 2, 3, None, 5], pa.date32()),
    "timestamp": pa.array([1, 2, 3, None, 5], pa.timestamp("us")),
    "decimal": pa.array([Decimal(1), Decimal(2), None, Decimal(4)], pa.decimal128(12, 2)),
    "text": pa.array(["a", "bb", "ccc", None, "eeeee"]),
    "bytes": pa.array([b"a", b"bb", b"ccc", None, b"eeeee"]),
    "list": pa.array([[1], [2, 3], None, [4]]),
    "large texts": pa.array([["a"], ["bb", None], None, []], pa.large_list(pa.string())),
    "large bytes": pa.array([[b"a"], [b"bb", None], None], pa.large_list(pa.large_binary())),
    "large structs": pa.array(
        [[{"x": "a"}], None, [{"x": "bbb"}, {"x": None}]],
        pa.large_list(pa.struct([("x", pa.large_string())])),
    ),
    "pair": pa.array([[1, 2], [3, 4], None, [5, 6]], PAIR),
    "list of pairs": pa.array([[[1, 2], None], None, [[3, 4]], [None]], pa.list_(PAIR)),
    "struct": pa.array([{"pair": [1, 2]}, None, {"pair": None}], pa.struct([("pair", PAIR)])),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("address", [0, 1, 4, 8])
def test_a_slice_has_its_own_values_in_a_frame(name: str, address: int) -> None:
    column = received(COLUMNS[name], address)
    for start in range(len(column)):
        for length in range(1, len(column) - start + 1):
            part = column.slice(start, length)
            assert frame_of({"x": part})["x"].to_list() == part.to_pylist()
            chunked = pa.chunked_array([part, column])
            assert frame_of({"x": chunked})["x"].to_list() == chunked.to_pylist()


def received(column: pa.Array, address: int) -> pa.Array:
    """Return a column whose buffers begin at some address, modulo 16, as those of a fetch."""
    sink = io.BytesIO()
    batch = pa.record_batch({"x": column})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    sent = sink.getvalue()
    moved = pa.allocate_buffer(len(sent) + 16)
    begin = (address - moved.address) % 16
    memoryview(moved).cast("B")[begin : begin + len(sent)] = sent
    return pa.ipc.open_stream(moved.slice(begin, len(sent))).read_next_batch().column(0)


@pytest.mark.parametrize("columns", [True, False])
def test_lists_of_a_fixed_size_pass_through_batches(
    monkeypatch: pytest.MonkeyPatch, *, columns: bool
) -> None:
    monkeypatch.setattr(batch_size, "FIRST_BATCH_RECORDS", 2)
    schema = pa.schema([("place", pa.string()), ("pair", PAIR)])
    app = sl.App("app", commit_records=3)
    given = app.topic("given", value=schema, key="place")
    if columns:
        out = app.stream(given).filter(sl.col("place") == "a").to("out")
    else:
        out = app.topic("out", value=schema, key="place")

        @app.task(given, batch=True)
        def copy(batch: sl.Batch[Any, Any]) -> None:
            frame = batch.to_polars()
            assert isinstance(frame, pl.DataFrame)
            out.send_batch(frame.select("place", "pair"))

    pairs = [[1, 2], [3, 4], None, [5, 6], [7, 8], None, [9, 9]]
    table = pa.table({"place": ["a"] * len(pairs), "pair": pa.array(pairs, PAIR)}, schema=schema)
    driver = TestDriver(app).run(table)
    assert [record.value["pair"] for record in driver.output(out)] == pairs
