"""Conversion of topic settings between this package and Kafka.

The names are the same. Only one value differs: no compression is `none` in this package and
`uncompressed` in Kafka. Settings that only a cluster has (min.insync.replicas, …) are passed on
when they are set, and are shown then, although `TopicConfig` does not have them.
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
from strandline.changelog.settings import LONG_MAX, Setting, Source

COMPRESSION = "compression.type"
_CHECKED_BY_KAFKA = {"segment.bytes"}
"""Settings that only Kafka checks, because the range depends on its version (at least 1 MiB from
4.1 on)."""
CREATED_WITH = {"message.timestamp.after.max.ms": str(LONG_MAX)}
"""Defaults of topics created here, in place of Kafka's; they are not shown as given. With Kafka's
one hour, a process whose clock is ahead of a broker's could not write the records that it stamps
itself, such as changes of state."""
_TO_KAFKA = {"none": "uncompressed"}
_FROM_KAFKA = {
    "uncompressed": "none",
    "producer": "none",  # the producer decides, and this package's does not compress
}


def to_kafka(config: Mapping[str, str]) -> dict[str, str]:
    """Return settings with Kafka's values. Raises InvalidConfig for values that are not allowed."""
    if REPLICATION_FACTOR in config:
        raise InvalidConfig(
            f"{REPLICATION_FACTOR} is no setting of a topic: give it in the URL, as "
            f"kafka://host?{REPLICATION_FACTOR}={config[REPLICATION_FACTOR]}, for topics that are made"
        )
    ours = set(topic_settings.names) - _CHECKED_BY_KAFKA
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
    """Settings of the topic itself, with values for `TopicConfig`."""
    others: dict[str, str]
    """Effective values of settings that are not set on the topic, for `TopicConfig`."""
    told: list[Setting]
    """Settings that `TopicConfig` has or that are set on the topic, with Kafka's values."""

    def set_to(self, name: str) -> str | None:
        """Return the value that is set on the topic, or that topics created here have."""
        return self.own.get(name, self.others.get(name) if name in CREATED_WITH else None)


def from_kafka(entries: Mapping[str, Any]) -> DescribedConfig:
    """Convert the entries of Kafka's description of a topic's settings."""
    found = DescribedConfig({}, {}, [])
    for name, entry in sorted(entries.items()):
        source = _source(int(entry.source))
        if entry.value is not None and (source == "topic" or name in topic_settings.names):
            shown = "none" if entry.value == _TO_KAFKA["none"] else entry.value
            found.told.append(Setting(name, shown, source))
        value = _ours(name, entry.value)
        if value is not None and CREATED_WITH.get(name) == value:
            found.others[name] = value
        elif value is not None:
            (found.own if source == "topic" else found.others)[name] = value
    return found


def _source(kafkas: int) -> Source:
    if kafkas == CONFIG_SOURCE_DYNAMIC_TOPIC_CONFIG:
        return "topic"
    return "default" if kafkas == CONFIG_SOURCE_DEFAULT_CONFIG else "log"


def _ours(name: str, value: str | None) -> str | None:
    """Return Kafka's value as a value for `TopicConfig`; None if that does not support it."""
    if name not in topic_settings.names or value is None:
        return None
    if name == COMPRESSION:
        value = _FROM_KAFKA.get(value, value)
    try:
        topic_settings.value(name, value, name)
    except InvalidConfig:
        return None  # values that only Kafka has: gzip, snappy, an empty cleanup.policy
    return value
