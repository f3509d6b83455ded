"""Operator that keeps state, as it runs in one partition; and the records that come too late.

State is in the operator's store, so that commits, undo, restores and queries are those of stores.
What an operator keeps in memory besides can be found from the store again: `forget` drops it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from strandline.framework.panics import as_exception, first_row
from strandline.framework.streams.schemas import INTERNAL
from strandline.framework.streams.watermark import NO_WATERMARK

if TYPE_CHECKING:
    import polars as pl


class LateRows(Protocol):
    """Function that gets rows that came after their windows were closed."""

    def __call__(self, rows: pl.DataFrame, /) -> None: ...


class RefusedResult(Protocol):
    """Function that gets the error of a result that cannot be made or sent, and what names it.

    It raises unless the task may go on without the result.
    """

    def __call__(self, error: Exception, result: Mapping[str, Any], /) -> None: ...


class StageOperator(ABC):
    """Running form of an operator that keeps state."""

    lag_ms = 0
    """Milliseconds by which the times of its results may be before the watermark."""

    def __init__(self) -> None:
        self.watermark = NO_WATERMARK
        """Watermark of its rows, in ms since the epoch, as of the last call of `advance`."""
        self.refuse: RefusedResult = _raised
        self.open_rows: int | None = None
        """Number of rows of state of open windows, as committed with them; None if not known."""

    @abstractmethod
    def process(self, frame: pl.DataFrame, /) -> pl.DataFrame | None:
        """Take rows, and return the rows to pass on at once."""

    def advance(self, watermark: int) -> pl.DataFrame | None:
        """Set the watermark, and return the results that have become final."""
        self.watermark = watermark
        return None

    def updates(self) -> pl.DataFrame | None:
        """Return the present results of the keys that changed since the last commit."""
        return None

    def has_open(self) -> bool:
        """Return True if something is open."""
        return self.closed_at() is not None

    def closed_at(self) -> int | None:
        """Return the watermark at which everything that is open now is closed; None if nothing is."""
        return None

    @abstractmethod
    def forget(self) -> None:
        """Drop what is kept in memory, because the store may have another state now."""

    def mark(self) -> object:
        """Return what `undo` needs to go back to the present state in memory."""
        return self.open_rows

    def undo(self, mark: Any) -> None:
        """Go back to the state in memory at a mark, after the store went back to it."""
        self.forget()
        self.open_rows = mark

    def each(
        self,
        rows: pl.DataFrame,
        by: Sequence[str],
        make: Callable[[pl.DataFrame], pl.DataFrame],
    ) -> pl.DataFrame | None:
        """Return results of groups of rows, without those that cannot be made.

        The groups are divided until those are found that `make` raises for.

        Args:
            rows: Rows of states.
            by: Columns that identify a result.
            make: Function that makes the results of some groups.
        """
        import polars as pl

        made, waiting = [], [rows]
        while waiting:
            part = waiting.pop()
            try:
                made.append(make(part))
            except BaseException as error:
                if (found := as_exception(error)) is None:
                    raise
                first = part.with_row_index(_ROW).select(pl.col(_ROW).first().over(by)).to_series()
                starts = first.unique().sort()
                if len(starts) < 2:
                    self.refuse(found, first_row(part.select(by)))
                    continue
                middle = starts[len(starts) // 2]
                waiting += [part.filter(first >= middle), part.filter(first < middle)]
        return pl.concat(made) if made else None

    def open_windows(self) -> int | None:
        """Return the number of rows of state of open windows; None for other operators.

        It is kept up to date as rows are added and deleted. Only state without `open_rows` is read.
        """
        if self.open_rows is None:
            self.open_rows = self._counted()
        return self.open_rows

    def _counted(self) -> int | None:
        """Return the number of rows of state of open windows, by reading all of them."""
        return None

    def _note_rows(self, added: int) -> None:
        """Note that rows of state of open windows were added, or removed if negative."""
        if self.open_rows is not None:
            self.open_rows += added

    def mark_of_results(self, before: int) -> int:
        """Return the watermark of results that became final after a watermark, in ms.

        A result's time may be before the watermark that made it final by the grace. The operators
        after this one have a watermark that is less by as much, so no result is late for them.
        """
        return before if before <= NO_WATERMARK else before - self.lag_ms


def _raised(error: Exception, _result: Mapping[str, Any]) -> None:
    raise error


_ROW = f"{INTERNAL}number"
