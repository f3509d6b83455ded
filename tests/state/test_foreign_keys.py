"""Keys written as JSON or as they are: bytes, round trips, and keys that are no JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.changelog.errors import InvalidRecord, InvalidRequest
from strandline.statestore.foreign_keys import AsciiJsonKey, JsonKey, RawKey
from strandline.statestore.json_values import Json
from strandline.statestore.key_types import key_from_wire, key_to_wire
from strandline.statestore.keys import KeyCodec, key_codec

UTF8, ASCII, RAW = key_codec(JsonKey), key_codec(AsciiJsonKey), key_codec(RawKey)

text = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(1e-4, 1e15) | st.just(0.0) | st.just(-0.0)
scalars = text | numbers | st.booleans() | st.none()
keys = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=8,
)


def found_by(codec: KeyCodec[Any], key: Any) -> bytes:
    """Return the bytes by which a reader looks for a key."""
    return codec.encode(codec.admit(key))


@given(keys)
def test_a_key_has_the_bytes_that_pythons_json_writes(key: Any) -> None:
    assert found_by(ASCII, key) == json.dumps(key, separators=(",", ":")).encode()


@given(keys)
def test_a_key_in_utf_8_has_the_same_value_and_no_escapes(key: Any) -> None:
    data = found_by(UTF8, key)
    assert json.loads(data) == key
    assert data.decode().isascii() == json.dumps(key, ensure_ascii=False).isascii()


@given(keys, st.sampled_from([UTF8, ASCII]))
def test_a_key_that_was_written_is_read_as_it_was(key: Any, codec: KeyCodec[Any]) -> None:
    admitted = codec.admit(key)
    back = codec.decode(codec.encode(admitted))
    assert (back, repr(back)) == (admitted, repr(admitted))  # 1, 1.0 and True are not the same


@given(st.binary() | text.map(str.encode) | keys.map(json.dumps).map(str.encode))
def test_any_stored_key_is_found_by_what_it_is_read_as(data: bytes) -> None:
    for codec in (UTF8, ASCII, RAW):
        assert found_by(codec, codec.decode(data)) == data


@given(st.lists(st.binary() | keys.map(json.dumps).map(str.encode), unique=True))
def test_different_stored_keys_are_read_as_different_keys(stored: list[bytes]) -> None:
    for codec in (UTF8, ASCII, RAW):
        assert len({repr(codec.decode(data)) for data in stored}) == len(stored)


def test_keys_are_hashable_and_bytes_are_written_as_faust_writes_them() -> None:
    windowed = ("york", (1700000000.0, 1700000009.9))
    assert UTF8.decode(b'["york",[1700000000.0,1700000009.9]]') == windowed
    assert {windowed: 1}[UTF8.admit(["york", [1700000000.0, 1700000009.9]])] == 1
    assert found_by(UTF8, b"york") == b"york"
    assert found_by(UTF8, (b"york", 1)) == b"[\"b'york'\",1]"
    assert UTF8.decode(b"york") == b"york"
    assert UTF8.decode(b'{"id": 1}') == b'{"id": 1}'  # the spaces are another writer's
    assert ASCII.decode('"é"'.encode()) == '"é"'.encode()


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (float("nan"), "no NaN"),
        (float("inf"), "no infinities"),
        ({1, 2}, "set is not JSON"),
        ({1: 2}, "dict is not JSON"),
        (object(), "object is not JSON"),
        (1e300, "orjson write 1e[+]?300 differently"),
        ([{"a": 1e-9}], "differently"),
        ("\ud800", "surrogates not allowed"),
    ],
)
def test_what_has_no_certain_bytes_is_refused(key: Any, reason: str) -> None:
    with pytest.raises(InvalidRecord, match=reason):
        found_by(UTF8, key)


def test_a_key_that_is_nested_too_deep_is_refused_and_read_as_bytes() -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    with pytest.raises(InvalidRecord, match="nested more than 200 deep"):
        UTF8.admit(deep)
    data = b"[" * 300 + b"1" + b"]" * 300
    assert UTF8.decode(data) == data


@pytest.mark.parametrize("codec", [UTF8, ASCII])
def test_json_has_no_order(codec: KeyCodec[Any]) -> None:
    with pytest.raises(InvalidRequest, match="no order"):
        codec.bound("a")
    with pytest.raises(InvalidRequest, match="no order"):
        codec.prefix("a")


def test_raw_keys_are_bytes_or_text_and_sorted() -> None:
    assert found_by(RAW, "é") == "é".encode()
    assert RAW.prefix("ab") == (b"ab", b"ac")
    with pytest.raises(InvalidRecord, match="give bytes"):
        RAW.admit(1)


@pytest.mark.parametrize(
    ("kind", "name"), [(JsonKey, "json"), (AsciiJsonKey, "json-ascii"), (RawKey, "raw")]
)
def test_their_types_are_recorded_by_name(kind: type, name: str) -> None:
    assert key_to_wire(kind) == name
    assert key_from_wire(name) is kind


@given(keys | st.integers() | st.floats(allow_nan=False) | st.text())
def test_values_are_read_with_and_without_escapes(value: Any) -> None:
    for is_ascii in (True, False):
        data = json.dumps(value, ensure_ascii=is_ascii).encode(errors="surrogatepass")
        if is_ascii or b"\xed" not in data:  # only escapes can be lone surrogates
            assert repr(Json().loads(data)) == repr(value)


def test_values_of_models_are_plain_data() -> None:
    inner = {"n": 1, "__faust": {"ns": "shop.Inner"}}
    data = json.dumps({"all": [inner], "__faust": {"ns": "shop.Outer"}}).encode()
    assert Json().loads(data) == {"all": [{"n": 1}]}
    assert Json(dict[str, list[dict[str, int]]]).loads(data) == {"all": [{"n": 1}]}
    with pytest.raises(InvalidRecord, match="as JSON"):
        Json(dict[str, int]).loads(data)
    for damaged in (b"\xa1x", b"", b"{", b"[" * 300 + b"]" * 300, b"9" * 5000):
        with pytest.raises(InvalidRecord, match="as JSON"):
            Json().loads(damaged)
