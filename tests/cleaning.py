"""Cleaning when a test says so, for tests of those who read a topic while it is cleaned."""

from __future__ import annotations

from copy import copy

from changelog.embedded.cleaning import cleaner
from changelog.embedded.owner import Owner
from changelog.records import TopicPartition

MEMORY = 1 << 20
RETENTION_MS = 86_400_000
"""`delete.retention.ms` of the topics that are cleaned here: its default."""


class CutShort(Exception):
    """A pass ends before it is done."""


def close_segment(owner: Owner, tp: TopicPartition) -> None:
    """What has been appended by now is a segment of its own, and stays one."""
    partition = owner._partition(tp)
    with partition.lock:
        # Each is rewritten by itself. A topic may not have so little.
        partition.config = copy(partition.config)
        object.__setattr__(partition.config, "segment_bytes", 1)
        if partition.segments and partition.segments[-1].size:
            partition.roll()


def clean(
    owner: Owner, tp: TopicPartition, *, purge: bool = False, frames: int | None = None
) -> cleaner.Pass:
    """One pass over what is closed; see `changelog.embedded.cleaning.cleaner.clean`.

    With `purge` it goes by a clock that is RETENTION_MS ahead, so the tombstones that earlier passes have
    left are removed. After so many `frames` it is cut short.
    """
    partition = owner._partition(tp)
    left = iter(range(frames)) if frames is not None else None

    def pace(_: int) -> None:
        if left is not None and next(left, None) is None:
            raise CutShort

    now_ms = partition.environment.clock.now_ms()
    with partition.cleaning:
        return cleaner.clean(
            partition,
            memory=MEMORY,
            pace=pace,
            now_ms=now_ms + RETENTION_MS + 1 if purge else now_ms,
        )
