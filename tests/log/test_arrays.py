"""Columns of few objects are made without pandas, and are those of `pa.array`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.changelog import arrays

OF_OBJECTS = [pa.int64(), pa.float64(), pa.bool_(), pa.binary(), pa.string()]
OF_NUMBERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
    *(pa.uint64(), pa.float32(), pa.float64()),
]

ITEMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-5, 5)
    | st.floats()
    | st.binary()
    | st.text(st.characters(codec=None))
)
HOMOGENEOUS = st.sampled_from(
    [st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.binary(), st.text()]
).flatmap(lambda kind: st.lists(st.none() | kind, max_size=40))


def test_these_types_are_all_that_are_converted_here() -> None:
    assert {dtype.id for dtype in OF_OBJECTS} == set(arrays._BUFFERS)
    assert {dtype.id for dtype in [pa.bool_(), *OF_NUMBERS]} == set(arrays._NUMPY)


@given(
    items=st.lists(ITEMS, max_size=5) | HOMOGENEOUS,
    dtype=st.sampled_from(OF_OBJECTS),
)
def test_a_column_of_objects_is_that_of_arrow(items: list[Any], dtype: pa.DataType) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "sys", SimpleNamespace(modules={}))
        found = outcome(arrays.of_items, items, dtype)
    assert found == outcome(pa.array, items, dtype)


def outcome(make: Any, items: list[Any], dtype: pa.DataType) -> Any:
    try:
        column = make(items, dtype)
    except Exception as error:
        return type(error), str(error)
    column.validate(full=True)
    return column.type, repr(column.to_pylist()), column.null_count


@given(
    st.lists(st.integers(0, 100), min_size=1),
    st.sampled_from(OF_NUMBERS),
    st.integers(0, 3),
)
def test_numbers_of_a_slice_are_its_own(numbers: list[int], dtype: pa.DataType, start: int) -> None:
    column = pa.array(numbers, pa.int64()).cast(dtype)[start:]
    found = arrays.as_numpy(column)
    assert found.dtype == dtype.to_pandas_dtype()
    assert found.tolist() == numbers[start:]
    assert arrays.of_numbers(found).equals(column)
    flags = [number > 5 for number in numbers]
    assert arrays.as_numpy(pa.array(flags)[start:]).tolist() == flags[start:]


def test_numbers_of_a_column_with_nulls_are_those_of_arrow() -> None:
    assert np.isnan(arrays.as_numpy(pa.array([1, None]))[1])


def test_many_objects_are_left_to_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "sys", SimpleNamespace(modules={}))
    many = [*range(arrays.FEW + 1)]
    assert arrays.of_items(many, pa.int64()).to_pylist() == many
