"""What the log tells of its cleaner, as every process sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strandline.changelog.config import TopicConfig
from strandline.changelog.errors import InvalidTopic

CleaningState = Literal["idle", "waiting", "requested", "running", "failed"]


def check_compacted(topic: str, config: TopicConfig) -> None:
    """Raise InvalidTopic for a topic in which there is nothing to clean."""
    if not config.compact:
        raise InvalidTopic(
            f"topic {topic!r} is not compacted (cleanup.policy={config.cleanup_policy}), so there is "
            f"nothing to clean: its records go by age or size (retention.ms, retention.bytes), if at "
            f"all. If it holds events, leave it so. Only if a later record of a key makes the "
            f"earlier ones worthless: `strandline topics alter {topic} --config "
            f"cleanup.policy=compact` keeps the last record of each key and DELETES all earlier "
            f"ones, and records without a key, for good"
        )


def dirty_ratio(clean_bytes: int, dirty_bytes: int) -> float:
    """Dirty bytes / all bytes; 0 of nothing."""
    total = clean_bytes + dirty_bytes
    return dirty_bytes / total if total else 0.0


@dataclass(frozen=True, slots=True)
class CleanedPartition:
    """What one pass over a partition did."""

    started_ms: int
    """Wall-clock time, ms since 1970."""
    seconds: float
    throttled_seconds: float
    """Of these, spent waiting for `log.cleaner.io.max.bytes.per.second`."""
    start: int
    """First dirty offset before the pass."""
    end: int
    """First dirty offset after it."""
    whole: bool
    """Whether it got to the end of what could be cleaned; else the next pass goes on at `end`."""
    map_use: float
    """The part of the map's room that was taken, 0 to 1; 1 also if it was full several times."""
    read: int
    """Records looked at."""
    kept: int
    superseded: int
    """Records removed since a later one has their key."""
    tombstones: int
    """Tombstones removed, their `delete.retention.ms` being over."""
    aborted: int
    """Records of aborted transactions removed."""
    keyless: int
    """Records without a key removed."""
    markers: int
    """Transaction markers removed."""
    bytes_before: int
    """Of the segments that were rewritten."""
    bytes_after: int
    segments_before: int
    segments_after: int
    left_alone: int
    """Segments in which there was nothing to do."""
    spilled_bytes: int = 0
    """Of the file of keys that the map had no room for; 0: they all had."""


@dataclass(frozen=True, slots=True)
class CleaningStatus:
    """How things stand with one partition of a compacted topic."""

    topic: str
    partition: int
    clean_bytes: int
    dirty_bytes: int
    """That can be cleaned by now."""
    min_ratio: float
    """`min.cleanable.dirty.ratio`."""
    first_dirty: int
    """Below this offset no key has two records."""
    state: CleaningState
    """waiting: it is due; requested: somebody asked for it; running: a pass is at it; failed: the last
    pass failed; else idle."""
    done_bytes: int = 0
    """Read and written by the pass that runs."""
    total_bytes: int = 0
    """About what it has to read and write."""
    next_ms: int | None = None
    """When it is tried again after a failure, ms since 1970."""
    failures: int = 0
    """In a row."""
    reason: str = ""
    """Why the last pass failed."""
    last: CleanedPartition | None = None
    active_bytes: int = 0
    """Of the active segment, which is not cleaned before it is closed; neither clean nor dirty."""

    @property
    def ratio(self) -> float:
        """Dirty bytes / all bytes, but those that cannot be cleaned yet."""
        return dirty_ratio(self.clean_bytes, self.dirty_bytes)
