"""Keys and values are converted between bytes and JSON without loss."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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
