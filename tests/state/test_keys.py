"""Encoded keys keep their order, are decoded to the same key, and have exactly the declared
type."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.changelog.errors import CorruptLog, InvalidConfig, InvalidRecord
from strandline.statestore.engine import POSITION_KEY
from strandline.statestore.key_encoding import FEW_KEYS
from strandline.statestore.keys import decode_key, key_codec, prefix_end

SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(),
    int: st.integers() | st.integers(-(2**200), 2**200) | st.sampled_from([0, -1, 255, 256, -256]),
    float: st.floats(allow_nan=False),
    bytes: st.binary() | st.lists(st.sampled_from([0, 1, 255])).map(bytes),
    bool: st.booleans(),
    date: st.dates(),
    datetime: st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-7))])),
}
NESTED: dict[Any, st.SearchStrategy[Any]] = {
    tuple[str, int]: st.tuples(SCALARS[str], SCALARS[int]),
    tuple[bytes, ...]: st.lists(SCALARS[bytes], max_size=4).map(tuple),
    tuple[tuple[str, ...], float, bool]: st.tuples(
        st.lists(SCALARS[str], max_size=3).map(tuple), SCALARS[float], SCALARS[bool]
    ),
    tuple[datetime, date, str]: st.tuples(SCALARS[datetime], SCALARS[date], SCALARS[str]),
}
DECLARED = [*SCALARS.items(), *NESTED.items()]
IDS = [str(declared) for declared, _ in DECLARED]
MAYBE_NONE = (
    tuple[str | None, int | None],
    st.tuples(st.none() | SCALARS[str], st.none() | st.integers(-(2**63), 2**63 - 1)),
)


@pytest.mark.parametrize(("declared", "keys"), DECLARED, ids=IDS)
@given(data=st.data())
def test_bytes_sort_as_keys_do(declared: Any, keys: st.SearchStrategy[Any], data: Any) -> None:
    codec = key_codec(declared)
    one, other = data.draw(keys), data.draw(keys)
    encoded = codec.encode(codec.admit(one)), codec.encode(codec.admit(other))
    assert (encoded[0] < encoded[1]) == (one < other)
    assert (encoded[0] == encoded[1]) == (one == other)


@pytest.mark.parametrize(("declared", "keys"), DECLARED, ids=IDS)
@given(data=st.data())
def test_a_key_is_decoded_as_it_was_encoded(
    declared: Any, keys: st.SearchStrategy[Any], data: Any
) -> None:
    codec, key = key_codec(declared), data.draw(keys)
    encoded = codec.encode(codec.admit(key))
    assert codec.decode(encoded) == decode_key(encoded) == key
    assert codec.encode_all([codec.admit(key)]).to_pylist() == [encoded]
    assert encoded > POSITION_KEY
    assert encoded[0] >= 0x02


@pytest.mark.parametrize(("declared", "keys"), [*DECLARED, MAYBE_NONE], ids=[*IDS, "with None"])
@given(data=st.data())
def test_many_keys_at_once_are_encoded_as_single_ones(
    declared: Any, keys: st.SearchStrategy[Any], data: Any
) -> None:
    codec = key_codec(declared)
    distinct = [codec.admit(key) for key in data.draw(st.lists(keys, min_size=1, max_size=9))]
    admitted = distinct * (FEW_KEYS // len(distinct) + 1)
    assert codec.encode_all(admitted).to_pylist() == list(map(codec.encode, admitted))


@pytest.mark.parametrize("odd", [2**63, -(2**63) - 1, 2**300])
def test_an_int_beyond_64_bits_is_encoded_with_many_others(odd: int) -> None:
    codec = key_codec(tuple[str, int])
    keys = [("a", number) for number in [*range(FEW_KEYS), odd]]
    assert [codec.decode(key) for key in codec.encode_all(keys).to_pylist()] == keys


_FEW = st.text("a\0\xff", max_size=3)
"""Strings of which many are prefixes of others, with zeros and the byte that follows an escaped
zero."""


@given(key=st.text(), other=st.text())
def test_a_prefix_finds_the_keys_that_begin_with_it(key: str, other: str) -> None:
    codec = key_codec(str)
    lower, upper = codec.prefix(key)
    assert (lower <= codec.encode(other) and (upper is None or codec.encode(other) < upper)) == (
        other.startswith(key)
    )


@given(key=st.tuples(_FEW, _FEW.map(str.encode), st.integers()), other=_FEW)
@example(key=("ab\0c", b"", 0), other="ab")
@example(key=("ab", b"\0", 0), other="ab")
def test_a_tuple_prefix_finds_the_keys_with_these_first_elements(key: Any, other: str) -> None:
    codec = key_codec(tuple[str, bytes, int])
    lower, upper = codec.prefix((other,))
    assert upper is not None
    assert (lower <= codec.encode(key) < upper) == (key[0] == other)
    lower, upper = codec.prefix((key[0], other.encode()))
    assert upper is not None
    assert (lower <= codec.encode(key) < upper) == (key[1] == other.encode())


@given(st.binary())
def test_prefix_end_is_the_first_key_without_the_prefix(prefix: bytes) -> None:
    end = prefix_end(prefix)
    if end is None:
        assert prefix.strip(b"\xff") == b""
    else:
        assert prefix < end
        assert not end.startswith(prefix)
        assert prefix + b"\xff\xff" < end


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("declared", "key"),
    [
        (int, True), (int, 1.0), (int, Colour.RED), (float, 1), (bool, 1), (str, b"a"),
        (bytes, "a"), (bytes, bytearray(b"a")), (date, datetime(2024, 1, 1, tzinfo=UTC)),
        (datetime, datetime(2024, 1, 1)), (datetime, date(2024, 1, 1)), (float, float("nan")),
        (str, None), (tuple[int, str], (True, "a")), (tuple[int, str], (1,)),
        (tuple[int, str], (1, "a", 2)), (tuple[int, str], [1, "a"]), (tuple[int, ...], (1, 1.0)),
        (tuple[int | None], (False,)), (tuple[tuple[int, int], str], ((1, True), "a")),
    ],
)  # fmt: skip
def test_a_key_of_another_type_is_refused(declared: Any, key: Any) -> None:
    with pytest.raises(InvalidRecord, match=r"a key of this store must be .*, got .*; "):
        key_codec(declared).admit(key)


@pytest.mark.parametrize(
    "declared", [tuple, list, dict, [str], object, str | int, tuple[int | float], Any]
)
def test_a_type_that_cannot_be_a_key_is_refused(declared: Any) -> None:
    with pytest.raises(InvalidConfig, match="cannot be"):
        key_codec(declared)


def test_a_nested_key_type_costs_by_its_depth() -> None:
    """It may come from the log, or from another process."""
    declared: Any = str
    for _ in range(60):
        declared = tuple[declared]
    assert key_codec(declared).declared == declared


def test_none_inside_a_tuple_sorts_first() -> None:
    codec = key_codec(tuple[str | None, int])
    keys: list[Any] = [("a", 1), (None, 2), ("", 0), (None, -5)]
    assert [codec.decode(data) for data in sorted(map(codec.encode, keys))] == [
        (None, -5), (None, 2), ("", 0), ("a", 1),
    ]  # fmt: skip


def test_the_same_instant_in_two_zones_is_one_key() -> None:
    codec = key_codec(datetime)
    paris = datetime(2024, 7, 1, 14, tzinfo=timezone(timedelta(hours=2)))
    utc = datetime(2024, 7, 1, 12, tzinfo=UTC)
    assert codec.encode(codec.admit(paris)) == codec.encode(codec.admit(utc))


def test_zero_has_one_encoding() -> None:
    codec = key_codec(float)
    assert codec.encode(-0.0) == codec.encode(0.0)


def test_a_lone_surrogate_is_a_key_too() -> None:
    codec = key_codec(str)
    assert codec.decode(codec.encode("a\ud800")) == "a\ud800"
    assert codec.encode_all(["b", "a\ud800"]).to_pylist() == [
        codec.encode("b"),
        codec.encode("a\ud800"),
    ]


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\x38\x00", b"`Qab", b"\x21", b"\x30\x00", b"\x99", b"Q\xff"]
)
def test_bytes_that_are_no_key_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptLog, match="not an encoded key"):
        decode_key(data)
