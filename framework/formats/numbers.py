"""Numbers of 8 bytes, big-endian, as Kafka's LongSerializer and DoubleSerializer write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.framework.formats.binary import binary, flat
from strandline.framework.formats.codecs import SerdeCodec
from strandline.statestore.serdes import Double, DoubleKey, Long

NUMBER_BYTES = 8
"""Bytes of a number."""


class NumberCodec(SerdeCodec):
    """Codec of ints or floats in 8 bytes each, a column at a time.

    >>> codec = NumberCodec(Long())
    >>> column = codec.encode([1, -2])
    >>> column[1].as_py(), codec.decode(column)
    (b'\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xfe', [1, -2])
    """

    def __init__(self, serde: Long | Double) -> None:
        is_long = isinstance(serde, Long)
        super().__init__(serde, int if is_long else float)
        self._layout = np.dtype(">i8" if is_long else ">f8")
        self._is_key = isinstance(serde, DoubleKey)

    def encode(self, items: Sequence[Any]) -> pa.Array:
        if None in items:
            return super().encode(items)
        try:
            numbers = np.array(items, self._layout)
        except OverflowError:
            return super().encode(items)  # its error names the value
        if self._is_key:
            numbers += 0.0  # -0.0 becomes the equal 0.0
            numbers[np.isnan(numbers)] = np.nan
        return binary(np.arange(len(items) + 1) * NUMBER_BYTES, numbers.view(np.uint8))

    def decode(self, column: pa.Array) -> list[Any]:
        if column.null_count or column.type != pa.binary():
            return super().decode(column)
        data, bounds = flat(column)
        if (np.diff(bounds) != NUMBER_BYTES).any():
            return super().decode(column)
        numbers: list[Any] = data.view(self._layout).tolist()
        return numbers
