"""Scan of partitions up to end offsets that are known before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from strandline.changelog.broker import Broker
from strandline.changelog.errors import OffsetOutOfRange, RequestTimedOut
from strandline.changelog.records import Batch, Fetched, Isolation, TopicPartition

ROUND_BYTES = 8 << 20
"""Default of the approximate maximum number of bytes of a fetch, over all its partitions."""
MIN_PARTITION_BYTES = 1 << 20
"""Minimum number of bytes of a fetch for each partition."""
MAX_PARTITIONS = 16
"""Maximum number of partitions in a fetch, so that each is read without long pauses."""
MAX_STALLED_FETCHES = 30
"""Maximum number of successive fetches of one second without progress."""

REPLACED = (
    "does not continue the records before: the topic was deleted and created again, or the log was "
    "replaced by another copy"
)
"""End of the message for a reader whose partition was replaced by another one."""

Offsets = Mapping[TopicPartition, int]
FetchAt = Callable[[Offsets, float], Mapping[TopicPartition, Fetched]]
"""Fetches at positions; the second argument is the number of seconds to wait for records."""


def scan(
    broker: Broker,
    positions: Offsets,
    ends: Offsets,
    *,
    isolation: Isolation = "read_committed",
    max_bytes: int = ROUND_BYTES,
) -> Iterator[dict[TopicPartition, Fetched]]:
    """Yield the results of fetches from `positions` to `ends` (exclusive).

    Args:
        broker: The log.
        positions: First offset to read of each partition.
        ends: Offsets up to which to read. They are at most the last stable offset, or with
            read_uncommitted the high watermark, of a moment before the call.
        isolation: Whether aborted records and those of open transactions are left out.
        max_bytes: Approximate maximum number of bytes of one fetch.

    Returns:
        The partitions of each fetch that have progressed, without the records after their ends.

    Raises:
        OffsetOutOfRange: Records at a position are gone, or the partition was replaced by another
            one during the scan.
        RequestTimedOut: The log makes no progress.
    """
    fetch = partial(_fetch, broker, isolation, max_bytes)
    return scan_by(fetch, positions, ends)


def scan_batches(
    broker: Broker, positions: Offsets, ends: Offsets, *, max_bytes: int = ROUND_BYTES
) -> Iterator[Batch]:
    """Yield the committed batches of a scan, one partition after another."""
    for tp, position in positions.items():
        for fetched in scan(broker, {tp: position}, ends, max_bytes=max_bytes):
            yield from fetched[tp].batches


def scan_kept(
    broker: Broker,
    positions: Offsets,
    ends: Offsets,
    *,
    isolation: Isolation = "read_committed",
    max_bytes: int = ROUND_BYTES,
) -> Iterator[dict[TopicPartition, Fetched]]:
    """Yield what `scan` yields, and continue after records that retention removes meanwhile.

    Raises OffsetOutOfRange if the log ends before a position, so that its topic was recreated.
    """
    left = dict(positions)
    while True:
        try:
            for fetched in scan(broker, left, ends, isolation=isolation, max_bytes=max_bytes):
                yield fetched
                left |= {tp: one.next_offset for tp, one in fetched.items()}
            return
        except OffsetOutOfRange:
            left = _in_log(broker, {tp: at for tp, at in left.items() if at < ends[tp]})


def _in_log(broker: Broker, positions: Offsets) -> dict[TopicPartition, int]:
    """Move positions that retention has removed to the log's start. Raises OffsetOutOfRange."""
    starts = {tp: ends.log_start for tp, ends in broker.offsets(list(positions)).items()}
    moved = {tp: max(at, starts[tp]) for tp, at in positions.items()}
    if moved == dict(positions):
        named = ", ".join(f"{tp} at {at}" for tp, at in positions.items())
        raise OffsetOutOfRange(f"{named}: after the end of the log; was its topic recreated?")
    return moved


def num_unread(broker: Broker, group: str, topic: str, *, keyed: bool = False) -> int:
    """Return the number of visible records of a topic from a group's committed offsets on.

    Args:
        broker: The log.
        group: Name of the group.
        topic: Name of the topic.
        keyed: True to count only records that have a key.
    """
    partitions = broker.topic(topic).topic_partitions
    committed = broker.committed(group, partitions, require_stable=False)
    ends = broker.offsets(partitions)
    starts = {
        tp: max(now.log_start, committed[tp].offset if tp in committed else 0)
        for tp, now in ends.items()
    }
    stable = {tp: now.last_stable_offset for tp, now in ends.items()}
    batches = scan_batches(broker, starts, stable)
    if not keyed:
        return sum(len(batch) for batch in batches)
    keys = (batch.columns.column("key") for batch in batches)
    return sum(len(one) - one.null_count for one in keys)


def scan_by(
    fetch: FetchAt, positions: Offsets, ends: Offsets
) -> Iterator[dict[TopicPartition, Fetched]]:
    """Yield what `scan` yields, read by `fetch`."""
    left = {tp: at for tp, at in positions.items() if at < ends[tp]}
    last: dict[TopicPartition, Fetched] = {}
    stalled = 0
    while left:
        asked = dict(list(left.items())[:MAX_PARTITIONS])
        # Records before the end come at once. Wait only after a fetch without progress.
        fetched = fetch(asked, 1.0 if stalled else 0.0)
        for tp, got in fetched.items():
            if tp in last and not last[tp].is_continued_by(got):
                raise OffsetOutOfRange(f"{tp}: offset {asked[tp]} {REPLACED}; read it again")
        moved = {
            tp: _clipped(got, ends[tp])
            for tp, got in fetched.items()
            if got.next_offset > asked[tp]
        }
        stalled = 0 if moved else stalled + 1
        if stalled > MAX_STALLED_FETCHES:
            raise _stalled(asked, ends, fetched)
        last |= {tp: replace(got, batches=[]) for tp, got in moved.items()}
        if moved:
            yield moved
        left |= {tp: got.next_offset for tp, got in moved.items()}
        left = {tp: at for tp, at in left.items() if at < ends[tp]}


def _fetch(
    broker: Broker, isolation: Isolation, max_bytes: int, positions: Offsets, timeout: float
) -> Mapping[TopicPartition, Fetched]:
    size = max(MIN_PARTITION_BYTES, max_bytes // len(positions))
    return broker.fetch(positions, max_bytes=size, isolation=isolation, timeout=timeout)


def _stalled(
    asked: Offsets, ends: Offsets, fetched: Mapping[TopicPartition, Fetched]
) -> OffsetOutOfRange | RequestTimedOut:
    """Return the error of a scan whose last fetches have read nothing."""
    for tp, got in fetched.items():
        if got.high_watermark < ends[tp]:
            return OffsetOutOfRange(
                f"{tp}: the partition ends at offset {got.high_watermark}, and reached to {ends[tp]} "
                f"before, so what it has {REPLACED}; read it again"
            )
    return RequestTimedOut(
        f"{', '.join(map(str, asked))}: no progress although the end is not reached; is the log's "
        f"owner alive?"
    )


def _clipped(fetched: Fetched, end: int) -> Fetched:
    """Return a fetch without the records at or after `end`."""
    if fetched.next_offset <= end:
        return fetched
    batches = [clipped for batch in fetched.batches if len(clipped := batch.clip(0, end))]
    return replace(fetched, batches=batches, next_offset=end)
