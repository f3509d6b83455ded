"""A task instance whose handler gets whole batches of records (`framework.batch`).

One call of the handler is one step. If it raises, its changes are undone, and each half of the
batch is handled as a batch of its own. So the record that causes the error is found after about
log2(n) calls; it is handled by the task's `on_error` policy, and all others as if it did not exist.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from strandline.changelog.arrays import as_numpy
from strandline.changelog.errors import InvalidRecord
from strandline.changelog.rate_limited_log import RateLimitedLog
from strandline.changelog.records import Batch as StoredBatch
from strandline.framework.batch import Batch, BatchHandler
from strandline.framework.container.batch_queue import BatchQueue, TakenBatch, without_tombstones
from strandline.framework.container.batch_size import BatchSize, CommitSize
from strandline.framework.container.container_context import ContainerContext
from strandline.framework.container.inputs import Input
from strandline.framework.container.instance import InstanceParts, TaskInstance
from strandline.framework.container.slices import MAX_ROUND_S
from strandline.framework.container.steps import Steps, drive
from strandline.framework.context import StepCutShort
from strandline.framework.decoding import Chunk, decode
from strandline.framework.handlers import INFRASTRUCTURE_ERRORS
from strandline.framework.panics import as_exception
from strandline.framework.placing import Placed
from strandline.framework.record import Record
from strandline.framework.trial import Trial

_log = logging.getLogger("strandline")

LATE_LOG_S = 60.0
"""Seconds between two messages about late rows."""


class BatchInstance(TaskInstance):
    """One batch task on one partition."""

    def __init__(
        self, container: ContainerContext, parts: InstanceParts, placed: Placed, trial: Trial
    ) -> None:
        super().__init__(container, parts, placed, trial)
        self._batches = BatchQueue(self.inputs)
        self._late_log = RateLimitedLog(_log, container.clock, LATE_LOG_S)
        self._size = BatchSize(self.spec.first_batch)
        self._commit_size = CommitSize(self.spec.first_batch)
        self.context.step.refuses = self._policy.may_leave_out

    @property
    def has_input(self) -> bool:
        """True if a record is pending and the next record of every input is known."""
        return not self.has_failed() and self._batches.has_next

    @property
    def size(self) -> int:
        """Number of records that take about as long as a batch is to, and that the commit may have."""
        left = self._commit_size.records - self._handled
        return self._size.records if left > self._size.records else max(1, int(left))

    @property
    def needs_commit(self) -> bool:
        """True if a store asks for a commit, or results of more records would take long."""
        return super().needs_commit or self._handled >= self._commit_size.records

    def cut(self) -> None:
        """End the slice after the running step, or one of row functions after the running row.

        See `TaskInstance.cut`. A step is cut only if it takes much longer than was expected.
        """
        super().cut()
        begun = self.context.step.begun
        if begun is not None and time.perf_counter() - begun > MAX_ROUND_S:
            self.context.step.to_cut = begun

    def run(self, limit: int) -> int:
        """Handle at most `limit` of the records fed; return the number handled."""
        begun = time.perf_counter()
        handled = self._run_batches(limit)
        seconds = time.perf_counter() - begun
        self.counters.took(seconds, handled)
        self._size.took(seconds, handled)
        return handled

    def rewind(self) -> None:
        """Undo everything since the last commit; see `TaskInstance.rewind`."""
        self.context.step.late = 0
        super().rewind()

    def after_commit(self) -> None:
        """Count late rows; see `TaskInstance.after_commit`."""
        super().after_commit()
        late, self.context.step.late = self.context.step.late, 0
        if late:
            self.counters.late += late
            self._late_log.note(
                f"task {self.spec.name}: {late:,} rows came after their windows were closed and count "
                "in none; a longer delay= or idle= of app.stream lets more come in time, and its late= "
                "keeps those that are late for the first operator after an internal topic, or before one",
                task=self.spec.name,
                partition=self.partition,
            )

    def restored(self, *, window_pending: bool | None = None) -> None:
        """Let the handler forget what it keeps in memory; see `TaskInstance.restored`."""
        super().restored(window_pending=window_pending)
        if isinstance(self._object, BatchHandler):
            self._object.restored()

    @property
    def waits_for_end(self) -> bool:
        """True if the handler has open windows, which the end of the input closes."""
        if not isinstance(self._object, BatchHandler):
            return False
        self._scope.bind()
        try:
            return self._object.is_open()
        finally:
            self._scope.unbind()

    def advance_watermark(self, watermark: int) -> Steps:
        """Let the event time of the handler's inputs reach a watermark in ms, as a step."""
        assert isinstance(self._object, BatchHandler)
        yield from self._runner.run(
            *(self._clock_record(), "watermark", self._object.advance_watermark, watermark)
        )
        self._windows.handled()
        return 1

    @property
    def has_event_time(self) -> bool:
        """True if the handler is a stage of streams, whose inputs have watermarks."""
        return isinstance(self._object, BatchHandler)

    def before_commit(self) -> None:
        """Let the handler write what belongs to the commit.

        The positions of the inputs are those of whole batches already.
        """
        if isinstance(self._object, BatchHandler) and self.changed:
            self.context.record = self._clock_record()
            self._scope.bind()
            begun = time.perf_counter()
            try:
                self._object.before_commit()
                self._commit_size.took(time.perf_counter() - begun, self._handled)
            except INFRASTRUCTURE_ERRORS:
                raise
            except BaseException as error:
                if (found := as_exception(error)) is None:
                    raise
                if isinstance(found, InvalidRecord):
                    raise found from found.__cause__
                # As if the log had refused it, so that the record that caused it is looked for.
                raise InvalidRecord(f"{type(error).__name__}: {error}") from error
            finally:
                self._scope.unbind()

    def call_window(self) -> Steps:
        """Run `window` as a step; see `TaskInstance.call_window`."""
        done = yield from super().call_window()
        self._note_left_out()
        return done

    def _run_batches(self, limit: int) -> int:
        self._scope.bind()
        handled = 0
        try:
            while handled < limit and self._may_continue():
                # A step that was cut has reduced the size. With verdicts the record of each one must
                # be a step of its own.
                size = min(limit - handled, self._size.records)
                most = 1 if self._trial.has_verdicts else self._trial.limited(size)
                taken = self._batches.next(most)
                if taken is None:
                    break
                handled += self._handle(taken)
        finally:
            self._scope.unbind()
        return handled

    def _handle(self, taken: TakenBatch) -> int:
        """Handle taken records, divided wherever the handler raises; return how many."""
        source, handled = taken.source, 0
        parts = [taken.records]
        try:
            while parts and self._may_continue():
                part = parts.pop()
                try:
                    is_done = self._step(source, part)
                except StepCutShort as cut:
                    self._size.cut_short(cut.rows)
                    parts.append(part)
                    break
                if is_done:
                    source.done(part)
                    handled += len(part)
                elif self.has_failed():
                    parts.append(part)
                else:
                    half = len(part) // 2
                    parts += [part.slice(half), part.slice(0, half)]
        finally:
            source.end_take(parts[::-1])
        self._note_handled(handled)
        return handled

    def _step(self, source: Input, part: StoredBatch) -> bool:
        """Call the handler with one batch.

        Returns:
            True if the records are handled, by the handler or by the policy; False if the task has
            failed, or the batch must be divided.
        """
        given = part if self.spec.tombstones else without_tombstones(part)
        if not len(given):
            return True
        record, chunk = self._represented(source, given)
        batch = Batch(source.topic, given)
        if len(given) == 1:
            drive(self._runner.run(record, chunk, self._process, batch))
            is_handled = not self.has_failed()
        else:
            if self.has_event_time:  # a handler of batches is not cut inside of its queries
                self.context.step.begun = time.perf_counter()
            try:
                is_handled = self._runner.try_all(record, chunk, self._process, batch)
            finally:
                self.context.step.begun = self.context.step.to_cut = None
        self._note_left_out()
        return is_handled

    def _note_left_out(self) -> None:
        """Apply the policy to the results that the last step has left out."""
        errors, self.context.step.refused = self.context.step.refused, []
        for error in errors:
            self._policy.left_out(self._clock_record(), error)

    def _represented(self, source: Input, batch: StoredBatch) -> tuple[Record[Any, Any], Chunk]:
        """Return a record and a chunk that stand for the batch: of one record, that record."""
        latest = int(as_numpy(batch.columns.column("timestamp")).max())
        self.context.stream_time = max(self.context.stream_time, latest)
        if len(batch) == 1:
            [chunk] = decode(source.topic, batch, tombstones=True)
            return chunk.records[0], chunk
        record: Record[Any, Any] = Record(
            None, None, latest, (), batch.topic, batch.partition, batch.last_offset
        )
        return record, Chunk([record], batch, batch.last_offset + 1)
