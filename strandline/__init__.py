"""Strandline: stateful stream processing in Python, exactly once.

    import strandline as sl

    app = sl.App("hello")
    words = app.topic("words", value=str)
    counts = app.topic("counts", value=int)
    seen = app.store("seen", key=str, value=int, default=0)

    @app.task(words, stores=[seen])
    def count(record: sl.Record[str, str]) -> None:
        seen[record.value] += 1
        counts.send(record.value, seen[record.value])

Start with `help(strandline.App)`. This package only re-exports names: the code is in
`strandline.framework`, `strandline.statestore` and `strandline.changelog`. Each name is imported
when it is first used, so that `import strandline` is quick and imports no package that a program
does not use.
"""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:
    from strandline.changelog.errors import (
        CorruptLog,
        Fenced,
        InvalidConfig,
        InvalidRecord,
        InvalidRequest,
        KeyInSeveralPartitions,
        NotInTask,
        Retriable,
        StorageFailed,
        StrandlineError,
        TaskFailed,
        TransactionAborted,
    )
    from strandline.framework import spark, testing
    from strandline.framework.app import App
    from strandline.framework.batch import Batch
    from strandline.framework.context import (
        TaskContext,
        cancel_timer,
        current_task,
        set_timer,
    )
    from strandline.framework.formats.avro import AvroSerde
    from strandline.framework.formats.json import JsonSerde
    from strandline.framework.formats.protobuf import ProtobufSerde
    from strandline.framework.formats.registry import SchemaRegistry
    from strandline.framework.logs import JsonFormatter
    from strandline.framework.offload.api import offload
    from strandline.framework.offload.loader import OffloadReport
    from strandline.framework.querying.client import Connection, connect
    from strandline.framework.querying.read_only_store import ReadOnlyStore
    from strandline.framework.record import Record
    from strandline.framework.store import Store
    from strandline.framework.streams.expressions import col, lit, when
    from strandline.framework.streams.stream import Stream
    from strandline.framework.streams.window_declarations import (
        count_window,
        hopping,
        session,
        sliding,
        tumbling,
    )
    from strandline.framework.topic import Topic
    from strandline.statestore.aggregates.declare import (
        any,  # noqa: A004
        collect,
        count,
        first,
        last,
        max,  # noqa: A004
        mean,
        min,  # noqa: A004
        n_unique,
        quantile,
        reducer,
        std,
        sum,  # noqa: A004
        top,
        var,
    )
    from strandline.statestore.serdes import Serde
    from strandline.statestore.spec import StoreLimits

__version__ = "0.1.0"

__all__ = [
    "App",
    "AvroSerde",
    "Batch",
    "Connection",
    "CorruptLog",
    "Fenced",
    "InvalidConfig",
    "InvalidRecord",
    "InvalidRequest",
    "JsonFormatter",
    "JsonSerde",
    "KeyInSeveralPartitions",
    "NotInTask",
    "OffloadReport",
    "ProtobufSerde",
    "ReadOnlyStore",
    "Record",
    "Retriable",
    "SchemaRegistry",
    "Serde",
    "StorageFailed",
    "Store",
    "StoreLimits",
    "StrandlineError",
    "Stream",
    "TaskContext",
    "TaskFailed",
    "Topic",
    "TransactionAborted",
    "any",
    "cancel_timer",
    "col",
    "collect",
    "connect",
    "count",
    "count_window",
    "current_task",
    "first",
    "hopping",
    "last",
    "lit",
    "max",
    "mean",
    "min",
    "n_unique",
    "offload",
    "quantile",
    "reducer",
    "session",
    "set_timer",
    "sliding",
    "spark",
    "std",
    "sum",
    "testing",
    "top",
    "tumbling",
    "var",
    "when",
]

_HOMES = {
    "CorruptLog": "strandline.changelog.errors",
    "Fenced": "strandline.changelog.errors",
    "InvalidConfig": "strandline.changelog.errors",
    "InvalidRecord": "strandline.changelog.errors",
    "InvalidRequest": "strandline.changelog.errors",
    "KeyInSeveralPartitions": "strandline.changelog.errors",
    "NotInTask": "strandline.changelog.errors",
    "Retriable": "strandline.changelog.errors",
    "StorageFailed": "strandline.changelog.errors",
    "StrandlineError": "strandline.changelog.errors",
    "TaskFailed": "strandline.changelog.errors",
    "TransactionAborted": "strandline.changelog.errors",
    "App": "strandline.framework.app",
    "TaskContext": "strandline.framework.context",
    "cancel_timer": "strandline.framework.context",
    "current_task": "strandline.framework.context",
    "set_timer": "strandline.framework.context",
    "AvroSerde": "strandline.framework.formats.avro",
    "Batch": "strandline.framework.batch",
    "JsonSerde": "strandline.framework.formats.json",
    "ProtobufSerde": "strandline.framework.formats.protobuf",
    "SchemaRegistry": "strandline.framework.formats.registry",
    "JsonFormatter": "strandline.framework.logs",
    "OffloadReport": "strandline.framework.offload.loader",
    "offload": "strandline.framework.offload.api",
    "Connection": "strandline.framework.querying.client",
    "ReadOnlyStore": "strandline.framework.querying.read_only_store",
    "connect": "strandline.framework.querying.client",
    "Record": "strandline.framework.record",
    "Store": "strandline.framework.store",
    "col": "strandline.framework.streams.expressions",
    "lit": "strandline.framework.streams.expressions",
    "when": "strandline.framework.streams.expressions",
    "Stream": "strandline.framework.streams.stream",
    "count_window": "strandline.framework.streams.window_declarations",
    "hopping": "strandline.framework.streams.window_declarations",
    "session": "strandline.framework.streams.window_declarations",
    "sliding": "strandline.framework.streams.window_declarations",
    "tumbling": "strandline.framework.streams.window_declarations",
    "Topic": "strandline.framework.topic",
    "any": "strandline.statestore.aggregates.declare",
    "collect": "strandline.statestore.aggregates.declare",
    "count": "strandline.statestore.aggregates.declare",
    "first": "strandline.statestore.aggregates.declare",
    "last": "strandline.statestore.aggregates.declare",
    "max": "strandline.statestore.aggregates.declare",
    "mean": "strandline.statestore.aggregates.declare",
    "min": "strandline.statestore.aggregates.declare",
    "n_unique": "strandline.statestore.aggregates.declare",
    "quantile": "strandline.statestore.aggregates.declare",
    "reducer": "strandline.statestore.aggregates.declare",
    "std": "strandline.statestore.aggregates.declare",
    "sum": "strandline.statestore.aggregates.declare",
    "top": "strandline.statestore.aggregates.declare",
    "var": "strandline.statestore.aggregates.declare",
    "Serde": "strandline.statestore.serdes",
    "StoreLimits": "strandline.statestore.spec",
}
"""Module that defines each exported name."""

_PACKAGES = {
    "changelog": "strandline.changelog",
    "framework": "strandline.framework",
    "spark": "strandline.framework.spark",
    "statestore": "strandline.statestore",
    "testing": "strandline.framework.testing",
}
"""Module of each exported module name."""


def __getattr__(name: str) -> typing.Any:
    """Import a name at its first use and make it an ordinary attribute of this module."""
    if name in _PACKAGES:
        found: typing.Any = importlib.import_module(_PACKAGES[name])
    elif name in _HOMES:
        found = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'strandline' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
