"""Panics of Polars, which are no `Exception`.

Polars panics for values that it cannot convert, such as a time after the year 9999. Python gets
that as a BaseException, which `except Exception` lets pass: one record would end the worker,
whatever `on_error` says. So a panic becomes an ordinary error where handlers are called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strandline.changelog.errors import InvalidRecord

if TYPE_CHECKING:
    import polars as pl


def as_exception(error: BaseException) -> Exception | None:
    """Return an error that is an `Exception`; for a panic one that names it; None for others.

    >>> as_exception(KeyboardInterrupt()), as_exception(ValueError("no"))
    (None, ValueError('no'))
    """
    if isinstance(error, Exception):
        return error
    if type(error).__module__ != "pyo3_runtime" or type(error).__name__ != "PanicException":
        return None
    found = InvalidRecord(f"Polars cannot compute with these values: {error}")
    found.__cause__ = error
    return found


def first_row(frame: pl.DataFrame) -> dict[str, Any]:
    """Return the first row for a message, with numbers for times that Python has not; {} if none."""
    if frame.is_empty():
        return {}
    try:
        return frame.row(0, named=True)
    except BaseException as error:
        if as_exception(error) is None:
            raise
        return {name: frame[name].to_physical()[0] for name in frame.columns}
