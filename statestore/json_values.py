"""Values written as JSON by another framework, such as the tables of Faust.

Two libraries write such values: orjson, and Python's json, which escapes text beyond ASCII and also
writes `NaN` and ints of any size. Either's texts are read.

Faust adds the field `__faust` to the objects of its models. It names the model's class, which only
the app has, so it is left out when values are read.
"""

from __future__ import annotations

import json
from typing import Any, Generic, TypeVar

import msgspec

from strandline.changelog.decoding import converter, json_value
from strandline.changelog.depth import check_json
from strandline.changelog.errors import UNREADABLE, InvalidConfig, InvalidRecord

T = TypeVar("T")

CLASS_FIELD = "__faust"
"""Field of an object that names its class."""


class Json(Generic[T]):
    """Serde of JSON, as plain data or of a declared type.

    >>> Json().loads(b'{"n": 1, "__faust": {"ns": "shop.Order"}}')
    {'n': 1}
    >>> Json(dict[str, int]).loads(b'{"n": 1.5}')
    Traceback (most recent call last):
    strandline.changelog.errors.InvalidRecord: cannot decode 10 bytes ...
    """

    def __init__(self, declared: Any = Any) -> None:
        self.declared = declared
        try:
            self._convert = None if declared is Any else converter(declared)
        except TypeError as error:
            raise InvalidConfig(f"{declared} cannot be a type of JSON values: {error}") from error

    def dumps(self, value: T, /) -> bytes:
        """Encode a value as JSON in UTF-8. Raises InvalidRecord."""
        try:
            data = msgspec.json.encode(value)
            check_json(data)
        except (*UNREADABLE, TypeError) as error:
            raise InvalidRecord(f"cannot encode {value!r:.80} as JSON: {error}") from error
        return data

    def loads(self, data: bytes, /) -> T:
        """Decode a JSON text without the names of classes. Raises InvalidRecord."""
        try:
            value = json_text(data)
            plain = _without_classes(value) if CLASS_FIELD.encode() in data else value
            return plain if self._convert is None else self._convert(plain)  # type: ignore[no-any-return]
        except UNREADABLE as error:
            raise InvalidRecord(
                f"cannot decode {len(data)} bytes {data!r:.80} as JSON: {error}; give the type or "
                "serde that they were written with"
            ) from error


def json_text(data: bytes) -> Any:
    """Return the value of a JSON text that either library has written.

    Raises one of `UNREADABLE`.
    """
    try:
        return json_value(data)  # the fastest, but it reads neither NaN nor lone surrogates
    except msgspec.MsgspecError:
        return json.loads(data.decode())


def _without_classes(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_classes(v) for name, v in value.items() if name != CLASS_FIELD}
    return [_without_classes(item) for item in value] if isinstance(value, list) else value
