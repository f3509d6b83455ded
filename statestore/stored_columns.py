"""Rows of a store with columns: values, and when each of them expires, to and from stored bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.changelog.arrays import of_items
from strandline.statestore.cells import constant, joined, numbers, side_by_side
from strandline.statestore.scalar_columns import Block, Column
from strandline.statestore.spec import AnySpec
from strandline.statestore.value_columns import value_columns
from strandline.statestore.values import EXPIRING, NO_EXPIRY, ValueCodec, split

Mask = npt.NDArray[np.bool_]


class StoredColumns:
    """Columns of a store's values, with a column of expiry times if the store has them."""

    def __init__(self, spec: AnySpec, codec: ValueCodec) -> None:
        self._codec = codec
        self._expires = codec.expiry != "none"
        self._writes_expiry = codec.ttl_ms is not None or codec.expiry == "always"
        bodies = ValueCodec(spec.value, spec.name) if self._expires else codec
        self._values = value_columns(bodies)
        self.dtypes = (*self._values.dtypes, np.int64) if self._expires else self._values.dtypes
        """Types of the arrays of a block."""

    def block(self, values: Any) -> Block:
        """Return values that are put now as a block. Raises InvalidRecord."""
        return self.with_expiry(self._values.block(values))

    def with_expiry(self, values: Block) -> Block:
        """Return a block of values that are put now, with their expiry if the store has one."""
        if not self._expires:
            return values
        ttl_ms = self._codec.ttl_ms
        expires = NO_EXPIRY if ttl_ms is None else self._codec.now() + ttl_ms
        return (*values, np.full(len(values[0]), expires, np.int64))

    def one(self, value: Any) -> Block:
        """Return a block of one value of the declared type."""
        data = self._codec.dumps(self._codec.hold(value))
        assert data is not None
        return self.decode([data])

    def valid(self, exists: Mask, rows: Block) -> Mask:
        """Return True for each row that exists and has not expired."""
        if not self._expires:
            return exists
        found: Mask = exists & ((rows[-1] == NO_EXPIRY) | (rows[-1] > self._codec.now()))
        return found

    def column(self, rows: Block, valid: Mask) -> Column:
        """Return the values of rows as a column, or as a list; null where not `valid`."""
        return self._values.column(self._bodies(rows), valid)

    def held(self, rows: Block) -> Any:
        """Return the value of a single row in the form in which `ValueCodec` holds it."""
        if self._codec.immutable and not self._expires:
            return self._values.item(rows, 0)
        return self._codec.held(self.encode(rows)[0].as_py())

    def encode(self, rows: Block) -> pa.Array:
        """Return the stored bytes of rows."""
        bodies = self._values.encode(self._bodies(rows))
        if not self._writes_expiry:
            return bodies
        expires = rows[-1].view(np.uint64)
        return side_by_side([joined([constant(EXPIRING, len(expires)), numbers(expires)]), bodies])

    def decode(self, data: Sequence[bytes]) -> Block:
        """Return the rows of stored bytes. Raises CorruptLog."""
        if not self._expires:
            return self._values.decode(of_items(data, pa.binary()))
        pairs = [split(each, self._codec.expiry) for each in data]
        bodies = self._values.decode(of_items([body for body, _ in pairs], pa.binary()))
        return (*bodies, np.array([expires for _, expires in pairs], np.int64))

    def _bodies(self, rows: Block) -> Block:
        return rows[:-1] if self._expires else rows
