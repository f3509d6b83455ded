"""Conversion of column batches to the records that handlers get, in bulk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from strandline.changelog.arrays import as_numpy
from strandline.changelog.errors import InvalidRecord
from strandline.changelog.records import Batch
from strandline.framework.record import Record
from strandline.framework.topic_declaration import TopicDeclaration


@dataclass(slots=True)
class Chunk:
    """Decoded records of one batch, or a single record that cannot be decoded."""

    records: list[Record[Any, Any]]
    batch: Batch
    end: int
    """End offset (exclusive) of the batch."""
    error: InvalidRecord | None = None
    """Decoding error of the chunk's only record, which has its raw key and no value; else None."""
    at: int = 0
    """Number of records that are handled: the index of the next one."""


def decode(topic: TopicDeclaration, batch: Batch, tombstones: bool) -> list[Chunk]:
    """Decode a batch; each record that cannot be decoded becomes a chunk of its own.

    A batch with such a record is halved until the record is alone. Without `tombstones`, records
    without a value are left out.
    """
    end = batch.last_offset + 1
    try:
        return [Chunk(records_of(topic, batch, tombstones=tombstones), batch, end)]
    except InvalidRecord as error:
        if len(batch) == 1:
            return [Chunk([_undecoded(batch)], batch, end, error)]
    half = len(batch) // 2
    parts = (batch.slice(0, half), batch.slice(half, len(batch) - half))
    return [chunk for part in parts for chunk in decode(topic, part, tombstones)]


def raw(batch: Batch, offset: int) -> Batch:
    """Return the record at `offset` as a batch of one, in its stored form."""
    sparse = batch.sparse_offsets
    index = offset - batch.base_offset if sparse is None else sparse.index(offset).as_py()
    return batch.slice(index, 1)


def records_of(
    topic: TopicDeclaration, batch: Batch, *, tombstones: bool
) -> list[Record[Any, Any]]:
    """Return the decoded records of a batch, without `tombstones` only those with a value.

    Raises:
        InvalidRecord: A key or a value cannot be decoded.
    """
    columns = batch.columns
    sparse, base = batch.sparse_offsets, batch.base_offset
    records = list(
        map(
            Record,
            topic.keys.decode(columns.column("key")),
            topic.values.decode(columns.column("value")),
            _timestamps(as_numpy(columns.column("timestamp"))),
            _headers(batch),
            repeat(batch.topic),
            repeat(batch.partition),
            range(base, base + len(batch)) if sparse is None else sparse.to_pylist(),
        )
    )
    values = columns.column("value")
    if tombstones or not values.null_count:
        return records
    return [r for r, here in zip(records, values.is_valid().to_pylist(), strict=True) if here]


def _timestamps(times: npt.NDArray[np.int64]) -> Iterable[int]:
    """Return the times as Python ints; equal times, common in one append, share one object."""
    if len(times) and (times == times[0]).all():
        return repeat(int(times[0]), len(times))
    return times.tolist()  # type: ignore[no-any-return]


def _headers(batch: Batch) -> Iterator[tuple[tuple[str, bytes | None], ...]]:
    at = batch.columns.schema.get_field_index("headers")
    if at < 0:
        return repeat(())
    rows = batch.columns.column(at).to_pylist()
    return iter([tuple((h["key"], h["value"]) for h in row or ()) for row in rows])


def _undecoded(batch: Batch) -> Record[Any, Any]:
    """Return a record with its raw key and no value, for messages and the dead-letter topic."""
    timestamp = batch.columns.column("timestamp")[0].as_py()
    key = batch.columns.column("key")[0].as_py()
    return Record(key, None, timestamp, (), batch.topic, batch.partition, batch.last_offset)
