"""Construction of stateless nodes from what a user gave, with all checks."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import make_dataclass
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, TypeVar

from strandline.changelog.errors import InvalidConfig
from strandline.framework.formats.schema import RowType
from strandline.framework.handlers import check_handler, is_async
from strandline.framework.streams.expressions import (
    as_expression,
    is_function,
    resolved,
    shown,
)
from strandline.framework.streams.functions import (
    AddColumns,
    FilterRows,
    MapBatches,
    MapRows,
    name_of,
)
from strandline.framework.streams.nodes import Drop, Emit, Filter, Node, Select, WithColumns
from strandline.framework.streams.places import refusal, user_place
from strandline.framework.streams.schemas import (
    INTERNAL,
    KEY,
    TIME,
    Keying,
    check_names,
    declared_schema,
    polars_schema,
    row_kind,
)
from strandline.framework.streams.stateful import aggregations_of, emission_of
from strandline.framework.streams.windows import SessionWindow

if TYPE_CHECKING:
    import narwhals as nw
    import polars as pl

NodeT = TypeVar("NodeT", bound=Node)

REST = "rest"
"""Name of the stream of rows that no branch took."""


def made(
    kind: type[NodeT],
    node: Node,
    schema: Mapping[str, pl.DataType],
    keying: Keying,
    /,
    **arguments: Any,
) -> NodeT:
    """Return a node of a kind whose only input is `node`."""
    import polars as pl

    return kind(
        inputs=(node,), schema=pl.Schema(schema), keying=keying, where=user_place(), **arguments
    )


def filtered(node: Node, predicate: Any) -> Node:
    """Return the node that keeps the rows for which a predicate is true."""
    if is_function(predicate):
        check_handler(f"{user_place()}: filter: the function", predicate, may_be_async=False)
        return made(FilterRows, node, node.schema, node.keying, function=predicate)
    expression = checked_predicate(node, predicate, "filter")
    return made(Filter, node, node.schema, node.keying, predicate=expression)


def selected(node: Node, columns: Sequence[Any], named: Mapping[str, Any]) -> Node:
    """Return the node that gives the rows other columns."""
    if not columns and not named:
        raise refusal("select", "there is no column; name at least one")
    node, named = _with_functions(node, named, "select")
    expressions = _expressions(columns, named, "select")
    found = _computed(node, expressions, "select")
    always = [n for n in (*_own_key(node), TIME) if n not in found]
    always += [name for name in node.schema if name.startswith(INTERNAL)]
    expressions += [as_expression(name, "select") for name in always]
    schema = {**found, **{name: node.schema[name] for name in always}}
    keying = node.keying.without(_changed(expressions, schema)).within(schema)
    return made(Select, node, schema, keying, expressions=tuple(expressions))


def extended(node: Node, columns: Sequence[Any], named: Mapping[str, Any]) -> Node:
    """Return the node that adds columns to the rows, or replaces them."""
    if not columns and not named:
        raise refusal("with_columns", "there is no column; give at least one expression")
    functions = {name for name, given in named.items() if is_function(given)}
    node, named = _with_functions(node, named, "with_columns")
    rest = {name: given for name, given in named.items() if name not in functions}
    if not columns and not rest:
        return node
    expressions = _expressions(columns, rest, "with_columns")
    return with_expressions(node, expressions, _computed(node, expressions, "with_columns"))


def with_expressions(
    node: Node, expressions: Sequence[nw.Expr], found: Mapping[str, pl.DataType]
) -> Node:
    """Return the node that adds the columns of checked expressions, whose schema is `found`."""
    keying = node.keying.without(_changed(expressions, found))
    schema = {**node.schema, **found}
    return made(WithColumns, node, schema, keying, expressions=tuple(expressions))


def mapped(kind: type[MapRows], node: Node, function: Any, schema: Any) -> Node:
    """Return the node that replaces each row by what a function returns for it."""
    operator = kind.label
    found = declared_schema(schema, operator)
    own = _own_key(node)
    if own and KEY in found:
        raise refusal(
            operator,
            f"the schema has a column {KEY!r}, which is the key of the rows; rename it, and use"
            " group_by(…) or .to(…, key=) for another key",
        )
    _check_time(found, operator)
    kept = {name: node.schema[name] for name in (*own, TIME) if name not in found}
    kept |= _internal(node)
    whole = {**found, **kept}
    keying = node.keying if own else _same_types(node, whole)
    given = row_kind(schema, operator)
    return made(kind, node, whole, keying, function=function, kind=given)


def mapped_in_batches(node: Node, function: Any, schema: Any) -> Node:
    """Return the node that replaces the rows by the frame that a function returns."""
    operator = MapBatches.label
    check_handler(f"{user_place()}: {operator}: the function", function, may_be_async=False)
    if schema is None:
        found = _inferred(node, function)
    else:
        found = dict(declared_schema(schema, operator))
        found.update({n: node.schema[n] for n in (*_own_key(node), TIME) if n not in found})
    check_names(found, operator)
    _check_time(found, operator)
    if TIME not in found:
        raise refusal(
            operator,
            f"the returned frame has no column {TIME!r}, the time of each row; return it as it was",
        )
    keying = _same_types(node, found)
    return made(MapBatches, node, {**found, **_internal(node)}, keying, function=function)


def branches(node: Node, predicates: Mapping[str, Any]) -> dict[str, Node]:
    """Return the node of each branch: of the rows for which no earlier predicate is true."""
    if not predicates:
        raise refusal("branch", "there is no predicate; give one, as late=sl.col('delay') > 15")
    wrong = [name for name in predicates if name == REST or name.startswith("_")]
    if wrong:
        raise refusal("branch", f"a branch cannot be called {wrong[0]!r}; choose another name")
    functions = {name: given for name, given in predicates.items() if is_function(given)}
    columns = {name: f"{INTERNAL}branch_{at}" for at, name in enumerate(functions)}
    internal = {columns[name]: function for name, function in functions.items()}
    base = _with_bools(node, internal) if internal else node
    open_rows: nw.Expr | None = None
    arms: dict[str, Node] = {}
    for name, given in predicates.items():
        chosen = columns.get(name, given)
        matches = checked_predicate(base, chosen, f"branch: {name}").fill_null(value=False)
        taken = matches if open_rows is None else open_rows & matches
        arms[name] = _arm(base, name, taken, internal)
        open_rows = ~matches if open_rows is None else open_rows & ~matches
    assert open_rows is not None
    return {**arms, REST: _arm(base, REST, open_rows, internal)}


def check_flat_function(function: Any) -> None:
    """Raise InvalidConfig unless a function can be called, and is not async; it may yield."""
    if not callable(function):
        raise refusal("flat_map", f"expected a function of a row, got {function!r:.100}")
    if is_async(function) or inspect.isasyncgenfunction(function):
        raise refusal(
            "flat_map", f"{name_of(function)} is async, but nothing would await it; use plain `def`"
        )


def checked_emit(emit: Any, node: Node, operator: str) -> Emit | None:
    """Return the results that an end after `node` takes. Raise InvalidConfig if there are none."""
    default = emission_of(node)
    if emit not in (None, "update", "final"):
        raise refusal(operator, f'emit={emit!r} is neither "update" nor "final"')
    if emit is not None and default is None:
        raise refusal(
            operator, f"emit={emit!r} is for results of agg(…), and these are rows; leave it out"
        )
    if emit == "final" and default == "update":
        raise refusal(
            operator,
            "emit='final' needs windows, because a group without one can always get another row;"
            ' add .window(…) before .agg(…), or use emit="update"',
        )
    if emit == "update" and any(
        isinstance(one.window, SessionWindow) for one in aggregations_of(node)
    ):
        raise refusal(
            operator,
            "emit='update' of sessions would leave the results of sessions that were merged into"
            ' others later; use emit="final"',
        )
    return emit or default


def checked_predicate(node: Node, given: Any, operator: str) -> nw.Expr:
    """Return a predicate as an expression. Raise InvalidConfig unless it is one bool for a row."""
    import polars as pl

    expression = as_expression(given, operator)
    found = resolved([expression], node.schema, operator)
    if list(found.values()) != [pl.Boolean()]:
        types = ", ".join(f"{name} {dtype}" for name, dtype in found.items())
        raise refusal(
            operator,
            f"{shown(expression)} is not true or false for a row, but {types}; compare it, as"
            " sl.col('x') > 0",
        )
    return expression


# Columns ---------------------------------------------------------------------------------------


def _expressions(columns: Sequence[Any], named: Mapping[str, Any], operator: str) -> list[nw.Expr]:
    """Return what a user gave as expressions that have the columns' names."""
    wrong = [given for given in columns if is_function(given)]
    if wrong:
        raise refusal(
            operator,
            f"the column of function {name_of(wrong[0])} needs a name: {operator}(name=function)",
        )
    unnamed = [as_expression(given, operator) for given in columns]
    return [*unnamed, *(as_expression(given, operator).alias(n) for n, given in named.items())]


