"""Values encoded together: the bytes, and the refusals, of values encoded one by one."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.changelog.errors import InvalidRecord
from strandline.framework.formats.choice import key_codec
from strandline.framework.formats.codecs import items_of

KIND = tuple[str, int | None, dt.datetime]
CODEC = key_codec(KIND)
KEYS = st.tuples(
    st.text(max_size=300),
    st.none() | st.integers(-(2**63), 2**64 - 1),
    st.datetimes(timezones=st.just(dt.UTC)),
)


@given(st.lists(KEYS, max_size=8))
def test_values_encoded_together_have_the_bytes_of_each(keys: list[Any]) -> None:
    assert items_of(CODEC, keys) == list(map(CODEC.item, keys))


@pytest.mark.parametrize("wrong", [("a", "b", dt.datetime.now(dt.UTC)), ("a", 1), ("a", 1, None)])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_value_of_another_type_is_refused_wherever_it_is(wrong: Any, place: int) -> None:
    keys: list[Any] = [("a", 1, dt.datetime.now(dt.UTC))] * 2
    keys.insert(place, wrong)
    with pytest.raises(InvalidRecord):
        items_of(CODEC, keys)


def test_a_value_that_is_too_deep_is_refused() -> None:
    deep: Any = ()
    for _ in range(300):
        deep = (deep,)
    codec = key_codec(tuple[Any, ...])
    with pytest.raises(InvalidRecord):
        items_of(codec, [(1,), deep])


def test_keys_of_other_types_are_encoded_one_by_one() -> None:
    assert items_of(key_codec(str), ["a", "b"]) == ["a", "b"]
    assert items_of(key_codec(int), [1, 2]) == list(map(key_codec(int).item, [1, 2]))
