"""Settings of a log as a whole, by the names of Kafka's broker settings.

There are two kinds: defaults for topics (Kafka's ServerTopicConfigSynonyms), and settings of the
cleaner. The value of a topic's setting is the one set on the topic, else the log's default, else
the built-in default. All settings may be changed while the log is open.
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

_MIN_BUFFER_BYTES = 4096
_MAX_BUFFER_BYTES = 1 << 40
_MOST_THREADS = 64


@dataclass(frozen=True, slots=True)
class CleanerConfig:
    """Settings of the cleaner, `log.cleaner.…`. The constructor raises InvalidConfig."""

    enable: bool = True
    """True: the cleaner runs by itself. Requested cleanings always run."""
    threads: Annotated[int, SettingRange(1, _MOST_THREADS)] = 1
    """Number of partitions that are cleaned concurrently."""
    dedupe_buffer_size: Annotated[
        int, SettingRange(_MIN_BUFFER_BYTES, _MAX_BUFFER_BYTES, LONG_MAX)
    ] = 128 << 20
    """Bytes of memory for keys, for all threads together. (Kafka: at least 1 MiB per thread.)"""
    io_max_bytes_per_second: Annotated[int, SettingRange(1)] = LONG_MAX
    """Maximum average bytes per second that all threads together read and write. (Kafka allows
    fractions.)"""
    backoff_ms: Annotated[int, SettingRange(1, LONGEST_MS, LONG_MAX)] = 15_000
    """Milliseconds to wait when no partition is due, and after a first failure. (Kafka allows
    0.)"""

    def __post_init__(self) -> None:
        _CLEANER.check(self)
        if self.dedupe_buffer_size < self.threads * _MIN_BUFFER_BYTES:
            raise InvalidConfig(
                f"log.cleaner.dedupe.buffer.size ({self.dedupe_buffer_size}) is shared by "
                f"{self.threads} threads and must be at least {_MIN_BUFFER_BYTES} for each"
            )


@dataclass(frozen=True)
class LogConfig:
    """The settings of a log as a whole. The constructor raises InvalidConfig for invalid ones.

    >>> config = LogConfig({"log.retention.ms": "-1", "log.cleaner.threads": "2"})
    >>> config.cleaner.threads, config.topic({}).retention_ms
    (2, -1)
    >>> config.topic({"retention.ms": "5"}).retention_ms
    5
    """

    given: Mapping[str, str] = field(default_factory=dict)
    """Explicitly set values, by Kafka's names in milliseconds (`log.retention.ms`)."""

    def __post_init__(self) -> None:
        check_names(self.given, NAMES, "log")
        for name, own in _TOPIC_NAMES.items():
            if name in self.given:
                topic_settings.value(own, self.given[name], name)
        self.topic({})
        _ = self.cleaner

    def altered(self, changes: Mapping[str, str | None]) -> LogConfig:
        """Return these settings with changes; None resets one to its default.

        `log.retention.hours`, `log.retention.minutes` and `log.roll.hours` are accepted too, and
        stored in ms. Raises InvalidConfig.

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
        """Return the effective settings of a topic with settings `config`. Raises InvalidConfig."""
        return TopicConfig.parse({**self.topic_defaults, **config})

    @cached_property
    def topic_defaults(self) -> Mapping[str, str]:
        """Explicitly set defaults of topics, by the names of the topic's settings."""
        return {own: self.given[name] for name, own in _TOPIC_NAMES.items() if name in self.given}

    @cached_property
    def cleaner(self) -> CleanerConfig:
        """Settings of the cleaner."""
        own = {name: text for name, text in self.given.items() if name in _CLEANER.names}
        return CleanerConfig(**_CLEANER.parse(own))

    def settings(self) -> list[Setting]:
        """Return every setting with its value and the source of the value."""
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
"""Names of the log's defaults by the topic's names, where they are not `log.` plus that name."""
_TOPIC_NAMES = {_LOG_NAMES.get(own, f"log.{own}"): own for own in topic_settings.names}
"""Names of topic settings, by the names of the log's defaults for them."""

_HOUR_MS = 60 * 60 * 1000
_UNITS = {
    "log.retention.hours": ("log.retention.ms", _HOUR_MS),
    "log.retention.minutes": ("log.retention.ms", 60 * 1000),
    "log.roll.hours": ("log.roll.ms", _HOUR_MS),
}
"""Alternative names of settings in other units: the name in ms, and the unit in milliseconds."""

NAMES = tuple(sorted((*_TOPIC_NAMES, *_CLEANER.names)))
"""Names of all settings of a log."""


def _check_given(name: str, text: str) -> None:
    if name in _TOPIC_NAMES:
        topic_settings.check_given(_TOPIC_NAMES[name], text, name)
    else:
        _CLEANER.check_given(name, text, name)


def _in_ms(name: str, text: str) -> str:
    own, unit = _UNITS[name]
    number = topic_settings.value(_TOPIC_NAMES[own], text, name)
    return str(number if number < 0 else number * unit)
