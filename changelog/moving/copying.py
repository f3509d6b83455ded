"""Copying the records of a topic, round by round: each a transaction that also says what it has copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from changelog.broker import Broker
from changelog.client.producer import BatchMetadata, Producer
from changelog.errors import InvalidRequest, SchemaMismatch
from changelog.moving.digest import Digest
from changelog.moving.forms import AsTheyAre
from changelog.moving.journal import Copied, Journal, TopicState
from changelog.moving.reading import Advance, Ends, fetches
from changelog.moving.runs import Runs, following
from changelog.records import Batch, Fetched, TopicInfo, TopicPartition


@dataclass(frozen=True)
class Work:
    """A topic that is copied."""

    source: TopicInfo
    target: TopicInfo
    form: AsTheyAre

    @property
    def partitions(self) -> list[TopicPartition]:
        """Its partitions, here and there."""
        return [TopicPartition(self.source.name, n) for n in range(self.source.partitions)]


def copy(
    work: Work,
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
    for fetched in fetches(source, positions, ends):
        _check_complete(work, state, source, {tp: positions[tp] for tp in fetched})
        _copy_round(work, state, fetched, producer, journal)
        advance(sum(got.next_offset - positions[tp] for tp, got in fetched.items()))
        positions |= {tp: got.next_offset for tp, got in fetched.items()}
    return positions


def _check_complete(
    work: Work, state: TopicState, source: Broker, fetched_from: Mapping[TopicPartition, int]
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
    work: Work,
    state: TopicState,
    fetched: Mapping[TopicPartition, Fetched],
    producer: Producer,
    journal: Journal,
) -> None:
    batches = [batch for got in fetched.values() for batch in got.batches if len(batch)]
    if not batches:
        return
    with producer.transaction():
        written = _written(work, batches, producer)
        entries = [_copied(work, state, tp, fetched[tp].next_offset, written[tp]) for tp in written]
        journal.write(producer, entries)
    journal.settle(entries)


Written = list[tuple[Batch, list[BatchMetadata]]]
"""Batches in their new form, and where they went."""


def _written(work: Work, batches: list[Batch], producer: Producer) -> dict[TopicPartition, Written]:
    formed = [_formed(work, batch) for batch in batches]
    schema_id = work.target.schema_id
    answers = iter(
        producer.append_batches(
            (TopicPartition(batch.topic, batch.partition), batch.columns, schema_id)
            for batch in formed
        )
    )
    written: dict[TopicPartition, Written] = {}
    for batch in formed:
        pieces: list[BatchMetadata] = []
        while sum(piece.last_offset - piece.base_offset + 1 for piece in pieces) < len(batch):
            pieces.append(next(answers))
        tp = TopicPartition(batch.topic, batch.partition)
        written.setdefault(tp, []).append((batch, pieces))
    return written


def _formed(work: Work, batch: Batch) -> Batch:
    columns = work.form(batch.columns)
    expected = work.form.type
    if columns.schema.field("value").type != expected:
        raise SchemaMismatch(
            f"{batch.topic}-{batch.partition}: records from offset {batch.base_offset} on have other "
            f"columns than the copy that was begun; delete topic {batch.topic!r} in the target and "
            f"run this again"
        )
    return Batch(
        batch.topic,
        batch.partition,
        batch.base_offset,
        columns,
        batch.leader_epoch,
        batch.sparse_offsets,
    )


def _copied(
    work: Work, state: TopicState, tp: TopicPartition, position: int, written: Written
) -> Copied:
    before = state.partition(tp.partition)
    digest = _over(before.digest, written)
    whole = _over(before.whole, written) if before.verified else digest
    source = np.concatenate([batch.offsets.to_numpy() for batch, _ in written])
    target = following(
        [(piece.base_offset, piece.last_offset) for _, pieces in written for piece in pieces]
    )
    return Copied(
        work.source.topic_id,
        tp.partition,
        position,
        int(target[-1]) + 1,
        whole,
        digest,
        Runs.of(source, target).encode(),
    )


def _over(digest: Digest, written: Written) -> Digest:
    for batch, _ in written:
        digest = digest.over(batch.columns)
    return digest
