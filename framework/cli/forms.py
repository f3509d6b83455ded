"""Conversion of keys and values between bytes and JSON.

The log does not record the format of bytes, so an option names it:

    keys      text · int and float (8 bytes, big-endian) · msgpack · bytes
    values    text · json · msgpack · bytes

`auto` assumes Strandline's own formats. A key is text, else 8 bytes as an int, else MessagePack. A
value is MessagePack, else its bytes, so that producing it again gives the same value. Bytes that
are not in the named format are shown as base64, never refused.
"""

from __future__ import annotations

import datetime as dt
import re
import struct
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa

from strandline.changelog.client.keys import encode_key, is_bytes, is_list
from strandline.changelog.decoding import json_decoder, json_value
from strandline.changelog.errors import UNREADABLE, InvalidRecord, StrandlineError
from strandline.framework.cli.json_values import json_line, plain, unplain

if TYPE_CHECKING:
    from strandline.statestore.serdes import MessagePack

KeyForm = Literal["auto", "text", "int", "float", "msgpack", "bytes"]
ValueForm = Literal["auto", "text", "json", "msgpack", "bytes"]

_LONG, _DOUBLE = struct.Struct(">q"), struct.Struct(">d")


# Keys ---------------------------------------------------------------------------------


def show_key(data: bytes | None, form: KeyForm = "auto") -> Any:
    """Return a topic's key in a form that JSON can hold.

    >>> [show_key(key) for key in (b"AA", (7).to_bytes(8, "big"), b"\\xff")]
    ['AA', 7, {'base64': '/w=='}]
    """
    if data is None:
        return None
    try:
        return _shown_key(data, form)
    except (UnicodeDecodeError, struct.error, InvalidRecord):
        return plain(data)


def parse_key(value: Any, form: KeyForm = "auto") -> bytes | None:
    """Return the bytes of a key given as JSON. Raise InvalidRecord.

    >>> parse_key("AA"), parse_key(7), parse_key({"base64": "/w=="})
    (b'AA', b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x07', b'\\xff')
    """
    value = unplain(value)
    if value is None or isinstance(value, bytes):
        return value
    if form == "msgpack":
        return msgspec.msgpack.encode(value)
    convert = {"text": _text, "int": _whole, "float": _number, "bytes": _bytes}.get(form)
    return encode_key(convert(value) if convert else value)


def _shown_key(data: bytes, form: KeyForm) -> Any:
    if form == "bytes":
        return plain(data)
    if form == "text" or (form == "auto" and _is_text(data)):
        return data.decode()
    if form == "int" or (form == "auto" and len(data) == _LONG.size):
        return _LONG.unpack(data)[0]
    if form == "float":
        return _DOUBLE.unpack(data)[0]
    value = _msgpack().loads(data)
    # Arbitrary bytes may happen to be MessagePack. Only a list or map that encodes to the same bytes
    # again counts as such (JSON would turn a map's keys into text).
    certain = isinstance(value, list | dict) and _msgpack().dumps(unplain(plain(value))) == data
    return plain(value if certain or form == "msgpack" else data)


def _is_text(data: bytes) -> bool:
    try:
        return data.decode().isprintable()
    except UnicodeDecodeError:
        return False


# Values -------------------------------------------------------------------------------


def show_value(data: Any, form: ValueForm = "auto") -> Any:
    """Return a value in a form that JSON can hold: bytes by their format, typed columns unchanged.

    >>> [show_value(value) for value in (b"\\x81\\xa1n\\x01", b"hello", b"\\xff\\xff", None)]
    [{'n': 1}, {'utf8': 'hello'}, {'base64': '//8='}, None]
    """
    if not isinstance(data, bytes):
        return plain(data)
    try:
        return _shown_value(data, form)
    except (*UNREADABLE, InvalidRecord):
        return plain(data)


def parse_value(value: Any, form: ValueForm = "auto") -> bytes | None:
    """Return the bytes of a value given as JSON; `auto` writes MessagePack. Raise InvalidRecord.

    >>> parse_value({"n": 1}), parse_value({"n": 1}, "json"), parse_value("hi", "text")
    (b'\\x81\\xa1n\\x01', b'{"n":1}', b'hi')
    """
    if form == "json":
        return None if value is None else msgspec.json.encode(value)
    value = unplain(value)
    if value is None or isinstance(value, bytes):
        return value
    if form == "text":
        return _text(value).encode()
    return _bytes(value) if form == "bytes" else _msgpack().dumps(value)


