"""Topics to which streams are written: declared from a plan, or checked against it.

The key of the records is that of the stream, unless `key=` names other columns. One column is the
key as the topic's key type: str, int, float and bytes as Kafka's Java client writes them, any other
type as MessagePack. Several columns are one MessagePack array, the topic's key type being a tuple:
`tuple[str, datetime]`. Columns of the key are fields of the value too, so that a reader of the
values alone misses nothing; only a key that is no column of the value is kept out.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.changelog.errors import InvalidRecord, InvalidRequest
from strandline.framework.formats.schema import RowType, is_typed
from strandline.framework.streams.expressions import check_columns
from strandline.framework.streams.graph import StreamGraph
from strandline.framework.streams.nodes import Node
from strandline.framework.streams.places import refusal
from strandline.framework.streams.schemas import (
    KEY,
    TIME,
    VALUE,
    arrow_schema,
    not_a_schema,
    polars_schema,
    python_type,
    value_fields,
)
from strandline.framework.topic import Topic

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Output:
    """A topic, and the columns that are written to it."""

    topic: Topic[Any, Any]
    key: tuple[str, ...]
    """Columns of the key."""
    fields: Mapping[str, str]
    """Column by field of the topic's value."""


@dataclass(frozen=True)
class OutputSettings:
    """Arguments of `to` and `through` that are about the topic."""

    key: str | Sequence[str] | None = None
    partitions: int | None = None
    schema: Any = None


def fields_of(topic: Topic[Any, Any], names: Sequence[str]) -> dict[str, str]:
    """Return the column of a stream by field of a topic's values.

    A field that is called as the column of the key or the time has another column.
    """
    taken = {TIME} if topic.key_column == KEY else {TIME, KEY}
    return {name: f"value_{name}" if name in taken else name for name in names}


def output(
    graph: StreamGraph,
    node: Node,
    to: Topic[Any, Any] | str,
    settings: OutputSettings,
    operator: str,
) -> Output:
    """Return the topic to which the rows of a node are written, and what is written.

    Raises InvalidConfig if the topic does not fit the rows, or its declaration is not valid.
    """
    topic = to if isinstance(to, Topic) else graph.declared.topics.get(_name(to, operator))
    if topic is None:
        return _declared(graph, node, str(to), settings, operator)
    if graph.declared.topics.get(topic.name) is not topic:
        raise refusal(
            operator,
            f"topic {topic.name!r} belongs to app {topic.session.app!r}; declare it with app.topic"
            f" of app {graph.session.app!r}, to which the stream belongs",
        )
    if settings.partitions is not None or settings.schema is not None:
        raise refusal(
            operator,
            f"topic {topic.name!r} is declared already; give partitions= and value= to app.topic,"
            " and leave out partitions= and schema= here",
        )
    return _checked(node, topic, settings.key, operator)


def value_columns(node: Node) -> dict[str, pl.DataType]:
    """Return the columns of a stream that are fields of its values."""
    out = node.keying.not_of_value()
    return {name: dtype for name, dtype in node.visible.items() if name not in out}


def key_kind(columns: Sequence[str], schema: Mapping[str, pl.DataType], operator: str) -> Any:
    """Return the type of keys made of these columns: that of one, or a tuple of several.

    Raises InvalidConfig if a column has a type that cannot be a key.
    """
    kinds = []
    for name in columns:
        kind = python_type(schema[name])
        if kind is None:
            raise refusal(
                operator,
                f"column {name!r} is {schema[name]}, which cannot be a key; a key is text, bytes,"
                " a number, a bool, a date or a datetime with a zone of at most microseconds, so"
                " cast it before",
            )
        kinds.append(kind)
    return kinds[0] if len(kinds) == 1 else tuple[tuple(kinds)]  # type: ignore[misc]


def _declared(
    graph: StreamGraph, node: Node, name: str, settings: OutputSettings, operator: str
) -> Output:
    """Declare a topic with the columns of a node."""
    key = _key_of(node, settings.key, operator)
    columns = value_columns(node)
    if not columns:
        raise refusal(operator, f"there is no column to write to {name!r}; keep at least one")
    value: Any = arrow_schema(columns, operator)
    if settings.schema is not None:
        value = _checked_kind(settings.schema, columns, operator)
    kind = key_kind(key, node.schema, operator)
    try:
        topic = Topic[Any, Any](
            graph.session,
            name,
            key=key[0] if len(key) == 1 and key[0] in columns else kind,
            value=value,
            partitions=settings.partitions,
        )
        graph.declared.add_topic(topic)
    except InvalidRequest as error:
        raise refusal(operator, str(error)) from None
    names = list(value.names if topic.schema is None else topic.schema.names)
    return Output(topic, key, {field: field for field in names if field in columns})


