"""What can be set for a log as a whole, by the names of Kafka's broker settings.

Two kinds: defaults for topics that do not say otherwise (Kafka's ServerTopicConfigSynonyms), and
how the cleaner works. A topic's setting is what was set on it, else the log's default, else the
built-in one. All may be changed while the log is open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from strandline.changelog.config import TopicConfig, topic_settings
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.settings import (
    LONG_MAX,
    LONGEST_MS,
    Setting,
    SettingRange,
    Settings,
    check_names,
    checked_text,
)

_LEAST_BUFFER = 4096
_LARGEST_BUFFER = 1 << 40
_MOST_THREADS = 64


@dataclass(frozen=True, slots=True)
class CleanerConfig:
    """How the cleaner works: `log.cleaner.…`. Raises InvalidConfig when built with a wrong value."""

    enable: bool = True
    """Whether the cleaner runs by itself; on request it always does."""
    threads: Annotated[int, SettingRange(1, _MOST_THREADS)] = 1
    """How many partitions are cleaned at once."""
    dedupe_buffer_size: Annotated[int, SettingRange(_LEAST_BUFFER, _LARGEST_BUFFER, LONG_MAX)] = (
        128 << 20
    )
    """Bytes for the keys of a pass, of all threads together. (Kafka: at least 1 MiB a thread.)"""
    io_max_bytes_per_second: Annotated[int, SettingRange(1)] = LONG_MAX
    """What all threads together read and write at most, on average. (Kafka's may have a fraction.)"""
    backoff_ms: Annotated[int, SettingRange(1, LONGEST_MS, LONG_MAX)] = 15_000
    """How long to wait when nothing is due, and after a first failure. (Kafka: also 0.)"""

    def __post_init__(self) -> None:
        _CLEANER.check(self)
        if self.dedupe_buffer_size < self.threads * _LEAST_BUFFER:
            raise InvalidConfig(
                f"log.cleaner.dedupe.buffer.size ({self.dedupe_buffer_size}) is shared by "
                f"{self.threads} threads and must be at least {_LEAST_BUFFER} for each"
            )


@dataclass(frozen=True)
class LogConfig:
    """The settings of a log as a whole, valid. Raises InvalidConfig when built of others.

    >>> config = LogConfig({"log.retention.ms": "-1", "log.cleaner.threads": "2"})
    >>> config.cleaner.threads, config.topic({}).retention_ms
    (2, -1)
    >>> config.topic({"retention.ms": "5"}).retention_ms
    5
    """

    given: Mapping[str, str] = field(default_factory=dict)
    """What was set, by Kafka's names; never one of a setting's other names."""

    def __post_init__(self) -> None:
        check_names(self.given, NAMES, "log")
        for name, own in _TOPIC_NAMES.items():
            if name in self.given:
                topic_settings.value(own, self.given[name], name)
        self.topic({})
        _ = self.cleaner

    def altered(self, changes: Mapping[str, str | None]) -> LogConfig:
        """These settings with changes; None takes one back. Raises InvalidConfig.

        `log.retention.hours`, `log.retention.minutes` and `log.roll.hours` are taken too, and kept in ms.

        >>> LogConfig().altered({"log.retention.hours": "2"}).given
        {'log.retention.ms': '7200000'}
        """
        check_names(changes, (*NAMES, *_UNITS), "log")
        given, called = dict(self.given), dict[str, str]()
        for name, text in changes.items():
            own = _UNITS[name][0] if name in _UNITS else name
            if own in called:
                raise InvalidConfig(f"{called[own]} and {name} are one setting; give one of them")
            called[own] = name
            if text is None:
                given.pop(own, None)
            else:
                given[own] = _in_ms(name, text) if name in _UNITS else checked_text(text, name)
                _check_given(own, given[own])
        return LogConfig(given)

    def topic(self, config: Mapping[str, str]) -> TopicConfig:
        """All settings of a topic on which `config` was set. Raises InvalidConfig."""
        return TopicConfig.parse({**self.topic_defaults, **config})

    @cached_property
    def topic_defaults(self) -> Mapping[str, str]:
        """What was set for topics that do not say otherwise, by the topic's names."""
        return {own: self.given[name] for name, own in _TOPIC_NAMES.items() if name in self.given}

    @cached_property
    def cleaner(self) -> CleanerConfig:
        """How the cleaner works."""
        own = {name: text for name, text in self.given.items() if name in _CLEANER.names}
        return CleanerConfig(**_CLEANER.parse(own))

    def settings(self) -> list[Setting]:
        """Every setting, with its value and whether it was set."""
        topics = self.topic({}).as_strings()
        values = {name: topics[own] for name, own in _TOPIC_NAMES.items()}
        values |= _CLEANER.as_strings(self.cleaner)
        return [
            Setting(name, values[name], "log" if name in self.given else "default")
            for name in NAMES
        ]


_CLEANER = Settings(CleanerConfig, "log", "log.cleaner.")

_LOG_NAMES = {
    "segment.ms": "log.roll.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "max.message.bytes": "message.max.bytes",
    "compression.type": "compression.type",
}
"""What a topic's setting is called as the log's default, where that is not `log.` and its name."""
_TOPIC_NAMES = {_LOG_NAMES.get(own, f"log.{own}"): own for own in topic_settings.names}

_HOUR_MS = 60 * 60 * 1000
_UNITS = {
    "log.retention.hours": ("log.retention.ms", _HOUR_MS),
    "log.retention.minutes": ("log.retention.ms", 60 * 1000),
    "log.roll.hours": ("log.roll.ms", _HOUR_MS),
}
"""Other names of settings, in other units: how many ms one is."""

NAMES = tuple(sorted((*_TOPIC_NAMES, *_CLEANER.names)))
"""All settings of a log."""


def _check_given(name: str, text: str) -> None:
    if name in _TOPIC_NAMES:
        topic_settings.check_given(_TOPIC_NAMES[name], text, name)
    else:
        _CLEANER.check_given(name, text, name)


def _in_ms(name: str, text: str) -> str:
    own, unit = _UNITS[name]
    number = topic_settings.value(_TOPIC_NAMES[own], text, name)
    return str(number if number < 0 else number * unit)
