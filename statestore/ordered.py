"""Byte format of keys: encoded keys sort in the order of the keys, and contain their type.

An encoded key is one tag byte and a payload:

    tag    type       payload
    02     None       none (only inside a tuple)
    03 04  bool       none: False, True
    10-30  int        20 is zero; 20+n a positive number in n < 16 big-endian bytes, 20-n a
                      negative one plus 256**n - 1; 30 and 10 carry a 4-byte length first
    38     float      8 bytes, the bits of the double turned so that they sort
    40     date       4 bytes, the proleptic ordinal
    41     datetime   8 bytes, microseconds since the epoch plus 2**63
    50     bytes      the bytes
    51     str        UTF-8
    60     tuple      its elements one after another

Inside a tuple, strings and bytes have 00 written as 00 FF and end with 00, and a nested
tuple ends with 00. So ("a", "b") and ("ab", "") differ, and a prefix of a tuple is a prefix
of its bytes. No key begins with a byte below 02, so an engine's own entries sort before all keys.
(The layout follows FoundationDB's tuple layer, the tags do not.)

The functions do not check the types of their arguments; `statestore.keys` does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.changelog.arrays import of_items
from strandline.changelog.errors import CorruptLog

FIRST_KEY = b"\x02"
"""Least bytes of an encoded key: no key sorts before it."""

BEHIND_ELEMENTS = b"\xff"
"""Byte that, after the first elements of a tuple, sorts after all further elements.

