"""Reading copies back: as many records, with the same content, in the same order, and nothing else."""

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
    """Compare what was copied, and is not verified yet, with all that the target has there.

    Raises CorruptLog.
    """
    partitions = work.partitions
    since = {tp: state.partition(tp.partition).verified for tp in partitions}
    found = digests(work, since, settled_ends(target, partitions, clock), target, advance)
    for tp in partitions:
        compare(tp, state.partition(tp.partition).digest, found[tp])


def verify_whole(work: TopicCopy, state: TopicState, target: Broker, advance: Advance) -> bool:
    """Compare all that was copied with what the target has there now, and nothing behind it.

    Says whether it could be compared: the target may have compacted it since, or let it go. Raises
    CorruptLog.
    """
    partitions = work.partitions
    now = target.offsets(partitions)
    ends = {tp: _only_to(now[tp], state.partition(tp.partition).end) for tp in partitions}
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
    """Of the records of the target between these offsets."""
    at = dict(positions)
    found = dict.fromkeys(at, StreamDigest())
    for tp, fetched in rounds(target, positions, ends):
        for batch in fetched.batches:
            found[tp] = found[tp].over(work.form.read_back(batch.columns))
        advance(fetched.next_offset - at[tp])
        at[tp] = fetched.next_offset
    return found


def compare(tp: TopicPartition, copied: StreamDigest, found: StreamDigest) -> None:
    """Raise CorruptLog unless what was found is what was copied."""
    if copied != found:
        raise CorruptLog(
            f"{tp}: {copied.count} records with checksum {copied.text} were copied, the target has "
            f"{found.count} with checksum {found.text}. Something else writes there, or the copy is "
            f"damaged: delete topic {tp.topic!r} in the target and move again; the source is as it was"
        )


def check_unused(
    topic: str, partitions: int, state: TopicState, target: Broker, clock: Clock
) -> None:
    """Raise InvalidRequest if a topic of the target has records behind those that were copied."""
    ends = settled_ends(target, [TopicPartition(topic, n) for n in range(partitions)], clock)
    behind = {tp: max(state.partition(tp.partition).end, end.log_start) for tp, end in ends.items()}
    for tp, fetched in rounds(target, behind, ends):
        if fetched.batches:
            raise InvalidRequest(
                f"{tp} in the target has records from offset {fetched.batches[0].base_offset} on that "
                f"were not copied there, so it is in use; it is left as it is. To move again delete the "
                f"topic, with all that was done there since"
            )


def _only_to(ends: PartitionOffsets, end: int) -> PartitionOffsets:
    return replace(ends, last_stable_offset=min(end, ends.last_stable_offset))
