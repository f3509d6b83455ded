"""The `on_error` policy for failed steps: stop the task, skip the record, or dead-letter it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from strandline.changelog.errors import NotInTask, TaskFailed
from strandline.changelog.rate_limited_log import RateLimitedLog
from strandline.framework.container.container_context import ContainerContext
from strandline.framework.container.failures import (
    WITHOUT_VALUE,
    dead_letter_headers,
    described,
    task_failed,
)
from strandline.framework.container.metrics import TaskCounters
from strandline.framework.decoding import Chunk, raw
from strandline.framework.handlers import INFRASTRUCTURE_ERRORS
from strandline.framework.outbox import Outbox
from strandline.framework.record import Record
from strandline.framework.task import TaskSpec
from strandline.framework.topic import Topic
from strandline.framework.trial import LAST_LEVEL, StepId, Trial

_log = logging.getLogger("strandline")


class ErrorPolicy:
    """Applies the `on_error` policy of one task instance."""

    def __init__(
        self,
        spec: TaskSpec,
        partition: int,
        outboxes: Mapping[Topic[Any, Any], Outbox],
        trial: Trial,
        container: ContainerContext,
    ) -> None:
        self.failure: TaskFailed | None = None
        """Error at which the instance has stopped; None if it has not."""
        self._spec = spec
        self._partition = partition
        self._outboxes = outboxes
        self._trial = trial
        self._infos = container.infos
        self._failure_log = RateLimitedLog(_log, container.clock)
        self._skipped = self._dead_lettered = 0
        """Number of steps skipped and dead-lettered since the last commit."""
        self._last: tuple[Record[Any, Any], Chunk | str, Exception | None] | None = None
        """Latest step since the last commit, with its error or None."""

    def note_step(self, record: Record[Any, Any], what: Chunk | str) -> None:
        """Note the latest step. If `resolve` has noted the same step, its error is kept."""
        if self._last is None or self._last[0] is not record:
            self._last = record, what, None

    def committed(self, counters: TaskCounters) -> None:
        """Add the steps since the last commit to the counters."""
        counters.skipped += self._skipped
        counters.dead_lettered += self._dead_lettered
        self._skipped = self._dead_lettered = 0
        self._last = None

    def rewind(self) -> None:
        """Forget the steps since the last commit, and a failure among them."""
        self._skipped = self._dead_lettered = 0
        self._last = self.failure = None

    def close(self) -> None:
        """Log the number of errors that the rate limit has suppressed."""
        self._failure_log.close()

    def mark_refused(self, refusal: Exception) -> bool:
        """Make the latest step fail when it is repeated, because the log refused to commit it.

        Returns:
            False if there is no such step, or the step wrote nothing that the log could refuse.
        """
        if self._last is None:
            return False
        record, what, error = self._last
        if error is not None and self._spec.dead_letter is None:
            return False
        self._trial.mark_refused(self._step_id(record, what), error, refusal)
        return True

    def apply_verdict(self, record: Record[Any, Any], what: Chunk | str) -> bool:
        """Apply the policy to the step if the log has refused to commit it; return True then."""
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
        at: object = what  # without a time, because a window or init may be repeated later
        if not isinstance(what, str):
            at = record.topic, record.offset
        elif what not in ("init", "window"):
            at = what, record.timestamp
        return self._spec.name, self._partition, at

    def _fail(self, record: Record[Any, Any], what: Chunk | str, error: Exception) -> None:
        """Stop the task instance at a step, and log the error."""
        subject = what if isinstance(what, str) else described(record)
        self.failure = task_failed(self._spec.name, subject, error, self._spec.where)
        self.failure.__cause__ = error
        fields = {"task": self._spec.name, "partition": self._partition, "error": error}
        _log.error("partition %d stops: %s", self._partition, self.failure, extra=fields)

    def resolve(
        self, record: Record[Any, Any], what: Chunk | str, error: Exception, level: int = 0
    ) -> None:
        """Apply the task's policy to a step that failed and was undone.

        Args:
            record: The record, or the one that stands for a timer, window or `init`.
            what: The record's chunk, or a description of a step without record.
            error: The error of the step.
            level: How much its dead letter is shortened; see `failures.dead_letter_headers`.
        """
        self._last = record, what, error
        if self._may_go_on(error):
            self._go_on(record, what, error, level)
        else:
            self._fail(record, what, error)

    def _may_go_on(self, error: Exception) -> bool:
        """Return True if the task may go on after a step with this error.

        A store or topic that the handler cannot use is a fault of the program, which would befall
        every record: it stops the instance whatever the policy is.
        """
        return self._spec.on_error != "fail" and not isinstance(error, NotInTask)

    def may_leave_out(self, error: Exception) -> bool:
        """Return True if a step may go on without a result that has this error."""
        return self._may_go_on(error) and not isinstance(error, INFRASTRUCTURE_ERRORS)

    def left_out(self, record: Record[Any, Any], error: Exception) -> None:
        """Log a result that a step has left out, and send its dead letter if there are any.

        Args:
            record: Record that stands for the result.
            error: Error of the result, which names it.
        """
        self._go_on(record, "a result", error, 0)

    def _go_on(
        self, record: Record[Any, Any], what: Chunk | str, error: Exception, level: int
    ) -> None:
        subject = what if isinstance(what, str) else described(record)
        text = f"task {self._spec.name}: {self._spec.on_error}: {subject}: {error}"
        self._failure_log.note(text, task=self._spec.name, partition=self._partition, error=error)
        self._skipped += self._spec.dead_letter is None
        self._dead_lettered += self._spec.dead_letter is not None
        if self._spec.dead_letter is not None:
            self._dead_letter(record, what, error, level)

    def _dead_letter(
        self, record: Record[Any, Any], what: Chunk | str, error: Exception, level: int
    ) -> None:
        """Send a record in its stored form, with headers about its error, to the dead letters."""
        topic = self._spec.dead_letter
        assert topic is not None
        key = value = None
        if isinstance(what, Chunk):
            columns = raw(what.batch, record.offset).columns
            key = columns.column("key")[0].as_py()
            if level < WITHOUT_VALUE:
                [stored] = topic.values.decode(columns.column("value"))
                value = topic.values.item(stored)
        topic_id = self._infos[record.topic].topic_id if record.topic else ""
        headers = dead_letter_headers(record, topic_id, error, level)
        self._outboxes[topic].put(key, value, record.timestamp, headers)
