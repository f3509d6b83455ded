"""Division of planned ranges into Spark's tasks, by the bytes that they take in the log.

A Spark task costs about 0.1 s of its own, and runs on one core. Small partitions are therefore read
together by one task, and a large one is divided among several. A task reads its ranges one after
another, each in the order of its offsets.

Sizes come from the log (`Broker.extents`). Between two positions whose bytes are known, bytes are
taken to be spread evenly over the offsets, so a range can be cut at any offset. On a log that does
not report sizes, a record is taken to have `RECORD_BYTES`.
"""

from __future__ import annotations

import logging
import math
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from strandline.changelog.broker import Broker
from strandline.changelog.errors import InvalidRequest
from strandline.changelog.extents import Extent, OffsetSpan
from strandline.changelog.records import TopicPartition
from strandline.framework.spark.options import SourceOptions
from strandline.framework.spark.planning import OffsetRange, share

_log = logging.getLogger(__name__)

LEAST_TASK_BYTES = 32 << 20
"""Size below which a read is not divided further only to use more cores."""
RECORD_BYTES = 256
"""Assumed bytes of a record in a log that does not report sizes."""
SIZE_TOLERANCE = 0.1
"""Part of a task's size by which a task may be larger or smaller to end with a whole range."""

Task = tuple[OffsetRange, ...]
"""Ranges that one task reads, in order."""

Extents = Mapping[TopicPartition, Sequence[Extent]]
"""Positions and sizes of records, by partition."""


class SizedRange(NamedTuple):
    """A range, or a part of one, with its approximate number of bytes."""

    range: OffsetRange
    size: float

    def offset_after(self, size: float) -> int:
        """Return the offset after about `size` bytes; at most the last offset of the range."""
        first, last = self.range.start, self.range.end
        return min(last - 1, first + round((last - first) * size / self.size))


def task_count(total: float, *, max_bytes: int, least: int, cores: int) -> int:
    """Return the number of tasks for a read of `total` bytes.

    It is a multiple of `cores` if it is larger, so that no core waits for the last tasks.

    Args:
        total: Bytes to read.
        max_bytes: Approximate maximum number of bytes of a task.
        least: Minimum number of tasks.
        cores: Number of tasks that probably run at the same time.

    >>> [task_count(mib << 20, max_bytes=32 << 20, least=1, cores=4) for mib in (1, 40, 130, 200)]
    [1, 2, 8, 8]
    """
    by_size = math.ceil(total / max_bytes)
    spread = min(cores, math.ceil(total / LEAST_TASK_BYTES))
    count = max(1, by_size, spread)
    if count > cores:
        count = math.ceil(count / cores) * cores
    return max(count, least)


