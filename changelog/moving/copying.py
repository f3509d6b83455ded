"""Copying the records of a topic, round by round: each a transaction that also says what it has copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.client.producer import BatchMetadata, Producer
from strandline.changelog.errors import InvalidRequest, SchemaMismatch
from strandline.changelog.history import UNKNOWN_EPOCH, HistoryEpoch, continues, epoch_before
from strandline.changelog.moving.forms import BatchConversion
from strandline.changelog.moving.journal import Journal, PartitionState, RecordsCopied, TopicState
from strandline.changelog.moving.reading import Advance, Ends, fetches
from strandline.changelog.moving.runs import RecordRuns, following
from strandline.changelog.records import Batch, Fetched, TopicInfo, TopicPartition


@dataclass(frozen=True)
class TopicCopy:
    """A topic that is copied."""

    source: TopicInfo
    target: TopicInfo
    form: BatchConversion

    @property
    def partitions(self) -> list[TopicPartition]:
        """Its partitions, here and there."""
        return [TopicPartition(self.source.name, n) for n in range(self.source.partitions)]


def copy(
    work: TopicCopy,
    ends: Ends,
    source: Broker,
    producer: Producer,
    journal: Journal,
    advance: Advance,
) -> dict[TopicPartition, int]:
    """Copy what is left up to the last stable `ends`; where it has come to in the source.

    Raises InvalidRequest if deletions were missed.
    """
    state = journal.state.topics[work.source.topic_id]
    positions = {
        tp: max(state.partition(tp.partition).position, ends[tp].log_start)
        for tp in work.partitions
    }
    named = {tp: ends[tp].epoch_before(at).incarnation for tp, at in positions.items()}
    for fetched in fetches(source, positions, ends):
        for tp, got in fetched.items():
            if not continues(got.epochs, positions[tp], named[tp]):
                raise diverged(tp, "the log was replaced by another copy while it was read")
            if got.epochs:
                named[tp] = epoch_before(got.epochs, got.next_offset).incarnation
        _check_complete(work, state, source, {tp: positions[tp] for tp in fetched})
        _copy_round(work, state, fetched, producer, journal)
        advance(sum(got.next_offset - positions[tp] for tp, got in fetched.items()))
        positions |= {tp: got.next_offset for tp, got in fetched.items()}
    return positions


def check_same_history(work: TopicCopy, state: TopicState, ends: Ends) -> None:
    """Raise InvalidRequest if the source is not, any more, the log that was copied from.

    It was restored from a backup, or is another copy, and was written to since: the copy has records
    that the source does not have.
    """
    for tp in work.partitions:
        copied = state.partition(tp.partition)
        if copied.position and (
            problem := ends[tp].divergence(copied.in_source(work.source.topic_id))
        ):
            raise diverged(tp, problem)


def diverged(tp: TopicPartition, problem: str) -> InvalidRequest:
    """The error for a source with another history than the one that was copied."""
    return InvalidRequest(
        f"{tp}: what was copied is not what the source has now: {problem}. Delete topic {tp.topic!r} "
        f"in the target, with all that was done there since, and run this again"
    )


def _check_complete(
    work: TopicCopy, state: TopicState, source: Broker, fetched_from: Mapping[TopicPartition, int]
) -> None:
    """Whether the copy lacks no deletion: then it would keep for ever what is deleted in the source."""
    if not work.source.effective.compact:
        return
    settled = state.begun.settled
    for tp, now in source.offsets(list(fetched_from)).items():
        known = settled[tp.partition] if tp.partition < len(settled) else 0
        if now.must_start_over(fetched_from[tp], known):
            raise InvalidRequest(
                f"{tp}: deletions up to offset {now.purged_end} were removed from the source when its "
                f"copy had come to offset {fetched_from[tp]}, so the copy has to begin anew: delete "
                f"topic {tp.topic!r} in the target and run this again (delete.retention.ms of the topic "
                f"should be longer than it takes)"
            )


def _copy_round(
    work: TopicCopy,
    state: TopicState,
    fetched: Mapping[TopicPartition, Fetched],
    producer: Producer,
    journal: Journal,
) -> None:
    found = {tp: [batch for batch in got.batches if len(batch)] for tp, got in fetched.items()}
    merged = {tp: _merged(work, batches) for tp, batches in found.items() if batches}
    if not merged:
        return
    with producer.transaction():
        schema_id = work.target.schema_id
        written = producer.append_batches((tp, one, schema_id) for tp, one in merged.items())
        entries = [
            _copied(
                *(work, state.partition(tp.partition), tp.partition, fetched[tp].next_offset),
                *(columns, found[tp], [one for one in written if one.partition == tp.partition]),
                _epoch_behind(fetched[tp]),
            )
            for tp, columns in merged.items()
        ]
        journal.write(producer, entries)
    journal.settle(entries)


def _merged(work: TopicCopy, batches: Sequence[Batch]) -> pa.RecordBatch:
    """All in one, in its new form: small ones, of which logs of apps are full, are slow to append."""
    tables = [pa.Table.from_batches([work.form.written(batch.columns)]) for batch in batches]
    for batch, table in zip(batches, tables, strict=True):
        if table.schema.field("value").type != work.form.type:
            raise SchemaMismatch(
                f"{batch.topic}-{batch.partition}: records from offset {batch.base_offset} on have "
                f"other columns than the copy that was begun; delete topic {batch.topic!r} in the "
                f"target and run this again"
            )
    # Not all have headers.
    whole = pa.concat_tables(tables, promote_options="default").combine_chunks()
    (merged,) = whole.to_batches()
    return merged


def _copied(
    work: TopicCopy,
    before: PartitionState,
    partition: int,
    position: int,
    columns: pa.RecordBatch,
    batches: Sequence[Batch],
    written: Sequence[BatchMetadata],
    epoch: HistoryEpoch,
) -> RecordsCopied:
    digest = before.digest.over(columns)
    source = np.concatenate([batch.offsets.to_numpy() for batch in batches])
    target = following([(piece.base_offset, piece.last_offset) for piece in written])
    return RecordsCopied(
        work.source.topic_id,
        partition,
        position,
        int(target[-1]) + 1,
        before.whole.over(columns) if before.verified else digest,
        digest,
        RecordRuns.of(source, target).encode(),
        epoch.number,
        epoch.incarnation,
    )


def _epoch_behind(fetched: Fetched) -> HistoryEpoch:
    """The epoch that names the position behind what was fetched; on Kafka only its number is known."""
    if fetched.epochs:
        return epoch_before(fetched.epochs, fetched.next_offset)
    return HistoryEpoch(UNKNOWN_EPOCH, 0)
