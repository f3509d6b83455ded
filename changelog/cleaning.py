"""Status reports of the log's cleaner, as every process receives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strandline.changelog.config import TopicConfig
from strandline.changelog.errors import InvalidTopic

CleaningState = Literal["idle", "waiting", "requested", "running", "failed"]


def check_compacted(topic: str, config: TopicConfig) -> None:
    """Raise InvalidTopic for a topic that is not compacted, and so is never cleaned."""
    if not config.compact:
        raise InvalidTopic(
            f"topic {topic!r} is not compacted (cleanup.policy={config.cleanup_policy}), so there is "
            f"nothing to clean: its records go by age or size (retention.ms, retention.bytes), if at "
            f"all. If it holds events, leave it so. Only if a later record of a key makes the "
            f"earlier ones worthless: `strandline topics alter {topic} --config "
            f"cleanup.policy=compact` keeps the last record of each key and DELETES all earlier "
            f"ones, and records without a key, for good"
        )


def check_deletes_records(topic: str, config: TopicConfig) -> None:
    """Raise InvalidTopic for a topic that is only compacted: it keeps the last record of each key.

    Kafka refuses it as well (POLICY_VIOLATION). A changelog is such a topic, so its state would be
    lost.
    """
    if not config.delete:
        raise InvalidTopic(
            f"topic {topic!r} is only compacted (cleanup.policy={config.cleanup_policy}): it keeps "
            f"the last record of each key, so records before an offset cannot be deleted. Append a "
            f"record without a value to delete a key. If no reader needs the records, "
            f"cleanup.policy=compact,delete allows it; never set it on the changelog of a store"
        )


def dirty_ratio(clean_bytes: int, dirty_bytes: int) -> float:
    """Return dirty bytes / all bytes; 0 if there are none."""
    total = clean_bytes + dirty_bytes
    return dirty_bytes / total if total else 0.0


@dataclass(frozen=True, slots=True)
class CleanedPartition:
    """Report of one cleaning pass over a partition."""

    started_ms: int
    """Wall-clock time of the start, in milliseconds since the epoch."""
    seconds: float
    """Duration of the pass."""
    throttled_seconds: float
    """Part of `seconds` spent waiting for `log.cleaner.io.max.bytes.per.second`."""
    start: int
    """First dirty offset before the pass."""
    end: int
    """First dirty offset after the pass."""
    whole: bool
    """True if the pass reached the end of the cleanable records; else the next one starts at
    `end`."""
    map_use: float
    """Used fraction of the key map, 0 to 1; also 1 if the map was filled several times."""
    read: int
    """Number of records read."""
    kept: int
    """Number of records kept."""
    superseded: int
    """Number of records removed because a later record has the same key."""
    tombstones: int
    """Number of tombstones removed after their `delete.retention.ms`."""
    aborted: int
    """Number of removed records of aborted transactions."""
    keyless: int
    """Number of removed records without a key."""
    markers: int
    """Number of removed transaction markers."""
    bytes_before: int
    """Bytes of the rewritten segments before the pass."""
    bytes_after: int
    """Bytes of the rewritten segments after the pass."""
    segments_before: int
    """Number of rewritten segments before the pass."""
    segments_after: int
    """Number of segments that they became."""
    left_alone: int
    """Number of segments that needed no change."""
    spilled_bytes: int = 0
    """Bytes of keys that were spilled to a file because the map was full; 0 if all fitted."""


@dataclass(frozen=True, slots=True)
class CleaningStatus:
    """Cleaning status of one partition of a compacted topic."""

    topic: str
    partition: int
    clean_bytes: int
    """Bytes of the clean segments."""
    dirty_bytes: int
    """Bytes that can be cleaned now."""
    min_ratio: float
    """Value of `min.cleanable.dirty.ratio`."""
    first_dirty: int
    """Offset below which no key has two records."""
    state: CleaningState
    """State of the cleaning: "waiting" (a pass is due), "requested", "running" (a pass is
    running), "failed" (the last pass failed), or "idle"."""
    done_bytes: int = 0
    """Bytes read and written so far by the running pass."""
    total_bytes: int = 0
    """Approximate bytes that the running pass reads and writes in total."""
    next_ms: int | None = None
    """Time of the next attempt after a failure, in milliseconds since the epoch."""
    failures: int = 0
    """Number of consecutive failures."""
    reason: str = ""
    """Error message of the last failure."""
    last: CleanedPartition | None = None
    """Report of the last pass; None before the first."""
    active_bytes: int = 0
    """Bytes of the active segment. It is cleaned only once it is closed, and counts neither as
    clean nor as dirty."""

    @property
    def ratio(self) -> float:
        """Dirty bytes / all bytes, without bytes that cannot be cleaned yet."""
        return dirty_ratio(self.clean_bytes, self.dirty_bytes)
