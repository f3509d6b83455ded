"""Positions of a Faust consumer: committed offsets, resets, and the last record of a changelog."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from strandline.changelog.broker import Broker
from strandline.changelog.client.asking_again import stable_offsets
from strandline.changelog.clock import Clock
from strandline.changelog.errors import OffsetOutOfRange
from strandline.changelog.records import PartitionOffsets, TopicPartition
from strandline.changelog.scan import scan_batches
from strandline.framework.faust.fetched_records import ReadHistories
from strandline.framework.positions import check_history, of_present_topics, starting_offset

LOADING_S = 30.0
"""Maximum seconds to wait for transactions that are about to change committed offsets."""
LOOK_BACK_OFFSETS = 256
"""Offsets before the end at which the search for the last record begins."""


def starting_offsets(
    broker: Broker,
    group: str | None,
    partitions: Collection[TopicPartition],
    reset: str,
    clock: Clock,
) -> dict[TopicPartition, int]:
    """Return the offset at which to begin each partition: the committed one, or by `reset`.

    An offset that was committed for a deleted topic of the same name counts for nothing. Records
    that retention has removed are skipped with a warning, whatever `reset` says.

    Raises OffsetOutOfRange if a committed offset is of another history than its partition, or after
    its end: the tables may contain records that the log has lost.
    """
    if not partitions:
        return {}
    if group is None:
        return {tp: _by(reset, end) for tp, end in broker.offsets(partitions).items()}
    found = stable_offsets(broker, group, partitions, clock, within_s=LOADING_S)
    ends = broker.offsets(partitions)  # afterwards, because committed offsets follow the ends
    committed = of_present_topics(found, ends)
    check_history(committed, ends)
    for tp, at in committed.items():
        if at.offset > ends[tp].high_watermark:
            raise OffsetOutOfRange(
                f"{tp}: the app goes on at offset {at.offset}, but the log ends at "
                f"{ends[tp].high_watermark}, so it has lost records. Restore it from a copy, or "
                f"reset the offsets and the tables of group {group!r}"
            )
    return {
        tp: starting_offset(group, tp, committed[tp].offset, end.log_start)
        if tp in committed
        else _by(reset, end)
        for tp, end in ends.items()
    }


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
    back = LOOK_BACK_OFFSETS
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


def within(
    broker: Broker, wanted: Mapping[TopicPartition, int], read: ReadHistories | None = None
) -> dict[TopicPartition, int]:
    """Return the wanted positions, moved into the range of offsets that the log has.

    Raises OffsetOutOfRange if a topic that was read up to these positions was deleted, and another
    one has its name.
    """
    ends = broker.offsets(wanted.keys()) if wanted else {}
    if read is not None:
        for tp, offset in wanted.items():
            read.check_topic(TopicPartition(*tp), offset, ends[tp].topic_id)
    return {
        tp: min(max(offset, ends[tp].log_start), ends[tp].high_watermark)
        for tp, offset in wanted.items()
    }
