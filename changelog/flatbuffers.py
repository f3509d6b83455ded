"""Access to tables and vectors of FlatBuffers, in which Arrow encodes its messages' metadata.

Functions take positions in the bytes of a message. They raise struct.error for a position outside.
"""

from __future__ import annotations

import struct

U16, U32, I32 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<i")
I64, PAIR = struct.Struct("<q"), struct.Struct("<qq")

Bytes = bytearray | memoryview


def field(data: Bytes, table: int, number: int) -> int:
    """Return the position of a table's field; 0 if the table lacks it."""
    vtable = table - I32.unpack_from(data, table)[0]
    slot = 4 + 2 * number
    if slot >= U16.unpack_from(data, vtable)[0]:
        return 0
    relative = int(U16.unpack_from(data, vtable + slot)[0])
    return table + relative if relative else 0


def target(data: Bytes, position: int) -> int:
    """Return the position to which the offset at `position` points."""
    return position + int(U32.unpack_from(data, position)[0])


def vector_of(data: Bytes, table: int, number: int) -> tuple[int, int]:
    """Return the position of a vector's first element, and its count; (0, 0) if it is missing."""
    at = field(data, table, number)
    if not at:
        return 0, 0
    start = target(data, at)
    return start + U32.size, int(U32.unpack_from(data, start)[0])
