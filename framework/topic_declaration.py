"""Declaration of a topic: its types and settings, and the codecs of its keys and values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, TypedDict, Unpack, cast

import pyarrow as pa

from strandline.changelog.client.keys import is_bytes, is_text
from strandline.changelog.errors import InvalidConfig, InvalidRecord
from strandline.changelog.times import to_ms
from strandline.framework.formats.choice import AnySerde, key_codec, value_codec
from strandline.framework.formats.codecs import Codec, RowCodec, TypedCodec
from strandline.framework.formats.schema import RowType
from strandline.framework.formats.wire import SerdeUse
from strandline.framework.session import Session


class TopicSettings(TypedDict, total=False):
    """Settings of a topic besides its types; `App.topic` describes them."""

    timestamp: str | None
    partitions: int | None
    serde: AnySerde | None
    key_serde: AnySerde | None
    config: Mapping[str, str] | None


class TopicDeclaration:
    """A topic as an app declares it. `Topic` is the handle that users get.

    Raises:
        InvalidConfig: The types and settings contradict each other.
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
        self.session = session
        """Session of the app that declared the topic."""
        self.name = name
        """Name of the topic in the log."""
        self.partitions = settings.get("partitions")
        """Declared number of partitions; None takes those of the existing topic, or one."""
        self.sources: tuple[TopicDeclaration, ...] = ()
        """Topics declared earlier: a new topic without a declared number has their greatest one."""
        self.config = dict(settings.get("config") or {})
        self.serde = settings.get("serde")
        self.key_serde = settings.get("key_serde")
        self.values: Codec = self._value_codec(value)
        self.key_column: str | None = key if isinstance(key, str) else None
        """Column of the value that holds the key; None if the key is no column."""
        self.timestamp_column = settings.get("timestamp")
        self.kind = value
        """Declared type of the values."""
        self.key_kind: Any = self._column_kind(key) if isinstance(key, str) else key
        """Declared type of the keys; if the key is a column, the type of the column."""
        place = SerdeUse(name, "key", session.registry)
        self.keys: Codec = key_codec(self.key_kind, self.key_serde, place)
        self._key_at = self._column_at("key", self.key_column)
        self._timestamp_at = self._column_at("timestamp", self.timestamp_column)
        takes_columns = self._key_at is not None or self._timestamp_at is not None
        self._row_of = self.typed.row if takes_columns else None
        self.is_internal = False
        """True if the app itself names and fills the topic, for repartitioning."""
        self.is_derived = False
        """True if the columns follow from a plan, so that their order in the log does not matter."""
        self.stream_columns: tuple[str, ...] | None = None
        """Columns that streams keep in a topic between two stages, sorted; None for other topics."""

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

    def follow(self, stored: pa.Schema) -> None:
        """Take the columns of a derived topic in the order of the log, which may have more of them.

        Columns that the log does not have come at the end.
        """
        assert self.schema is not None
        own = {field.name: field for field in self.schema}
        kept = [own.pop(field.name, field) for field in stored]
        self.kind = pa.schema([*kept, *own.values()])
        self.values = self._value_codec(self.kind)

    def _value_codec(self, kind: Any) -> Codec:
        place = SerdeUse(self.name, "value", self.session.registry)
        return value_codec(kind, self.serde, place, columns=self.session.holds_columns())

    def same_as(self, other: TopicDeclaration) -> bool:
        """Return True if another declaration has the same types and settings."""
        return self._declared() == other._declared()

    def can_read(self, other: TopicDeclaration) -> bool:
        """Return True if records of another topic, as the log has them, have this topic's types."""
        if self.stored_schema is not None or other.stored_schema is not None:
            values = self.stored_schema == other.stored_schema
        else:
            values = self.kind is bytes or self._value_form() == other._value_form()
        keys = self.key_kind is bytes or self._key_form() == other._key_form()
        return values and keys

    def _value_form(self) -> tuple[Any, ...]:
        return (self.kind, type(self.values), _serde_identity(self.serde))

    def _key_form(self) -> tuple[Any, ...]:
        return (self.key_kind, type(self.keys), _serde_identity(self.key_serde))

    def _declared(self) -> tuple[Any, ...]:
        forms = map(_serde_identity, (self.serde, self.key_serde))
        codecs = (type(self.keys), self.keys.exact, type(self.values), *forms)
        return (self.kind, self.key_column, self.partitions, self.config, *codecs)

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

    def _column_kind(self, column: str) -> Any:
        at = self._column_at("key", column)
        assert at is not None
        assert self.schema is not None
        return _key_kind(self.schema.field(at).type)


def _serde_identity(serde: AnySerde | None) -> Any:
    """Return a value that is equal for two serdes of the same kind and schema."""
    if serde is None or isinstance(serde, str):
        return serde
    return type(serde), getattr(serde, "schema", None), getattr(serde, "message", None)


def _key_kind(column: pa.DataType) -> Any:
    """Return the type of keys that are a column of a type, with the encoding of bulk appends."""
    if pa.types.is_integer(column):
        return int
    if pa.types.is_floating(column):
        return float
    if is_text(column):
        return str
    return bytes if is_bytes(column) else Any
