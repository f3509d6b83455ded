"""Declarations of an app's tables, recorded so that every reader of the log can read them as stores.

Faust's serializers write the keys and values of a table. JSON and bytes are recorded as such, so
others can read them. All other serializers are recorded as a serde that only the app has. The window
of a table is recorded as well, because the windows of another one would be missed or counted short.

A worker records its tables before it joins its group, so before it changes anything. It compares
them again before it opens a partition, because another program may have recorded more meanwhile.
"""

from __future__ import annotations

from typing import Any

import msgspec
from faust.serializers import codecs

from strandline.framework.faust.log_link import FaustLink
from strandline.framework.faust.store import FaustStore
from strandline.framework.store_declarations import StoreDeclarations
from strandline.statestore.foreign_keys import AsciiJsonKey, JsonKey, RawKey
from strandline.statestore.json_values import Json
from strandline.statestore.serdes import Bytes
from strandline.statestore.spec import AnySpec, StoreSpec, changelog_topic


class AppSerde(Bytes):
    """Serde that only the app has: its values are bytes to all others."""

    def __init__(self, identity: str) -> None:
        self.identity = identity


def table_specs(app: Any) -> list[tuple[AnySpec, int]]:
    """Return the declarations of an app's tables, with the number of partitions of new changelogs.

    Tables in other stores than ours, or with a changelog of another name, are left out.
    """
    tables = [table for table in app.tables.values() if _is_ours(table, app)]
    defaults, partitions = app.serializers, app.conf.topic_partitions
    return [(_spec(one, defaults), one.partitions or partitions) for one in tables]


def record_tables(app: str, tables: list[tuple[AnySpec, int]], link: FaustLink) -> None:
    """Record the tables of an app, whose changelogs are created if they do not exist.

    Raises InvalidConfig, with nothing changed, if stored keys or values have been written otherwise
    than the app writes them now.
    """
    infos = {}
    for spec, partitions in tables:
        topic = spec.changelog_topic(app)
        link.ensure(topic, partitions)
        infos[topic] = link.broker.topic(topic)
    specs = [spec for spec, _ in tables]
    declared = StoreDeclarations(app, specs, infos, link.broker, link.clock, can_upgrade=False)
    declared.record()
    link.declared = dict.fromkeys(infos, declared)


def _is_ours(table: Any, app: Any) -> bool:
    # A SetTable has an object of Faust's here, and is refused in our store.
    is_here = isinstance(table.data, FaustStore)
    return is_here and table.changelog_topic_name == changelog_topic(app.conf.id, table.name)


def _spec(table: Any, defaults: Any) -> AnySpec:
    """Return the declaration of a table by its window and by the serializers of its store."""
    store, definition = table.data, _definition(table.window)
    key = store.key_serializer or defaults.key_serializer or "raw"
    value = store.value_serializer or defaults.value_serializer or "raw"
    keys = {codecs.json: _json_key(), codecs.raw: RawKey}.get(_kind(key))
    values = {codecs.json: Json(), codecs.raw: Bytes()}.get(_kind(value))
    if keys is None or values is None:
        identity = f"Faust's serializers {_name(key)} (keys) and {_name(value)} (values)"
        keys, values = keys or RawKey, AppSerde(identity)
    return StoreSpec(table.name, key=keys, value=values, definition=definition)


def _definition(window: Any) -> str:
    """Return which windows a table has, as JSON. Expiry is left out: it changes no window."""
    names = ("size", "step", "before", "after")
    settings = {name: getattr(window, name) for name in names if hasattr(window, name)}
    if window is not None and not settings:
        settings = {"class": type(window).__qualname__}
    return msgspec.json.encode({"window": settings or None}, order="sorted").decode()


def _kind(serializer: Any) -> type | None:
    """Return the class of a serializer of one step; None if it has several."""
    codec = codecs.get_codec(serializer)
    return type(codec) if len(getattr(codec, "nodes", (codec,))) == 1 else None


def _name(serializer: Any) -> str:
    return serializer if isinstance(serializer, str) else repr(serializer)


def _json_key() -> type:
    """Return the form of JSON that Faust writes here: orjson's if it is installed."""
    return JsonKey if codecs.dumps("json", "é") == '"é"'.encode() else AsciiJsonKey
