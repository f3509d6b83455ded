"""Repartition topics: the same records by another key, through an internal topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strandline.changelog.errors import InvalidConfig
from strandline.framework.declarations import Declarations
from strandline.framework.handlers import check_finished, check_handler
from strandline.framework.record import Record
from strandline.framework.session import Session
from strandline.framework.task import TaskSpec
from strandline.framework.topic import Topic
from strandline.framework.topic_creation import KEEP_FOREVER
from strandline.statestore.internal_names import REPARTITION


def declare(
    session: Session,
    declared: Declarations,
    source: Topic[Any, Any],
    key: str | Callable[[Any], Any],
    name: str | None,
    key_type: Any,
    partitions: int | None,
) -> Topic[Any, Any]:
    """Declare the internal topic and the task that forwards to it; return the topic."""
    if name is None:
        if not isinstance(key, str):
            raise InvalidConfig("repartition() by a function needs name=")
        name = f"{source.name}-by-{key}"
    if not isinstance(key, str):
        check_handler(f"the key function of repartition {name!r}", key, may_be_async=False)
    topic = Topic[Any, Any](
        session,
        f"{session.app}-{name}{REPARTITION}",
        key=key if isinstance(key, str) else (key_type or str),
        value=source.kind,
        partitions=partitions if partitions is not None else source.partitions,
        serde=source.serde,
        config=KEEP_FOREVER,  # retention would delete records before the task reads them
    )
    topic.sources = (source,)
    topic.is_internal = True
    declared.add_topic(topic)
    chosen = _by_column if isinstance(key, str) else key

    def forward(record: Record[Any, Any]) -> None:
        chosen_key = chosen(record)
        check_finished(chosen_key, "the key function")
        topic.send(chosen_key, record.value, headers=record.headers)

    declared.add_task(TaskSpec(name, (source,), (), forward))
    return topic


def _by_column(_record: Record[Any, Any]) -> None:
    """Return None, because the topic takes the key from its column."""
