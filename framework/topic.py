"""Topic handles: declared once, `send` in handlers, `append` and `to_polars` elsewhere."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack

import pyarrow as pa

from strandline.changelog.client.accumulator import checked_headers
from strandline.changelog.errors import InvalidConfig, InvalidRequest, NotInTask
from strandline.changelog.records import Headers
from strandline.changelog.times import to_ms
from strandline.framework import context
from strandline.framework.outbox import Outbox
from strandline.framework.session import Session
from strandline.framework.topic_declaration import TopicDeclaration, TopicSettings

if TYPE_CHECKING:
    import polars as pl

K = TypeVar("K")
V = TypeVar("V")


class Topic(TopicDeclaration, Generic[K, V]):
    """Topic with the types of its keys and values, declared by `App.topic`.

    Handlers of the app write to it with `send`, as part of their transaction. Other code writes to
    it with `append` and reads it with `to_polars`.
    """

    def __init__(
        self,
        session: Session,
        name: str,
        *,
        key: Any,
        value: Any,
        **settings: Unpack[TopicSettings],
    ) -> None:
        super().__init__(session, name, key=key, value=value, **settings)
        self._bound: ContextVar[Outbox | None] = ContextVar(f"outbox of {name}")
        self._current = self._bound.get
        self._key_exact = self.keys.exact if self.key_column is None else None
        self._value_exact = self.values.exact

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"

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
        box = self._current(None)
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

    def send_batch(
        self,
        data: pa.Table | pa.RecordBatch | pl.DataFrame,
        *,
        timestamp: int | dt.datetime | None = None,
    ) -> int:
        """Send the rows of a table from inside a handler, as part of its transaction.

        It takes the tables that `append` takes, and is meant for tasks with `batch=True`. The
        records become visible when the task commits, and are discarded if the handler raises.

        Args:
            data: A DataFrame (Polars or pandas) or an Arrow table: either the columns of the typed
                value, of which nullable ones may be missing, or the columns `key` and `value`. If
                the key is not a column of the value, a table of typed values has a column `key` as
                well. A table may have a column `timestamp`: datetimes, or milliseconds since the
                epoch. A null `value` is a tombstone.
            timestamp: Time of the records that have none: milliseconds since the epoch, or a
                datetime. By default it is the time of the record being handled; of a batch the
                greatest one.

        Returns:
            Number of records sent.

        Raises:
            NotInTask: No handler of a task of the topic's app is running.
            SchemaMismatch: The columns do not fit those of the topic. It is an InvalidRecord.
            InvalidRecord: A key or a value is not of the topic's type.
        """
        box = self._box()
        now = box.context.record.timestamp
        now = now if timestamp is None else to_ms(timestamp, now)
        return self._send_table(box, data, now, None)

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

    def to_polars(
        self, *, tombstones: bool = False, errors: Literal["raise", "skip"] = "raise"
    ) -> pl.DataFrame:
        """Return every committed record of the topic as a Polars DataFrame.

        The columns are partition, offset, timestamp, key, and those of the value. A column of the
        value that has one of these names is called `value_<name>`. Keys or values of the type int
        are Int64; if one is beyond that, all are UInt64, or else Decimal with 38 digits.

        Args:
            tombstones: True to include tombstones, as rows whose value is null, and a column
                `tombstone` (bool) after the key that marks them. The default is False, because
                handlers do not receive tombstones by default either.
            errors: "skip" leaves out records whose key or value cannot be decoded, and logs how
                many. The default "raise" is an error.

        Raises:
            InvalidRecord: A stored key or value cannot be decoded, or is an int of more than 38
                digits.
            InvalidConfig: `errors` has another value.
        """
        from strandline.framework.export import topic_to_polars

        if errors not in ("raise", "skip"):
            raise InvalidConfig(f'errors is "raise" or "skip", got {errors!r}')
        return topic_to_polars(self, tombstones=tombstones, errors=errors)

    def _box(self) -> Outbox:
        box = self._current(None)
        if box is None:
            raise self._not_in_task()
        return box

    def _send_table(
        self, box: Outbox, data: Any, now: int, keys: pa.Array | None, *, to_all: bool = False
    ) -> int:
        from strandline.framework.bulk_append import stored_columns

        total = 0
        for columns in stored_columns(self, data, now, self.schema, keys):
            box.put_columns(self, columns, to_all=to_all)
            total += len(columns)
        return total

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

    def _not_in_task(self) -> NotInTask:
        running = context.running()
        if running is not None:
            return NotInTask(
                f"topic {self.name!r} belongs to app {self.session.app!r}, and a task of app"
                f" {running.app!r} is running, or was declared after that began; declare the topic"
                " with app.topic of the task's own app, before app.run"
            )
        return NotInTask(
            f"topic {self.name!r}: send was called outside of a handler, where there is no"
            f" transaction. From outside use topic.append(...) for many records, or"
            " app.producer(); to read state there, use app.query(store)"
        )


# For the framework ----------------------------------------------------------------------


def bind_topic(topic: Topic[Any, Any], box: Outbox | None) -> None:
    """Let `send` write to `box` in this thread or asyncio task; None unbinds it."""
    topic._bound.set(box)


def send_stored(topic: Topic[Any, Any], columns: pa.RecordBatch) -> None:
    """Send records in the form of the log, as another topic of the same types has them."""
    topic._box().put_columns(topic, columns)


def send_rows(
    topic: Topic[Any, Any],
    data: pa.Table,
    keys: pa.Array | None = None,
    *,
    to_all: bool = False,
    around: int | None = None,
) -> None:
    """Send the rows of a table, as `Topic.send_batch` does.

    Args:
        topic: Topic to which the rows are sent.
        data: Columns of the value, and `timestamp`.
        keys: Keys in the form of the log; None takes them from a column of the table.
        to_all: True to send each row to every partition, and not to that of its key.
        around: Time in ms to which the times of the rows are related (see `to_ms`). None, the
            default, is that of the record being handled.
    """
    box = topic._box()
    now = box.context.record.timestamp if around is None else around
    topic._send_table(box, data, now, keys, to_all=to_all)


def undo_of_sends(topic: Topic[Any, Any]) -> Callable[[], None]:
    """Return a function that takes back what is sent as columns from now on in this step."""
    box = topic._box()
    return partial(box.cut_columns, len(box.columns))
