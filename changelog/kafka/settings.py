"""A topic's settings, by Kafka's names and values and by ours.

The names are the same. Of the values only one differs: a log without compression is `none` here
and `uncompressed` there. Kafka has settings that only a cluster needs (min.insync.replicas, …): they
are passed on when they are set, and are not shown, since `TopicConfig` does not have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka.admin import CONFIG_SOURCE_DYNAMIC_TOPIC_CONFIG

from changelog.config import TopicConfig, topic_settings
from changelog.errors import InvalidConfig

COMPRESSION = "compression.type"
_TO_KAFKA = {"none": "uncompressed"}
_FROM_KAFKA = {
    "uncompressed": "none",
    "producer": "none",  # the producer decides, and ours does not compress
}


def to_kafka(config: Mapping[str, str]) -> dict[str, str]:
    """Settings as Kafka takes them. Raises InvalidConfig for values of ours that are not allowed."""
    known = {name: value for name, value in config.items() if name in topic_settings.names}
    TopicConfig.parse(known)
    for name, value in config.items():
        if not isinstance(value, str):
            raise InvalidConfig(f"{name} must be a string: write {str(value)!r}, got {value!r}")
    return {
        name: _TO_KAFKA.get(value, value) if name == COMPRESSION else value
        for name, value in config.items()
    }


def from_kafka(entries: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """What was set on the topic, and what counts where nothing was, of described entries."""
    own: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, entry in entries.items():
        value = _ours(name, entry.value)
        if value is not None:
            is_own = int(entry.source) == CONFIG_SOURCE_DYNAMIC_TOPIC_CONFIG
            (own if is_own else others)[name] = value
    return own, others


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
