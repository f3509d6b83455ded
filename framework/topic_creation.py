"""Creation of an app's topics in the log, and the comparison of those that exist."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from strandline.changelog.broker import Broker
from strandline.changelog.errors import InvalidConfig, SchemaMismatch, TopicExists, UnknownTopic
from strandline.changelog.records import TopicInfo
from strandline.changelog.schema import ValueSchemas, extends
from strandline.framework.topic import Topic

_log = logging.getLogger("strandline")

KEEP_FOREVER = {"retention.ms": "-1"}
"""Default settings of an app's topic.

Retention goes by the records' own time, so Kafka's default of seven days would delete a file of
last year's events minutes after it was appended.
"""
DEAD_LETTER_ROOM_BYTES = 64 << 10
"""Bytes by which a dead letter may be larger than the largest record of its task's inputs."""
LARGEST_MESSAGE_BYTES = 1000 << 20
"""Largest `max.message.bytes` that every log accepts."""
KEYS_MOVED = (
    "reset the app; and because records keep the partition they were written to, let a task read the "
    "topic through app.repartition(topic, key), and a stream group by a copy of the key, "
    ".with_columns(copy=sl.col(key))"
)
"""Advice for an app with state, after its input got more partitions."""


def created_or_checked(
    broker: Broker,
    topic: Topic[Any, Any],
    config: Mapping[str, str],
    infos: Mapping[str, TopicInfo],
) -> TopicInfo:
    """Create a topic with settings `config`, or check it, and extend its columns if necessary.

    Args:
        infos: Descriptions of the app's topics that exist already, by name.

    Raises:
        InvalidConfig: It has another number of partitions.
        SchemaMismatch: It has columns that the declaration does not extend.
    """
    try:
        info = broker.topic(topic.name)
    except UnknownTopic:
        sources = [
            infos[source.name].partitions for source in topic.sources if source.name in infos
        ]
        try:
            return broker.create_topic(
                topic.name,
                partitions_of_new(topic, sources),
                config={**KEEP_FOREVER, **config},
                schema=topic.stored_schema,
            )
        except TopicExists:  # another worker of the app created it after the look-up
            return broker.topic(topic.name)
    difference = compared(topic, info)
    if difference.settings:
        _log.warning(
            "topic %r exists, so its declared settings do not apply: %s; change it with "
            "`strandline topics alter`, or change config=",
            *(topic.name, difference.settings),
            extra={"topic": topic.name},
        )
    if difference.adds_columns:
        return broker.alter_topic(topic.name, schema=topic.stored_schema)
    return info


def partitions_of_new(topic: Topic[Any, Any], sources: Iterable[int]) -> int:
    """Return the number of partitions that a topic is created with.

    Args:
        topic: The topic.
        sources: Numbers of partitions of the topics that its records are made of.
    """
    return topic.partitions or max(sources, default=1)


class Difference(NamedTuple):
    """Difference between a topic that exists and its declaration."""

    adds_columns: bool
    """True if the declaration adds columns to the topic."""
    settings: str
    """Declared settings that the topic does not have, in words; "" if there are none."""


def compared(topic: Topic[Any, Any], info: TopicInfo) -> Difference:
    """Compare a topic with its declaration, which follows the topic's columns if it is derived.

    Raises:
        InvalidConfig: It has another number of partitions.
        SchemaMismatch: It has columns that the declaration does not extend.
    """
    if topic.is_derived and topic.stored_schema is not None and info.schema is not None:
        topic.follow(info.schema)
    try:
        adds_columns = _adds_columns(topic, info)
    except SchemaMismatch as error:
        if not topic.is_internal:
            raise
        raise SchemaMismatch(
            f"{error}. It has rows between two tasks of the app: declare them as before; or reset the "
            "app (`strandline reset`), or give what reads them another name"
        ) from error
    return Difference(adds_columns, _unlike_settings(topic, info))


def _adds_columns(topic: Topic[Any, Any], info: TopicInfo) -> bool:
    if topic.partitions not in (None, info.partitions):
        fix = (
            "`strandline reset` makes it again, with the state that was made of it"
            if topic.is_internal
            else f"declare {info.partitions}. `strandline topics add-partitions` adds some, but keys "
            f"then change their partitions: {KEYS_MOVED}"
        )
        raise InvalidConfig(
            f"topic {topic.name!r} has {info.partitions} partitions, but is declared with"
            f" {topic.partitions}; {fix}"
        )
    schema = topic.stored_schema
    if info.schema is None or schema is None:
        if info.schema is not schema:
            raise _other_form(topic, info)
        return False
    if extends(info.schema, schema):
        return False
    ValueSchemas((info.schema,)).extended(schema, topic.name)
    return True


def copartitioned(task: str, partitions: Mapping[str, int]) -> int:
    """Return the number of partitions that all inputs of a task have. Raises InvalidConfig.

    Args:
        task: Name of the task.
        partitions: Number of partitions of each input.
    """
    if len(set(partitions.values())) > 1:
        raise InvalidConfig(
            f"the inputs of task {task!r} have different numbers of partitions:"
            f" {partitions}; use app.repartition(..., partitions=...) for one of them"
        )
    return next(iter(partitions.values()))


def check_changelog(info: TopicInfo, task: str, partitions: int) -> None:
    """Raise InvalidConfig if a changelog has other partitions than the inputs of its task."""
    if info.partitions != partitions:
        raise InvalidConfig(
            f"changelog {info.name!r} has {info.partitions} partitions, but the input of task"
            f" {task!r} has {partitions}: its state would be on the wrong partitions. If partitions "
            f"were added, {KEYS_MOVED}"
        )


def _unlike_settings(topic: Topic[Any, Any], info: TopicInfo) -> str:
    found = {setting.name: setting.value for setting in info.settings()} if topic.config else {}
    found |= info.config  # as it was given, because the log may write a number in another way
    return ", ".join(
        f"{name} is {found[name]}, not {value}" if name in found else f"{name} is no setting"
        for name, value in topic.config.items()
        if found.get(name) != value
    )


def dead_letter_config(inputs: Iterable[TopicInfo]) -> dict[str, str]:
    """Return the settings of a new dead-letter topic: room for input records and more headers."""
    largest = max(info.effective.max_message_bytes for info in inputs)
    return {"max.message.bytes": str(min(largest + DEAD_LETTER_ROOM_BYTES, LARGEST_MESSAGE_BYTES))}


def _other_form(topic: Topic[Any, Any], info: TopicInfo) -> SchemaMismatch:
    """Return the error for a topic that is declared as columns but holds bytes, or vice versa."""
    if info.schema is None:
        fix = "name the form of the bytes (serde=), or use another topic"
        return SchemaMismatch(
            f"topic {topic.name!r} holds bytes, but is declared with {topic.values.arrow}; {fix}"
        )
    fix = "declare its columns and no serde=, or use another topic"
    return SchemaMismatch(
        f"topic {topic.name!r} holds columns {info.schema.names}, but is declared with values that"
        f" are bytes in the log; {fix}"
    )
