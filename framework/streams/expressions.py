"""Expressions over the columns of a stream: how users write them, and how they are checked.

Expressions are narwhals', so that one plan can run on several engines. They are resolved against an
empty frame when they are declared, which finds unknown columns and wrong types. An expression must
give each row a value that depends on this row alone: records arrive in batches of any size, so a
sum or a rank "of the column" would depend on how the input happened to be cut.
"""

from __future__ import annotations

import datetime as dt
import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from strandline.changelog.errors import InvalidConfig
from strandline.framework.streams.places import refusal
from strandline.framework.streams.schemas import INTERNAL

if TYPE_CHECKING:
    import narwhals as nw
    import polars as pl

CONSTANTS = (int, float, bool, dt.date, dt.timedelta)
"""Types of values that are taken as constants; a text is the name of a column."""


def col(*names: str) -> nw.Expr:
    """Return an expression for a column of a stream, or for several columns.

    Args:
        *names: Names of the columns.

    Returns:
        A narwhals expression, as `narwhals.col` returns it: operators, `.str`, `.dt`, `.cast(…)`
        and all else that narwhals documents.

    >>> import strandline as sl
    >>> print(shown(sl.col("origin") + "-" + sl.col("dest")))
    col(origin) + - + col(dest)
    """
    import narwhals as nw

    return nw.col(*names)


def lit(value: Any) -> nw.Expr:
    """Return an expression for a constant, as `narwhals.lit` returns it.

    Args:
        value: Constant. A text needs `lit` where a plain text would be the name of a column.

    >>> import strandline as sl
    >>> rule = sl.when(sl.col("delay") > 15).then(sl.lit("late")).otherwise(sl.lit("on time"))
    """
    import narwhals as nw

    return nw.lit(value)


def when(*conditions: nw.Expr) -> Any:
    """Return the beginning of `when(…).then(…).otherwise(…)`, as `narwhals.when` returns it.

    Args:
        *conditions: Expressions that are true for the rows that get the value of `then`.

    >>> import strandline as sl
    >>> late = sl.when(sl.col("delay") > 15).then(1).otherwise(0)
    """
    import narwhals as nw

    return nw.when(*conditions)


_OTHER_ROWS = (
    "depends on other rows of the batch, whose size is arbitrary; compute it per group with"
    " group_by(…).agg(…, name=)"
)

# Checking --------------------------------------------------------------------------------------


def is_function(given: Any) -> bool:
    """Return True for a Python function given where an expression may be."""
    import narwhals as nw

    return callable(given) and not isinstance(given, nw.Expr)


def as_expression(given: Any, operator: str) -> nw.Expr:
    """Return what a user gave as an expression. Raise InvalidConfig if it is none.

    Args:
        given: An expression, the name of a column, or a constant that is no text.
        operator: Name of the operator, for errors.
    """
    import narwhals as nw

    if isinstance(given, nw.Expr):
        return given
    if isinstance(given, str):
        return nw.col(given)
    if given is None or isinstance(given, CONSTANTS):
        return nw.lit(given, nw.Int64 if type(given) is int else None)
    if type(given).__module__.partition(".")[0] == "polars":
        raise refusal(
            operator,
            "this is an expression of Polars; write sl.col(…), which is narwhals', or use"
            " map_batches(fn), which gets Polars frames",
        )
    raise refusal(
        operator,
        f"expected an expression, as sl.col('x') > 1, or the name of a column, got {given!r:.100}"
        f" ({type(given).__name__})",
    )


def resolved(expressions: Sequence[nw.Expr], schema: pl.Schema, operator: str) -> pl.Schema:
    """Return names and types of the columns that expressions give.

    Args:
        expressions: Expressions over the columns of `schema`.
        schema: Columns of the rows.
        operator: Name of the operator, for errors.

    Raises:
        InvalidConfig: A column is unknown, a type does not fit, or the value for a row depends on
            other rows.
    """
    import narwhals as nw
    import polars as pl

    try:
        frame = nw.from_native(pl.LazyFrame(schema=schema))
        found = frame.select(*expressions).to_native().collect().schema
    except (pl.exceptions.PolarsError, nw.exceptions.NarwhalsError, TypeError, ValueError) as error:
        raise _unresolved(error, schema, operator) from None
    if not all(map(_is_for_one_row, expressions)) or _depends_on_other_rows(
        expressions, list(found), schema
    ):
        raise refusal(operator, f"{', '.join(map(shown, expressions))} {_OTHER_ROWS}")
    return found


