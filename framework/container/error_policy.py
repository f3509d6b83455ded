"""What becomes of a step that has failed: the task stops, or the record is skipped or put aside."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from strandline.changelog.clock import Clock
from strandline.changelog.errors import TaskFailed
from strandline.changelog.rate_limited_log import RateLimitedLog
from strandline.framework.container.decoding import Chunk, raw
from strandline.framework.container.failures import (
    WITHOUT_VALUE,
    dead_letter_headers,
    described,
    task_failed,
)
from strandline.framework.container.metrics import TaskCounters
from strandline.framework.container.outbox import Outbox
from strandline.framework.container.trial import LAST_LEVEL, StepId, Trial
from strandline.framework.record import Record
from strandline.framework.task import TaskSpec
from strandline.framework.topic import Topic

_log = logging.getLogger("strandline")


class ErrorPolicy:
    """Applies `on_error` for one task instance."""

    def __init__(
        self,
        spec: TaskSpec,
        partition: int,
        outboxes: Mapping[Topic[Any, Any], Outbox],
        trial: Trial,
        clock: Clock,
    ) -> None:
        self.failure: TaskFailed | None = None
        """Why the instance has stopped, if it has."""
        self._spec = spec
        self._partition = partition
        self._outboxes = outboxes
        self._trial = trial
        self._put_aside = RateLimitedLog(_log, clock)
        self._skipped = self._dead_lettered = 0
        """Steps since the last commit."""
        self._last: tuple[Record[Any, Any], Chunk | str, Exception | None] | None = None
        """The last step since the last commit, and what it failed with, if it did."""

    def ran(self, record: Record[Any, Any], what: Chunk | str) -> None:
        """Note the step that ran last. What it failed with, if `resolve` was told, is kept."""
        if self._last is None or self._last[0] is not record:
            self._last = record, what, None

    def committed(self, counters: TaskCounters) -> None:
        """Count what was done since the last commit."""
        counters.skipped += self._skipped
        counters.dead_lettered += self._dead_lettered
        self._skipped = self._dead_lettered = 0
        self._last = None

    def rewind(self) -> None:
        """Forget what was done since the last commit."""
        self._skipped = self._dead_lettered = 0
        self._last = self.failure = None

    def close(self) -> None:
        """Log what is not logged yet."""
        self._put_aside.close()

    def condemn(self, refusal: Exception) -> bool:
        """Let the last step fail when it comes again, since the log refused to commit it.

        False if there is no such step, or it has done nothing that could be refused.
        """
        if self._last is None:
            return False
        record, what, error = self._last
        if error is not None and self._spec.dead_letter is None:
            return False
        self._trial.condemn(self._step_id(record, what), error, refusal)
        return True

    def is_condemned(self, record: Record[Any, Any], what: Chunk | str) -> bool:
        """Apply the policy to a step that the log has refused to commit; whether it is one."""
        if not self._trial.has_verdicts:
            return False
        verdict = self._trial.verdict(self._step_id(record, what))
        if verdict is None:
            return False
        if verdict.level < LAST_LEVEL:
            self.resolve(record, what, verdict.error, verdict.level)
        else:
            self._fail(record, what, verdict.refusal)
        return True

    def _step_id(self, record: Record[Any, Any], what: Chunk | str) -> StepId:
        at: object = what  # a window or init may come at another time
        if not isinstance(what, str):
            at = record.topic, record.offset
        elif what not in ("init", "window"):
            at = what, record.timestamp
        return self._spec.name, self._partition, at

    def _fail(self, record: Record[Any, Any], what: Chunk | str, error: Exception) -> None:
        """Stop at a step."""
        subject = what if isinstance(what, str) else described(record)
        self.failure = task_failed(self._spec.name, subject, error, self._spec.where)
        self.failure.__cause__ = error
        told = {"task": self._spec.name, "partition": self._partition, "error": error}
        _log.error("partition %d stops: %s", self._partition, self.failure, extra=told)

    def resolve(
        self, record: Record[Any, Any], what: Chunk | str, error: Exception, level: int = 0
    ) -> None:
        """Apply the task's policy to a step that failed and has been undone."""
        self._last = record, what, error
        if self._spec.on_error == "fail":
            self._fail(record, what, error)
            return
        subject = what if isinstance(what, str) else described(record)
        text = f"task {self._spec.name}: {self._spec.on_error}: {subject}: {error}"
        self._put_aside.note(text, task=self._spec.name, partition=self._partition, error=error)
        self._skipped += self._spec.dead_letter is None
        self._dead_lettered += self._spec.dead_letter is not None
        if self._spec.dead_letter is not None:
            self._bury(record, what, error, level)

    def _bury(
        self, record: Record[Any, Any], what: Chunk | str, error: Exception, level: int
    ) -> None:
        """Send a record as it came, and what was wrong with it, to the dead-letter topic."""
        topic = self._spec.dead_letter
        assert topic is not None
        key = value = None
        if isinstance(what, Chunk):
            columns = raw(what.batch, record.offset).columns
            key = columns.column("key")[0].as_py()
            if level < WITHOUT_VALUE:
                [stored] = topic.values.decode(columns.column("value"))
                value = topic.values.item(stored)
        headers = dead_letter_headers(record, error, level)
        self._outboxes[topic].put(key, value, record.timestamp, headers)
