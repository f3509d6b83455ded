"""Copy the records of a topic in rounds: transactions that also write the journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from strandline.changelog.arrays import as_numpy
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
    """A topic being copied: the source, the target, and the conversion of its batches."""

    source: TopicInfo
    target: TopicInfo
    form: BatchConversion

    @property
    def partitions(self) -> list[TopicPartition]:
        """Partitions of the source topic; the target has the same names and numbers."""
        return self.source.topic_partitions


def copy(
    work: TopicCopy,
    ends: Ends,
    source: Broker,
    producer: Producer,
    journal: Journal,
    advance: Advance,
) -> dict[TopicPartition, int]:
    """Copy the remaining records before the last stable offsets in `ends`.

    Returns the positions reached in the source. Raises InvalidRequest if tombstones that were not
    copied yet have been removed from the source.
    """
    state = journal.state.topics[work.source.topic_id]
    positions = {
        tp: max(state.partition(tp.partition).position, ends[tp].log_start)
        for tp in work.partitions
    }
    incarnations = {tp: ends[tp].epoch_before(at).incarnation for tp, at in positions.items()}
    for fetched in fetches(source, positions, ends):
        for tp, got in fetched.items():
            if not continues(got.epochs, positions[tp], incarnations[tp]):
                raise diverged(tp, "the log was replaced by another copy while it was read")
            if got.epochs:
                incarnations[tp] = epoch_before(got.epochs, got.next_offset).incarnation
        _check_complete(work, state, source, {tp: positions[tp] for tp in fetched})
        _copy_round(work, state, fetched, producer, journal)
        advance(sum(got.next_offset - positions[tp] for tp, got in fetched.items()))
        positions |= {tp: got.next_offset for tp, got in fetched.items()}
    return positions


def check_same_history(work: TopicCopy, state: TopicState, ends: Ends) -> None:
    """Raise InvalidRequest if the source has another history than the log that was copied from.

    This happens if the source was restored from a backup, or replaced by another copy, and then
    written to: the target has records that the source does not have.
    """
    for tp in work.partitions:
        copied = state.partition(tp.partition)
        if copied.position and (
            problem := ends[tp].divergence(copied.in_source(work.source.topic_id))
        ):
            raise diverged(tp, problem)


def diverged(tp: TopicPartition, problem: str) -> InvalidRequest:
    """Return the error for a source with another history than the one that was copied."""
    return InvalidRequest(
        f"{tp}: the copied records differ from those of the source now: {problem}. Delete topic "
        f"{tp.topic!r} in the target, with all changes made there since, and run this again"
    )


def _check_complete(
    work: TopicCopy, state: TopicState, source: Broker, fetched_from: Mapping[TopicPartition, int]
) -> None:
    """Raise InvalidRequest if the copy misses a tombstone that was removed from the source.

    Without the tombstone the target would keep a record forever that is deleted in the source.
    """
    if not work.source.effective.compact:
        return
    settled_ends = state.begun.settled
    for tp, now in source.offsets(list(fetched_from)).items():
        known = settled_ends[tp.partition] if tp.partition < len(settled_ends) else 0
        if now.must_start_over(fetched_from[tp], known):
            raise InvalidRequest(
                f"{tp}: tombstones up to offset {now.purged_end} were removed from the source when the "
                f"copy had reached offset {fetched_from[tp]}, so the copy has to start over: delete "
                f"topic {tp.topic!r} in the target and run this again (delete.retention.ms of the topic "
                f"should be longer than the copy takes)"
            )


def _copy_round(
    work: TopicCopy,
    state: TopicState,
    fetched: Mapping[TopicPartition, Fetched],
    producer: Producer,
    journal: Journal,
) -> None:
    """Append one fetch to the target and its journal entries to the journal, in one transaction."""
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
                _epoch_after(fetched[tp]),
            )
            for tp, columns in merged.items()
        ]
        journal.write(producer, entries)
    journal.apply_committed(entries)


def _merged(work: TopicCopy, batches: Sequence[Batch]) -> pa.RecordBatch:
    """Convert batches and merge them into one, because many small batches are slow to append."""
    tables = [pa.Table.from_batches([work.form.written(batch.columns)]) for batch in batches]
    for batch, table in zip(batches, tables, strict=True):
        if table.schema.field("value").type != work.form.type:
            raise SchemaMismatch(
                f"{batch.topic}-{batch.partition}: records from offset {batch.base_offset} on have "
                f"other columns than the target topic; delete topic {batch.topic!r} in the target "
                f"and run this again"
            )
    # Promotion adds null headers to batches without any.
    whole = pa.concat_tables(tables, promote_options="default").combine_chunks()
    (merged,) = whole.to_batches()
    return merged


def _copied(
    work: TopicCopy,
    previous: PartitionState,
    partition: int,
    position: int,
    columns: pa.RecordBatch,
    batches: Sequence[Batch],
    written: Sequence[BatchMetadata],
    epoch: HistoryEpoch,
) -> RecordsCopied:
    """Return the journal entry for the records of one partition in a round."""
    digest = previous.digest.over(columns)
    source = np.concatenate([as_numpy(batch.offsets) for batch in batches])
    target = following([(piece.base_offset, piece.last_offset) for piece in written])
    return RecordsCopied(
        work.source.topic_id,
        partition,
        position,
        int(target[-1]) + 1,
        previous.whole.over(columns) if previous.verified else digest,
        digest,
        RecordRuns.of(source, target).encode(),
        epoch.number,
        epoch.incarnation,
    )


def _epoch_after(fetched: Fetched) -> HistoryEpoch:
    """Return the epoch of the position after a fetch; unknown without epochs (Kafka)."""
    if fetched.epochs:
        return epoch_before(fetched.epochs, fetched.next_offset)
    return HistoryEpoch(UNKNOWN_EPOCH, 0)
