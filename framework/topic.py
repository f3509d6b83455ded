"""Topic handles: declared once, sent to by handlers, appended to and looked at by anyone."""

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
    """A topic with the types of its keys and values; made by `App.topic`."""

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
        self.name = name
        self.partitions = partitions
        self.config = dict(config or {})
        place = SerdeUse(name, "value", app.registry)
        self.values: Codec = value_codec(value, serde, place, columns=holds_columns(app.log))
        self.key_column: str | None = key if isinstance(key, str) else None
        self.timestamp_column = timestamp
        self.kind = value
        """What was declared as the type of the values."""
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
        """How typed values become columns, whatever their form in the log; None if they are not typed."""
        return self.values.rows

    @property
    def schema(self) -> pa.Schema | None:
        """The Arrow schema of typed values."""
        return None if self.rows is None else self.rows.schema

    @property
    def stored_schema(self) -> pa.Schema | None:
        """That of the topic in the log; None if its values are bytes there."""
        return self.schema if isinstance(self.values, RowCodec) else None

    def send(
        self,
        key: K | None,
        value: V | None,
        *,
        timestamp: int | dt.datetime | None = None,
        headers: Headers = (),
    ) -> None:
        """Send a record from inside a handler, in the running task's transaction.

        Without a `timestamp` (ms, or a datetime) the record gets that of the record being
        handled. `value=None` is a tombstone. On a topic whose key is a column, `key=None`
        takes it from the value. Raises NotInTask outside of a handler, InvalidRecord.
        """
        box = self._bound.get(None)
        if box is None:
            raise self._not_in_task()
        record = box.context.record
        if record is not box.record:
            box.record = record
            box.mark = len(box.keys)
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
        """Produce records from outside of a task, durably; return how many.

        `data` is a DataFrame (Polars or pandas), an Arrow table, or an iterable of
        `(key, value)` or `(key, value, timestamp)`; on a topic whose key is a column also of
        bare values. A table has the typed value's columns, of which nullable ones may be left
        out (with `key` beside them if the key is no column), or `key` and `value`, and may
        have `timestamp` (a datetime, or ms). Records without a time get `timestamp`, or now.
        Raises InvalidRecord, SchemaMismatch.
        """
        if context.running() is not None:
            raise InvalidRequest(
                f"{self.name}.append was called inside a handler, where it would not be part of"
                f" the transaction; use {self.name}.send(key, value)"
            )
        from strandline.framework.bulk_append import append_to

        return append_to(self, data, timestamp)

    def to_polars(self, *, tombstones: bool = False) -> pl.DataFrame:
        """Every committed record: partition, offset, timestamp, key, and the value's columns.

        Tombstones are left out, as they are for handlers. With `tombstones` they are rows whose
        value is null, and a column `tombstone` (bool) behind the key tells them apart. A column
        of the value that is called like one of these is `value_<name>`.
        """
        from strandline.framework.export import topic_to_polars

        return topic_to_polars(self, tombstones=tombstones)

    # What the framework asks of a handle -------------------------------------------------

    def bind(self, box: Outbox | None) -> None:
        """Let `send` go to `box`, in this thread or asyncio task; None: to nobody."""
        self._bound.set(box)

    @property
    def typed(self) -> TypedCodec:
        """The values' codec, of a topic that has columns."""
        assert self.rows is not None
        return cast("TypedCodec", self.values)

    def checked_item(
        self, key: Any, value: Any, timestamp: int | dt.datetime | None, default: int
    ) -> tuple[Any, Any, int]:
        """Key, value and timestamp as items of the columns. Raises InvalidRecord."""
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
        """Whether a second declaration says the same."""
        return self._declared() == other._declared()

    def _declared(self) -> tuple[Any, ...]:
        forms = map(_told, (self.serde, self.key_serde))
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
                f" {names}; for keys of a type, pass the type: key=str"
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


def _told(serde: AnySerde | None) -> Any:
    """What makes two forms the same: two objects of one kind and schema are."""
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
