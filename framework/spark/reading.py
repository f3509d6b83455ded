"""Getting what was planned out of the log: one range of offsets, as batches of its records."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from strandline import changelog
from strandline.changelog.broker import Broker
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidConfig, OffsetOutOfRange, UnknownPin
from strandline.changelog.pins import PinName, there
from strandline.changelog.records import Batch, Fetched, PartitionOffsets, TopicInfo, TopicPartition
from strandline.framework.spark.planning import Ends, OffsetRange

if TYPE_CHECKING:
    from strandline.changelog.log import Log

FETCH_BYTES = 16 << 20
"""How much of a partition is asked for at a time."""

USE_SECONDS = 10.0
"""How often a task that reads by a pin says that it does."""

_log = logging.getLogger(__name__)


def open_log(path: str) -> Log:
    """The log at a path or URL; close it, or use it in a `with`.

    A folder's log is attached to, through its owner; if it has none, one is started that leaves
    when it is idle: neither a planner nor a task lives long enough to own a log. Raises
    InvalidConfig for a folder that is not there, which opening would make.
    """
    try:
        return changelog.open(path, role="attach_or_spawn", create=False)
    except InvalidConfig as error:
        raise InvalidConfig(
            f"there is no log at {path} (on {os.uname().nodename}): {error}"
        ) from None


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
    """The committed records of a range, in order, each once; as they were, if it is pinned.

    Raises OffsetOutOfRange when some are gone; without `fail_on_data_loss` it gives what is left.
    """
    position = range_.start
    if range_.pin is not None:
        try:
            for fetched in _pinned_fetches(broker, range_, range_.pin):
                yield from _inside(fetched, range_)
                position = fetched.next_offset
        except UnknownPin as error:
            report_unpinned(range_, error, fail=fail_on_data_loss)
    left = replace(range_, start=position)
    for fetched in _fetches(broker, left, fail_on_data_loss):
        yield from _inside(fetched, left)


def read_pinned(broker: Broker, range_: OffsetRange, pin: PinName) -> Iterator[Batch]:
    """The committed records of a range as they were when it was pinned. Raises UnknownPin."""
    for fetched in _pinned_fetches(broker, range_, pin):
        yield from _inside(fetched, range_)


def report_unpinned(range_: OffsetRange, error: UnknownPin, *, fail: bool) -> None:
    """What is left of a range may not be as it was. Raises OffsetOutOfRange, or only logs it."""
    report([f"{range_.topic_partition} is to be read as it was planned, but {error}"], fail=fail)


def _fetches(broker: Broker, range_: OffsetRange, fail: bool) -> Iterator[Fetched]:
    """What the log has in the range."""
    tp, position = range_.topic_partition, range_.start
    while position < range_.end:
        now = broker.offsets([tp])[tp]
        losses = _lost(range_, position, now)
        report(losses, fail=fail)
        if losses:
            position = max(position, now.log_start)
        if now.topic_id != range_.topic_id or position >= now.last_stable_offset:
            return
        fetched = broker.fetch({tp: position}, max_bytes=FETCH_BYTES)[tp]
        yield fetched
        position = fetched.next_offset


def _pinned_fetches(broker: Broker, range_: OffsetRange, pin: PinName) -> Iterator[Fetched]:
    """What the range's pin has in it. Raises UnknownPin."""
    clock, position, due, pins = SystemClock(), range_.start, 0.0, there(broker.pins)
    while position < range_.end:
        if clock.monotonic() >= due:
            pins.use(pin)
            due = clock.monotonic() + USE_SECONDS
        tp = range_.topic_partition
        fetched = pins.fetch(pin, tp, position, max_bytes=FETCH_BYTES)
        yield fetched
        position = fetched.next_offset


def _inside(fetched: Fetched, range_: OffsetRange) -> Iterator[Batch]:
    for batch in fetched.batches:
        inside = batch.clip(range_.start, range_.end)
        if len(inside):
            yield inside


def _lost(range_: OffsetRange, position: int, now: PartitionOffsets) -> list[str]:
    what = f"{range_.topic}-{range_.partition} from offset {position} to {range_.end} is to be read"
    if now.topic_id != range_.topic_id:
        return [f"{what}, but its topic has been deleted and made anew"]
    if now.log_start > position:
        return [f"{what}, but the log begins at {now.log_start}"]
    if now.last_stable_offset < range_.end:
        return [f"{what}, but the log ends at {now.last_stable_offset}"]
    if range_.until is not None and (problem := now.divergence(range_.until)):
        return [f"{what}, but {problem}"]
    return []
