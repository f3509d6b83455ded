"""Objects are decoded as they were encoded; impossible values are refused with an alternative."""

from __future__ import annotations

import dataclasses
import enum
from datetime import date, datetime, time, timedelta, timezone
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.changelog.errors import InvalidConfig, InvalidRecord
from strandline.statestore.serdes import (
    Bytes,
    Double,
    Long,
    MessagePack,
    TypedMessagePack,
    TypedMessagePackKey,
    Utf8,
    is_immutable,
    topic_key_serde,
    value_serde,
)


@dataclasses.dataclass(frozen=True)
class Delay:
    n: int = 0
    worst: float | None = None


@dataclasses.dataclass
class Open:
    n: int = 0


class Carrier(msgspec.Struct, frozen=True):
    name: str
    delay: Delay = Delay()


class Tagged(msgspec.Struct, frozen=True):
    tags: list[str]


class Pair(NamedTuple):
    left: int
    right: str


class Kind(enum.Enum):
    A = "a"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
    | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(JSON)
def test_messagepack_decodes_the_encoded_value(value: Any) -> None:
    assert MessagePack().loads(MessagePack().dumps(value)) == value


@given(st.integers())
def test_an_int_of_any_size_is_decoded(value: int) -> None:
    serdes: list[Any] = [MessagePack(), TypedMessagePack(int)]
    for serde in serdes:
        assert serde.loads(serde.dumps(value * 2**60)) == value * 2**60


@given(st.builds(Delay, n=st.integers(0, 2**40), worst=st.none() | st.floats(allow_nan=False)))
def test_a_dataclass_is_decoded(value: Delay) -> None:
    serde: TypedMessagePack[Delay] = TypedMessagePack(Delay)
    assert serde.loads(serde.dumps(value)) == value


def test_a_type_may_gain_fields_with_defaults() -> None:
    old = msgspec.msgpack.encode({"n": 3})
    assert TypedMessagePack[Delay](Delay).loads(old) == Delay(3, None)


@pytest.mark.parametrize("value", [object(), 1j, {"a": 2**70}, "\ud800"])
def test_values_that_messagepack_cannot_hold_are_refused(value: Any) -> None:
    with pytest.raises(InvalidRecord, match="cannot encode a value"):
        MessagePack().dumps(value)


@pytest.mark.parametrize(
    ("serde", "data"),
    [
        (MessagePack(), b"\xc1"), (MessagePack(), b""), (TypedMessagePack(int), b"\xa1a"), (Utf8(), b"\xff"),
        (Long(), b"1"), (Double(), b"123"), (TypedMessagePack(Delay), b"\x93\x01\x02\x03"),
        (TypedMessagePack(int), b"\xd4\x05\x00"),
    ],
)  # fmt: skip
def test_bytes_of_another_encoding_are_refused(serde: Any, data: bytes) -> None:
    with pytest.raises(InvalidRecord, match=r"cannot decode .* as .*; declare the type"):
        serde.loads(data)


@pytest.mark.parametrize(
    ("declared", "key", "data"),
    [
        (str, "é", b"\xc3\xa9"),
        (bytes, b"\x00\xff", b"\x00\xff"),
        (int, -2, b"\xff" * 7 + b"\xfe"),
        (float, 1.0, b"\x3f\xf0" + bytes(6)),
        (tuple[str, int], ("a", 1), b"\x92\xa1a\x01"),
    ],
)
def test_topic_keys_are_kafkas_bytes(declared: Any, key: Any, data: bytes) -> None:
    serde = topic_key_serde(declared)
    assert serde.dumps(key) == data
    assert serde.loads(data) == key


MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678, timezone(timedelta(hours=2)))
COMPOSED: list[tuple[Any, list[Any]]] = [
    (tuple[str, int], [("a", 1), ("", -(2**63))]),
    (tuple[str, float], [("a", -0.0), ("b", 2.5), ("c", 1), ("d", float("nan"))]),
    (tuple[str, datetime | None], [("a", MOMENT), ("b", None), ("c", MOMENT.isoformat())]),
    (tuple[datetime, ...], [(), (MOMENT, MOMENT.replace(tzinfo=None))]),
    (tuple[date, time], [(date(2026, 1, 2), time(3, 4, 5, 678))]),
    (dict[str, float], [{"b": -0.0, "a": 1}, {"a": 1, "b": 0}]),
    (frozenset[int], [frozenset({8, 0, 16})]),
    (Delay, [Delay(1, 2), Delay(1, -0.0)]),
    (list[bytes], [[b"a", b""], [b"\xff" * 2_000]]),
]


@pytest.mark.parametrize(("declared", "keys"), COMPOSED, ids=[str(each) for each, _ in COMPOSED])
def test_many_topic_keys_have_the_bytes_of_single_ones(declared: Any, keys: list[Any]) -> None:
    serde = topic_key_serde(declared)
    assert isinstance(serde, TypedMessagePack)
    assert serde.dumps_all(keys) == [serde.dumps(key) for key in keys]


@pytest.mark.parametrize("wrong", [("a", "b"), ("\ud800", 1.0), ("a", 1.0, 2), 5, ("a", 2**70)])
def test_topic_keys_of_another_type_are_not_encoded_together(wrong: Any) -> None:
    assert TypedMessagePackKey(tuple[str, float]).dumps_all([("a", 1.0), wrong]) is None


@pytest.mark.parametrize(
    ("serde", "value"),
    [(Long(), 2**63), (Long(), True), (Long(), 1.0), (Double(), 1), (Utf8(), 5), (Bytes(), "a")],
)
def test_a_topic_key_of_another_type_is_refused(serde: Any, value: Any) -> None:
    with pytest.raises(InvalidRecord, match=r"expected .*, got .*; "):
        serde.dumps(value)


def test_an_object_with_dumps_and_loads_is_a_serde() -> None:
    class Reversed:
        def dumps(self, value: bytes) -> bytes:
            return value[::-1]

        def loads(self, data: bytes) -> bytes:
            return data[::-1]

    for declared in (Reversed, Reversed()):
        assert value_serde(declared).dumps(b"ab") == b"ba"


def test_a_type_that_cannot_be_decoded_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="cannot be a type of value"):
        value_serde(dict[str, int] | list[int] | tuple[int, int])


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (int, True), (str, True), (bytes, True), (datetime, True), (None, True), (Kind, True),
        (int | None, True), (tuple[int, ...], True), (tuple[int, list[int]], False),
        (Delay, True), (Open, False), (Carrier, True), (Tagged, False), (Pair, True),
        (list[int], False), (dict[str, int], False), (Any, False), (frozenset[int], True),
    ],
)  # fmt: skip
def test_immutable_types_are_recognised(declared: Any, expected: bool) -> None:
    assert is_immutable(declared) is expected
