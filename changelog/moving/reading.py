"""Reading partitions up to an end, for whoever copies them or compares copies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import (
    CoordinatorLoading,
    InvalidRequest,
    OffsetOutOfRange,
    RequestTimedOut,
)
from strandline.changelog.records import CommittedOffset, Fetched, PartitionOffsets, TopicPartition

Ends = Mapping[TopicPartition, PartitionOffsets]
Advance = Callable[[int], None]
"""Told of so many more offsets that are done."""
GroupOffsets = dict[str, dict[TopicPartition, CommittedOffset]]
"""By group what it has committed."""

ROUND_BYTES = 32 << 20
"""About how much is read at once, of all partitions together."""
LEAST_BYTES = 1 << 20
"""And of each at least."""
TOGETHER = 16
"""So many partitions are read at once."""
PATIENCE_S = 10.0
"""How long open transactions may take to end, once nobody writes any more."""
STALLED_FETCHES = 30
"""After so many long polls of a second without progress the log is given up."""
_PAUSE_S = 0.02


def settled_ends(broker: Broker, partitions: Collection[TopicPartition], clock: Clock) -> Ends:
    """The ends of partitions in which no transaction is open. Raises InvalidRequest."""
    deadline = clock.monotonic() + PATIENCE_S
    while True:
        ends = broker.offsets(list(partitions)) if partitions else {}
        open_ = [tp for tp, end in ends.items() if end.last_stable_offset < end.high_watermark]
        if not open_:
            return ends
        if clock.monotonic() > deadline:
            named = ", ".join(f"{tp} from offset {ends[tp].last_stable_offset}" for tp in open_[:5])
            raise InvalidRequest(
                f"transactions are open: {named}; stop who writes there. One that was left behind "
                f"ends by itself after its transaction.timeout.ms; then run this again"
            )
        threading.Event().wait(_PAUSE_S)


def committed_in(
    broker: Broker, groups: Iterable[str], topics: Collection[str], clock: Clock
) -> GroupOffsets:
    """What groups have committed in topics; those without anything are left out."""
    present = [info for info in broker.topics() if info.name in topics]
    asked = [TopicPartition(info.name, n) for info in present for n in range(info.partitions)]
    committed = {group: _stable(broker, group, asked, clock) for group in groups}
    return {group: offsets for group, offsets in committed.items() if offsets}


def _stable(
    broker: Broker, group: str, asked: Sequence[TopicPartition], clock: Clock
) -> dict[TopicPartition, CommittedOffset]:
    deadline = clock.monotonic() + PATIENCE_S
    while True:
        try:
            return broker.committed(group, asked)
        except CoordinatorLoading:
            if clock.monotonic() > deadline:
                raise
        threading.Event().wait(_PAUSE_S)


def rounds(
    broker: Broker, positions: Mapping[TopicPartition, int], ends: Ends
) -> Iterator[tuple[TopicPartition, Fetched]]:
    """What is committed from `positions` up to the last stable `ends`, each fetch after another.

    Some partitions at a time, so that one is not begun long before it is read on.
    """
    for together in fetches(broker, positions, ends):
        yield from together.items()


def fetches(
    broker: Broker, positions: Mapping[TopicPartition, int], ends: Ends
) -> Iterator[dict[TopicPartition, Fetched]]:
    """The same, but what one fetch gave is together."""
    left = {tp: at for tp, at in positions.items() if at < ends[tp].last_stable_offset}
    stalled = 0
    while left:
        asked = dict(list(left.items())[:TOGETHER])
        size = max(LEAST_BYTES, ROUND_BYTES // len(asked))
        # What is there has to come; only markers behind a position are no reason to wait for it.
        try:
            fetched = broker.fetch(asked, max_bytes=size, timeout=1.0 if stalled else 0.0)
        except OffsetOutOfRange:
            left = _still_there(broker, left)
            continue
        moved = {
            tp: _clipped(got, ends[tp].last_stable_offset)
            for tp, got in fetched.items()
            if got.next_offset > asked[tp]
        }
        stalled = 0 if moved else stalled + 1
        if stalled > STALLED_FETCHES:
            raise RequestTimedOut(
                f"{', '.join(map(str, asked))}: reading stands still before the end; is the log's "
                f"owner alive?"
            )
        if moved:
            yield moved
        left |= {tp: got.next_offset for tp, got in moved.items()}
        left = {tp: at for tp, at in left.items() if at < ends[tp].last_stable_offset}


def _clipped(fetched: Fetched, end: int) -> Fetched:
    if fetched.next_offset <= end:
        return fetched
    batches = [clipped for batch in fetched.batches if len(clipped := batch.clip(0, end))]
    return replace(fetched, batches=batches, next_offset=end)


def _still_there(
    broker: Broker, positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Positions that are in the log: retention may have overtaken some. Raises OffsetOutOfRange."""
    starts = {tp: ends.log_start for tp, ends in broker.offsets(list(positions)).items()}
    moved = {tp: max(at, starts[tp]) for tp, at in positions.items()}
    if moved == dict(positions):
        named = ", ".join(f"{tp} at {at}" for tp, at in positions.items())
        raise OffsetOutOfRange(f"{named}: behind the end of the log; was its topic made anew?")
    return moved
