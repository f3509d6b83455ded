"""Aggregates by functions of a user, on states that are any values of MessagePack."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.changelog.errors import InvalidConfig
from strandline.statestore.aggregates.aggregate import Figures, Row
from strandline.statestore.aggregates.batch import ColumnBatch, MergeChecks
from strandline.statestore.aggregates.opaque import OpaqueState, each
from strandline.statestore.serdes import MessagePack

if TYPE_CHECKING:
    import polars as pl

Add = Callable[[Any, Any], Any]
"""Function of a state and a row, or of two states, that returns the new state."""

_serde = MessagePack()


@dataclass(frozen=True)
class Reducer(OpaqueState):
    """State that functions of a user keep: stored as MessagePack, None before the first row."""

    init: Any = None
    add: Add | None = None
    merge_states: Add | None = None
    returns: Any = None
    version: str | None = None

    kind = "reducer"
    takes = "whole rows"
    takes_rows = True

    @property
    def settings(self) -> dict[str, Any]:
        """Version of the functions, which cannot be compared themselves."""
        return {} if self.version is None else {"version": self.version}

    @property
    def can_merge(self) -> bool:
        """True if a function that merges states was given."""
        return self.merge_states is not None

    @property
    def columns(self) -> tuple[str, ...]:
        """Nothing, because the functions decide which columns they read."""
        return ()

    def read(self, row: Row) -> Any:
        """Return the whole row."""
        return row.source

    def fold(self, old: Figures, value: Any) -> Figures:
        """Return the state with one row added to it."""
        return (_serde.dumps(self._added(self.loaded(old[0]), value)),)

    def merge_bytes(self, old: bytes, new: bytes) -> bytes:
        """Return the state of the rows of two states."""
        if self.merge_states is None:
            raise InvalidConfig(CANNOT_MERGE)
        return _serde.dumps(self.merge_states(self.loaded(old), self.loaded(new)))

    def result(self, state: Figures) -> Any:
        """Return the state as the functions see it."""
        return self.loaded(state[0])

    def loaded(self, data: bytes | None) -> Any:
        """Return a state of its own, which the functions may change."""
        if data is None:
            return self.init() if callable(self.init) else copy.deepcopy(self.init)
        return _serde.loads(data)

    def result_type(self, schema: Mapping[str, pl.DataType]) -> pl.DataType:
        """Return the declared type of the results, or that of a number or text as `init`."""
        import polars as pl

        plain: dict[Any, pl.DataType] = {
            bool: pl.Boolean(),
            int: pl.Int64(),
            float: pl.Float64(),
            str: pl.String(),
            bytes: pl.Binary(),
        }
        if self.returns is not None:
            found: pl.DataType = plain.get(self.returns, self.returns)
            return found
        kind = type(self.loaded(None))
        if kind not in plain:
            raise InvalidConfig(
                f"a reducer's results are of an unknown type, as its state begins as {kind.__name__}; "
                "give returns=, as returns=float or returns=pl.List(pl.String)"
            )
        return plain[kind]

    def partial(self, batch: ColumnBatch) -> Sequence[pl.Expr]:
        """Fold the rows of each group, one at a time."""
        import polars as pl

        return [self._with_rows(pl.lit(None, dtype=pl.Binary), _rows(batch))]

    def gather(self, batch: ColumnBatch) -> Sequence[pl.Expr]:
        """Return the lists of rows, because only the whole group begins with `init`."""
        return [_rows(batch)]

    def add_columns(
        self, old: Sequence[pl.Expr], gathered: Sequence[pl.Expr], checks: MergeChecks
    ) -> Sequence[pl.Expr]:
        """Return states with lists of rows folded in."""
        return [self._with_rows(old[0], gathered[0])]

    def results(self, state: Sequence[pl.Expr]) -> pl.Expr:
        """Return the states as the functions see them."""
        dtype = self.result_type({})
        return state[0].map_batches(each(self.loaded, dtype), return_dtype=dtype)

    def _with_rows(self, old: pl.Expr, rows: pl.Expr) -> pl.Expr:
        """Return states with lists of rows folded in."""
        import polars as pl

        def folded(pair: Sequence[pl.Series]) -> pl.Series:
            states, lists = pair
            before = states.to_list() * (len(lists) if len(states) != len(lists) else 1)
            made = [self._folded(a, b) for a, b in zip(before, lists.to_list(), strict=True)]
            return pl.Series(made, dtype=pl.Binary)

        return pl.map_batches([old, rows], folded, return_dtype=pl.Binary)

    def _folded(self, old: bytes | None, rows: Sequence[Any]) -> bytes:
        state = self.loaded(old)
        for row in rows:
            state = self._added(state, row)
        return _serde.dumps(state)

    def _added(self, state: Any, row: Any) -> Any:
        if self.add is None:
            raise InvalidConfig("the functions of a reducer are known to its own app only")
        return self.add(state, row)


CANNOT_MERGE = (
    "a reducer without merge= cannot merge states, as hopping windows, session windows and keys in "
    "several partitions need; give merge=, a function of two states"
)


def _rows(batch: ColumnBatch) -> pl.Expr:
    """Register the lists of rows of each group."""
    import polars as pl

    shown = [name for name in batch.schema if not name.startswith("__")]
    return batch.aggregate("rows", "", pl.struct(*(shown or batch.schema)))
