"""Outboxes: the records that a task instance has sent since the last commit.

Items are kept in parallel lists and encoded to columns in bulk. If a handler raises, the sends of
its record are removed again: `mark` is the index at which they begin.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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


class Outbox:
    """Records that one task instance has sent to one topic since the last commit."""

    __slots__ = (
        "_is_over",
        "_measured",
        "_nbytes",
        "_trial",
        "checked",
        "context",
        "headers",
        "keys",
        "mark",
        "record",
        "timestamps",
        "values",
    )

    def __init__(self, context: TaskContext, trial: Trial) -> None:
        self.context = context
        self._trial = trial
        self._is_over = False
        self._measured = 0
        self._nbytes = 0
        self.keys: list[Any] = []
        self.values: list[Any] = []
        self.timestamps: list[int] = []
        self.headers: dict[int, Headers] = {}
        self.record: Record[Any, Any] | None = None
        self.mark = 0
        self.checked = trial.is_checking
        """True if each record is checked when it is sent, to find one that the log refuses."""

    def put(self, key: Any, value: Any, timestamp: int, headers: Headers = ()) -> None:
        """Add one record, given as items of the topic's codecs."""
        if headers:
            self.headers[len(self.keys)] = headers
        self.keys.append(key)
        self.values.append(value)
        self.timestamps.append(timestamp)

    def check(
        self, topic: TopicDeclaration, key: Any, value: Any, timestamp: int, headers: Headers
    ) -> None:
        """Encode one record.

        Raises:
            InvalidRecord: The log would refuse it.
            InvalidTxnState: The handler has ended.
        """
        if self._is_over:
            raise InvalidTxnState(
                f"topic {topic.name!r}: send was called after its handler had ended, so the record "
                "would belong to no transaction; await everything that the handler starts"
            )
        if not self._trial.is_checking:
            return
        self._trial.check(topic.name, one_record(topic, key, value, timestamp, headers))

    def measure(self) -> int:
        """Return the approximate bytes of memory that the records use."""
        fresh = self.values[self._measured :]
        if fresh:
            self._measured = len(self.values)
            large = sum([len(value) for value in fresh if type(value) in _SIZED])
            self._nbytes += large + RECORD_BYTES * len(fresh)
        return self._nbytes

    def cut(self, record: Record[Any, Any]) -> None:
        """Remove the records that were sent while `record` was handled."""
        if self.record is record:
            self._truncate(self.mark)

    def of_step(self, context: TaskContext) -> Outbox:
        """Return an empty outbox for a step that is kept apart from others."""
        return Outbox(context, self._trial)

    def absorb(self, step: Outbox) -> None:
        """Add the records of a step that was kept apart."""
        self.headers.update({at + len(self.keys): pairs for at, pairs in step.headers.items()})
        self.keys += step.keys
        self.values += step.values
        self.timestamps += step.timestamps

    def end(self) -> None:
        """Refuse further records, because the step is over."""
        self.checked = self._is_over = True

    def clear(self) -> None:
        """Remove all records, committed or not."""
        self._truncate(0)
        self.record = None
        self.mark = 0

    def _truncate(self, length: int) -> None:
        del self.keys[length:], self.values[length:], self.timestamps[length:]
        if length < self._measured:
            self._nbytes = self._nbytes * length // self._measured
            self._measured = length
        self.headers = {at: pairs for at, pairs in self.headers.items() if at < length}


def columns_of(topic: TopicDeclaration, boxes: Iterable[Outbox]) -> pa.RecordBatch | None:
    """Return all records sent to `topic` as one batch of columns, in order; None if there are none.

    Raises:
        InvalidRecord: A key or value cannot be encoded.
    """
    keys: list[Any] = []
    values: list[Any] = []
    timestamps: list[int] = []
    headers: dict[int, Headers] = {}
    for box in boxes:
        headers.update({at + len(keys): pairs for at, pairs in box.headers.items()})
        keys += box.keys
        values += box.values
        timestamps += box.timestamps
    if not keys:
        return None
    try:
        return batch_of(
            topic, topic.keys.encode(keys), topic.values.encode(values), timestamps, headers
        )
    except (MemoryError, SchemaMismatch):
        raise
    except UNENCODABLE as error:
        raise InvalidRecord(f"topic {topic.name!r}: {error}") from error
