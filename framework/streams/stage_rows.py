"""Rows of a stage: from batches of records to frames, and from frames to records.

An internal topic has the columns that are used after it, and for each row the watermark before it of
the partition that it was first read from. A record of it without a key has no row: it is a *mark*,
which tells each partition how far one that writes the topic has come, or that it is idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.changelog.arrays import as_numpy
from strandline.changelog.errors import InvalidRecord
from strandline.framework.batch import Batch
from strandline.framework.formats.codecs import from_column, items_of
from strandline.framework.session import Session
from strandline.framework.streams.operators.group_keys import GroupKeys
from strandline.framework.streams.schemas import (
    INTERNAL,
    KEY,
    ROW,
    TIME,
    VALUE,
    WATERMARK,
    arrow_schema,
)
from strandline.framework.streams.stateful import OutputNode, Repartition, Through
from strandline.framework.topic import Topic, send_rows
from strandline.framework.topic_creation import KEEP_FOREVER
from strandline.statestore.frames import (
    arranged,
    arrow_columns,
    cast_to,
    frame_of,
    nulls,
    with_series,
)

if TYPE_CHECKING:
    import polars as pl

SOURCE = f"{INTERNAL}source"
"""Column of the marks in an internal topic: stage and partition that a mark is from."""


class TopicRows:
    """Rows of a topic that a stream reads."""

    def __init__(
        self,
        topic: Topic[Any, Any],
        fields: Mapping[str, str],
        schema: Mapping[str, pl.DataType],
        used: Iterable[str],
    ) -> None:
        """Choose the columns to decode.

        Args:
            topic: The topic.
            fields: Column of the stream by field of the topic's value.
            schema: All columns of the stream.
            used: Columns that are used; the others are null.
        """
        self.topic = topic
        self._fields = fields
        self._schema = {n: t for n, t in schema.items() if n not in (WATERMARK, ROW)}
        self._used = set(used)

    def frame(self, batch: Batch) -> pl.DataFrame:
        """Return the records of a batch as rows. Raises InvalidRecord."""
        found: dict[str, Any] = {}
        if KEY in self._used and KEY in self._schema and KEY not in self._fields.values():
            found[KEY] = batch.keys
        if self._used & set(self._fields.values()):
            values = batch.values
            if self.topic.schema is None:
                found[self._fields[VALUE]] = values
            else:
                names = [field.name for field in values.type]
                columns = dict(zip(names, values.flatten(), strict=True))
                found |= {at: columns[f] for f, at in self._fields.items() if at in self._used}
        frame = frame_of({**found, TIME: batch.timestamps})
        absent = [
            nulls(n, t, len(batch)) for n, t in self._schema.items() if n not in frame.columns
        ]
        return cast_to(arranged(frame.hstack(absent), self._schema), self._schema)


class InternalTopic:
    """Topic through which rows get another key."""

    def __init__(self, session: Session, node: Repartition, columns: Iterable[str]) -> None:
        """Declare the topic.

        Args:
            session: Session of the app.
            node: Operator that needs it.
            columns: Columns of the rows that it keeps.

        Raises:
            InvalidConfig: A column has a type that no topic can hold.
        """
        import polars as pl

        self.node = node
        self._columns = tuple(columns)
        self._keys = GroupKeys(node.keys, node.schema, node.name)
        kept = {name: node.schema[name] for name in self._columns}
        kept |= {SOURCE: pl.String(), WATERMARK: pl.Int64()}
        value = arrow_schema({_field(name): dtype for name, dtype in kept.items()}, node.label)
        self.topic = Topic[Any, Any](
            *(session, node.topic), key=bytes, value=value, config=KEEP_FOREVER
        )
        self.topic.is_derived = self.topic.is_internal = True
        self.topic.stream_columns = tuple(sorted(self._columns))
        self.topic.sources = _topics_before(node)

    def send(self, rows: pl.DataFrame, around: int | None = None) -> None:
        """Send rows, each to the partition of its key.

        Args:
            rows: Columns of the rows, time and watermark.
            around: Time in ms to which their times are related, as `send_rows` takes it.

        Raises:
            InvalidRecord: A row has no key.
        """
        import polars as pl

        keys = self._keys.encoded(rows)
        unmarked = with_series(rows, nulls(SOURCE, pl.String(), len(rows)))
        send_rows(self.topic, self._table(unmarked), keys, around=around)

    def send_mark(self, source: str, watermark: int | None, time: int) -> None:
        """Tell each partition how far a source has come; None says that it is idle."""
        import polars as pl

        mark = pl.DataFrame(
            {name: [None] for name in self._columns},
            schema={name: self.node.schema[name] for name in self._columns},
        ).with_columns(
            pl.lit(source).alias(SOURCE),
            pl.lit(watermark, pl.Int64).alias(WATERMARK),
            # A datetime: no user gave the time, so it cannot be seconds by mistake.
            pl.lit(max(0, time), pl.Int64).cast(pl.Datetime("ms")).alias(TIME),
        )
        send_rows(self.topic, self._table(mark), pa.nulls(1, pa.binary()), to_all=True)

    def frame(self, batch: Batch) -> pl.DataFrame:
        """Return the records of a batch as rows and marks, with a column for the key's absence."""
        import polars as pl

        fields = [field.name for field in batch.values.type]
        stored = dict(zip(fields, batch.values.flatten(), strict=True))
        kinds = {name: self.node.schema[name] for name in self._columns}
        kinds |= {SOURCE: pl.String(), WATERMARK: pl.Int64()}
        rows = cast_to(frame_of({name: stored[_field(name)] for name in kinds}), kinds)
        times = pl.Series(TIME, batch.times())
        is_mark = pl.Series(_IS_MARK, as_numpy(batch.keys.is_null()))
        return with_series(rows, times, is_mark)

    def _table(self, rows: pl.DataFrame) -> pa.Table:
        names = [*self._columns, SOURCE, WATERMARK, TIME]
        return pa.table(arrow_columns(rows, names), names=[*map(_field, names)])


