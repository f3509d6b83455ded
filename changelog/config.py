"""Topic settings by Kafka's names, and rules for names of topics and clients.

`TopicInfo.config` has only settings that were set explicitly, as strings; `TopicConfig.parse`
converts them to typed values and fills in defaults. Every `TopicConfig` is checked when it is
created, so each one is valid. Names, meanings and defaults are those of Kafka's `TopicConfig` and
`LogConfig` unless a field says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from strandline.changelog.errors import InvalidConfig, InvalidTopic
from strandline.changelog.settings import INT_MAX, LONG_MAX, LONGEST_MS, SettingRange, Settings

CleanupPolicy = Literal["delete", "compact", "compact,delete"]
TimestampType = Literal["CreateTime", "LogAppendTime"]
Compression = Literal["none", "lz4", "zstd"]

MAX_PARTITIONS = 100_000
KEEP_EVERYTHING = -1
"""Value of `retention.ms` and `retention.bytes` that keeps everything."""

_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of one topic, complete and valid.

    Raises InvalidConfig when built with a value outside its range.

    >>> TopicConfig.parse({"cleanup.policy": "compact", "segment.bytes": "65536"}).compact
    True
    >>> TopicConfig.parse({"retention.sm": "1"})
    Traceback (most recent call last):
    strandline.changelog.errors.InvalidConfig: no topic setting is called 'retention.sm'; ...
    """

    cleanup_policy: CleanupPolicy = "delete"
    """Treatment of old records: "delete" old segments, "compact" keys to their last value, or
    both."""
    retention_ms: Annotated[int, SettingRange(KEEP_EVERYTHING)] = 7 * _DAY_MS
    """Maximum age of a segment's youngest record in milliseconds; then the segment is deleted.
    -1: unlimited."""
    retention_bytes: Annotated[int, SettingRange(KEEP_EVERYTHING)] = KEEP_EVERYTHING
    """Maximum size of a partition in bytes; above it, old segments are deleted. -1: unlimited."""
    segment_bytes: Annotated[int, SettingRange(4096, INT_MAX)] = 128 << 20
    """Maximum size of a segment in bytes. (Kafka: 1 GiB.)"""
    segment_ms: Annotated[int, SettingRange(1)] = 7 * _DAY_MS
    """Maximum message time that a segment spans, in milliseconds."""
    file_delete_delay_ms: Annotated[int, SettingRange(0, LONGEST_MS, LONG_MAX)] = 60_000
    """Milliseconds for which files of a deleted segment are kept for readers still using them."""
    min_cleanable_dirty_ratio: Annotated[float, SettingRange(0.0, 1.0)] = 0.5
    """Ratio of dirty bytes to all bytes above which a partition is compacted."""
    min_compaction_lag_ms: Annotated[int, SettingRange(0)] = 0
    """Milliseconds for which a new record is not compacted."""
    max_compaction_lag_ms: Annotated[int, SettingRange(1)] = LONG_MAX
    """Milliseconds after which a record is compacted whatever the dirty ratio."""
    delete_retention_ms: Annotated[int, SettingRange(0, LONGEST_MS, LONG_MAX)] = _DAY_MS
    """Milliseconds for which tombstones and transaction markers are kept after the first pass
    that found them."""
    max_message_bytes: Annotated[int, SettingRange(1, 1000 << 20)] = 100 << 20
    """Maximum size of a batch in bytes. (Kafka: about 1 MiB.)"""
    message_timestamp_type: TimestampType = "CreateTime"
    """Source of a record's timestamp: the producer ("CreateTime"), or the log's clock at the
    append ("LogAppendTime")."""
    message_timestamp_before_max_ms: Annotated[int, SettingRange(0)] = LONG_MAX
    """Maximum milliseconds by which a record's CreateTime may be before the log's clock."""
    message_timestamp_after_max_ms: Annotated[int, SettingRange(0)] = LONG_MAX
    """Maximum milliseconds by which a record's CreateTime may be after the log's clock. (Kafka 4:
    one hour.)"""
    compression_type: Compression = "none"
    """Compression of the bodies of batches. (Kafka's default leaves it to the producer.)"""
    index_interval_bytes: Annotated[int, SettingRange(0, INT_MAX)] = 4096
    """Approximate number of bytes between two entries of the offset index."""

    def __post_init__(self) -> None:
        topic_settings.check(self)
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfig(
                f"min.compaction.lag.ms ({self.min_compaction_lag_ms}) must not exceed "
                f"max.compaction.lag.ms ({self.max_compaction_lag_ms})"
            )

    @classmethod
    def parse(cls, config: Mapping[str, str]) -> TopicConfig:
        """Return the settings given as strings by Kafka's names, and defaults for the others.

        Raises InvalidConfig for an unknown name and for a value that is not allowed.
        """
        return cls(**topic_settings.parse(config))

    def as_strings(self) -> dict[str, str]:
        """Return all settings, including defaults, in the form that `parse` accepts.

        >>> TopicConfig(segment_ms=1000).as_strings()["segment.ms"]
        '1000'
        """
        return topic_settings.as_strings(self)

    @property
    def compact(self) -> bool:
        """True if keys are compacted."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """True if old segments are deleted."""
        return "delete" in self.cleanup_policy


def check_topic_name(name: str, internal: bool = False) -> None:
    """Raise InvalidTopic unless a topic may have this name (Kafka's `Topic.validate`).

    Names that begin with two underscores are reserved for the log and require `internal`.

    >>> check_topic_name("orders.eu-west_1")
    >>> check_topic_name("orders/eu")
    Traceback (most recent call last):
    strandline.changelog.errors.InvalidTopic: a topic cannot be called 'orders/eu': '/' is not
    allowed; use letters, digits, '.', '_' and '-'
    """
    if problem := _problem_with_name(name, internal):
        raise InvalidTopic(f"a topic cannot be called {name[: 2 * _MAX_NAME_CHARS]!r}: {problem}")


def check_partitions(name: str, partitions: int, present: int = 0) -> None:
    """Raise InvalidConfig unless a topic with `present` partitions may get `partitions`."""
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidConfig(
            f"topic {name!r}: the number of partitions is 1 to {MAX_PARTITIONS}, got {partitions!r}"
        )
    if partitions < present:
        raise InvalidConfig(
            f"topic {name!r} has {present} partitions and cannot shrink to {partitions}; "
            f"create another topic and copy"
        )


def check_client_name(what: str, name: str) -> None:
    """Raise InvalidConfig unless a group or transactional producer may have this name.

    >>> check_client_name("a group", "flights/eu 1")
    >>> check_client_name("a group", "")
    Traceback (most recent call last):
    strandline.changelog.errors.InvalidConfig: the name of a group has 1 to 1000 printable
    characters, got ''
    """
    if not 0 < len(name) <= _MAX_CLIENT_NAME_CHARS or not name.isprintable():
        raise InvalidConfig(
            f"the name of {what} has 1 to {_MAX_CLIENT_NAME_CHARS} printable characters, "
            f"got {name[:80]!r}"
        )


def is_text(text: str) -> bool:
    """Return True if a str has a form in UTF-8, which a lone surrogate has not.

    >>> is_text("ö"), is_text("\\ud800")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


topic_settings = Settings(TopicConfig, "topic")

_MAX_NAME_CHARS = 249
_MAX_CLIENT_NAME_CHARS = 1000


def _problem_with_name(name: str, internal: bool) -> str:
    if not name or name in (".", ".."):
        return "it must not be empty, '.' or '..'"
    if len(name) > _MAX_NAME_CHARS:
        return f"it has {len(name)} characters, at most {_MAX_NAME_CHARS} are allowed"
    if strange := re.search(r"[^a-zA-Z0-9._-]", name):
        return f"{strange.group()!r} is not allowed; use letters, digits, '.', '_' and '-'"
    if name.startswith("__") and not internal:
        return "names that begin with '__' are reserved for the log's own topics"
    return ""