def tasks_of(broker: Broker, options: SourceOptions, ranges: Sequence[OffsetRange]) -> list[Task]:
    """Return the tasks that read `ranges` of records."""
    extents = extents_of(broker, ranges, options.max_task_bytes // 8)
    return divide(ranges, extents, _count(options, ranges, extents))


def table_tasks(
    broker: Broker, options: SourceOptions, ranges: Sequence[OffsetRange]
) -> list[Task]:
    """Return the tasks that read tables, each of which needs the whole range of its partition."""
    extents = extents_of(broker, ranges, options.max_task_bytes)
    return combine(ranges, extents, _count(options, ranges, extents))


def extents_of(broker: Broker, ranges: Sequence[OffsetRange], extent_bytes: int) -> Extents:
    """Return the extents of the ranges; none from an owner that does not know the call."""
    spans = {each.topic_partition: OffsetSpan(each.start, each.end) for each in ranges}
    try:
        return broker.extents(spans, extent_bytes=extent_bytes)
    except InvalidRequest as error:
        _log.warning("tasks are divided by offsets, because the log's owner is older: %s", error)
        return {}


def _count(options: SourceOptions, ranges: Sequence[OffsetRange], extents: Extents) -> int:
    return task_count(
        sum(size_of(each, extents) for each in ranges),
        max_bytes=options.max_task_bytes,
        least=options.min_tasks,
        cores=os.cpu_count() or 1,
    )


def divide(ranges: Sequence[OffsetRange], extents: Extents, count: int) -> list[Task]:
    """Return at most `count` tasks of about the same size that together read the ranges.

    The tasks follow the order of the ranges. There are fewer if there are fewer offsets.
    """
    pieces = [[*pieces_of(each, extents)] for each in ranges]
    ends = [*accumulate(sum(piece.size for piece in each) for each in pieces)]
    goal = ends[-1] / count if ends else 0
    cuts: set[_Cut] = set()
    for at in (goal * number for number in range(1, count)):
        index = bisect_right(ends, at)
        near = _nearest(ends, at)
        if index == len(ends) or abs(ends[near] - at) <= SIZE_TOLERANCE * goal:
            cuts.add((near + 1, 0))
        else:
            cuts.add((index, _offset_at(pieces[index], at - (ends[index - 1] if index else 0))))
    return _cut(ranges, sorted(cuts))


def combine(ranges: Sequence[OffsetRange], extents: Extents, count: int) -> list[Task]:
    """Return at most `count` tasks of about the same size, each of whole ranges."""
    ends = [*accumulate(size_of(each, extents) for each in ranges)]
    goal = ends[-1] / count if ends else 0
    cuts = {(_nearest(ends, goal * number) + 1, 0) for number in range(1, count)}
    return _cut(ranges, sorted(cuts))


def ends_within(
    ranges: Sequence[OffsetRange], extents: Extents, limit: int
) -> dict[TopicPartition, int]:
    """Return the ends of a read of about `limit` bytes of the ranges.

    The limit is divided in proportion to the bytes of each range, as `planning.share` does.
    """
    shares = share(limit, {r.topic_partition: math.ceil(size_of(r, extents)) for r in ranges})
    return {r.topic_partition: _end_within(r, extents, shares[r.topic_partition]) for r in ranges}


def _end_within(range_: OffsetRange, extents: Extents, size: int) -> int:
    if size >= size_of(range_, extents):
        return range_.end
    end = _offset_at([*pieces_of(range_, extents)], size)
    return max(end, range_.start + 1) if size else range_.start


def size_of(range_: OffsetRange, extents: Extents) -> float:
    """Return about how many bytes a range has."""
    return sum(piece.size for piece in pieces_of(range_, extents))


def pieces_of(range_: OffsetRange, extents: Extents) -> Iterator[SizedRange]:
    """Iterate over parts of a range, in order and without gaps, each with its size."""
    known = [e for e in extents.get(range_.topic_partition, ()) if e.offset < range_.end]
    if not known:
        yield SizedRange(range_, (range_.end - range_.start) * RECORD_BYTES)
        return
    starts = [range_.start, *(max(range_.start, each.offset) for each in known[1:])]
    for start, end, extent in zip(starts, [*starts[1:], range_.end], known, strict=True):
        if start < end:
            yield SizedRange(replace(range_, start=start, end=end), max(1, extent.size))


_Cut = tuple[int, int]
"""Index of a range, and the offset at which it is cut; 0 cuts before the range."""


def _nearest(ends: list[float], at: float) -> int:
    """Return the index of the end that is nearest to `at`."""
    after = min(bisect_right(ends, at), len(ends) - 1)
    return after - 1 if after and at - ends[after - 1] < ends[after] - at else after


def _offset_at(pieces: list[SizedRange], size: float) -> int:
    """Return the offset after about `size` bytes of a range's pieces."""
    for piece in pieces[:-1]:
        if size < piece.size:
            break
        size -= piece.size
    else:
        piece = pieces[-1]
    return piece.offset_after(size)


def _cut(ranges: Sequence[OffsetRange], cuts: list[_Cut]) -> list[Task]:
    """Return the tasks between the cuts."""
    tasks: list[list[OffsetRange]] = [[]]
    waiting = deque(cuts)
    for index, each in enumerate(ranges):
        while waiting and waiting[0][0] <= index:
            offset = max(waiting.popleft()[1], each.start)
            if offset > each.start:
                tasks[-1].append(replace(each, end=offset))
                each = replace(each, start=offset)
            tasks.append([])
        tasks[-1].append(each)
    return [tuple(task) for task in tasks if task]
