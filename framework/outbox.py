"""Outboxes: the records that a task instance has sent since the last commit.

Items are kept in parallel lists and encoded to columns in bulk; what is sent as columns is kept as
columns. If a handler raises, the sends of its step are removed again: `mark` is the index at which
its items begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa

from strandline.changelog.errors import InvalidRecord, InvalidTxnState, SchemaMismatch
from strandline.changelog.records import Headers
from strandline.framework.columns import batch_of, one_record
from strandline.framework.context import TaskContext
from strandline.framework.formats.codecs import UNENCODABLE
from strandline.framework.record import Record
from strandline.framework.topic_declaration import TopicDeclaration
from strandline.framework.trial import Trial

RECORD_BYTES = 200
"""Approximate bytes of memory of a record, besides those of a value that is bytes or a str."""
_SIZED = frozenset({bytes, str})
_SMALL = frozenset({int, float, bool})


def _size_of(values: Sequence[Any]) -> int:
    """Return the number of bytes, or characters, of the values that are bytes or a str."""
    types = set(map(type, values))  # because mostly all are of one type
    if types.isdisjoint(_SIZED):
        return 0
    sized = values if types <= _SIZED else [value for value in values if type(value) in _SIZED]
    return sum(map(len, sized))


class SentColumns(NamedTuple):
    """Records that were sent as columns."""

    at: int
    """Number of single records that the outbox had before them."""
    columns: pa.RecordBatch
    step: Record[Any, Any]
    """Record of the step that has sent them."""
    to_all: bool = False
    """True if each record goes to all partitions."""


class Outbox:
    """Records that one task instance has sent to one topic since the last commit."""

    __slots__ = (
        "_columns_nbytes",
        "_exact",
        "_is_over",
        "_measured",
        "_nbytes",
        "_trial",
        "checked",
        "columns",
        "context",
        "headers",
        "keys",
        "mark",
        "record",
        "timestamps",
        "values",
    )

    def __init__(self, context: TaskContext, trial: Trial, exact: type | None) -> None:
        """Make an empty outbox.

        Args:
            context: Context of the step that is running.
            trial: Search for the step that makes the log refuse a commit.
            exact: Type of all values; None if they may be of several types.
        """
        self.context = context
        self._trial = trial
        self._exact = exact
        self._is_over = False
        self._measured = 0
        self._nbytes = 0
        self._columns_nbytes = 0
        self.keys: list[Any] = []
        self.values: list[Any] = []
        self.timestamps: list[int] = []
        self.headers: dict[int, Headers] = {}
        self.columns: list[SentColumns] = []
        self.record: Record[Any, Any] | None = None
        self.mark = 0
        self.checked = trial.is_checking
        """True if each record is checked when it is sent, to find one that the log refuses."""

    @property
    def is_empty(self) -> bool:
        """True if nothing was sent since the last commit."""
        return not (self.keys or self.columns)

    def put(self, key: Any, value: Any, timestamp: int, headers: Headers = ()) -> None:
        """Add one record, given as items of the topic's codecs."""
        if headers:
            self.headers[len(self.keys)] = headers
        self.keys.append(key)
        self.values.append(value)
        self.timestamps.append(timestamp)

    def put_columns(
        self, topic: TopicDeclaration, columns: pa.RecordBatch, *, to_all: bool = False
    ) -> None:
        """Add records in the form of the log, for the partition of each key or for all partitions.

        Raises:
            InvalidRecord: The log would refuse one of them.
            InvalidTxnState: The handler has ended.
        """
        self._refuse_late(topic)
        if self._trial.is_checking:
            self._trial.check(topic.name, columns)
        self.columns.append(SentColumns(len(self.keys), columns, self.context.record, to_all))
        self._columns_nbytes += columns.nbytes

    def check(
        self, topic: TopicDeclaration, key: Any, value: Any, timestamp: int, headers: Headers
    ) -> None:
        """Encode one record.

        Raises:
            InvalidRecord: The log would refuse it.
            InvalidTxnState: The handler has ended.
        """
        self._refuse_late(topic)
        if not self._trial.is_checking:
            return
        self._trial.check(topic.name, one_record(topic, key, value, timestamp, headers))

    def measure(self) -> int:
        """Return the approximate bytes of memory that the records use."""
        count = len(self.values)
        if count > self._measured:
            large = 0 if self._exact in _SMALL else _size_of(self.values[self._measured :])
            self._nbytes += large + RECORD_BYTES * (count - self._measured)
            self._measured = count
        return self._nbytes + self._columns_nbytes

    def cut(self, record: Record[Any, Any]) -> None:
        """Remove the records that were sent while `record` was handled."""
        if self.record is record:
            self._truncate(self.mark)
        while self.columns and self.columns[-1].step is record:
            self._columns_nbytes -= self.columns.pop().columns.nbytes

    def cut_columns(self, count: int) -> None:
        """Keep the first `count` of what was sent as columns, and remove the rest."""
        for sent in self.columns[count:]:
            self._columns_nbytes -= sent.columns.nbytes
        del self.columns[count:]

    def of_step(self, context: TaskContext) -> Outbox:
        """Return an empty outbox for a step that is kept apart from others."""
        return Outbox(context, self._trial, self._exact)

    def absorb(self, step: Outbox) -> None:
        """Add the records of a step that was kept apart."""
        before = len(self.keys)
        self.headers.update({at + before: pairs for at, pairs in step.headers.items()})
        self.columns += [sent._replace(at=sent.at + before) for sent in step.columns]
        self._columns_nbytes += step._columns_nbytes
        self.keys += step.keys
        self.values += step.values
        self.timestamps += step.timestamps

    def end(self) -> None:
        """Refuse further records, because the step is over."""
        self.checked = self._is_over = True

    def clear(self) -> None:
        """Remove all records, committed or not."""
        self._truncate(0)
        self.columns.clear()
        self._columns_nbytes = 0
        self.record = None
        self.mark = 0

    def _refuse_late(self, topic: TopicDeclaration) -> None:
        if self._is_over:
            raise InvalidTxnState(
                f"topic {topic.name!r}: send was called after its handler had ended, so the record "
                "would belong to no transaction; await everything that the handler starts"
            )

    def _truncate(self, length: int) -> None:
        del self.keys[length:], self.values[length:], self.timestamps[length:]
        if length < self._measured:
            self._nbytes = self._nbytes * length // self._measured
            self._measured = length
        self.headers = {at: pairs for at, pairs in self.headers.items() if at < length}


