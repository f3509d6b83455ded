"""Order in which a batch task handles the fetched records of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow.compute as pc

from strandline.changelog.records import Batch
from strandline.framework.container.inputs import Input


class TakenBatch(NamedTuple):
    """Records that were taken from an input to be handled together."""

    source: Input
    records: Batch


class BatchQueue:
    """The pending records of all inputs of an instance, batch by batch.

    The input whose next record is the oldest one comes first. A batch is not cut where another
    input has older records, because a batch task gives the same results for any division.
    """

    def __init__(self, inputs: Sequence[Input]) -> None:
        self._inputs = inputs

    @property
    def has_next(self) -> bool:
        """True if a record is pending and the next record of every input is known."""
        return any(source.pending for source in self._inputs) and all(
            source.is_answered for source in self._inputs
        )

    def next(self, limit: int) -> TakenBatch | None:
        """Take at most `limit` records; None if none are known yet."""
        while self.has_next:
            source = min((one for one in self._inputs if one.pending), key=_oldest)
            batch = source.take(limit)
            if batch is not None:
                return TakenBatch(source, batch)
            source.end_take()
        return None


def _oldest(source: Input) -> int:
    """Return the time of the next record of an input in ms; -1 if its next batch is empty."""
    times = source.batches[0].columns.column("timestamp")
    return int(times[0].as_py()) if len(times) else -1


def without_tombstones(batch: Batch) -> Batch:
    """Return the records that have a value."""
    values = batch.columns.column("value")
    if not values.null_count:
        return batch
    kept = values.is_valid()
    offsets = pc.filter(batch.offsets, kept)
    base = offsets[0].as_py() if len(offsets) else batch.base_offset
    columns = batch.columns.filter(kept)
    return Batch(batch.topic, batch.partition, base, columns, batch.leader_epoch, offsets)