def unknown_column(name: str, columns: Iterable[str], operator: str) -> InvalidConfig:
    """Return the error for a column that a stream does not have, with the nearest name."""
    known = [column for column in columns if not column.startswith(INTERNAL)]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return refusal(operator, f"there is no column {name!r}; {hint}The columns are {known}")


def check_columns(names: Iterable[str], schema: Mapping[str, Any], operator: str) -> None:
    """Raise InvalidConfig for a name that is no text, or no column of the schema."""
    for name in names:
        if not isinstance(name, str):
            raise refusal(operator, f"expected the name of a column, got {name!r:.100}")
        if name not in schema:
            raise unknown_column(name, schema, operator)


def columns_read(
    query: Callable[[pl.LazyFrame], pl.LazyFrame], schema: pl.Schema, needed: Iterable[str]
) -> set[str]:
    """Return the columns that a query reads to compute some of its columns.

    Polars' optimizer answers: it passes the columns that a query needs to the source of the query.

    Args:
        query: Function that adds expressions to a lazy frame.
        schema: Columns of the input.
        needed: Columns of the output that are used.
    """
    import polars as pl
    from polars.io.plugins import register_io_source

    read: set[str] = set()

    def empty(
        with_columns: list[str] | None, _predicate: Any, _rows: Any, _size: Any
    ) -> Iterator[pl.DataFrame]:
        read.update(schema if with_columns is None else with_columns)
        frame = pl.DataFrame(schema=schema)
        yield frame if with_columns is None else frame.select(with_columns)

    source = register_io_source(empty, schema=schema, validate_schema=False)
    # The number of rows is always used, and so are the columns that decide it.
    query(source).select(*needed, pl.len().alias(INTERNAL)).collect()
    return read


def _unresolved(error: Exception, schema: pl.Schema, operator: str) -> InvalidConfig:
    import narwhals as nw
    import polars as pl

    said = " ".join(str(error).strip().split("\n\n")[0].split()).rstrip(".") or repr(error)
    if "for use in LazyFrame" in said:
        return refusal(operator, f"this {_OTHER_ROWS}")
    missing = (pl.exceptions.ColumnNotFoundError, nw.exceptions.ColumnNotFoundError)
    if isinstance(error, missing):
        named = re.search(r"\"([^\"]+)\"", said)
        return unknown_column(named[1] if named else said, schema, operator)
    columns = ", ".join(f"{name} {dtype}" for name, dtype in schema.items())
    return refusal(operator, f"{said}. The columns are {columns}")


def _is_for_one_row(expression: nw.Expr) -> bool:
    """Return False if narwhals says that a part of an expression needs other rows.

    This is not in its public interface, so a version that says nothing is taken to agree.
    """
    import narwhals as nw

    for node in getattr(expression, "_nodes", ()):
        if not getattr(getattr(node, "kind", None), "is_elementwise", True):
            return False
        if not all(
            _is_for_one_row(e) for e in getattr(node, "exprs", ()) if isinstance(e, nw.Expr)
        ):
            return False
    return True


def _depends_on_other_rows(
    expressions: Sequence[nw.Expr], names: list[str], schema: pl.Schema
) -> bool:
    """Return True if expressions give sample rows another value together than one at a time.

    An expression that fails on the samples is taken to be right, because it resolved.
    """
    import narwhals as nw
    import polars as pl

    def computed(frame: pl.DataFrame) -> pl.DataFrame:
        return nw.from_native(frame).with_columns(*expressions).to_native().select(names)

    samples = pl.DataFrame(
        {name: _samples(dtype, at) for at, (name, dtype) in enumerate(schema.items())}
    )
    if not samples.width:
        return False
    try:
        parts = [computed(samples.slice(at, 1)) for at in range(samples.height)]
    except (pl.exceptions.PolarsError, nw.exceptions.NarwhalsError, TypeError, ValueError):
        return False
    try:
        return not computed(samples).equals(pl.concat(parts))
    except (pl.exceptions.ShapeError, nw.exceptions.ShapeError):
        return True
    except (pl.exceptions.PolarsError, nw.exceptions.NarwhalsError, TypeError, ValueError):
        return False


