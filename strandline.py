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

This module only gathers names; `framework`, `statestore` and `changelog` hold the code.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import typing


def _check_packages() -> None:
    """The three package names are general: say so if another package took one of them."""
    here = os.path.dirname(os.path.realpath(__file__))
    for name in ("changelog", "statestore", "framework"):
        spec = importlib.util.find_spec(name)
        found = None if spec is None else spec.origin
        if found is None or os.path.dirname(os.path.dirname(os.path.realpath(found))) != here:
            raise ImportError(
                f"strandline needs its own package {name!r} beside {here}/strandline.py, but"
                f" Python finds {found or 'no module file for it'} first; remove or rename that"
                " one, or take its folder off sys.path (the current folder comes first there)"
            )


_check_packages()

from changelog.errors import (  # noqa: E402
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
from framework.app import App  # noqa: E402
from framework.context import (  # noqa: E402
    TaskContext,
    cancel_timer,
    current_task,
    set_timer,
)
from framework.formats.avro import AvroSerde  # noqa: E402
from framework.formats.json import JsonSerde  # noqa: E402
from framework.formats.registry import SchemaRegistry  # noqa: E402
from framework.logs import JsonFormatter  # noqa: E402
from framework.query import StoreView  # noqa: E402
from framework.querying.client import Connection, ReadOnlyStore, connect  # noqa: E402
from framework.record import Record  # noqa: E402
from framework.store import Store  # noqa: E402
from framework.topic import Topic  # noqa: E402
from statestore.aggregates import count, max, mean, min, sum  # noqa: E402, A004
from statestore.serdes import Serde  # noqa: E402
from statestore.spec import StoreLimits  # noqa: E402

if typing.TYPE_CHECKING:
    from framework import spark, testing
    from framework.formats.protobuf import ProtobufSerde

__version__ = "0.1.0"

__all__ = [
    "App",
    "AvroSerde",
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
    "ProtobufSerde",
    "ReadOnlyStore",
    "Record",
    "Retriable",
    "SchemaRegistry",
    "Serde",
    "StorageFailed",
    "Store",
    "StoreLimits",
    "StoreView",
    "StrandlineError",
    "TaskContext",
    "TaskFailed",
    "Topic",
    "TransactionAborted",
    "cancel_timer",
    "connect",
    "count",
    "current_task",
    "max",
    "mean",
    "min",
    "set_timer",
    "spark",
    "sum",
    "testing",
]

_LATER = {"testing": "framework.testing", "spark": "framework.spark"}
_OPTIONAL = {"ProtobufSerde": "framework.formats.protobuf"}


def __getattr__(name: str) -> typing.Any:
    """Parts that need more than most programs do are imported when they are first used."""
    if name in _LATER:
        return importlib.import_module(_LATER[name])
    if name in _OPTIONAL:
        return getattr(importlib.import_module(_OPTIONAL[name]), name)
    raise AttributeError(f"module 'strandline' has no attribute {name!r}")
