"""Limit of nesting for all values that are decoded.

Decoders are recursive: each nested container takes space on the C stack of the thread. A deeply
nested value of a few kilobytes overflows the stack and ends the process, especially on threads with
small stacks. Therefore the depth is checked without recursion before a value is decoded. Most
values need no walk: one of at most MAX_DEPTH bytes, or with at most MAX_DEPTH bytes that could
begin a container, cannot be nested deeper than MAX_DEPTH.

The functions raise RecursionError, which is one of `changelog.errors.UNREADABLE`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

MAX_DEPTH = 200
"""Maximum number of nested containers (arrays, maps, objects, records)."""
_PIECE_BYTES = 1 << 20
"""Size in bytes above which a message is looked at in pieces."""


def check_json(data: bytes | bytearray | memoryview | str) -> None:
    """Raise RecursionError for JSON that is nested deeper than MAX_DEPTH.

    >>> check_json(b"[" * 200 + b"]" * 200)
    >>> check_json(b"[" * 201 + b"]" * 201)
    Traceback (most recent call last):
    RecursionError: it is nested more than 200 deep
    """
    if len(data) <= MAX_DEPTH:
        return
    text = data.encode(errors="replace") if isinstance(data, str) else bytes(data)
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return
    marks = np.frombuffer(_STRING.sub(b"", text), np.uint8)
    opened = (marks == ord("[")) | (marks == ord("{"))
    closed = (marks == ord("]")) | (marks == ord("}"))
    depths = np.cumsum(opened.astype(np.int64) - closed)
    if len(depths) and depths.max() > MAX_DEPTH:
        raise too_deep()


def check_all_json(texts: Iterable[bytes]) -> None:
    """Raise RecursionError if one of several JSON texts is nested too deep."""
    for text in texts:
        if len(text) > MAX_DEPTH:
            check_json(text)


def check_msgpack(data: bytes | bytearray | memoryview) -> None:
    """Raise RecursionError for MessagePack that is nested deeper than MAX_DEPTH.

    >>> check_msgpack(bytes([0x91]) * 200 + bytes([0xC0]))
    >>> check_msgpack(bytes([0x91]) * 201 + bytes([0xC0]))
    Traceback (most recent call last):
    RecursionError: it is nested more than 200 deep
    """
    if len(data) <= MAX_DEPTH:
        return
    if len(data) > _PIECE_BYTES:
        _check_large(data)
        return
    packed = bytes(data)
    if _openers(packed) > MAX_DEPTH:
        _walk(packed)


def check_value(value: Any) -> None:
    """Raise RecursionError for an object of dicts and lists that is nested too deep."""
    level, depth = [value], 0
    while level := [inner for outer in level for inner in _inner(outer)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise too_deep()


def too_deep() -> RecursionError:
    """Return the error for a value that is nested deeper than MAX_DEPTH."""
    return RecursionError(f"it is nested more than {MAX_DEPTH} deep")


def _inner(value: Any) -> list[Any]:
    items = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list | tuple):
        return []
    return [item for item in items if isinstance(item, dict | list | tuple)]


def _check_large(data: bytes | bytearray | memoryview) -> None:
    """Check a message that is too large to be copied as a whole."""
    view = memoryview(data).cast("B")  # bytes of an Arrow buffer are signed
    openers = 0
    for start in range(0, len(view), _PIECE_BYTES):
        openers += _openers(bytes(view[start : start + _PIECE_BYTES]))
        if openers > MAX_DEPTH:
            _walk(view)
            return


def _openers(packed: bytes) -> int:
    """Return the number of bytes that could begin a container."""
    return len(packed) - len(packed.translate(None, _OPENERS))


def _walk(data: bytes | memoryview) -> None:
    """Check one value token by token. A truncated value is left to the decoder to reject."""
    at, end = 0, len(data)
    left: list[int] = []  # number of remaining items of each open container
    while at < end:
        first = data[at]
        size, items = _FIXED[first], _ITEMS[first]
        if not size:  # a length of 1, 2 or 4 bytes follows
            width, extra, each = _SIZED[first]
            length = int.from_bytes(data[at + 1 : at + 1 + width], "big")
            size, items = (1 + width, length * each) if each else (1 + width + extra + length, 0)
        at += size
        if first in _OPENERS and len(left) >= MAX_DEPTH:
            raise too_deep()
        if items and (run := _floats(data, at, items)):
            at, items = at + run, 0
        if items:
            left.append(items)
            continue
        while left:
            left[-1] -= 1
            if left[-1]:
                break
            left.pop()
        else:
            return


def _floats(data: bytes | memoryview, at: int, items: int) -> int:
    """Return the bytes of a container's items if all are floats of one width; else 0.

    Skipping them at once makes long vectors fast to check.
    """
    first = bytes(data[at : at + 1])
    if first not in (b"\xca", b"\xcb"):
        return 0
    size = _FIXED[first[0]]
    marks = bytes(data[at : at + items * size : size])
    return items * size if marks == first * items else 0


def _tables() -> tuple[list[int], list[int]]:
    """Return, by the first byte of a token, its size and its number of items.

    A size of 0 means that a length field follows (`_SIZED`).
    """
    sizes, items = [1] * 256, [0] * 256
    for first in range(0xA0, 0xC0):
        sizes[first] = 1 + first - 0xA0
    for first in range(0x81, 0x90):
        items[first] = 2 * (first - 0x80)
    for first in range(0x91, 0xA0):
        items[first] = first - 0x90
    scalars = {0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}
    scalars |= {0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
    scalars |= {0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18}
    for first, size in scalars.items():
        sizes[first] = size
    for first in _SIZED:
        sizes[first] = 0
    return sizes, items


_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_OPENERS = bytes([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF])
_SIZED = {
    0xC4: (1, 0, 0),
    0xC5: (2, 0, 0),
    0xC6: (4, 0, 0),
    0xC7: (1, 1, 0),
    0xC8: (2, 1, 0),
    0xC9: (4, 1, 0),
    0xD9: (1, 0, 0),
    0xDA: (2, 0, 0),
    0xDB: (4, 0, 0),
    0xDC: (2, 0, 1),
    0xDD: (4, 0, 1),
    0xDE: (2, 0, 2),
    0xDF: (4, 0, 2),
}
"""Tokens with a length field: its width, extra bytes after it, and items per counted unit (0: the
length counts bytes)."""
_FIXED, _ITEMS = _tables()
