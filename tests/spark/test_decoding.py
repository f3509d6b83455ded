"""Types and values of stores as Spark reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from strandline.changelog.errors import InvalidRecord
from strandline.framework.spark.decoding import decode, infer
from strandline.framework.spark.planning import StoredValues
from strandline.statestore.declaration import declaration_of
from strandline.statestore.keys import key_codec
from strandline.statestore.spec import StoreSpec


@dataclass
class Total:
    n: int
    amount: float
    parts: list[float]
    by_day: dict[str, float | None]


WHOLE = {"n": 1, "amount": 2, "parts": [3], "by_day": {"mon": 4}}
KEY = key_codec(str).encode("k")


@pytest.mark.parametrize(
    ("declared", "value", "found"),
    [
        (float, 1, pa.float64()),
        (int, 1, pa.int64()),
        (float | None, 1, pa.float64()),
        (list[float], [1, 2], pa.list_(pa.float64())),
        (dict[str, float], {"a": 1}, pa.struct([("a", pa.float64())])),
        (
            Total,
            WHOLE,
            pa.struct(
                [
                    ("n", pa.int64()),
                    ("amount", pa.float64()),
                    ("parts", pa.list_(pa.float64())),
                    ("by_day", pa.struct([("mon", pa.float64())])),
                ]
            ),
        ),
    ],
)
def test_floats_are_declared_even_if_the_newest_values_are_whole(
    declared: Any, value: Any, found: pa.DataType
) -> None:
    declaration = declaration_of(StoreSpec("s", key=str, value=declared))
    stored = StoredValues("messagepack", "none", declaration=declaration.to_bytes())
    assert infer([KEY], [msgspec.msgpack.encode(value)], "t", stored).field("value").type == found


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1.5, pa.int64()),
        ({"n": 0.5}, pa.struct([("n", pa.int32())])),
        ([1, 1.5], pa.list_(pa.int64())),
        ({"a": 1.5}, pa.map_(pa.string(), pa.int64())),
        ({"p": {"n": 0.5}}, pa.map_(pa.string(), pa.struct([("n", pa.int64())]))),
        ({"p": {"n": 1, "m": 2}}, pa.map_(pa.string(), pa.struct([("n", pa.int64())]))),
        ({"p": {"a": 1.5}}, pa.struct([("p", pa.map_(pa.string(), pa.int64()))])),
        ("ab", pa.list_(pa.string())),
    ],
)
def test_a_value_is_never_shortened(value: Any, kind: pa.DataType) -> None:
    schema = pa.schema([("key", pa.string()), ("value", kind)])
    stored = {"key": [KEY], "value": [msgspec.msgpack.encode(value)]}
    batch = pa.RecordBatch.from_pydict(stored)
    with pytest.raises(InvalidRecord, match="does not fit"):
        decode(batch, schema, "t")


def test_a_dict_may_be_read_as_a_map() -> None:
    kind = pa.map_(pa.string(), pa.list_(pa.float64()))
    schema = pa.schema([("key", pa.string()), ("value", kind)])
    value = msgspec.msgpack.encode({"a": [1.5, None], "b": None})
    batch = pa.RecordBatch.from_pydict({"key": [KEY], "value": [value]})
    assert decode(batch, schema, "t")["value"].to_pylist() == [[("a", [1.5, None]), ("b", None)]]


def test_whole_floats_are_integers() -> None:
    schema = pa.schema([("key", pa.string()), ("value", pa.int64())])
    batch = pa.RecordBatch.from_pydict({"key": [KEY], "value": [msgspec.msgpack.encode(2.0)]})
    assert decode(batch, schema, "t")["value"].to_pylist() == [2]
