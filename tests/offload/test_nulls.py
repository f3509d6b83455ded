"""Nulls where the type of a topic has none: records of earlier versions may have them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.changelog.errors import InvalidRecord
from strandline.changelog.log import Log
from strandline.changelog.records import Append, columns_schema
from strandline.framework.offload import parquet, rows
from strandline.framework.offload.api import Format
from tests.offload.kit import FORMATS, create, stored

NUMBER = pa.field("n", pa.int64(), nullable=False)
ITEM = pa.field("item", pa.int64(), nullable=False)
COUNT = pa.field("value", pa.int64(), nullable=False)
INNER = pa.field("item", pa.struct([NUMBER]), nullable=False)
VALUES: dict[str, tuple[pa.DataType, object, object]] = {
    "struct": (pa.struct([NUMBER]), {"n": 1}, {"n": None}),
    "list": (pa.list_(ITEM), [1], [None]),
    "large list": (pa.large_list(ITEM), [1], [None]),
    "fixed list": (pa.list_(ITEM, 1), [1], [None]),
    "map": (pa.map_(pa.string(), COUNT), [("k", 1)], [("k", None)]),
    "deep": (pa.list_(INNER), [{"n": 1}], [{"n": None}]),
}


def append_unchecked(log: Log, column: pa.DataType, values: list[object]) -> None:
    """Append values of the column `x` to topic t, as an earlier version did: unchecked."""
    value = pa.StructArray.from_arrays([pa.array(values, column)], fields=[pa.field("x", column)])
    count = len(values)
    times = pa.array([1_700_000_000_000] * count, pa.int64())
    columns = pa.record_batch(
        [times, pa.nulls(count, pa.binary()), value],
        schema=columns_schema(value.type, headers=False),
    )
    producer = log.broker.init_producer()
    log.broker.append([Append("t", 0, columns, producer, base_sequence=0, schema_id=1)])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("kind", "whole", "null"), VALUES.values(), ids=[*VALUES])
def test_a_null_within_a_value_is_loaded(
    log: Log, to: Path, form: Format, kind: pa.DataType, whole: object, null: object
) -> None:
    """Before, no load into Parquet got beyond such a record: an error of Arrow ended it."""
    create(log, "t", schema=pa.schema([("x", kind)]))
    for number, value in enumerate((whole, null, whole)):
        append_unchecked(log, kind, [value])
        assert sl.offload("t", to, log=log, format=form).rows == 1, number
    assert sorted(map(str, stored(form, to)["x"].to_pylist())) == sorted(
        map(str, (whole, null, whole))
    )


def test_a_parquet_target_of_an_earlier_version_takes_nulls_within_values(
    log: Log, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its columns were recorded as they are in the topic, and its files have them so."""
    kind = pa.list_(ITEM)
    create(log, "t", schema=pa.schema([("x", kind)]))
    append_unchecked(log, kind, [[1]])
    with monkeypatch.context() as earlier:
        for module in (rows, parquet):
            earlier.setattr(module, "nullable", lambda field: field.with_nullable(nullable=True))
        sl.offload("t", to, log=log)
    (file,) = to.glob("part-*")
    assert not pq.read_schema(file).field("x").type.value_field.nullable
    append_unchecked(log, kind, [[None]])
    assert sl.offload("t", to, log=log).rows == 1
    assert sorted(map(str, stored("parquet", to)["x"].to_pylist())) == ["[1]", "[None]"]


def test_a_value_that_cannot_be_written_as_parquet_is_an_error_of_the_records(
    log: Log, to: Path
) -> None:
    """Before, it was an error of Arrow."""
    seconds = pa.timestamp("s")
    create(log, "t", schema=pa.schema([("x", seconds)]))
    log.append("t", pa.table({"x": pa.array([1, 2**60], pa.int64()).view(seconds)}))
    said = r"part-00000-.*: the records from offset 0 to 1 cannot be written .*Nothing was added"
    with pytest.raises(InvalidRecord, match=said):
        sl.offload("t", to, log=log)
    assert [*to.rglob("part-*")] == []
