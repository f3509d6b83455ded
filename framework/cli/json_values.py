"""Python values as JSON, for the output and the input of commands.

Values that JSON cannot hold are objects of one field, in both directions and at any depth. Bytes
are {"base64": "…"}, or {"utf8": "…"} if they are text. NaN and the infinities are {"float": "nan"},
and ints beyond 64 bits {"int": "…"}. Text with lone surrogates, as names of files that are not UTF-8
have it in Python, is {"surrogates": "…"}: base64 of its UTF-8, surrogates included.

This module imports neither Arrow nor numpy, because every command needs it, `--help` included.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import msgspec

from strandline.changelog.config import is_text
from strandline.changelog.errors import InvalidRecord


def json_line(value: Any) -> str:
    """Return `value` as JSON on one line.

    >>> json_line({"key": b"\\xff", "n": 1})
    '{"key":{"base64":"/w=="},"n":1}'
    """
    return msgspec.json.encode(plain(value), enc_hook=str).decode()


def plain(value: Any) -> Any:
    """Return `value` with everything in a form that JSON can hold."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, str) and not value.isascii() and not is_text(value):
        return {"surrogates": base64.b64encode(value.encode(errors="surrogatepass")).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return {"int": str(value)}
    if isinstance(value, dict):
        return {_name(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def unplain(value: Any) -> Any:
    """Return the value that `plain` was given. Raise InvalidRecord if a text cannot be decoded."""
    if isinstance(value, list):
        return [unplain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(name, text)] = value.items()
        if name in _SPECIAL and isinstance(text, str):
            return _special(name, text)
    return {key: unplain(item) for key, item in value.items()}


_SPECIAL: dict[str, Callable[[str], Any]] = {
    "base64": lambda text: base64.b64decode(text, validate=True),
    "float": float,
    "int": int,
    "surrogates": lambda text: base64.b64decode(text, validate=True).decode(errors="surrogatepass"),
    "utf8": str.encode,
}


def _special(name: str, text: str) -> Any:
    try:
        return _SPECIAL[name](text)
    except ValueError as error:
        raise InvalidRecord(f"{text!r} is not {name}: {error}") from error


def _name(key: Any) -> str:
    if isinstance(key, str):
        return key
    return key.decode(errors="replace") if isinstance(key, bytes) else str(key)
