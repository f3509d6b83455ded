"""Topic handles: declared once, `send` in handlers, `append` and `to_polars` elsewhere."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import pyarrow as pa

from strandline.changelog.client.accumulator import checked_headers
from strandline.changelog.errors import InvalidConfig, InvalidRecord, InvalidRequest, NotInTask
from strandline.changelog.records import Headers
from strandline.changelog.times import to_ms
from strandline.framework import context
from strandline.framework.codecs import Codec, RowCodec, TypedCodec
from strandline.framework.formats.choice import AnySerde, holds_columns, key_codec, value_codec
from strandline.framework.formats.wire import SerdeUse
from strandline.framework.schema import RowType

if TYPE_CHECKING:
    import polars as pl

    from strandline.framework.app import App
    from strandline.framework.container.outbox import Outbox

K = TypeVar("K")
V = TypeVar("V")


class Topic(Generic[K, V]):
    """Topic with the types of its keys and values, declared by `App.topic`.

    Handlers of the app write to it with `send`, as part of their transaction. Other code writes to
    it with `append` and reads it with `to_polars`.
    """

    def __init__(
        self,
        app: App,
        name: str,
        *,
        key: Any,
        value: Any,
        timestamp: str | None = None,
        partitions: int | None = None,
        serde: AnySerde | None = None,
        key_serde: AnySerde | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self.app = app
        """The app that declared the topic."""
        self.name = name
        """Name of the topic in the log."""
        self.partitions = partitions
        """Declared number of partitions; None takes those of the existing topic, or one."""
        self.config = dict(config or {})
        place = SerdeUse(name, "value", app.registry)
        self.values: Codec = value_codec(value, serde, place, columns=holds_columns(app.log))
        self.key_column: str | None = key if isinstance(key, str) else None
        """Column of the value that holds the key; None if the key is no column."""
        self.timestamp_column = timestamp
        self.kind = value
        """Declared type of the values."""
        self.serde = serde
        self.key_serde = key_serde
        key_kind = self._column_kind("key", key) if isinstance(key, str) else key
        self.keys: Codec = key_codec(key_kind, key_serde, SerdeUse(name, "key", app.registry))
        self._key_at = self._column_at("key", self.key_column)
        self._timestamp_at = self._column_at("timestamp", timestamp)
        takes_columns = self._key_at is not None or self._timestamp_at is not None
        self._row_of = self.typed.row if takes_columns else None
        self._bound: ContextVar[Outbox | None] = ContextVar(f"outbox of {name}")
        self._key_exact = self.keys.exact if self.key_column is None else None
        self._value_exact = self.values.exact

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"

    @property
    def rows(self) -> RowType | None:
        """Conversion of typed values to columns; None if values are not typed."""
        return self.values.rows

    @property
    def schema(self) -> pa.Schema | None:
        """Arrow schema of typed values; None if values are not typed."""
        return None if self.rows is None else self.rows.schema

    @property
    def stored_schema(self) -> pa.Schema | None:
        """Arrow schema of the topic in the log; None if the log holds its values as bytes."""
        return self.schema if isinstance(self.values, RowCodec) else None

    def send(
        self,
        key: K | None,
        value: V | None,
        *,
        timestamp: int | dt.datetime | None = None,
        headers: Headers = (),
    ) -> None:
        """Send a record from inside a handler, as part of the running task's transaction.

        The record becomes visible to readers when the task commits. It is discarded if the handler
        raises.

        Args:
            key: Key of the topic's type. None is a record without a key; on a typed topic whose key
                is a column, None takes the key from the value.
            value: Value of the topic's type. None is a tombstone, which deletes the key.
            timestamp: Milliseconds since the epoch, or a datetime. By default it is the topic's
                time column, else the time of the record being handled.
            headers: Pairs of name (str) and value (bytes), by default none.

        Raises:
            NotInTask: No handler of a task of the topic's app is running.
            InvalidRecord: The record does not have the declared types, or the time looks like
                seconds.
        """
        box = self._bound.get(None)
        if box is None:
            raise self._not_in_task()
        record = box.context.record
        # The first send of a record marks where its output begins, so that an error of the handler
        # can remove exactly that part.
        if record is not box.record:
            box.record = record
            box.mark = len(box.keys)
        # Values of exactly the declared immutable types need neither a check nor a copy.
        if (
            type(value) is not self._value_exact
            or type(key) is not self._key_exact
            or timestamp is not None
            or headers
            or box.checked
        ):
            self._send_checked(box, key, value, timestamp, headers)
            return
        box.keys.append(key)
        box.values.append(value)
        box.timestamps.append(record.timestamp)

    def append(
        self,
        data: Iterable[Any] | pa.Table | pa.RecordBatch | pl.DataFrame,
        *,
        timestamp: int | dt.datetime | None = None,
    ) -> int:
        """Append records from outside of a task.

        They are durable and visible when the call returns.

        Args:
            data: A DataFrame (Polars or pandas), an Arrow table, or an iterable of `(key, value)`
                or `(key, value, timestamp)`; on a topic whose key is a column also of values alone.
                A table has either the columns of the typed value, of which nullable ones may be
                missing, or the columns `key` and `value`. If the key is not a column of the value,
                a table of typed values has a column `key` as well. A table may have a column
                `timestamp`: datetimes, or milliseconds since the epoch.
            timestamp: Time of the records that have none: milliseconds since the epoch, or a
                datetime. The default is now.

        Returns:
            Number of records appended.

        Raises:
            InvalidRecord: A record does not have the declared types.
            SchemaMismatch: The columns of a table do not fit those of the topic.
            InvalidRequest: A handler is running; it must use `send`.
        """
        if context.running() is not None:
            raise InvalidRequest(
                f"{self.name}.append was called inside a handler, where it would not be part of"
                f" the transaction; use {self.name}.send(key, value)"
            )
        from strandline.framework.bulk_append import append_to

        return append_to(self, data, timestamp)

    def to_polars(self, *, tombstones: bool = False) -> pl.DataFrame:
        """Return every committed record of the topic as a Polars DataFrame.

        The columns are partition, offset, timestamp, key, and those of the value. A column of the
        value that has one of these names is called `value_<name>`.

        Args:
            tombstones: True to include tombstones, as rows whose value is null, and a column
                `tombstone` (bool) after the key that marks them. The default is False, because
                handlers do not receive tombstones by default either.

        Raises:
            InvalidRecord: A stored value cannot be decoded.
            MissingDependency: Polars is not installed.
        """
        from strandline.framework.export import topic_to_polars

        return topic_to_polars(self, tombstones=tombstones)

    # For the framework ------------------------------------------------------------------

    def bind(self, box: Outbox | None) -> None:
        """Let `send` write to `box` in this thread or asyncio task; None unbinds it."""
        self._bound.set(box)

    @property
    def typed(self) -> TypedCodec:
        """Codec of the values of a typed topic."""
        assert self.rows is not None
        return cast("TypedCodec", self.values)

    def checked_item(
        self, key: Any, value: Any, timestamp: int | dt.datetime | None, default: int
    ) -> tuple[Any, Any, int]:
        """Return key, value and timestamp as items of the topic's columns. Raise InvalidRecord."""
        try:
            item = self.values.item(value)
            at = default if timestamp is None else to_ms(timestamp, default)
            if self._row_of is not None and item is not None:
                row = self._row_of(item)
                if timestamp is None and self._timestamp_at is not None:
                    at = self._time_in(row[self._timestamp_at], default)
                if self._key_at is not None:
                    key = self._key_in(key, row[self._key_at])
            if at < 0:
                raise InvalidRecord(
                    f"a timestamp is in milliseconds since 1970, got {at}; leave it out to take that"
                    " of the record being handled"
                )
            return None if key is None else self.keys.item(key), item, at
        except InvalidRecord as error:
            raise InvalidRecord(f"topic {self.name!r}: {error}") from error.__cause__

    def same_as(self, other: Topic[Any, Any]) -> bool:
        """Return True if another declaration has the same types and settings."""
        return self._declared() == other._declared()

    def _declared(self) -> tuple[Any, ...]:
        forms = map(_serde_identity, (self.serde, self.key_serde))
        codecs = (type(self.keys), self.keys.exact, type(self.values), *forms)
        return (self.kind, self.key_column, self.partitions, self.config, *codecs)

    def _send_checked(
        self,
        box: Outbox,
        key: K | None,
        value: V | None,
        timestamp: int | dt.datetime | None,
        headers: Headers,
    ) -> None:
        item = self.checked_item(key, value, timestamp, box.context.record.timestamp)
        heads = checked_headers(headers, self.name) if headers else ()
        if box.checked:
            box.check(self, *item, heads)
        box.put(*item, heads)

    def _key_in(self, key: Any, column: Any) -> Any:
        if key is not None and key != column:
            raise InvalidRecord(
                f"the key is {key!r}, but the column {self.key_column!r} of the value holds"
                f" {column!r}; they must be equal (or send key=None)"
            )
        return column

    def _time_in(self, moment: Any, default: int) -> int:
        return default if moment is None else to_ms(moment, default)

    def _column_at(self, what: str, column: str | None) -> int | None:
        if column is None:
            return None
        if self.schema is None or column not in self.schema.names:
            names = (
                "none, as its values are not typed" if self.schema is None else self.schema.names
            )
            raise InvalidConfig(
                f"topic {self.name!r}: {what}={column!r} names a column, but its columns are"
                f" {names}; to declare the type of keys, pass the type: key=str"
            )
        return int(self.schema.get_field_index(column))

    def _column_kind(self, what: str, column: str) -> Any:
        at = self._column_at(what, column)
        assert at is not None
        assert self.schema is not None
        return _KEY_KINDS.get(self.schema.field(at).type, Any)

    def _not_in_task(self) -> NotInTask:
        running = context.running()
        if running is not None:
            return NotInTask(
                f"topic {self.name!r} belongs to app {self.app.name!r}, and a task of app"
                f" {running.app!r} is running, or was declared after that began; declare the topic"
                " with app.topic of the task's own app, before app.run"
            )
        return NotInTask(
            f"topic {self.name!r}: send was called outside of a handler, where there is no"
            f" transaction. From outside use topic.append(...) for many records, or"
            " app.producer(); to read state there, use app.query(store)"
        )


def _serde_identity(serde: AnySerde | None) -> Any:
    """Return a value that is equal for two serdes of the same kind and schema."""
    if serde is None or isinstance(serde, str):
        return serde
    return type(serde), getattr(serde, "schema", None), getattr(serde, "message", None)


_KEY_KINDS: dict[pa.DataType, Any] = {
    pa.string(): str,
    pa.large_string(): str,
    pa.int64(): int,
    pa.int32(): int,
    pa.float64(): float,
    pa.binary(): bytes,
}
