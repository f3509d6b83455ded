"""Getting what was planned out of the log: one range of offsets, as batches of its records."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import changelog
from changelog.broker import Broker
from changelog.errors import InvalidConfig, OffsetOutOfRange
from changelog.records import Batch, PartitionOffsets, TopicInfo, TopicPartition
from framework.spark.planning import Ends, OffsetRange

if TYPE_CHECKING:
    from changelog.log import Log

FETCH_BYTES = 16 << 20
"""How much of a partition is asked for at a time."""

_log = logging.getLogger(__name__)


def open_log(path: str) -> Log:
    """The log at a path or URL; close it, or use it in a `with`.

    A folder's log is attached to, through its owner; if it has none, one is started that leaves
    when it is idle: neither a planner nor a task lives long enough to own a log. Raises
    InvalidConfig for a folder that is not there, which opening would make.
    """
    if "://" not in path and not os.path.isdir(path):
        raise InvalidConfig(f"there is no log at {path} (on {os.uname().nodename})")
    return changelog.open(path, role="attach_or_spawn")


def describe(broker: Broker, topics: tuple[str, ...]) -> list[TopicInfo]:
    """Each topic. Raises UnknownTopic."""
    return [broker.topic(name) for name in topics]


def ends_of(broker: Broker, topics: list[TopicInfo]) -> Ends:
    """The ends of all partitions of `topics`."""
    return broker.offsets(
        [TopicPartition(topic.name, p) for topic in topics for p in range(topic.partitions)]
    )


def report(losses: list[str], *, fail: bool) -> None:
    """Raise OffsetOutOfRange for what was lost, or only log it."""
    if not losses:
        return
    if fail:
        raise OffsetOutOfRange(
            f"{'; '.join(losses)}. To go on with what is left, set failOnDataLoss to false; to "
            "start over, use a new checkpointLocation"
        )
    for loss in losses:
        _log.warning("%s; going on, since failOnDataLoss is false", loss)


def read_range(broker: Broker, range_: OffsetRange, *, fail_on_data_loss: bool) -> Iterator[Batch]:
    """The committed records of a range, in order, each once.

    Raises OffsetOutOfRange when some are gone; without `fail_on_data_loss` it gives what is left.
    """
    tp = TopicPartition(range_.topic, range_.partition)
    position = range_.start
    while position < range_.end:
        now = broker.offsets([tp])[tp]
        losses = _lost(range_, position, now)
        report(losses, fail=fail_on_data_loss)
        if losses:
            position = max(position, now.log_start)
        if now.topic_id != range_.topic_id or position >= now.last_stable_offset:
            return
        fetched = broker.fetch({tp: position}, max_bytes=FETCH_BYTES)[tp]
        for batch in fetched.batches:
            inside = batch.clip(position, range_.end)
            if len(inside):
                yield inside
        position = fetched.next_offset


def _lost(range_: OffsetRange, position: int, now: PartitionOffsets) -> list[str]:
    what = f"{range_.topic}-{range_.partition} from offset {position} to {range_.end} is to be read"
    if now.topic_id != range_.topic_id:
        return [f"{what}, but its topic has been deleted and made anew"]
    if now.log_start > position:
        return [f"{what}, but the log begins at {now.log_start}"]
    if now.last_stable_offset < range_.end:
        return [f"{what}, but the log ends at {now.last_stable_offset}"]
    return []
