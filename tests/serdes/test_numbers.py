"""Ints and floats are written like Kafka's LongSerializer and DoubleSerializer do, by the
column."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.changelog.client.keys import encode_key, encode_keys
from strandline.changelog.errors import InvalidRecord
from strandline.framework.formats.choice import key_codec, value_codec
from strandline.framework.formats.codecs import Codec
from strandline.framework.formats.numbers import NumberCodec
from strandline.statestore.serdes import Double, Long

longs = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    "codec", [key_codec(int), value_codec(int, Long()), value_codec(Any, Long())]
)
@given(items=st.lists(st.none() | longs), begin=st.integers(0, 5))
def test_longs_have_kafkas_bytes(codec: Codec, items: list[int | None], begin: int) -> None:
    column = codec.encode(items)
    assert isinstance(codec, NumberCodec)
    assert column.type == codec.arrow
    assert column.to_pylist() == [None if i is None else struct.pack(">q", i) for i in items]
    assert codec.decode(column.slice(begin)) == items[begin:]


@given(items=st.lists(st.none() | st.floats()))
def test_doubles_have_kafkas_bytes(items: list[float | None]) -> None:
    codec = value_codec(float, Double())
    column = codec.encode(items)
    assert isinstance(codec, NumberCodec)
    # NaN does not equal itself, but the bytes are equal.
    assert column.to_pylist() == [None if i is None else struct.pack(">d", i) for i in items]
    assert codec.encode(codec.decode(column)) == column


@given(items=st.lists(st.none() | st.floats()))
def test_equal_floats_are_the_same_key(items: list[float | None]) -> None:
    codec = key_codec(float)
    column = codec.encode(items)
    assert isinstance(codec, NumberCodec)
    # Java's doubleToLongBits makes NaN the same; -0.0 becomes 0.0 only here.
    same = [None if i is None else math.nan if math.isnan(i) else i or 0.0 for i in items]
    expected = [None if i is None else struct.pack(">d", i) for i in same]
    assert column.to_pylist() == expected
    assert [encode_key(i) for i in items] == expected
    assert encode_keys(pa.array(items, pa.float64())).to_pylist() == expected


@pytest.mark.parametrize("wrong", [b"", b"1234567", b"123456789", b"0" * 16])
def test_a_value_of_another_length_is_refused(wrong: bytes) -> None:
    whole = struct.pack(">q", 1)
    for values in ([wrong], [whole, wrong], [None, wrong], [b"", b"0" * 16]):
        with pytest.raises(InvalidRecord, match="a long"):
            key_codec(int).decode(pa.array(values, pa.binary()))


def test_a_value_that_is_no_such_number_is_refused_when_it_is_sent() -> None:
    codec = key_codec(int)
    for wrong in (True, 1.0, "1", b"12345678", 2**63, -(2**63) - 1):
        with pytest.raises(InvalidRecord):
            codec.encode([codec.item(wrong)])
    with pytest.raises(InvalidRecord, match="int of 64 bits"):
        codec.encode([1, 2**63])
    item = codec.item(np.int32(7))
    assert (item, type(item)) == (7, int)
