"""One task: the records of one partition between two offsets, read and written to files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.errors import InvalidRequest, StrandlineError
from strandline.changelog.history import HistoryEpoch, continues, epoch_before
from strandline.changelog.records import Batch, Fetched, TopicPartition
from strandline.changelog.scan import scan
from strandline.framework.offload.files import FileLimits, FileNames, PartitionFiles
from strandline.framework.offload.folder import TargetFolder
from strandline.framework.offload.plan import ANOTHER_FOLDER, Span
from strandline.framework.offload.rows import RowForm
from strandline.framework.offload.target import DataFile

GROUP_BYTES = 64 << 20
GROUP_ROWS = 1 << 20
"""Size at which collected records are written as a row group."""
FETCH_BYTES = 16 << 20


class TaskCancelled(Exception):
    """Another task of the round has failed."""


class Loaded(NamedTuple):
    """The result of a task."""

    span: Span
    files: list[DataFile]
    epoch: HistoryEpoch | None
    """Epoch that names the position at the end of the span; None if the log lists none."""


@dataclass(frozen=True)
class SpanLoader:
    """Loads spans: the source, the target and the limits that all tasks of a run share."""

    broker: Broker
    topic: str
    form: RowForm
    columns: pa.Schema
    """Columns of the files."""
    folder: TargetFolder
    limits: FileLimits
    run: str
    """Random identifier of the run, for the names of its files."""
    goes_on: Callable[[int], bool]
    """Function that is called with the number of records read since its last call."""

    def load(self, span: Span) -> Loaded:
        """Write the committed records of a span to files, which are in staging then.

        Raises:
            TaskCancelled: `goes_on` has returned False.
            OffsetOutOfRange: Records of the span were removed meanwhile.
            InvalidRequest: The history of the partition changed meanwhile.
            InvalidRecord: A record cannot be decoded.
        """
        names = FileNames(span.partition, self.run)
        files = PartitionFiles(self.folder, names, self.columns, self.limits)
        reading = _SpanReader(self.broker, self.topic, span)
        try:
            for batches in _groups(self._watched(reading), self.limits.max_rows):
                files.write(self.form.rows(batches, self.columns))
            return Loaded(span, files.close(), reading.epoch)
        finally:
            with suppress(StrandlineError):
                files.abandon()

    def _watched(self, reading: _SpanReader) -> Iterator[Batch]:
        for fetched in reading:
            if not self.goes_on(sum(map(len, fetched.batches))):
                raise TaskCancelled
            yield from fetched.batches


class _SpanReader:
    """Fetches of a span, all of one history."""

    def __init__(self, broker: Broker, topic: str, span: Span) -> None:
        self._broker = broker
        self._tp = TopicPartition(topic, span.partition)
        self._span = span
        self.epoch: HistoryEpoch | None = None
        """Epoch that names the position after the last fetch; None if the log lists none."""

    def __iter__(self) -> Iterator[Fetched]:
        start, end = {self._tp: self._span.start}, {self._tp: self._span.end}
        at, incarnation = self._span.start, self._span.epoch.incarnation
        for moved in scan(self._broker, start, end, max_bytes=FETCH_BYTES):
            fetched = moved[self._tp]
            if not continues(fetched.epochs, at, incarnation):
                raise InvalidRequest(
                    f"{self._tp} got another history while it was read at offset {at}: the log was replaced "
                    f"by a copy of it; nothing was changed. Run it again, and if that is refused, {ANOTHER_FOLDER}"
                )
            at = fetched.next_offset
            if fetched.epochs:
                self.epoch = epoch_before(fetched.epochs, at)
                incarnation = self.epoch.incarnation
            yield fetched


def _groups(batches: Iterator[Batch], max_rows: int) -> Iterator[list[Batch]]:
    """Yield successive batches together, until they are large enough for a row group."""
    waiting: list[Batch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += len(batch)
        size += batch.columns.nbytes
        if rows >= min(GROUP_ROWS, max_rows) or size >= GROUP_BYTES:
            yield waiting
            waiting, rows, size = [], 0, 0
    if waiting:
        yield waiting
