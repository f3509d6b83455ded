"""The checksum depends on all parts of the records and on their order, and on nothing else."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from strandline.changelog.moving.digest import StreamDigest
from strandline.changelog.records import columns_schema

RECORD: dict[str, Any] = {"timestamp": 1, "key": b"k", "value": b"v", "headers": [("a", b"1")]}
STRANGE = pa.struct([("n", pa.int64()), ("s", pa.list_(pa.string())), ("b", pa.bool_())])


def batch(*records: dict[str, Any], value: pa.DataType | None = None) -> pa.RecordBatch:
    schema = columns_schema(value or pa.binary(), headers=True)
    return pa.RecordBatch.from_pylist(list(records), schema)


@pytest.mark.parametrize(
    "other",
    [
        {"timestamp": 2},
        {"key": None},
        {"key": b""},
        {"key": b"kv", "value": b""},
        {"value": None},
        {"value": b""},
        {"headers": []},
        {"headers": [("a", None)]},
        {"headers": [("a", b"")]},
        {"headers": [("a1", b"")]},
        {"headers": [("a", b"1"), ("a", b"1")]},
    ],
)
def test_any_other_record_has_another_checksum(other: dict[str, Any]) -> None:
    one = StreamDigest().over(batch(RECORD))
    assert one != StreamDigest().over(batch({**RECORD, **other}))
    assert one.text != StreamDigest().over(batch({**RECORD, **other})).text


def test_bytes_moved_from_one_record_to_the_next_change_the_checksum() -> None:
    ab = batch({**RECORD, "value": b"a"}, {**RECORD, "value": b"b"})
    for values in ((b"b", b"a"), (b"ab", b""), (b"", b"ab"), (b"a", None)):
        other = batch(*({**RECORD, "value": value} for value in values))
        assert StreamDigest().over(ab) != StreamDigest().over(other)
    headers = [("a", b"1")]
    first = batch({**RECORD, "headers": headers}, {**RECORD, "headers": []})
    second = batch({**RECORD, "headers": []}, {**RECORD, "headers": headers})
    assert StreamDigest().over(first) != StreamDigest().over(second)


def test_the_checksum_does_not_depend_on_batches_and_memory_layout() -> None:
    rows = [
        {"timestamp": n, "key": b"k" * n or None, "value": value}
        for n, value in enumerate(
            [
                {"n": 1, "s": ["a", None], "b": True},
                None,
                {"n": None, "s": None, "b": None},
                {"n": 4, "s": [], "b": False},
                {"n": 5, "s": ["long" * 9], "b": True},
            ]
        )
    ]
    whole = batch(*rows, value=STRANGE)
    expected = StreamDigest().over(whole)
    for cut in range(len(rows)):
        cut_up = StreamDigest().over(whole.slice(0, cut)).over(whole.slice(cut))
        assert cut_up == expected
    # Bytes under a null do not count.
    hidden = pa.array([b"x", b"y"], pa.binary())
    masked = pa.BinaryArray.from_buffers(
        pa.binary(), 2, [pa.py_buffer(b"\x02"), *hidden.buffers()[1:]]
    )
    assert masked.to_pylist() == [None, b"y"]
    plain = batch(*({**RECORD, "value": value} for value in (None, b"y")))
    assert StreamDigest().over(plain.set_column(2, "value", masked)) == StreamDigest().over(plain)


def test_missing_and_empty_headers_have_the_same_checksum() -> None:
    without = batch({**RECORD, "headers": None})
    assert StreamDigest().over(without) == StreamDigest().over(batch({**RECORD, "headers": []}))
    assert StreamDigest().over(without) == StreamDigest().over(without.drop_columns(["headers"]))
