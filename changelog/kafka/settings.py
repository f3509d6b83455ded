"""A topic's settings, by Kafka's names and values and by ours.

The names are the same. Of the values only one differs: a log without compression is `none` here
and `uncompressed` there. Kafka has settings that only a cluster needs (min.insync.replicas, …): they
are passed on when they are set, and are shown then, though `TopicConfig` does not have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from confluent_kafka.admin import (
    CONFIG_SOURCE_DEFAULT_CONFIG,
    CONFIG_SOURCE_DYNAMIC_TOPIC_CONFIG,
)

from strandline.changelog.config import TopicConfig, topic_settings
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.kafka.address import REPLICATION_FACTOR
from strandline.changelog.settings import Setting, Source

COMPRESSION = "compression.type"
_KAFKAS = {"segment.bytes"}
"""What Kafka allows here depends on its version (from 4.1 on 1 MiB at least), so it is left to judge."""
_TO_KAFKA = {"none": "uncompressed"}
_FROM_KAFKA = {
    "uncompressed": "none",
    "producer": "none",  # the producer decides, and ours does not compress
}


def to_kafka(config: Mapping[str, str]) -> dict[str, str]:
    """Settings as Kafka takes them. Raises InvalidConfig for values of ours that are not allowed."""
    if REPLICATION_FACTOR in config:
        raise InvalidConfig(
            f"{REPLICATION_FACTOR} is no setting of a topic: give it in the URL, as "
            f"kafka://host?{REPLICATION_FACTOR}={config[REPLICATION_FACTOR]}, for topics that are made"
        )
    ours = set(topic_settings.names) - _KAFKAS
    TopicConfig.parse({name: value for name, value in config.items() if name in ours})
    for name, value in config.items():
        if not isinstance(value, str):
            raise InvalidConfig(f"{name} must be a string: write {str(value)!r}, got {value!r}")
    return {
        name: _TO_KAFKA.get(value, value) if name == COMPRESSION else value
        for name, value in config.items()
    }


class DescribedConfig(NamedTuple):
    """A topic's settings, as the cluster describes them."""

    own: dict[str, str]
    """What was set on the topic, as `TopicConfig` takes it."""
    others: dict[str, str]
    """What counts where nothing was, likewise."""
    told: list[Setting]
    """Those that `TopicConfig` has, and those that were set on the topic, by Kafka's values."""


def from_kafka(entries: Mapping[str, Any]) -> DescribedConfig:
    """Described entries."""
    found = DescribedConfig({}, {}, [])
    for name, entry in sorted(entries.items()):
        source = _source(int(entry.source))
        if entry.value is not None and (source == "topic" or name in topic_settings.names):
            shown = "none" if entry.value == _TO_KAFKA["none"] else entry.value
            found.told.append(Setting(name, shown, source))
        value = _ours(name, entry.value)
        if value is not None:
            (found.own if source == "topic" else found.others)[name] = value
    return found


def _source(kafkas: int) -> Source:
    if kafkas == CONFIG_SOURCE_DYNAMIC_TOPIC_CONFIG:
        return "topic"
    return "default" if kafkas == CONFIG_SOURCE_DEFAULT_CONFIG else "log"


def _ours(name: str, value: str | None) -> str | None:
    """Kafka's value as `TopicConfig` takes it; None for what it does not have."""
    if name not in topic_settings.names or value is None:
        return None
    if name == COMPRESSION:
        value = _FROM_KAFKA.get(value, value)
    try:
        topic_settings.value(name, value, name)
    except InvalidConfig:
        return None  # gzip, snappy, no cleanup.policy at all: others have set it
    return value
