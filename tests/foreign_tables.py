"""Tables in a log as Faust leaves them, without Faust: recorded declarations, and bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from strandline.changelog.clock import SystemClock
from strandline.changelog.log import Log
from strandline.framework.store_declarations import StoreDeclarations
from strandline.statestore.foreign_keys import JsonKey
from strandline.statestore.json_values import Json
from strandline.statestore.spec import StoreSpec


def table(name: str, key: type = JsonKey, value: Any = None) -> StoreSpec[Any, Any]:
    """Return the declaration of a table; by default of JSON."""
    return StoreSpec(name, key=key, value=value or Json())


def record(log: Log, app: str, spec: StoreSpec[Any, Any], partitions: int = 2) -> str:
    """Create a table's changelog if need be, record its declaration, and return the topic."""
    topic = spec.changelog_topic(app)
    if topic not in {info.name for info in log.topics(internal=True)}:
        log.create_topic(topic, partitions, config={"cleanup.policy": "compact"})
    infos = {topic: log.broker.topic(topic)}
    StoreDeclarations(app, [spec], infos, log.broker, SystemClock(), can_upgrade=False).record()
    return topic


def write(log: Log, topic: str, entries: Iterable[tuple[bytes, bytes]], partition: int = 0) -> None:
    """Append keys and values to a partition of a changelog."""
    rows = [{"key": key, "value": value} for key, value in entries]
    log.append(topic, rows, key="key", partition=partition)