No tag is as large. If this byte follows the bytes of a string, the string contains a zero there
instead of ending, so the tuple has another string with the same beginning.
"""


def encode_int(key: int) -> bytes:
    """Encode an int of any size."""
    size = (key.bit_length() + 7) >> 3
    if size > 15:
        return _encode_big(key, size)
    if key >= 0:
        return _POSITIVE[size] + key.to_bytes(size, "big")
    return _NEGATIVE[size] + (key + _MASKS[size]).to_bytes(size, "big")


def _encode_big(key: int, size: int) -> bytes:
    if key >= 0:
        return b"\x30" + size.to_bytes(4, "big") + key.to_bytes(size, "big")
    length = (0xFFFFFFFF - size).to_bytes(4, "big")
    return b"\x10" + length + (key + (1 << 8 * size) - 1).to_bytes(size, "big")


def encode_float(key: float) -> bytes:
    """Encode a float except NaN; -0.0 is encoded as the equal 0.0."""
    bits: int = _BITS.unpack(_DOUBLE.pack(key + 0.0))[0]  # -0.0 + 0.0 is 0.0
    return b"\x38" + _BITS.pack(bits ^ (_ALL if bits & _TOP else _TOP))


def encode_date(key: date) -> bytes:
    """Encode a date."""
    return b"\x40" + key.toordinal().to_bytes(4, "big")


def encode_datetime(key: datetime) -> bytes:
    """Encode an aware datetime as its instant, without its time zone."""
    since = key - _EPOCH
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return b"\x41" + _BITS.pack(micros + _TOP)


def encode_str(key: str) -> bytes:
    """Encode a str that is the whole key."""
    try:
        return b"\x51" + key.encode()
    except UnicodeEncodeError:  # a lone surrogate is valid in a str, and sorts by code point too
        return b"\x51" + key.encode("utf-8", "surrogatepass")


def encode_strs(keys: Collection[str]) -> pa.Array:
    """Encode many strs as a column, like `encode_str` but faster."""
    text = "\x51" + "\x51".join(keys)
    if not keys or not text.isascii() or len(text) >= 1 << 31:
        return of_items(map(encode_str, keys), pa.binary())
    ends = np.zeros(len(keys) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, keys), np.int32, len(keys)) + 1, out=ends[1:])
    body = pa.py_buffer(text.encode())
    return pa.Array.from_buffers(pa.binary(), len(keys), [None, pa.py_buffer(ends), body])


def encode_bytes(key: bytes) -> bytes:
    """Encode bytes that are the whole key."""
    return b"\x50" + key


def encode_bool(key: bool) -> bytes:
    """Encode a bool."""
    return b"\x04" if key else b"\x03"


def encode_tuple(key: tuple[Any, ...]) -> bytes:
    """Encode a tuple that is the whole key, or the leading elements of one."""
    return b"\x60" + b"".join([_ELEMENTS[type(item)](item) for item in key])


def decode_whole(data: bytes) -> Any:
    """Decode a key that is one element. Raises CorruptLog."""
    value, end = _decode_element(data, 0)
    if end != len(data):
        raise _damage(data)
    return value


def decode_one(kind: type) -> Callable[[bytes], Any]:
    """Return a function that decodes keys of exactly this type. It raises CorruptLog."""

    def decode(data: bytes) -> Any:
        value = decode_whole(data)
        if type(value) is not kind:
            raise _damage(data)
        return value

    return decode


def decode_str(data: bytes) -> str:
    """Decode a key that is a str. Raises CorruptLog."""
    if not data or data[0] != TAG_STR:
        raise _damage(data)
    try:
        return data[1:].decode()
    except UnicodeDecodeError:
        return _decode_surrogates(data)


def _decode_surrogates(data: bytes) -> str:
    try:
        return data[1:].decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise _damage(data) from error


def decode_bytes(data: bytes) -> bytes:
    """Decode a key that is bytes. Raises CorruptLog."""
    if not data or data[0] != TAG_BYTES:
        raise _damage(data)
    return data[1:]


def decode_tuple(data: bytes) -> tuple[Any, ...]:
    """Decode a key that is a tuple. Raises CorruptLog."""
    if data[:1] != b"\x60":
        raise _damage(data)
    items: list[Any] = []
    position = 1
    while position < len(data):
        item, position = _decode_element(data, position)
        items.append(item)
    return tuple(items)


def _encode_nested(key: tuple[Any, ...]) -> bytes:
    return encode_tuple(key) + b"\x00"


def _terminated(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    def encode_terminated(item: Any) -> bytes:
        data = encode(item)
        if 0 in data:
            data = data.replace(b"\x00", b"\x00\xff")
        return data + b"\x00"

    return encode_terminated


def _decode_element(data: bytes, position: int) -> tuple[Any, int]:
    """Decode the element at `position`; return it, and the position of the next one."""
    try:
        tag = data[position]
        if tag in _CONSTANTS:
            return _CONSTANTS[tag], position + 1
        if tag in _FIXED:
            size, decode = _FIXED[tag]
            return decode(_take(data, position + 1, size)), position + 1 + size
        if 0x10 <= tag <= 0x30:
            return _decode_int(data, position)
        if tag in (TAG_STR, TAG_BYTES):
            return _decode_terminated(data, position)
        if tag == TAG_TUPLE:
            return _decode_inner(data, position + 1)
    except (IndexError, ValueError, OverflowError, RecursionError) as error:
        raise _damage(data) from error
    raise _damage(data)


def _decode_int(data: bytes, position: int) -> tuple[int, int]:
    tag = data[position]
    position += 1
    if tag in (0x10, 0x30):
        size = int.from_bytes(_take(data, position, 4), "big")
        size = size if tag == 0x30 else 0xFFFFFFFF - size
        position += 4
    else:
        size = abs(tag - 0x20)
    value = int.from_bytes(_take(data, position, size), "big")
    if tag < 0x20:
        value -= (1 << 8 * size) - 1
    return value, position + size


def _decode_terminated(data: bytes, position: int) -> tuple[str | bytes, int]:
    end = data.index(b"\x00", position)
    while data[end + 1 : end + 2] == b"\xff":
        end = data.index(b"\x00", end + 2)
    body = data[position:end].replace(b"\x00\xff", b"\x00")
    return (decode_str(body) if data[position] == TAG_STR else body[1:]), end + 1


def _decode_inner(data: bytes, position: int) -> tuple[tuple[Any, ...], int]:
    items: list[Any] = []
    while data[position] != 0:
        item, position = _decode_element(data, position)
        items.append(item)
    return tuple(items), position + 1


def _decode_float(payload: bytes) -> float:
    bits: int = _BITS.unpack(payload)[0]
    value: float = _DOUBLE.unpack(_BITS.pack(bits ^ (_TOP if bits & _TOP else _ALL)))[0]
    return value


def _decode_datetime(payload: bytes) -> datetime:
    return _EPOCH + timedelta(microseconds=_BITS.unpack(payload)[0] - _TOP)


def _take(data: bytes, position: int, size: int) -> bytes:
    taken = data[position : position + size]
    if len(taken) != size:
        raise _damage(data)
    return taken


def _damage(data: bytes) -> CorruptLog:
    return CorruptLog(f"{data!r:.80} is not an encoded key of a store")


TAG_BYTES, TAG_STR, TAG_TUPLE = 0x50, 0x51, 0x60
_POSITIVE = [bytes((0x20 + size,)) for size in range(16)]
_NEGATIVE = [bytes((0x20 - size,)) for size in range(16)]
_MASKS = [(1 << 8 * size) - 1 for size in range(16)]
_TOP, _ALL = 1 << 63, (1 << 64) - 1
_BITS, _DOUBLE = struct.Struct(">Q"), struct.Struct(">d")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_CONSTANTS: dict[int, Any] = {0x02: None, 0x03: False, 0x04: True}
_FIXED: dict[int, tuple[int, Callable[[bytes], Any]]] = {
    0x38: (8, _decode_float),
    0x40: (4, lambda payload: date.fromordinal(int.from_bytes(payload, "big"))),
    0x41: (8, _decode_datetime),
}
_ELEMENTS: dict[type, Callable[[Any], bytes]] = {
    int: encode_int,
    float: encode_float,
    bool: encode_bool,
    date: encode_date,
    datetime: encode_datetime,
    str: _terminated(encode_str),
    bytes: _terminated(encode_bytes),
    tuple: _encode_nested,
    type(None): lambda _: b"\x02",
}
