"""Operations on several partitions in parallel, because each waits for the disk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence

from strandline.changelog.embedded.context import LogContext
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.errors import InvalidRequest, StrandlineError
from strandline.changelog.records import Append, TopicPartition


def sync_all(
    context: LogContext, partitions: Collection[Partition]
) -> dict[Partition, StrandlineError]:
    """Sync several partitions in parallel. Return the errors of those that failed.

    With durability "os" nothing is synced. Deleted partitions are not errors.
    """
    if context.durability == "os":
        return {}
    waiting = [partition for partition in partitions if not partition.gate.retired]
    results = context.in_parallel(_sync, waiting)
    return {p: error for p, error in zip(waiting, results, strict=True) if error is not None}


def _sync(partition: Partition) -> StrandlineError | None:
    try:
        partition.sync()
    except StrandlineError as error:
        return None if partition.gate.retired else error
    return None


def begin_epochs(
    context: LogContext, find: Callable[[TopicPartition], Partition], appends: Sequence[Append]
) -> None:
    """Begin leader epochs in the partitions that get their first append since the opening.

    Each epoch replaces a manifest, so doing it in parallel saves time. Errors are ignored, because
    the append itself tries again and raises them.
    """
    if len(appends) < 2:
        return
    with contextlib.suppress(InvalidRequest):
        found = {find(TopicPartition(one.topic, one.partition)): None for one in appends}
        waiting = [one for one in found if one.segments and not one.epoch_begun]
        context.in_parallel(_begin_epoch, waiting)


def _begin_epoch(partition: Partition) -> None:
    with partition.lock, contextlib.suppress(StrandlineError):
        if partition.gate.usable and not partition.epoch_begun:
            partition.begin_epoch(partition.log_end, reserve=True)
