"""Positions of a Faust consumer: committed offsets, resets, and the last record of a changelog."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from strandline.changelog.broker import Broker
from strandline.changelog.client.asking_again import stable_offsets
from strandline.changelog.clock import Clock
from strandline.changelog.records import PartitionOffsets, TopicPartition
from strandline.changelog.scan import scan_batches

LOADING_S = 30.0
"""Maximum seconds to wait for transactions that are about to change committed offsets."""
LOOK_BACK = 256
"""Offsets before the end at which the search for the last record begins."""


def starting_offsets(
    broker: Broker,
    group: str | None,
    partitions: Collection[TopicPartition],
    reset: str,
    clock: Clock,
) -> dict[TopicPartition, int]:
    """Return the offset at which to begin each partition: the committed one, or by `reset`."""
    ends = broker.offsets(partitions) if partitions else {}
    committed = (
        stable_offsets(broker, group, partitions, clock, within_s=LOADING_S)
        if group and partitions
        else {}
    )
    found = {}
    for tp, end in ends.items():
        at = committed.get(tp)
        is_known = at is not None and at.topic_id in ("", end.topic_id)
        if at is not None and is_known and end.log_start <= at.offset <= end.high_watermark:
            found[tp] = at.offset
        else:
            found[tp] = _by(reset, end)
    return found


def _by(reset: str, end: PartitionOffsets) -> int:
    return end.last_stable_offset if reset == "latest" else end.log_start


def after_last_record(
    broker: Broker, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the offset after the last visible record of each partition.

    Faust's recovery ends at a record's offset. After the last record there may be markers, aborted
    records, and offsets that compaction has removed, none of which a reader ever gets.
    """
    found = {}
    for tp, end in (broker.offsets(partitions) if partitions else {}).items():
        found[tp] = _after_last_record(broker, tp, end.log_start, end.last_stable_offset)
    return found


def _after_last_record(broker: Broker, tp: TopicPartition, start: int, end: int) -> int:
    back = LOOK_BACK
    while True:
        at = max(start, end - back)
        last = None
        for batch in scan_batches(broker, {tp: at}, {tp: end}):
            last = batch.last_offset
        if last is not None:
            return last + 1
        if at <= start:
            return start
        back *= 4


def within(broker: Broker, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the wanted positions, moved into the range of offsets that the log has."""
    ends = broker.offsets(wanted.keys()) if wanted else {}
    return {
        tp: min(max(offset, ends[tp].log_start), ends[tp].high_watermark)
        for tp, offset in wanted.items()
    }
