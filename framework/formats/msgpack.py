"""MessagePack: typed values as maps by field names, other values as without a serde.

Times are MessagePack's own timestamps.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from strandline.changelog.arrays import of_items
from strandline.changelog.depth import check_msgpack
from strandline.framework.formats.codecs import Codec, PackCodec, SerdeCodec
from strandline.framework.formats.mirror import TypeMirror, has_plain_names
from strandline.framework.formats.schema import RowType, is_typed
from strandline.framework.formats.wire import (
    ObjectCodec,
    SerdeUse,
    WireCodec,
    WireFormat,
    where_valid,
)
from strandline.statestore.serdes import TypedMessagePack, value_serde


class PackForm:
    """Serde for MessagePack, of any type."""

    def codec(self, kind: Any, place: SerdeUse) -> Codec:
        """Return the codec of values of a type; see `SerdeForm.codec`.

        Args:
            kind: Declared type of the values.
            place: Topic, and the app's registry; errors name the topic.
        """
        if not is_typed(kind):
            return untyped(kind)
        rows = RowType(kind)
        if isinstance(kind, pa.Schema):
            return WireCodec(rows, PackWire(rows))
        return (
            PackedCodec(rows, TypedMessagePack(kind))
            if has_plain_names(kind)
            else ObjectCodec(rows, TypedMessagePack(kind))
        )


class PackedCodec(ObjectCodec):
    """Codec of objects as maps. It converts columns without making the objects."""

    def __init__(self, rows: RowType, serde: TypedMessagePack[Any]) -> None:
        super().__init__(rows, serde)
        self._wire = PackWire(rows)

    def to_columns(self, column: pa.Array) -> pa.Array:
        return where_valid(column, self._wire.decode)

    def from_columns(self, column: pa.Array) -> pa.Array:
        return where_valid(column, lambda valid: self._wire.encode(self._rows.filled(valid)))


class PackWire(WireFormat):
    """Conversion between columns and maps."""

    def __init__(self, rows: RowType) -> None:
        self._mirror = TypeMirror(rows, "MessagePack", msgspec.msgpack.Decoder, check_msgpack)

    def encode(self, column: pa.Array) -> pa.Array:
        encode = msgspec.msgpack.Encoder().encode
        return of_items(map(encode, self._mirror.values(column)), pa.binary())

    def decode(self, data: pa.Array) -> pa.Array:
        return self._mirror.column(data)

    def values(self, data: pa.Array) -> list[Any] | None:
        return None


def untyped(kind: Any) -> Codec:
    """Return the codec of values without fields. Raise InvalidConfig."""
    if kind in (str, int, float, bool):
        return PackCodec(kind)
    return SerdeCodec(value_serde(kind), bytes if kind is bytes else None)
