"""Streams in plain Python: what windows and aggregates of records must be, a record at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.changelog.client.partitioner import partition_for

NEVER = -(1 << 62)


@dataclass(frozen=True)
class Event:
    """One record of the input."""

    user: str
    kind: str
    amount: int | None
    at: int
    """Milliseconds since the epoch."""


Key = tuple[Any, ...]
Windowed = dict[tuple[Key, int, int], list[Event]]
"""Records by key, and start and end of the window."""


def by_partition(events: Iterable[Event], partitions: int) -> list[list[Event]]:
    """Return the events of each partition of a topic that is keyed by user."""
    found: list[list[Event]] = [[] for _ in range(partitions)]
    for event in events:
        found[partition_for(event.user.encode(), partitions)].append(event)
    return found


def with_watermarks(events: Sequence[Event], delay: int) -> Iterator[tuple[Event, int]]:
    """Yield each event of a partition with the partition's watermark before it."""
    watermark = NEVER
    for event in events:
        yield event, watermark
        watermark = max(watermark, event.at - delay)


def fixed_windows(
    partitions: Sequence[Sequence[Event]],
    key: Callable[[Event], Key],
    *,
    size: int,
    every: int,
    grace: int,
    delay: int,
) -> tuple[Windowed, int]:
    """Return the records of each window [start, start + size), and the number of late records."""
    found: Windowed = defaultdict(list)
    late = 0
    for events in partitions:
        for event, watermark in with_watermarks(events, delay):
            last = event.at // every * every
            starts = [
                start
                for start in range(last, last - size, -every)
                if start + size > event.at and start + size + grace > watermark
            ]
            late += not starts
            for start in starts:
                found[key(event), start, start + size].append(event)
    return dict(found), late


def sliding(
    partitions: Sequence[Sequence[Event]],
    key: Callable[[Event], Key],
    *,
    size: int,
    grace: int,
) -> Windowed:
    """Return, by the time t of each record, the records of [t - size, t]."""
    kept: list[tuple[Event, int]] = []
    for events in partitions:
        for event, watermark in with_watermarks(events, 0):
            if event.at + size + 1 + grace > watermark:
                kept.append((event, max(event.at, watermark - grace)))
    found: Windowed = {}
    for of_key in {key(event) for event, _ in kept}:
        mine = [(event, since) for event, since in kept if key(event) == of_key]
        for time in {event.at for event, since in mine if since == event.at}:
            rows = [e for e, since in mine if time - size <= e.at <= time and since <= time]
            found[of_key, time - size, time + 1] = rows
    return found


def sessions(
    partitions: Sequence[Sequence[Event]],
    key: Callable[[Event], Key],
    *,
    gap: int,
    grace: int,
    delay: int,
) -> tuple[Windowed, int]:
    """Return the records of each session [first, last + gap), and the number of late records."""
    kept: dict[Key, list[Event]] = defaultdict(list)
    late = 0
    for events in partitions:
        for event, watermark in with_watermarks(events, delay):
            if event.at + grace < watermark:
                late += 1
            else:
                kept[key(event)].append(event)
    found: Windowed = {}
    for of_key, events in kept.items():
        group: list[Event] = []
        for event in sorted(events, key=lambda event: event.at):
            if group and event.at >= group[-1].at + gap:
                found[of_key, group[0].at, group[-1].at + gap] = group
                group = []
            group.append(event)
        found[of_key, group[0].at, group[-1].at + gap] = group
    return found, late


def figures(events: Sequence[Event]) -> tuple[int, int | None, int | None, float | None]:
    """Return count, sum, greatest and mean of the amounts of records."""
    amounts = [event.amount for event in events if event.amount is not None]
    mean = sum(amounts) / len(amounts) if amounts else None
    return (
        len(events),
        sum(amounts) if amounts else None,
        max(amounts, default=None),
        mean if mean is None else round(mean, 9),
    )