def _computed(node: Node, expressions: Sequence[nw.Expr], operator: str) -> dict[str, pl.DataType]:
    """Return the columns that expressions give, which may replace all but the record's own key."""
    import polars as pl

    found = dict(resolved(expressions, node.schema, operator))
    check_names((n for n in found if n not in node.schema), operator)
    changed = _changed(expressions, found)
    if KEY in changed and _own_key(node):
        raise refusal(
            operator,
            f"the column {KEY!r} is the key of the records, which stays; use group_by(…) or"
            f" .to(…, key=) for another one, or rename({{'{KEY}': …}}) before",
        )
    if TIME in changed and found[TIME] != pl.Int64():
        raise _wrong_time(found[TIME], operator)
    return found


def _changed(expressions: Sequence[nw.Expr], found: Mapping[str, Any]) -> set[str]:
    """Return the columns of `found` that an expression may have given other values."""
    same: set[str] = set()
    for expression in expressions:
        text = shown(expression)
        plain = re.fullmatch(r"col\(([^()]*)\)(?:\.alias\(name=([^()]*)\))?", text)
        if text == "all()":
            return set()
        if plain is not None and plain[2] in (None, plain[1]):
            same |= {plain[1], *plain[1].split(", ")}
    return set(found) - same


def _with_functions(
    node: Node, named: Mapping[str, Any], operator: str
) -> tuple[Node, dict[str, Any]]:
    """Return a node that has the columns of the functions, and names in place of functions."""
    functions = {name: given for name, given in named.items() if is_function(given)}
    if not functions:
        return node, dict(named)
    check_names(functions, operator)
    unusual = [name for name in functions if not name.isidentifier() or iskeyword(name)]
    if unusual:
        raise refusal(
            operator,
            f"the column of a function cannot be called {unusual[0]!r}; use letters, digits and"
            " underscores, and rename(…) afterwards",
        )
    hints = {name: _result_type(name, fn, operator) for name, fn in functions.items()}
    added = _adding(node, functions, hints, operator)
    return added, {name: name if name in functions else given for name, given in named.items()}


