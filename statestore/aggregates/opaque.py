"""Base of the aggregates whose state is bytes, which nothing but their own code can read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from strandline.statestore.aggregates.aggregate import Aggregate, Figures, StoredField
from strandline.statestore.aggregates.batch import MergeChecks

if TYPE_CHECKING:
    import polars as pl


class OpaqueState(Aggregate):
    """Aggregate whose state is bytes; None without values or rows."""

    stored = (StoredField("", bytes | None),)

    def merge_bytes(self, old: bytes, new: bytes) -> bytes:
        """Return the state of the values of two states."""
        raise NotImplementedError

    def merge(self, old: Figures, new: Figures) -> Figures:
        """Return the state of the values of two states, either of which may be None."""
        if old[0] is None or new[0] is None:
            return new if old[0] is None else old
        return (self.merge_bytes(old[0], new[0]),)

    def state_types(self, schema: Mapping[str, pl.DataType]) -> list[pl.DataType]:
        """Return the type of states."""
        import polars as pl

        return [pl.Binary()]

    def merge_columns(
        self, old: Sequence[pl.Expr], new: Sequence[pl.Expr], checks: MergeChecks
    ) -> Sequence[pl.Expr]:
        """Return the states of the values of two states each."""
        import polars as pl

        def merged(pair: Sequence[pl.Series]) -> pl.Series:
            found = [self.merge((a,), (b,))[0] for a, b in zip(*pair, strict=True)]
            return pl.Series(found, dtype=pl.Binary)

        return [pl.map_batches([old[0], new[0]], merged, return_dtype=pl.Binary)]


def each(make: Callable[[Any], Any], dtype: pl.DataType) -> Callable[[pl.Series], pl.Series]:
    """Return a function that maps the values of a column to those of a column of a type."""

    def mapped(values: pl.Series) -> pl.Series:
        import polars as pl

        return pl.Series(values.name, list(map(make, values)), dtype=dtype)

    return mapped
