"""Bytes of keys that another framework has written: as JSON, or as they are. Faust writes such keys.

    JsonKey        JSON as orjson writes it: no spaces, text in UTF-8, no very large or small floats
    AsciiJsonKey   JSON as Python's json writes it: no spaces, text beyond ASCII as \\u escapes
    RawKey         bytes unchanged, text in UTF-8

A key is found by its bytes, so it is encoded exactly as its app encodes it. Faust writes a key of
bytes unchanged, even in a table whose keys are JSON. So a stored key is decoded to a JSON value
only if that value is encoded to the same bytes. Any other stored key is given as its bytes. A
decoded key therefore always finds its entry, and no two entries have the same key.

Arrays are tuples, so that keys are hashable: the key of a windowed table is `(key, (start, end))`.
JSON has no order that its bytes keep. Entries are sorted by their bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import msgspec

from strandline.changelog.depth import check_value
from strandline.changelog.errors import UNREADABLE, InvalidRecord
from strandline.statestore.json_values import json_text


class JsonKey:
    """Type of keys written as JSON in UTF-8."""


class AsciiJsonKey:
    """Type of keys written as JSON in ASCII."""


class RawKey:
    """Type of keys whose bytes are the key."""


JSON_KEYS = (JsonKey, AsciiJsonKey)
"""Types of keys written as JSON."""
FOREIGN_KEYS = (*JSON_KEYS, RawKey)
"""Types of all keys that another framework writes."""


def admit_json(key: Any) -> Any:
    """Return a key in the form in which it is decoded: arrays are tuples. Raises InvalidRecord.

    >>> admit_json(["york", [0.0, 9.9]])
    ('york', (0.0, 9.9))
    """
    try:
        check_value(key)
    except RecursionError as error:
        raise _refusal(key, str(error)) from error
    return _admitted(key, key)


def encode_json(key: Any) -> bytes:
    """Encode an admitted key as JSON in UTF-8. Raises InvalidRecord.

    >>> encode_json(("Zürich", 1)), encode_json(b"York")
    (b'["Z\\xc3\\xbcrich",1]', b'York')
    """
    return key if isinstance(key, bytes) else _encoded(key, _utf8)


def encode_ascii_json(key: Any) -> bytes:
    """Encode an admitted key as JSON in ASCII. Raises InvalidRecord.

    >>> encode_ascii_json("Zürich")
    b'"Z\\\\u00fcrich"'
    """
    return key if isinstance(key, bytes) else _encoded(key, _ascii)


def json_decoder_of(encode: Callable[[Any], bytes]) -> Callable[[bytes], Any]:
    """Return the function that decodes the keys that `encode` has written.

    >>> decode = json_decoder_of(encode_json)
    >>> decode(b'["york",[0.0,9.9]]'), decode(b"york"), decode(b'["a", 1]')
    (('york', (0.0, 9.9)), b'york', b'["a", 1]')
    """

    def decode(data: bytes) -> Any:
        if (plain := _plain_text(data)) is not None:
            return plain
        try:
            value = _admitted(json_text(data), data)
            return value if encode(value) == data else data
        except (*UNREADABLE, InvalidRecord):
            return data

    return decode


def _plain_text(data: bytes) -> str | None:
    """Return a text that JSON writes without escapes, fast; None for any other key."""
    if data[:1] != b'"' or data[-1:] != b'"' or not data.isascii() or data.count(b'"') != 2:
        return None
    text = data.decode()
    return text[1:-1] if text.isprintable() and "\\" not in text else None


def admit_raw(key: Any) -> bytes:
    """Return the bytes of a key of bytes or text. Raises InvalidRecord."""
    try:
        data = key.encode() if type(key) is str else key
    except UnicodeEncodeError:
        data = key
    if type(data) is not bytes:
        raise _refusal(key, "give bytes, or text without lone surrogates")
    return data


def _admitted(value: Any, key: Any) -> Any:
    """Return a part of a key, checked; `key` is the whole of it, for errors."""
    if value is None or type(value) in (str, int, bool, bytes):
        return value
    if type(value) is float:
        if math.isfinite(value):
            return value
        raise _refusal(key, "JSON has no NaN and no infinities")
    if type(value) in (list, tuple):
        return tuple([_admitted(item, key) for item in value])
    if type(value) is dict and all(type(name) is str for name in value):
        return {name: _admitted(item, key) for name, item in value.items()}
    raise _refusal(key, f"{type(value).__name__} is not JSON; give what JSON shows of it")


def _encoded(key: Any, encode: Callable[[Any], bytes]) -> bytes:
    try:
        return encode(_without_bytes(key))
    except (*UNREADABLE, TypeError) as error:
        raise _refusal(key, str(error)) from error


def _without_bytes(value: Any) -> Any:
    """Return a value with bytes inside of it as Faust writes them: as the text of the literal."""
    if isinstance(value, bytes):
        return str(value)
    if isinstance(value, tuple):
        return [_without_bytes(item) for item in value]
    if isinstance(value, dict):
        return {name: _without_bytes(item) for name, item in value.items()}
    return value


def _utf8(value: Any) -> bytes:
    _check_floats(value)
    return msgspec.json.encode(value)


def _check_floats(value: Any) -> None:
    """Raise ValueError for a float with an exponent, which versions of orjson write differently."""
    if isinstance(value, float) and value and not 1e-5 <= abs(value) < 1e16:
        raise ValueError(f"versions of orjson write {value!r} differently; give the key's bytes")
    if isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            _check_floats(item)


def _ascii(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _refusal(key: Any, fix: str) -> InvalidRecord:
    got = f"{key!r:.80} ({type(key).__name__})"
    return InvalidRecord(f"cannot be a key of this store: {got}; {fix}")
