"""Read partitions up to an end offset, for copying and comparing."""

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
"""Offsets of partitions at one moment."""
Advance = Callable[[int], None]
"""Called with the number of offsets just done."""
GroupOffsets = dict[str, dict[TopicPartition, CommittedOffset]]
"""Committed offsets by group."""

ROUND_BYTES = 32 << 20
"""Approximate bytes of a fetch, over all its partitions."""
MIN_PARTITION_BYTES = 1 << 20
"""Minimum bytes of a fetch for each partition."""
MAX_PARTITIONS = 16
"""Maximum number of partitions in a fetch."""
MAX_WAIT_S = 10.0
"""Maximum time to wait for open transactions to end."""
MAX_STALLED_FETCHES = 30
"""Maximum number of successive fetches of one second without progress."""
_PAUSE_S = 0.02
"""Interval between two look-ups while waiting."""


def settled_ends(broker: Broker, partitions: Collection[TopicPartition], clock: Clock) -> Ends:
    """Return the offsets of partitions once no transaction is open in them.

    Raises InvalidRequest if one stays open for `MAX_WAIT_S`.
    """
    deadline = clock.monotonic() + MAX_WAIT_S
    while True:
        ends = broker.offsets(list(partitions)) if partitions else {}
        open_partitions = [
            tp for tp, end in ends.items() if end.last_stable_offset < end.high_watermark
        ]
        if not open_partitions:
            return ends
        if clock.monotonic() > deadline:
            named = ", ".join(
                f"{tp} from offset {ends[tp].last_stable_offset}" for tp in open_partitions[:5]
            )
            raise InvalidRequest(
                f"transactions are open: {named}; stop the writers. A transaction whose producer is "
                f"gone ends after its transaction.timeout.ms; then run this again"
            )
        threading.Event().wait(_PAUSE_S)


def committed_in(
    broker: Broker, groups: Iterable[str], topics: Collection[str], clock: Clock
) -> GroupOffsets:
    """Return the committed offsets of groups in topics; groups without any are left out."""
    present = [info for info in broker.topics() if info.name in topics]
    asked = [TopicPartition(info.name, n) for info in present for n in range(info.partitions)]
    committed = {group: _committed(broker, group, asked, clock) for group in groups}
    return {group: offsets for group, offsets in committed.items() if offsets}


def _committed(
    broker: Broker, group: str, asked: Sequence[TopicPartition], clock: Clock
) -> dict[TopicPartition, CommittedOffset]:
    """Return the committed offsets of a group; wait while the coordinator is loading."""
    deadline = clock.monotonic() + MAX_WAIT_S
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
    """Yield the committed records from `positions` to the last stable offsets, by partition.

    Only some partitions are read at a time, so that each is read without long pauses.
    """
    for one_fetch in fetches(broker, positions, ends):
        yield from one_fetch.items()


def fetches(
    broker: Broker, positions: Mapping[TopicPartition, int], ends: Ends
) -> Iterator[dict[TopicPartition, Fetched]]:
    """Yield the same as `rounds`, with the partitions of one fetch together."""
    remaining = {tp: at for tp, at in positions.items() if at < ends[tp].last_stable_offset}
    stalled = 0
    while remaining:
        asked = dict(list(remaining.items())[:MAX_PARTITIONS])
        size = max(MIN_PARTITION_BYTES, ROUND_BYTES // len(asked))
        # Records before the end come at once. Wait only after a fetch without progress.
        try:
            fetched = broker.fetch(asked, max_bytes=size, timeout=1.0 if stalled else 0.0)
        except OffsetOutOfRange:
            remaining = _in_log(broker, remaining)
            continue
        moved = {
            tp: _clipped(got, ends[tp].last_stable_offset)
            for tp, got in fetched.items()
            if got.next_offset > asked[tp]
        }
        stalled = 0 if moved else stalled + 1
        if stalled > MAX_STALLED_FETCHES:
            raise RequestTimedOut(
                f"{', '.join(map(str, asked))}: no progress although the end is not reached; is the "
                f"log's owner alive?"
            )
        if moved:
            yield moved
        remaining |= {tp: got.next_offset for tp, got in moved.items()}
        remaining = {tp: at for tp, at in remaining.items() if at < ends[tp].last_stable_offset}


def _clipped(fetched: Fetched, end: int) -> Fetched:
    """Return a fetch without the records at or after `end`."""
    if fetched.next_offset <= end:
        return fetched
    batches = [clipped for batch in fetched.batches if len(clipped := batch.clip(0, end))]
    return replace(fetched, batches=batches, next_offset=end)


def _in_log(broker: Broker, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Move positions that retention has removed to the log's start. Raises OffsetOutOfRange."""
    starts = {tp: ends.log_start for tp, ends in broker.offsets(list(positions)).items()}
    moved = {tp: max(at, starts[tp]) for tp, at in positions.items()}
    if moved == dict(positions):
        named = ", ".join(f"{tp} at {at}" for tp, at in positions.items())
        raise OffsetOutOfRange(f"{named}: after the end of the log; was its topic recreated?")
    return moved
