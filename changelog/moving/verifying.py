"""Read copies back and verify that they have the same records in the same order, and no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import CorruptLog, InvalidRequest
from strandline.changelog.moving.copying import TopicCopy
from strandline.changelog.moving.digest import StreamDigest
from strandline.changelog.moving.journal import TopicState
from strandline.changelog.moving.reading import Advance, Ends, rounds, settled_ends
from strandline.changelog.records import PartitionOffsets, TopicPartition


def verify(
    work: TopicCopy, state: TopicState, target: Broker, clock: Clock, advance: Advance
) -> None:
    """Compare the copied records that are not verified yet with the target's. Raises CorruptLog."""
    partitions = work.partitions
    since = {tp: state.partition(tp.partition).verified for tp in partitions}
    found = digests(work, since, settled_ends(target, partitions, clock), target, advance)
    for tp in partitions:
        compare(tp, state.partition(tp.partition).digest, found[tp])


def verify_whole(work: TopicCopy, state: TopicState, target: Broker, advance: Advance) -> bool:
    """Compare all copied records with the target's; ignore records appended later.

    Returns False if they cannot be compared, because compaction or retention has removed some in
    the target. Raises CorruptLog.
    """
    partitions = work.partitions
    now = target.offsets(partitions)
    ends = {tp: _limited_to(now[tp], state.partition(tp.partition).end) for tp in partitions}
    starts = {tp: min(now[tp].log_start, ends[tp].last_stable_offset) for tp in partitions}
    found = digests(work, starts, ends, target, advance)
    shrinks = work.target.effective.compact or any(starts.values())
    comparable = True
    for tp in partitions:
        copied = state.partition(tp.partition).whole
        if shrinks and found[tp].count < copied.count:
            comparable = False
        else:
            compare(tp, copied, found[tp])
    return comparable


def digests(
    work: TopicCopy,
    positions: Mapping[TopicPartition, int],
    ends: Ends,
    target: Broker,
    advance: Advance,
) -> dict[TopicPartition, StreamDigest]:
    """Return the digests of the target's records from `positions` to the last stable offsets."""
    reached = dict(positions)
    found = dict.fromkeys(reached, StreamDigest())
    for tp, fetched in rounds(target, positions, ends):
        for batch in fetched.batches:
            found[tp] = found[tp].over(work.form.read_back(batch.columns))
        advance(fetched.next_offset - reached[tp])
        reached[tp] = fetched.next_offset
    return found


def compare(tp: TopicPartition, copied: StreamDigest, found: StreamDigest) -> None:
    """Raise CorruptLog if the digests of copied and found records differ."""
    if copied != found:
        raise CorruptLog(
            f"{tp}: {copied.count} records with checksum {copied.text} were copied, the target has "
            f"{found.count} with checksum {found.text}. Something else writes there, or the copy is "
            f"damaged: delete topic {tp.topic!r} in the target and move again; the source is unchanged"
        )


def check_unused(
    topic: str, partitions: int, state: TopicState, target: Broker, clock: Clock
) -> None:
    """Raise InvalidRequest if a target topic has records after the copied ones."""
    ends = settled_ends(target, [TopicPartition(topic, n) for n in range(partitions)], clock)
    positions = {
        tp: max(state.partition(tp.partition).end, end.log_start) for tp, end in ends.items()
    }
    for tp, fetched in rounds(target, positions, ends):
        if fetched.batches:
            raise InvalidRequest(
                f"{tp} in the target has records from offset {fetched.batches[0].base_offset} on that "
                f"the move did not copy: it is in use, and nothing is changed. To move again delete the "
                f"topic, with all changes made there since"
            )


def _limited_to(ends: PartitionOffsets, end: int) -> PartitionOffsets:
    """Return the offsets with the last stable offset limited to `end`."""
    return replace(ends, last_stable_offset=min(end, ends.last_stable_offset))
