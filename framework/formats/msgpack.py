"""MessagePack: typed values as maps by the fields' names, others as Strandline has them without a serde.

Times are MessagePack's own timestamps.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from framework.codecs import Codec, PackCodec, SerdeCodec
from framework.formats.mirror import Mirror
from framework.formats.wire import ObjectCodec, Place, Wire, WireCodec
from framework.schema import RowType, is_typed
from statestore.serdes import Typed, value_serde


class PackForm:
    """MessagePack, of whatever type."""

    def codec(self, kind: Any, place: Place) -> Codec:
        """See `Form.codec`."""
        if not is_typed(kind):
            return untyped(kind)
        rows = RowType(kind)
        if isinstance(kind, pa.Schema):
            return WireCodec(rows, PackWire(rows))
        return ObjectCodec(rows, Typed(kind))


class PackWire(Wire):
    """Columns of an Arrow schema as maps."""

    def __init__(self, rows: RowType) -> None:
        self._rows = rows
        self._mirror = Mirror(rows, "MessagePack", msgspec.msgpack.Decoder)

    def encode(self, column: pa.Array) -> pa.Array:
        encode = msgspec.msgpack.Encoder().encode
        return pa.array(map(encode, self._rows.values(column)), pa.binary())

    def decode(self, data: pa.Array) -> pa.Array:
        return self._mirror.column(data)

    def values(self, data: pa.Array) -> list[Any] | None:
        return None


def untyped(kind: Any) -> Codec:
    """The codec of values without fields. Raises InvalidConfig."""
    if kind in (str, int, float, bool):
        return PackCodec(kind)
    return SerdeCodec(value_serde(kind), bytes if kind is bytes else None)
