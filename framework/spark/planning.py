"""Planning of reads: decisions from plain values, carried out by `reading` and `source`.

A read covers the offsets [start, end) of each partition. An end is never after the last stable
offset, so only committed records are read; `pinning` keeps them readable. A range that the log can
no longer return in full is a loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from strandline.changelog.errors import InvalidConfig, UnknownPartition
from strandline.changelog.extents import OffsetSpan
from strandline.changelog.pins import PinName, PinnedRange
from strandline.changelog.records import PartitionOffsets, TopicPartition
from strandline.framework.spark.offsets import Position, Positions
from strandline.framework.spark.options import EARLIEST, LATEST, Numbers
from strandline.statestore.declaration import Form
from strandline.statestore.values import Expiry

Ends = Mapping[TopicPartition, PartitionOffsets]
"""Current bounds of the partitions."""


class StoredValues(NamedTuple):
    """Encoding of a store's values, from its recorded declaration."""

    form: Form
    expiry: Expiry
    declaration: bytes | None = None
    """The declaration itself; None if it is not recorded."""
    closed: int | None = None
    """Last closed window of a partition, for windows that are merged from panes."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition that one task reads."""

    topic: str
    partition: int
    topic_id: str
    start: int
    end: int
    """End (exclusive)."""
    pin: PinName | None = None
    """Pin to read by; None reads the log as it is."""
    until: Position | None = field(default=None, compare=False)
    """Position at `end`, which names the history to be read; None if unknown."""
    stored: StoredValues | None = None
    """Encoding of a store's values; None if it is not recorded."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def pinned(self) -> PinnedRange:
        """Range in the form that the log pins."""
        named = () if self.until is None else (self.until.leader_epoch, self.until.incarnation)
        return PinnedRange(self.topic_id, self.start, self.end, *named)


class ReadPlan(NamedTuple):
    """Ranges to read, and records that can no longer be read."""

    ranges: list[OffsetRange]
    losses: list[str]
    """One sentence for each loss."""


def resolve(
    where: Literal["earliest", "latest"] | Numbers, ends: Ends, option: str
) -> dict[TopicPartition, Position]:
    """Return the positions of "earliest", "latest" or a user's offsets in each partition.

    A user's offsets must name every partition, and no other. Raises InvalidConfig otherwise.
    """
    if isinstance(where, Mapping):
        asked = for_each(where, ends, option)
    else:
        asked = dict.fromkeys(ends, EARLIEST if where == "earliest" else LATEST)
    return {tp: _named(_offset(asked[tp], now), now) for tp, now in ends.items()}


def for_each(numbers: Numbers, ends: Ends, option: str) -> dict[TopicPartition, int]:
    """Return a user's number for each partition. Raises InvalidConfig unless all are named."""
    _check_complete(numbers, ends, option)
    return {tp: numbers[tp.topic][tp.partition] for tp in ends}


def latest(ends: Ends) -> dict[TopicPartition, Position]:
    """Return the end of the committed records of each partition."""
    return resolve("latest", ends, "")


def advance(start: Positions, available: Positions, ends: Ends) -> dict[TopicPartition, Position]:
    """Return `available`, with the position of `start` wherever no record has been added since.

    A new leader epoch alone would look like new data to Spark.
    """
    return {
        tp: start[tp] if tp in start and _origin(start[tp], ends[tp]) == now.offset else now
        for tp, now in available.items()
    }


def admit(
    start: Positions, available: Positions, ends: Ends, limit: int
) -> dict[TopicPartition, Position]:
    """Return the ends of a read of at most `limit` offsets over all partitions.

    The limit is divided in proportion to the backlog of each partition. Each gets at least one
    offset while the limit lasts (the largest backlogs first), so that none starves. No end is after
    `available`.
    """
    waiting = backlog(start, available, ends)
    shares = share(limit, {tp: span.end - span.start for tp, span in waiting.items()})
    return admit_until(
        available, ends, {tp: span.start + shares[tp] for tp, span in waiting.items()}
    )


def backlog(start: Positions, available: Positions, ends: Ends) -> dict[TopicPartition, OffsetSpan]:
    """Return the offsets of each partition that are still to be read."""
    origins = {tp: _origin(start.get(tp), ends[tp]) for tp in available}
    return {tp: OffsetSpan(at, max(at, available[tp].offset)) for tp, at in origins.items()}