def _field(column: str) -> str:
    """Return the field of an internal topic that holds a column.

    A name with two underscores in front cannot be that of a class's field, as JSON values need.
    """
    is_internal = column.startswith((INTERNAL, _PREFIX))
    return f"{_PREFIX}{column.removeprefix(INTERNAL)}" if is_internal else column


_PREFIX = "strandline_"
"""Beginning of the names of fields for columns that a plan adds, and for those called alike."""
_IS_MARK = f"{INTERNAL}is_mark"


def divided(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of a frame of an internal topic, and its marks."""
    is_mark = frame[_IS_MARK]
    rest = frame.drop(_IS_MARK)
    return rest.filter(~is_mark), rest.filter(is_mark)


def write(node: OutputNode, rows: pl.DataFrame, around: int | None = None) -> None:
    """Send rows to the topic of an output.

    Args:
        node: The output.
        rows: Columns of the rows, and their time.
        around: Time in ms to which their times are related, as `send_rows` takes it.

    Raises:
        InvalidRecord: A row has no key, or another time than records may have.
    """
    topic, fields = node.topic, node.fields
    columns = arrow_columns(rows, [*fields.values()])
    table = pa.table(columns, names=[*fields])
    if topic.timestamp_column is None:
        table = table.append_column(TIME, rows[TIME].to_arrow()) if TIME not in fields else table
    keys = None if topic.key_column else _keys(topic, node.key, rows)
    send_rows(topic, table, keys, around=around)


def _keys(topic: Topic[Any, Any], columns: tuple[str, ...], rows: pl.DataFrame) -> pa.Array:
    """Return the keys of rows as the topic stores them. Raises InvalidRecord.

    A row whose key is one column that is null becomes a record without a key.
    """
    if len(columns) == 1:
        return from_column(topic.keys, rows[columns[0]].to_arrow())
    if any(rows[name].null_count() for name in columns):
        raise InvalidRecord(
            f"a row for topic {topic.name!r} has no key: a column of {list(columns)} is null; "
            "filter such rows out, or give them a value with fill_null"
        )
    return topic.keys.encode(items_of(topic.keys, arranged(rows, columns).rows()))


def _topics_before(node: Repartition) -> tuple[Topic[Any, Any], ...]:
    """Return the topics that the rows of an internal topic were read from."""
    from strandline.framework.streams.nodes import TopicSource

    waiting, found = list(node.inputs), dict[Topic[Any, Any], None]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, TopicSource | Through):
            found[one.topic] = None
        else:
            waiting += one.inputs
    return tuple(found)
