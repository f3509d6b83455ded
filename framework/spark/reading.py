"""Reading of planned ranges: the offsets of one range, as batches of records."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace

from strandline.changelog.broker import Broker
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidConfig, OffsetOutOfRange, UnknownPin
from strandline.changelog.pins import PinName, there
from strandline.changelog.records import Batch, Fetched, PartitionOffsets, TopicInfo, TopicPartition
from strandline.changelog.selection import EVERYTHING, ReadSelection
from strandline.framework.spark import planning
from strandline.framework.spark.offsets import Position
from strandline.framework.spark.options import AtTime, StartOrEnd
from strandline.framework.spark.planning import Ends, OffsetRange

FETCH_BYTES = 16 << 20
"""Bytes of a partition requested at a time."""

PIN_USE_INTERVAL_S = 10.0
"""Seconds between two renewals of the pin that a task reads by."""

_log = logging.getLogger(__name__)


def describe(broker: Broker, topics: tuple[str, ...]) -> list[TopicInfo]:
    """Return each topic. Raise UnknownTopic."""
    return [broker.topic(name) for name in topics]


def ends_of(broker: Broker, topics: list[TopicInfo]) -> Ends:
    """Return the bounds of all partitions of `topics`."""
    return broker.offsets(
        [TopicPartition(topic.name, p) for topic in topics for p in range(topic.partitions)]
    )


def resolve(
    broker: Broker, where: StartOrEnd, ends: Ends, option: str
) -> dict[TopicPartition, Position]:
    """Return the positions of a start or end in each partition; times are looked up.

    Raises InvalidConfig for a user's offsets or times that do not name every partition, and for a
    start that is later than all records, unless the end of the partition is to be used then.
    """
    if not isinstance(where, AtTime):
        return planning.resolve(where, ends, option)
    if isinstance(where.ms, Mapping):
        times = planning.for_each(where.ms, ends, where.option)
    else:
        times = dict.fromkeys(ends, where.ms)
    offsets: dict[str, dict[int, int]] = {}
    for tp, ms in times.items():
        offset = _offset_at(broker, where, tp, ms, ends[tp].last_stable_offset)
        offsets.setdefault(tp.topic, {})[tp.partition] = offset
    return planning.resolve(offsets, ends, where.option)


def _offset_at(broker: Broker, where: AtTime, tp: TopicPartition, ms: int, end: int) -> int:
    """Return the offset of the first record of at least that time; at most `end`."""
    found = broker.offset_for_time(tp, ms)
    if found is None and not where.or_latest:
        raise InvalidConfig(
            f"{where.option}: all records of {tp} are before {ms}; choose an earlier time, or set "
            "startingOffsetsByTimestampStrategy to latest"
        )
    return end if found is None else min(found, end)


def report(losses: list[str], *, fail: bool) -> None:
    """Raise OffsetOutOfRange for losses, or only log them."""
    if not losses:
        return
    if fail:
        raise OffsetOutOfRange(
            f"{'; '.join(losses)}. To continue with the remaining records, set failOnDataLoss to false; a "
            "streaming query starts over with a new checkpointLocation"
        )
    for loss in losses:
        _log.warning("%s; going on, since failOnDataLoss is false", loss)


def read_range(
    broker: Broker,
    range_: OffsetRange,
    *,
    fail_on_data_loss: bool,
    selection: ReadSelection = EVERYTHING,
) -> Iterator[Batch]:
    """Yield the committed records of a range in order, each once; unchanged if it is pinned.

    Batches may lack columns and records that `selection` leaves out.

    Raises OffsetOutOfRange if some are gone; without `fail_on_data_loss` it yields the rest.
    """
    position = range_.start
    if range_.pin is not None:
        try:
            for fetched in _pinned_fetches(broker, range_, range_.pin, selection):
                yield from _inside(fetched, range_)
                position = fetched.next_offset
        except UnknownPin as error:
            report_unpinned(range_, error, fail=fail_on_data_loss)
    left = replace(range_, start=position)
    for fetched in _fetches(broker, left, fail_on_data_loss):
        yield from _inside(fetched, left)


def read_pinned(broker: Broker, range_: OffsetRange, pin: PinName) -> Iterator[Batch]:
    """Yield the committed records of a range as they were when it was pinned. Raise UnknownPin."""
    for fetched in _pinned_fetches(broker, range_, pin, EVERYTHING):
        yield from _inside(fetched, range_)


def report_unpinned(range_: OffsetRange, error: UnknownPin, *, fail: bool) -> None:
    """Report that a range may have changed because its pin is gone, as `report` does."""
    report([f"{range_.topic_partition} is to be read as it was planned, but {error}"], fail=fail)


def _fetches(broker: Broker, range_: OffsetRange, fail: bool) -> Iterator[Fetched]:
    """Yield fetches of the range from the log."""
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
        # The topic may have been created again since the look at its id.
        if not fetched.continues(now.topic_id, now.epochs, position):
            continue
        yield fetched
        position = fetched.next_offset


def _pinned_fetches(
    broker: Broker, range_: OffsetRange, pin: PinName, selection: ReadSelection
) -> Iterator[Fetched]:
    """Yield fetches of the range by its pin. Raise UnknownPin."""
    clock, position, due, pins = SystemClock(), range_.start, 0.0, there(broker.pins)
    while position < range_.end:
        if clock.monotonic() >= due:
            pins.use(pin)
            due = clock.monotonic() + PIN_USE_INTERVAL_S
        tp = range_.topic_partition
        fetched = pins.fetch(pin, tp, position, max_bytes=FETCH_BYTES, selection=selection)
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
        return [f"{what}, but its topic has been deleted and created again"]
    if now.log_start > position:
        return [f"{what}, but the log begins at {now.log_start}"]
    if now.last_stable_offset < range_.end:
        return [f"{what}, but the log ends at {now.last_stable_offset}"]
    if range_.until is not None and (problem := now.divergence(range_.until)):
        return [f"{what}, but {problem}"]
    return []