def _with_bools(node: Node, functions: Mapping[str, Any]) -> Node:
    """Return a node with an internal bool column for each function."""
    for function in functions.values():
        check_handler(f"{user_place()}: branch: the function", function, may_be_async=False)
    return _adding(node, functions, dict.fromkeys(functions, bool | None), "branch")


def _adding(
    node: Node, functions: Mapping[str, Any], hints: Mapping[str, Any], operator: str
) -> Node:
    kind = make_dataclass("Columns", list(hints.items()), frozen=True)
    try:
        found = polars_schema(RowType(kind).schema)
    except InvalidConfig as error:
        raise refusal(operator, str(error)) from None
    _check_time(found, operator)
    if KEY in found and _own_key(node):
        raise refusal(operator, f"the column {KEY!r} is the key of the records, which stays")
    keying = node.keying.without(found)
    schema = {**node.schema, **found}
    return made(AddColumns, node, schema, keying, functions=dict(functions), kind=kind)


def _result_type(name: str, function: Any, operator: str) -> Any:
    """Return the annotated type of a function's results. Raise InvalidConfig if there is none."""
    check_handler(f"{user_place()}: {operator}: {name}", function, may_be_async=False)
    try:
        hints = typing.get_type_hints(function)
    except (TypeError, NameError):
        hints = {}
    if "return" not in hints:
        raise refusal(
            operator,
            f"the type of column {name!r} is not known; annotate what {name_of(function)} returns,"
            " as `def f(row) -> float | None`, or use map(fn, schema=)",
        )
    return hints["return"]


def _arm(node: Node, name: str, predicate: nw.Expr, internal: Mapping[str, Any]) -> Node:
    """Return the node of one branch, without the columns that the branching has added."""
    arm = made(Filter, node, node.schema, node.keying, predicate=predicate, arm=name)
    if not internal:
        return arm
    kept = {n: dtype for n, dtype in node.schema.items() if n not in internal}
    return made(Drop, arm, kept, arm.keying, names=tuple(internal))


def _inferred(node: Node, function: Any) -> dict[str, pl.DataType]:
    """Return the columns of what a function returns for an empty frame. Raise InvalidConfig."""
    import polars as pl

    operator = MapBatches.label
    try:
        result = function(pl.DataFrame(schema=node.visible))
    except Exception as error:
        raise refusal(
            operator,
            f"{name_of(function)} fails for an empty frame, by which its columns are found"
            f" ({type(error).__name__}: {error}); give schema=, or let it return an empty frame",
        ) from error
    if not isinstance(result, pl.DataFrame):
        raise refusal(
            operator,
            f"{name_of(function)} returned {type(result).__name__}; it must return a polars frame",
        )
    return dict(result.schema)


def _internal(node: Node) -> dict[str, pl.DataType]:
    """Return the columns of a node that the plan has added for itself."""
    return {name: t for name, t in node.schema.items() if name.startswith(INTERNAL)}


def _own_key(node: Node) -> tuple[str, ...]:
    """Return the column of the record's key if it is no column of the value."""
    return () if node.keying.in_value else (KEY,)


def _same_types(node: Node, schema: Mapping[str, pl.DataType]) -> Keying:
    """Return the keying of rows that a function made, which may have other keys."""
    changed = {n for n in node.keying.columns if schema.get(n) != node.schema[n]}
    return node.keying.without(changed).unplaced()


def _check_time(found: Mapping[str, pl.DataType], operator: str) -> None:
    import polars as pl

    if found.get(TIME, pl.Int64()) != pl.Int64():
        raise _wrong_time(found[TIME], operator)


def _wrong_time(dtype: pl.DataType, operator: str) -> InvalidConfig:
    return refusal(
        operator,
        f"the column {TIME!r} is the time of a record in ms since the epoch, an Int64, and cannot"
        f" be {dtype}; use sl.col(…).dt.timestamp('ms'), or another name",
    )