def admit_until(
    available: Positions, ends: Ends, limits: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Position]:
    """Return the ends of a read that reads each partition up to an offset at most."""
    return {
        tp: now if limits[tp] >= now.offset else _named(limits[tp], ends[tp])
        for tp, now in available.items()
    }


def share(limit: int, backlog: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Divide `limit` in proportion to `backlog`, in whole numbers, at least one each if possible.

    >>> a, b, c = (TopicPartition("t", p) for p in range(3))
    >>> list(share(10, {a: 900, b: 100, c: 1}).values())
    [8, 1, 1]
    """
    if sum(backlog.values()) <= limit:
        return dict(backlog)
    waiting = sorted((tp for tp in backlog if backlog[tp]), key=lambda tp: (-backlog[tp], tp))
    shares = dict.fromkeys(backlog, 0) | dict.fromkeys(waiting[:limit], 1)
    spare = limit - min(limit, len(waiting))
    rest = {tp: backlog[tp] - shares[tp] for tp in waiting}
    total = sum(rest.values())
    for tp in waiting:
        shares[tp] += spare * rest[tp] // total
    leftover = limit - sum(shares.values())
    for tp in waiting:
        take = min(leftover, backlog[tp] - shares[tp])
        shares[tp] += take
        leftover -= take
    return shares


def plan(start: Positions, end: Positions, ends: Ends) -> ReadPlan:
    """Return one range for each partition with records between `start` and `end`.

    A partition that `start` does not contain is read from its beginning.
    """
    losses = lost_since(start, ends)
    ranges = []
    for tp, until in sorted(end.items()):
        now = ends.get(tp)
        if now is None or now.topic_id != until.topic_id:
            losses.append(f"{tp} up to {until.offset} was to be read, from a topic that is gone")
            continue
        last = min(now.last_stable_offset, now.shared_end(until))
        if until.offset > now.last_stable_offset:
            losses.append(f"{tp} was to be read up to {until.offset} but ends at {last}")
        elif problem := now.divergence(until):
            losses.append(f"{tp} was to be read up to {until.offset}, but {problem}")
        first = _origin(start.get(tp), now)
        if first < now.log_start:
            losses.append(f"{tp} begins at {now.log_start}: records from {first} on were deleted")
        if (first := max(first, now.log_start)) < last:
            ranges.append(OffsetRange(*tp, until.topic_id, first, last, until=until))
    return ReadPlan(ranges, losses)


def lost_since(start: Positions, ends: Ends) -> list[str]:
    """Return a sentence for each partition that no longer has the history up to its position."""
    return [
        f"{tp} was at offset {position.offset}, but {problem}"
        for tp, position in sorted(start.items())
        if (problem := _problem(position, ends.get(tp)))
    ]


def _problem(position: Position, now: PartitionOffsets | None) -> str | None:
    if now is None:
        return "is gone"
    if position.topic_id != now.topic_id:
        return "its topic has been deleted and created again since"
    if position.offset > now.last_stable_offset:
        return f"ends at {now.last_stable_offset}: the log lost its tail, or is an older copy"
    if problem := now.divergence(position):
        return (
            f"{problem}. The log lost its tail, or it is a copy of the one that was read, for example "
            "restored from a backup, and was written to since (KIP-320)"
        )
    return None


def _origin(position: Position | None, now: PartitionOffsets) -> int:
    """Return the offset to continue at: the position, or the end of the history shared with it."""
    if position is None or position.topic_id != now.topic_id:
        return now.log_start
    return now.shared_end(position)


def _named(offset: int, now: PartitionOffsets) -> Position:
    """Return an offset as a position of the current log."""
    epoch = now.epoch_before(offset)
    return Position(offset, now.topic_id, epoch.number, epoch.incarnation)


def _offset(asked: int, now: PartitionOffsets) -> int:
    if asked == EARLIEST:
        return now.log_start
    return now.last_stable_offset if asked == LATEST else asked


def _check_complete(where: Mapping[str, Mapping[int, int]], ends: Ends, option: str) -> None:
    named = {TopicPartition(topic, p) for topic, each in where.items() for p in each}
    if missing := sorted(set(ends) - named):
        raise InvalidConfig(
            f"{option} must name every partition; missing: {', '.join(map(str, missing))} "
            "(-2 is earliest, -1 latest)"
        )
    if unknown := sorted(named - set(ends)):
        raise UnknownPartition(
            f"{option} names partitions that are not subscribed: {', '.join(map(str, unknown))}"
        )