def _checked_kind(schema: Any, columns: Mapping[str, pl.DataType], operator: str) -> Any:
    """Return `schema=` as the type of a topic's values, which the columns must fit."""
    import polars as pl

    kind = arrow_schema(schema, operator) if isinstance(schema, pl.Schema) else schema
    if not is_typed(kind):
        raise not_a_schema(schema, operator)
    rows = RowType(kind)
    optional = {field.name for field in rows.fields if field.nullable}
    _check_fields(polars_schema(rows.schema), optional, columns, f"{operator}: schema=")
    return kind


def _checked(
    node: Node, topic: Topic[Any, Any], key: str | Sequence[str] | None, operator: str
) -> Output:
    """Return the output for a declared topic. Raise InvalidConfig if the rows do not fit it."""
    wanted = value_fields(topic, operator)
    fields = fields_of(topic, list(wanted))
    columns = value_columns(node)
    if topic.key_column is not None and key is None:
        key = fields[topic.key_column]
    chosen = _key_of(node, key, operator)
    optional = {f.name for f in topic.rows.fields if f.nullable} if topic.rows else set()
    renamed = {fields[name]: dtype for name, dtype in wanted.items()}
    _check_fields(
        *(renamed, {fields[name] for name in optional}, columns),
        f"{operator}: topic {topic.name!r}",
    )
    _check_key(node, topic, chosen, fields, operator)
    return Output(topic, chosen, {name: at for name, at in fields.items() if at in columns})


def _check_fields(
    wanted: Mapping[str, pl.DataType],
    optional: set[str],
    found: Mapping[str, pl.DataType],
    operator: str,
) -> None:
    """Raise InvalidConfig with each difference of a stream's columns from a topic's fields."""
    lacking = [name for name in wanted if name not in found and name not in optional]
    differences = [f"the stream lacks the column {name!r} ({wanted[name]})" for name in lacking]
    differences += [
        f"the topic has no field {name!r} ({dtype})"
        for name, dtype in found.items()
        if name not in wanted
    ]
    differences += [
        f"column {name!r} is {found[name]}, and the field is {dtype}"
        for name, dtype in wanted.items()
        if name in found and found[name] != dtype
    ]
    if differences:
        hint = f"select(…), rename(…) or cast the columns, or declare another {VALUE} for the topic"
        raise refusal(operator, f"{'; '.join(differences)}. Use {hint}")


def _check_key(
    node: Node,
    topic: Topic[Any, Any],
    key: tuple[str, ...],
    fields: Mapping[str, str],
    operator: str,
) -> None:
    """Raise InvalidConfig if columns cannot be the key of a topic."""
    if topic.key_column is not None:
        column = fields[topic.key_column]
        if key != (column,):
            raise refusal(
                operator,
                f"the key of topic {topic.name!r} is its column {column!r}, so key={[*key]} is not"
                " possible; leave out key=",
            )
        return
    kind = key_kind(key, node.schema, operator)
    sample = _SAMPLES[kind] if len(key) == 1 else tuple(_SAMPLES[k] for k in kind.__args__)
    try:
        topic.keys.encode([topic.keys.item(sample)])
    except (InvalidRecord, TypeError, ValueError) as error:
        raise refusal(
            operator,
            f"the key of topic {topic.name!r} is {topic.key_kind!r}, and that of the stream,"
            f" {[*key]}, is {kind!r}: {error}; declare the topic with that key, or name another"
            " column with key=",
        ) from None


def _key_of(node: Node, key: Any, operator: str) -> tuple[str, ...]:
    """Return the columns of the key. Raise InvalidConfig if there is none."""
    if key is None:
        if node.keying.columns:
            return node.keying.columns
        raise refusal(
            operator,
            "the column of the stream's key was removed or changed; name the columns of the new key"
            f" with key=. The columns are {[*node.visible]}",
        )
    columns = (key,) if isinstance(key, str) else tuple(key)
    check_columns(columns, node.visible, operator)
    if not columns or TIME in columns:
        raise refusal(operator, f"key={key!r} cannot be the key; name columns besides {TIME!r}")
    return columns


def _name(given: Any, operator: str) -> str:
    if isinstance(given, str):
        return given
    raise refusal(
        operator, f"expected a topic of app.topic(…) or a topic's name, got {given!r:.100}"
    )


_SAMPLES: dict[Any, Any] = {
    str: "",
    int: 0,
    float: 0.0,
    bytes: b"",
    bool: False,
    dt.date: dt.date(1970, 1, 1),
    dt.datetime: dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
}
"""Value of each type that a key or an element of it can have."""
