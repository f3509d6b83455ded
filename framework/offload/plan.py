"""Decisions of a run: where each partition continues, how far it goes, and what is gone.

All of them are made from plain values: the progress of the target, and the bounds of the partitions
now. A position of another history is refused, because both histories may give the same offset to
different records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from strandline.changelog.errors import InvalidRequest, OffsetOutOfRange, SchemaMismatch
from strandline.changelog.history import HistoryEpoch
from strandline.changelog.records import PartitionOffsets
from strandline.framework.offload.progress import PartitionProgress, Progress

Bounds = Mapping[int, PartitionOffsets]
"""Bounds of the partitions of the topic, by number."""

ANOTHER_FOLDER = "load into another folder"


class Gap(NamedTuple):
    """Records of one partition that were removed before they were loaded."""

    partition: int
    start: int
    end: int
    """End (exclusive)."""
    tombstones: bool = False
    """True if only tombstones are missing, which compaction has removed."""

    def __str__(self) -> str:
        what = "tombstones" if self.tombstones else "records"
        return f"partition {self.partition}: {what} from offset {self.start} to {self.end - 1}"


class Span(NamedTuple):
    """Offsets of one partition that one task loads."""

    partition: int
    start: int
    end: int
    """End (exclusive)."""
    epoch: HistoryEpoch
    """Epoch that names the position at `start`."""


class Round(NamedTuple):
    """One commit of a run."""

    spans: list[Span]
    gaps: list[Gap]


def plan_round(
    progress: Progress | None, now: Bounds, ends: Mapping[int, int], limit: int
) -> Round:
    """Return what the next commit loads.

    Args:
        progress: Progress of the target; None if it is new.
        now: Present bounds of all partitions.
        ends: Offsets at which the run ends.
        limit: Maximum number of offsets of each partition.

    Raises:
        InvalidRequest: A partition has another history than the target.
    """
    spans, gaps = [], []
    for partition, bounds in sorted(now.items()):
        at = start = bounds.log_start
        if progress is not None:
            check_history(progress, partition, bounds)
            gaps += find_gaps(progress, partition, bounds)
            at = progress.position(partition).offset
            start = max(start, at)
        end = min(max(ends[partition], start), start + limit)
        # A new target records where each partition begins, also if there is nothing to load.
        if progress is None or at < end:
            spans.append(Span(partition, start, end, bounds.epoch_before(start)))
    return Round(spans, gaps)


def check_history(progress: Progress, partition: int, now: PartitionOffsets) -> None:
    """Raise InvalidRequest if a partition has another history than the one that was loaded."""
    problem = now.reading_divergence(progress.position(partition))
    if problem:
        raise InvalidRequest(
            f"{progress.topic}-{partition} was loaded to offset {progress.position(partition).offset}, but "
            f"{problem}. The log lost its tail, or was restored from a backup and written to since, or "
            f"the topic was created again; {ANOTHER_FOLDER}"
        )


def find_gaps(progress: Progress, partition: int, now: PartitionOffsets) -> list[Gap]:
    """Return what was removed from a partition before it was loaded."""
    at = progress.position(partition).offset
    gaps = [Gap(partition, at, now.log_start)] if now.log_start > at else []
    known = partition in progress.partitions
    if known and now.must_start_over(at, progress.settled_end(partition)):
        gaps.append(Gap(partition, at, now.purged_end, tombstones=True))
    return gaps


def lost(topic: str, gaps: list[Gap]) -> OffsetOutOfRange:
    """Return the error for records that are gone."""
    return OffsetOutOfRange(
        f"topic {topic!r} no longer has all that is to be loaded: {'; '.join(map(str, gaps))}. To go on "
        "without them, add --on-data-loss continue (on_data_loss='continue'); to prevent it, load more "
        "often, or raise retention.ms (retention.bytes, delete.retention.ms) of the topic"
    )


def begun(progress: Progress, span: Span, first: PartitionOffsets) -> PartitionProgress:
    """Return the position at the start of a span.

    Args:
        progress: Progress of the target; its positions of a new target are empty.
        span: Offsets that are about to be loaded.
        first: Bounds of the partition before it is read. Tombstones that it no longer has are not
            missed: the target has none of the records that they deleted, or that was accepted.
    """
    if span.partition in progress.partitions:
        settled = max(progress.settled_end(span.partition), first.purged_end)
    else:
        settled = first.settled_end
    return PartitionProgress(span.start, span.epoch.number, span.epoch.incarnation, settled)


def check_extends(wanted: pa.Schema, have: pa.Schema) -> list[pa.Field]:
    """Return the columns that are to be added to a target. Raise SchemaMismatch.

    >>> have = pa.schema([("n", pa.int64())])
    >>> check_extends(have.append(pa.field("x", pa.string())), have)
    [pyarrow.Field<x: string>]
    """
    for field in have:
        at = wanted.get_field_index(field.name)
        got = wanted.field(at).type if at >= 0 else "no such column"
        if got != field.type:
            raise SchemaMismatch(
                f"column {field.name!r} of the target is {field.type}, the topic has {got}; columns can only "
                f"be added: {ANOTHER_FOLDER}"
            )
        if wanted.field(at).nullable and not field.nullable:
            raise SchemaMismatch(
                f"column {field.name!r} of the target must not be null, and the topic's may be: make it "
                f"nullable, or {ANOTHER_FOLDER}"
            )
    return [field for field in wanted if have.get_field_index(field.name) < 0]