class BoxColumns(NamedTuple):
    """Records of outboxes as columns."""

    columns: pa.RecordBatch
    to_all: bool = False
    """True if each record goes to all partitions, and not to that of its key."""


def columns_of(topic: TopicDeclaration, boxes: Iterable[Outbox]) -> list[BoxColumns]:
    """Return all records sent to `topic` as columns, in the order in which each box got them.

    Raises:
        InvalidRecord: A key or value cannot be encoded.
    """
    filled = [box for box in boxes if not box.is_empty]
    if not any(box.columns for box in filled):
        spans = [(box, 0, len(box.keys)) for box in filled]
        return [BoxColumns(columns) for columns in _encoded(topic, spans)]
    return _joined([columns for box in filled for columns in _in_order(topic, box)])


Span = tuple[Outbox, int, int]
"""An outbox, and the index of the first and after the last of some of its single records."""


def _in_order(topic: TopicDeclaration, box: Outbox) -> Iterator[BoxColumns]:
    begin = 0
    for sent in box.columns:
        yield from map(BoxColumns, _encoded(topic, [(box, begin, sent.at)]))
        yield BoxColumns(sent.columns, sent.to_all)
        begin = sent.at
    yield from map(BoxColumns, _encoded(topic, [(box, begin, len(box.keys))]))


def _joined(pieces: list[BoxColumns]) -> list[BoxColumns]:
    """Return consecutive batches of the same schema and destination as one batch."""
    same = groupby(pieces, key=lambda piece: (piece.columns.schema, piece.to_all))
    return [
        BoxColumns(pa.concat_batches([piece.columns for piece in group]), to_all)
        for (_, to_all), group in same
    ]


def _encoded(topic: TopicDeclaration, spans: Iterable[Span]) -> list[pa.RecordBatch]:
    """Return the single records of these spans as one batch; none if there are no records."""
    keys: list[Any] = []
    values: list[Any] = []
    timestamps: list[int] = []
    headers: dict[int, Headers] = {}
    for box, begin, end in spans:
        before = len(keys) - begin
        within = {at: pairs for at, pairs in box.headers.items() if begin <= at < end}
        headers.update({at + before: pairs for at, pairs in within.items()})
        keys += box.keys[begin:end]
        values += box.values[begin:end]
        timestamps += box.timestamps[begin:end]
    if not keys:
        return []
    try:
        return [
            batch_of(
                topic, topic.keys.encode(keys), topic.values.encode(values), timestamps, headers
            )
        ]
    except (MemoryError, SchemaMismatch):
        raise
    except UNENCODABLE as error:
        raise InvalidRecord(f"topic {topic.name!r}: {error}") from error
