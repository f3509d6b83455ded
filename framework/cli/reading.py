"""Reading of a topic's records, up to its current end or as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import typer

from strandline.changelog.broker import Broker
from strandline.changelog.errors import OffsetOutOfRange
from strandline.changelog.history import Epochs, follows
from strandline.changelog.records import Batch, Isolation, TopicPartition
from strandline.changelog.scan import REPLACED, scan
from strandline.framework.cli import output
from strandline.framework.cli.options import to_ms

POLL_S = 0.5
"""Seconds that one request waits for new records; `follow` is called between requests."""


def partitions_of(
    broker: Broker, topic: str, chosen: Collection[int] | None = None
) -> list[TopicPartition]:
    """Return all partitions of a topic, or the chosen ones.

    Raises UnknownTopic, UnknownPartition.
    """
    numbers = sorted(set(chosen)) if chosen else range(broker.topic(topic).partitions)
    return [TopicPartition(topic, number) for number in numbers]


def starting_positions(
    broker: Broker,
    partitions: Collection[TopicPartition],
    start: str,
    isolation: Isolation = "read_committed",
    *,
    option: str,
) -> dict[TopicPartition, int]:
    """Return the offset in each partition that the value of an option names, within its bounds.

    Args:
        broker: The log.
        partitions: Partitions of interest.
        start: earliest, latest, an offset, -N for the last N records, or a time in ISO 8601.
        isolation: Records that count for -N and for a time.
        option: Name of the option, for errors.
    """
    now = broker.offsets(partitions)
    ends = {tp: offsets.visible_end(isolation) for tp, offsets in now.items()}
    if start == "earliest":
        return {tp: offsets.log_start for tp, offsets in now.items()}
    if start == "latest":
        return ends
    if start.lstrip("-").isdecimal():
        offset = int(start)
        if offset < 0:
            return {
                tp: _last(broker, tp, now[tp].log_start, ends[tp], -offset, isolation) for tp in now
            }
        if offset > (last := max(ends.values())):
            output.note(f"no partition has offset {offset}: the longest one ends at {last}")
        return {tp: min(max(offset, now[tp].log_start), ends[tp]) for tp in now}
    ms = to_ms(start)
    if ms is None:
        raise typer.BadParameter(
            f"{option} is earliest, latest, an offset, -N, or a time like 2013-01-01T10:00, "
            f"got {start!r}"
        )
    found = {tp: broker.offset_for_time(tp, ms, isolation=isolation) for tp in partitions}
    return {tp: ends[tp] if offset is None else offset for tp, offset in found.items()}


def _last(
    broker: Broker, tp: TopicPartition, start: int, end: int, count: int, isolation: Isolation
) -> int:
    """Return the offset of the last `count` records; aborted or removed ones do not count."""
    back = count
    while True:
        at = max(start, end - back)
        batches = read(broker, {tp: at}, isolation=isolation)
        offsets = [offset for batch in batches for offset in batch.offsets.to_pylist()]
        if len(offsets) >= count:
            return int(offsets[-count])
        if at == start:
            return start
        back *= 4


def read(
    broker: Broker,
    positions: Mapping[TopicPartition, int],
    *,
    isolation: Isolation = "read_committed",
    follow: Callable[[], object] | None = None,
) -> Iterator[Batch]:
    """Yield batches from `positions` to the current ends, or until `follow()` returns a true value.

    Raises OffsetOutOfRange.
    """
    at = dict(positions)
    if follow is None:
        ends = {tp: now.visible_end(isolation) for tp, now in broker.offsets(list(at)).items()}
        for fetched in scan(broker, at, ends, isolation=isolation):
            for one in fetched.values():
                yield from one.batches
        return
    epochs: dict[TopicPartition, Epochs] = {}
    while at and not follow():
        for tp, one in broker.fetch(at, isolation=isolation, timeout=POLL_S).items():
            if not follows(epochs.get(tp, ()), at[tp], one.epochs):
                raise OffsetOutOfRange(f"{tp}: offset {at[tp]} {REPLACED}; start again")
            at[tp], epochs[tp] = one.next_offset, one.epochs
            yield from one.batches
