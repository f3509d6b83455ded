"""The offsets at which a worker's tasks start."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from strandline.changelog.errors import OffsetOutOfRange
from strandline.changelog.records import CommittedOffset, PartitionOffsets, TopicPartition
from strandline.framework.positions import position_of

_log = logging.getLogger("strandline")


def check_history(
    committed: Mapping[TopicPartition, CommittedOffset],
    ends: Mapping[TopicPartition, PartitionOffsets],
) -> None:
    """Raise OffsetOutOfRange if a committed offset is of another history than its partition.

    Offsets and inputs are in one log, so their histories differ only if a part of the log's folder
    was replaced by a copy. It is unknown then which records are in the stores, so the app does not
    start.
    """
    for tp, at in committed.items():
        now = ends[tp]
        if (
            at.incarnation
            and at.topic_id == now.topic_id
            and (problem := now.reading_divergence(at))
        ):
            raise OffsetOutOfRange(
                f"{tp}: the app goes on at offset {at.offset}, but {problem}. Restore the whole "
                "log folder from one copy, or start over with `strandline reset`"
            )


def starting_offset(
    task: str,
    tp: TopicPartition,
    committed: Mapping[TopicPartition, CommittedOffset],
    log_start: int,
) -> int:
    """Return the first offset that a task handles: the committed one, but at least `log_start`."""
    position = position_of(task, tp, committed)
    if position is None:
        return log_start
    if position < log_start:
        _log.warning(
            "task %s: %s begins at offset %d, records from %d on are gone (retention)",
            *(task, tp, log_start, position),
            extra={"task": task, "partition": str(tp), "offset": log_start},
        )
    return max(position, log_start)