def _samples(dtype: pl.DataType, shift: int) -> pl.Series:
    """Return some values of a type: unsorted, some twice, and a null, where that is possible.

    Args:
        dtype: Type of the values.
        shift: Number of places by which they are moved, so that columns are not alike.
    """
    import polars as pl

    values = [3, 1, 3, None, 2, 1]
    at = shift % len(values)
    numbers = pl.Series(values[at:] + values[:at], dtype=pl.Int64)
    try:
        if isinstance(dtype, pl.Binary):
            return numbers.cast(pl.String).cast(dtype)
        return (numbers > 1 if isinstance(dtype, pl.Boolean) else numbers).cast(dtype)
    except pl.exceptions.PolarsError:
        return pl.Series([None] * len(values), dtype=dtype)


# Showing ---------------------------------------------------------------------------------------


def shown(expression: Any) -> str:
    """Return an expression as a user would write it, as far as its text allows.

    >>> shown((col("delay") > 15) & ~col("carrier").is_null())
    '(col(delay) > 15) & ~col(carrier).is_null()'
    """
    return _with_operators(repr(expression))


def _with_operators(text: str) -> str:
    """Return a text in which calls of methods such as `__add__` are operators."""
    while found := _CALL.search(text):
        start, end = _operand(text, found.start()), _closing(text, found.end())
        if end < 0:
            break
        text = text[:start] + _written(text, start, found, end) + text[end + 1 :]
    return text


def _written(text: str, start: int, call: re.Match[str], end: int) -> str:
    """Return one call of a method such as `__add__` as an operator between its operands."""
    left, right = text[start : call.start()], _with_operators(text[call.end() : end])
    name = call[1]
    if name in _PREFIXES:
        return _PREFIXES[name] + _grouped(left)
    reverse = name not in _OPERATORS
    sign = _OPERATORS[name.removeprefix("r") if reverse else name]
    first, second = (right, left) if reverse else (left, right)
    made = f"{_grouped(first, sign)} {sign} {_grouped(second)}"
    return f"({made})" if text[end + 1 :].startswith(".") and not _continues(text, end) else made


def _continues(text: str, end: int) -> bool:
    """Return True if the result of a call is an operand of another operator."""
    return _CALL.match(text, end + 1) is not None


def _grouped(operand: str, sign: str = "") -> str:
    """Return an operand, in brackets if it has an operator itself; sums and texts need none."""
    inner = _without_brackets(operand)
    if " " not in inner or (sign == "+" and not re.search(r" [^+] ", inner)):
        return operand
    return f"({operand})"


def _without_brackets(text: str) -> str:
    """Return a text without what is in brackets."""
    previous = ""
    while previous != text:
        previous, text = text, re.sub(r"\([^()]*\)", "", text)
    return text


def _operand(text: str, end: int) -> int:
    """Return the position at which the operand before a call begins."""
    depth = 0
    for at in range(end - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[at], 0)
        if depth < 0 or (depth == 0 and text[at] == "," and text[at + 1 : at + 2] == " "):
            return at + 1 + (text[at] == ",")
    return 0


def _closing(text: str, start: int) -> int:
    """Return the position of the bracket that closes the one before `start`; -1 if there is none."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return -1


_OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "gt": ">",
    "ge": ">=",
    "lt": "<",
    "le": "<=",
    "eq": "==",
    "ne": "!=",
    "and": "&",
    "or": "|",
}
_PREFIXES = {"invert": "~", "neg": "-"}
_CALL = re.compile(rf"\.__(r?(?:{'|'.join(_OPERATORS)})|{'|'.join(_PREFIXES)})__\(")