def _shown_value(data: bytes, form: ValueForm) -> Any:
    if form == "bytes":
        return plain(data)
    if form == "text":
        return data.decode()
    if form == "json":
        return json_value(data)
    if form == "msgpack":
        return plain(_msgpack().loads(data))
    try:
        value = _msgpack().loads(data)
    except InvalidRecord:
        return {"utf8": data.decode()}
    # A scalar that does not encode to the same bytes again is probably not MessagePack. Null is
    # shown as bytes, because `produce` would take it for a tombstone.
    scalar = not isinstance(value, list | dict)
    certain = not scalar or (value is not None and _msgpack().dumps(unplain(plain(value))) == data)
    return plain(value) if certain else {"utf8": data.decode()}


# Typed columns ------------------------------------------------------------------------


def parse_columns(value: Any, schema: pa.Schema) -> dict[str, Any] | None:
    """Return a JSON object as the columns of a typed topic; missing ones are null.

    Raises InvalidRecord.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidRecord(
            f"a value of a typed topic is an object of its columns "
            f"({', '.join(schema.names)}), got {json_line(value)}"
        )
    given = dict.fromkeys(schema.names) | value
    types = {field.name: field.type for field in schema}
    return {name: _column(item, types.get(name), name) for name, item in given.items()}


def _column(item: Any, kind: pa.DataType | None, name: str) -> Any:
    try:
        return _item(item, kind)
    except (ValueError, TypeError, ArithmeticError, msgspec.MsgspecError, StrandlineError) as error:
        raise InvalidRecord(
            f"column {name!r} ({kind}) cannot hold {json_line(item)}: {error}"
        ) from error


def _item(item: Any, kind: pa.DataType | None) -> Any:
    """Return a JSON text or number as the type that Arrow expects: what `consume` prints, back."""
    if item is None or kind is None:
        return item
    if pa.types.is_decimal(kind):
        return Decimal(repr(item)) if isinstance(item, float) else Decimal(item)
    if pa.types.is_duration(kind):
        return _duration(msgspec.json.encode(item))
    if pa.types.is_timestamp(kind):
        return _moment(item, kind)
    if pa.types.is_date(kind):
        return dt.date.fromisoformat(item)
    if pa.types.is_time(kind):
        return dt.time.fromisoformat(item)
    if is_bytes(kind):
        return item.encode() if isinstance(item, str) else unplain(item)
    if pa.types.is_floating(kind):
        return unplain(item)
    if is_list(kind) and isinstance(item, list):
        return [_item(each, kind.value_type) for each in item]
    if pa.types.is_map(kind):
        pairs = item.items() if isinstance(item, dict) else item
        return [(_item(key, kind.key_type), _item(each, kind.item_type)) for key, each in pairs]
    if pa.types.is_struct(kind) and isinstance(item, dict):
        types = {field.name: field.type for field in kind}
        return {name: _item(each, types.get(name)) for name, each in item.items()}
    return item


_duration = json_decoder(dt.timedelta).decode
_FINER = re.compile(r"[.,]\d{6}\d*[1-9]")
"""Seconds with digits that a datetime would drop."""


def _moment(item: Any, kind: pa.TimestampType) -> dt.datetime:
    if isinstance(item, int | float):
        moment = dt.datetime.fromtimestamp(item / 1000, dt.UTC)
    else:
        if _FINER.search(item):
            raise ValueError("it has parts of a microsecond, which only a program can append")
        moment = dt.datetime.fromisoformat(item)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    return moment if kind.tz else moment.astimezone(dt.UTC).replace(tzinfo=None)


# One value ----------------------------------------------------------------------------


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise InvalidRecord(f"expected text, got {json_line(value)}; put it in quotes")


def _whole(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidRecord(f"expected a whole number, got {json_line(value)}")


def _number(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise InvalidRecord(f"expected a number, got {json_line(value)}")


def _bytes(value: Any) -> bytes:
    raise InvalidRecord(f'expected bytes as {{"base64": "…"}}, got {json_line(value)}')


@cache
def _msgpack() -> MessagePack:
    # The stores' package is large, and most commands print texts only.
    from strandline.statestore.serdes import MessagePack

    return MessagePack()
