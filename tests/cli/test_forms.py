"""Keys and values are converted between bytes and JSON without loss."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, get_args

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.changelog.client.columns import struct_of
from strandline.changelog.errors import InvalidRecord
from strandline.framework.cli import forms
from strandline.framework.cli.json_values import json_line, unplain
from strandline.statestore.serdes import MessagePack

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def through_json(value: object) -> object:
    return msgspec.json.decode(json_line(value))


@given(st.binary(max_size=20))
@example(b"\x81\x00\x00")
def test_any_key_that_is_shown_is_the_same_when_it_is_produced(data: bytes) -> None:
    assert forms.parse_key(through_json(forms.show_key(data))) == data


FORMS = {"base64", "utf8", "float", "int", "surrogates"}
SCALARS = st.floats() | st.integers(-(2**70), 2**70) | st.booleans() | st.none()


@given(st.binary(max_size=20) | st.builds(MessagePack().dumps, SCALARS))
@example(b"\0\1")
@example(b"\xcb\x7f\xf1" + bytes(6))
@example(b'{"a": 1}')
@example(b"text")
def test_any_value_that_is_shown_is_the_same_when_it_is_produced(data: bytes) -> None:
    shown = through_json(forms.show_value(data))
    again = forms.parse_value(shown)
    if isinstance(shown, list) or (isinstance(shown, dict) and shown.keys().isdisjoint(FORMS)):
        assert forms.show_value(again) == forms.show_value(data)  # lengths may be encoded shorter
    else:
        assert again == data


@given(st.binary(max_size=20))
def test_base64_stands_for_the_same_bytes(data: bytes) -> None:
    shown = through_json(forms.show_value(data, "bytes"))
    assert forms.parse_value(shown) == data


ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=8)


@given(ANY_TEXT | st.tuples(ANY_TEXT, st.integers(0, 9)).map(list))
@example("\ud800")
@example(["ö", "name\udcff"])
def test_any_key_of_text_is_the_same_after_json(key: object) -> None:
    assert unplain(through_json(key)) == key


@given(JSON)
def test_any_value_that_is_produced_is_shown_again(value: object) -> None:
    data = forms.parse_value(value)
    assert through_json(forms.show_value(data)) == value


@pytest.mark.parametrize("form", ["text", "int", "float", "bytes"])
def test_a_key_of_another_type_than_given_is_refused(form: forms.KeyForm) -> None:
    with pytest.raises(InvalidRecord, match="expected"):
        forms.parse_key([1], form)


@pytest.mark.parametrize("form", ["text", "bytes"])
def test_a_value_of_another_type_than_given_is_refused(form: forms.ValueForm) -> None:
    with pytest.raises(InvalidRecord, match="expected"):
        forms.parse_value(1, form)


def test_bytes_that_do_not_fit_their_form_are_shown_as_base64() -> None:
    assert forms.show_key(b"abc", "int") == {"base64": "YWJj"}
    assert forms.show_value(b"\xff", "text") == {"base64": "/w=="}
    assert forms.show_value(b"{", "json") == {"base64": "ew=="}
    assert forms.show_value(b"ab", "msgpack") == {"base64": "YWI="}


NESTED = [b"[" * 300 + b"]" * 300, b'{"a":' * 300 + b"1" + b"}" * 300, b"\x91" * 300 + b"\xc0"]
UNFIT = st.binary(max_size=20) | st.sampled_from([*NESTED, b"1e999", b"9" * 5000])


@given(UNFIT, st.sampled_from(get_args(forms.ValueForm)), st.sampled_from(get_args(forms.KeyForm)))
@example(NESTED[0], "json", "msgpack")
def test_any_bytes_are_shown_in_any_form(
    data: bytes, value_form: forms.ValueForm, key_form: forms.KeyForm
) -> None:
    json_line([forms.show_value(data, value_form), forms.show_key(data, key_form)])


UTC = dt.UTC
COLUMNS: list[tuple[pa.DataType, Any]] = [
    (pa.decimal128(9, 2), Decimal("1.50")),
    (pa.decimal256(50, 2), Decimal("-1.50")),
    (pa.duration("us"), dt.timedelta(days=1, seconds=3, microseconds=5)),
    (pa.duration("s"), dt.timedelta(days=-3)),
    (pa.binary(2), b"a\xff"),
    (pa.time64("us"), dt.time(1, 2, 3, 4)),
    (pa.timestamp("us"), dt.datetime(2025, 1, 1, 1, 2, 3, 4)),
    (pa.timestamp("ms", "Europe/Paris"), dt.datetime(2025, 1, 1, 1, tzinfo=UTC)),
    (pa.large_list(pa.date32()), [dt.date(2025, 1, 1), None]),
    (pa.list_(pa.decimal128(5, 1), 2), [Decimal("1.5"), Decimal("2.5")]),
    (pa.map_(pa.string(), pa.decimal128(5, 1)), [("a", Decimal("1.5")), ("b", None)]),
    (
        pa.struct([("d", pa.decimal128(5, 1)), ("t", pa.timestamp("us", "UTC"))]),
        {"d": Decimal("1.5"), "t": dt.datetime(2025, 1, 1, tzinfo=UTC)},
    ),
    (pa.uint64(), 2**64 - 1),
    (pa.float32(), float("inf")),
]


@pytest.mark.parametrize(("kind", "value"), COLUMNS, ids=[str(kind) for kind, _ in COLUMNS])
def test_columns_are_produced_as_they_are_printed(kind: pa.DataType, value: Any) -> None:
    schema = pa.schema([("c", kind)])
    printed = json_line({"c": value})
    row = forms.parse_columns(msgspec.json.decode(printed), schema)
    assert struct_of([row], schema, "topic 't'") == pa.array([{"c": value}], pa.struct(schema))


def test_a_decimal_may_be_a_number() -> None:
    schema = pa.schema([("c", pa.decimal128(9, 2))])
    found = [forms.parse_columns({"c": given}, schema) for given in (1.1, 2, "3.30")]
    assert found == [{"c": Decimal(text)} for text in ("1.1", "2", "3.30")]


@pytest.mark.parametrize(
    ("kind", "given", "match"),
    [
        (pa.decimal128(9, 2), "much", "cannot hold"),
        (pa.decimal128(9, 2), {"a": 1}, "cannot hold"),
        (pa.duration("s"), "soon", "cannot hold.*duration"),
        (pa.map_(pa.string(), pa.int64()), 5, "cannot hold"),
        (pa.timestamp("ns"), "2025-01-01T00:00:00.000000001", "parts of a microsecond"),
    ],
)
def test_columns_that_cannot_hold_a_value_are_named(
    kind: pa.DataType, given: Any, match: str
) -> None:
    with pytest.raises(InvalidRecord, match=f"column 'c' .*{match}"):
        forms.parse_columns({"c": given}, pa.schema([("c", kind)]))
