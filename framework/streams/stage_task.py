"""A stage at work on one partition: the handler of a batch task.

    process         rows of a batch → executor → topics; then time advances, and windows close
    before_commit   results of the keys that changed → topics
    window          by the clock: partitions that are idle; at the end of input: all windows

A step leaves all that must survive it in stores: state in those of the operators, watermarks in that
of the stage. If it raises, everything in memory is forgotten and found again in the stores.

Whether a record is late depends on the partition that it was first read from alone: it is late if
that partition's own watermark had closed its windows. So lateness depends neither on the division
into batches nor on how the partitions' records were mixed on the way. Windows close by the least
watermark of all sources, which is never after that of a single one. Through internal topics, rows
carry the watermark that decides whether they are late, and marks the one that closes windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from strandline.changelog.errors import InvalidRecord
from strandline.framework.batch import Batch, BatchHandler, stored_rows
from strandline.framework.context import TaskContext, current_task, running
from strandline.framework.panics import as_exception, first_row
from strandline.framework.store import columns_of
from strandline.framework.streams.executor import Ends, Executor
from strandline.framework.streams.nodes import Emit
from strandline.framework.streams.operators.group_keys import PANE
from strandline.framework.streams.operators.operator import StageOperator
from strandline.framework.streams.schemas import INTERNAL, ROW, TIME, WATERMARK
from strandline.framework.streams.stage_plan import StagePlan, source_name, writer_name
from strandline.framework.streams.stage_rows import SOURCE, InternalTopic, TopicRows, divided, write
from strandline.framework.streams.stage_time import StageTime
from strandline.framework.streams.stateful import WINDOW_START, OutputNode, Repartition
from strandline.framework.streams.watermark import NO_WATERMARK
from strandline.framework.topic import send_stored, undo_of_sends

if TYPE_CHECKING:
    import polars as pl


class SentMark(NamedTuple):
    """Latest mark that a stage has sent to an internal topic."""

    watermark: int = NO_WATERMARK
    """Watermark of the mark, in ms."""
    is_idle: bool = False
    """True if the mark says that the stage's partition is idle."""


class StageTask(BatchHandler):
    """Handler of one stage on one partition."""

    plan: StagePlan

    def __init__(self) -> None:
        plan = self.plan
        self._operators: Mapping[str, StageOperator] = plan.operators(self._note_late)
        for name, operator in self._operators.items():
            operator.refuse = partial(self._refuse, name)
        self._executor = Executor(plan.stage, self._operators, numbered=plan.keeps_late)
        self._time: StageTime | None = None
        self._knows_time = False
        """True if the operators have the watermark that was committed."""
        self._begun = 0
        """Time in ms, as of `awake_ms`, at which the partition began."""
        self._batch: Batch | None = None
        """Batch being handled, for late records."""
        self._late = 0
        """Number of late rows of the batch so far."""
        self._kept: set[int] = set()
        """Numbers of the batch's records that were sent to the topic of late ones."""
        self._sent_marks: dict[Repartition, SentMark] = {}
        """Latest mark sent to each internal topic; empty if it is not known any more."""
        self._last_active: dict[str, int] = {}
        """Time in ms, as of `awake_ms`, at which each source was last seen active."""
        self._woken_at: dict[str, int] = {}
        """Time in ms, as of `awake_ms`, at which sources were woken; see `StageTime.woken`."""

    # Calls of the task instance ----------------------------------------------------------------

    def init(self, context: TaskContext) -> None:
        """Begin with the sources that are known."""
        self._time = self._new_time(context)
        self._begun = context.step.awake_ms()

    def process(self, batch: Batch) -> None:
        """Pass the records of a batch through the stage, and let time advance by them."""
        with self._step():
            self._batch = batch
            frame = self._rows(batch)
            if not frame.is_empty():
                self._write(self._executor.run({batch.topic: frame}))
            self._advance()

    def before_commit(self) -> None:
        """Send the results of keys that changed."""
        self._load_time()  # a step that raised may have been the last one
        for name, operator in self._operators.items():
            if self._executor.takes(name, "update") and self.plan.is_aggregate(name):
                self._emit(name, operator.updates(), "update")

    def window(self) -> None:
        """Look for sources that are idle; close all windows if the input is over."""
        with self._step():
            if current_task().ending:
                self._close_all()
            else:
                self._look_for_idle(current_task().step.awake_ms())

    def advance_watermark(self, watermark: int) -> None:
        """Raise the topics that the stage reads itself to a watermark in ms, without records.

        The stages after internal topics are told in any case, so that they need no rounding.
        """
        with self._step():
            sources = self.time.sources
            self.time.raise_to(watermark, filter(self.plan.is_topic, sources))
            self._advance(is_active=True)

    def is_open(self) -> bool:
        """Return True if an operator has open windows."""
        return any(operator.has_open() for operator in self._operators.values())

    def restored(self) -> None:
        """Forget what is in memory."""
        if (context := running()) is not None:
            context.step.refused = []
        if self._time is not None:
            self._time.forget()
        self._sent_marks = {}
        self._knows_time = False
        for operator in self._operators.values():
            operator.forget()

    @property
    def time(self) -> StageTime:
        """Watermarks of the partition."""
        return self._load_time()

    def _load_time(self) -> StageTime:
        """Return the watermarks of the partition. The operators know theirs afterwards."""
        if self._time is None:  # `init` ran before a restart
            self._time = self._new_time(current_task())
        if not self._knows_time:
            self._knows_time = True
            now = self._time.watermark
            for name, operator in self._operators.items():
                lag = self.plan.lag_ms(name)
                operator.watermark = now if now <= NO_WATERMARK else now - lag
                operator.open_rows = self._time.rows_of(name)
        return self._time

    @contextmanager
    def _step(self) -> Iterator[None]:
        """Keep what a step has changed in memory; forget it all if the step raises."""
        try:
            # Rows may come before a mark, and the operators must know the watermark by then.
            self._load_time()
            yield
            found = {name: each.open_windows() for name, each in self._operators.items()}
            rows = {name: number for name, number in found.items() if number is not None}
            self.time.write(rows)
            self._note_time()
            current_task().step.open_windows = rows
        except BaseException:
            self.restored()
            raise
        finally:
            self._batch, self._late, self._kept = None, 0, set()

    # Rows --------------------------------------------------------------------------------------

    def _rows(self, batch: Batch) -> pl.DataFrame:
        """Return the records of a batch as rows with watermarks."""
        import polars as pl

        reader = self.plan.reader(batch.topic)
        if isinstance(reader, TopicRows):
            frame = reader.frame(batch)
            source = source_name(batch.topic, batch.partition)
            marks = self.time.read(source, batch.times(), self.plan.delay_ms(batch.topic))
            numbers = pl.Series(ROW, np.arange(len(batch)))
            return frame.hstack([pl.Series(WATERMARK, marks), numbers])
        rows, found = divided(reader.frame(batch))
        for source, watermark in found.select(SOURCE, WATERMARK).rows():
            if not self.plan.is_writer(source, batch.topic):
                continue
            if watermark is None:
                self.time.set_idle(source)
            else:
                self.time.reached(source, watermark)
        if not rows.is_empty():  # their marks may come after the next look for idle sources
            writers = (s for s in self.time.sources if self.plan.is_writer(s, batch.topic))
            self.time.note_rows(writers)
        rows = rows.drop(SOURCE)
        if ROW not in reader.node.schema:
            return rows
        return rows.with_columns(pl.Series(ROW, np.arange(len(rows))))

    def _note_time(self) -> None:
        """Let the task instance know the watermark and the number of late rows, for metrics."""
        context, watermark = current_task(), self.time.watermark
        context.step.late += self._late
        context.watermark = watermark if watermark > NO_WATERMARK else None

    def _note_late(self, rows: pl.DataFrame) -> None:
        """Count late rows, and send the records that they come from to the topic for them.

        A record whose rows are late for several operators is sent once.
        """
        self._late += len(rows)
        topic = None if self._batch is None else self.plan.late_topic(self._batch.topic)
        if topic is None or ROW not in rows.columns or self._batch is None:
            return
        found = rows[ROW].drop_nulls().unique(maintain_order=True).to_list()
        numbers = [number for number in found if number not in self._kept]
        self._kept.update(numbers)
        if numbers:
            send_stored(topic, stored_rows(self._batch, pa.array(numbers)))

    def _write(self, ends: Ends, around: int | None = None) -> None:
        """Send the rows that reach the ends of the stage.

        Args:
            ends: Rows by end.
            around: Time in ms to which their times are related, as `send_rows` takes it.
        """
        for sink, rows in ends.items():
            if isinstance(sink, Repartition):
                self._send(sink, rows, around)
            elif isinstance(sink, OutputNode):
                write(sink, rows, around)

    def _send(self, sink: Repartition, rows: pl.DataFrame, around: int | None) -> None:
        """Send the rows to an internal topic that are not late for all operators after it.

        Late rows are noted here, because only here are the records known that they come from.
        """
        found = self.plan.late_before(sink, rows)
        some = [late for late in found if late.any()]
        for late in some:
            self._note_late(rows.filter(late))
        kept = rows.filter(~reduce(and_, found)) if some else rows
        if not kept.is_empty():
            self.plan.internal[sink].send(kept, around)

    def _emit(self, name: str, results: pl.DataFrame | None, emit: Emit | None) -> None:
        if results is None or results.is_empty():
            return
        context = current_task()
        # Fewer records would have as many results, so their time says nothing about the batch.
        begun, context.step.begun = context.step.begun, None
        # The record being handled may be much later than a window that it closes.
        around: Any = results[TIME].min()
        try:
            self._write(self._executor.emit(name, results, emit), around)
        finally:
            context.step.begun = begun

    def _emit_each(self, name: str, results: pl.DataFrame | None, emit: Emit | None) -> None:
        """Pass final results on, without those that what follows raises an error for.

        No record can be blamed for them: the one that closes a window is not among its records.
        They are divided until such a result is found, and the state of the operators that they have
        reached is taken back before each half is tried.
        """
        waiting = [] if results is None or results.is_empty() else [results]
        while waiting:
            part = waiting.pop()
            undo = self._undoing()
            try:
                self._emit(name, part, emit)
            except BaseException as error:
                undo()
                if (found := as_exception(error)) is None:
                    raise
                if len(part) == 1:
                    keys = self.plan.result_key(name)
                    self._refuse(name, found, first_row(part.select(keys)))
                    continue
                half = len(part) // 2
                waiting += [part[half:], part[:half]]

    def _undoing(self) -> Callable[[], None]:
        """Return a function that takes back what the operators do and send from now on."""
        sends = [undo_of_sends(topic) for topic in self.plan.written]
        stores = [columns_of(store) for store in self.plan.stores.values()]
        marks, late, kept_rows = [store.mark() for store in stores], self._late, {*self._kept}
        in_memory = [(operator, operator.mark()) for operator in self._operators.values()]

        def undo() -> None:
            for store, length in zip(stores, marks, strict=True):
                store.rollback(length)
            for operator, mark in in_memory:
                operator.undo(mark)
            for unsend in sends:
                unsend()
            self._late, self._kept = late, {*kept_rows}

        return undo

    def _refuse(self, name: str, error: Exception, result: Mapping[str, Any]) -> None:
        """Leave a result out, by the policy of the task. Raises the error if it may not be."""
        named = InvalidRecord(
            f"{name}: there is no result for {_shown(result)}: {type(error).__name__}: {error}"
        )
        named.__cause__ = error
        if not current_task().step.refuses(error):
            raise error
        current_task().step.refused.append(named)

    # Time --------------------------------------------------------------------------------------

    def _advance(self, *, is_active: bool = False) -> None:
        """Let the operators close what the watermark has passed, each after those before it.

        Windows of a number of rows close without a watermark, too. With `is_active` the stages
        after internal topics are told that records come.
        """
        watermark = self.time.watermark
        is_known = watermark > NO_WATERMARK
        for name, operator in self._operators.items():
            results = operator.advance(watermark - (self.plan.lag_ms(name) if is_known else 0))
            self._emit_each(name, results, self.plan.final_of(name))
            if self.plan.is_aggregate(name):
                # The state is gone before the commit, which could not send its last update.
                self._emit_each(name, results, "update")
        self._send_marks(is_active=is_active)

    def _send_marks(self, *, is_active: bool) -> None:
        """Send marks to the internal topics: what may close windows there.

        A mark is sent when the watermark may close windows after a topic, when this
        partition becomes idle or is not any more, and with `is_active`.
        """
        is_idle, now = self.time.is_idle, current_task().record.timestamp
        for sink, internal in self.plan.internal.items():
            if sink not in self.plan.stage.nodes:
                continue
            sent = self._sent_marks.get(sink, SentMark())
            mark = self._mark_for(sink)
            if (
                self.plan.closes(sink, sent.watermark, mark)
                or is_active
                or (sent.is_idle and not is_idle)
            ):
                self._send_mark(internal, mark, mark)
                sent = SentMark(mark)
            if is_idle and not sent.is_idle:  # a mark has made it active there
                self._send_mark(internal, None, now)
            self._sent_marks[sink] = SentMark(sent.watermark, is_idle)

    def _mark_for(self, sink: Repartition) -> int:
        """Return the watermark in ms of the rows that this partition will send to a topic."""
        watermark = self.time.watermark
        return watermark if watermark <= NO_WATERMARK else watermark - self.plan.lag_before_ms(sink)

    def _send_mark(self, internal: InternalTopic, watermark: int | None, time: int) -> None:
        source = writer_name(internal.topic.name, current_task().partition)
        internal.send_mark(source, watermark, time)

    def _new_time(self, context: TaskContext) -> StageTime:
        return StageTime(self.plan.times, self.plan.sources(context.partition, context.step.infos))

    def _look_for_idle(self, now: int) -> None:
        """Let sources that were silent for long hold nothing back; see `App.stream`.

        A wall clock that is set, and the sleep of a machine, are no silence: the records of that
        time come afterwards.

        Args:
            now: Time in ms, as of `awake_ms`.
        """
        time = self.time
        active = time.take_active()
        self._last_active |= dict.fromkeys(active, now)
        idle_ms, close_ms = self.plan.options.idle_ms, self.plan.options.close_idle_ms
        silent = {
            source: now - self._last_active.setdefault(source, self._begun)
            for source in time.sources
        }
        self._woken_at = {source: self._woken_at.get(source, now) for source in time.woken}
        for source, silence in silent.items():
            if source in self._woken_at:
                silence = now - self._woken_at[source]
            elif not self.plan.is_topic(source):
                continue  # the stage that writes it says when it is idle
            if idle_ms is not None and silence >= idle_ms:
                time.set_idle(source)
        if close_ms is not None and silent and min(silent.values()) >= close_ms:
            self._close_all()
        # Without a mark, windows after internal topics would be closed although records come.
        self._advance(is_active=close_ms is not None and bool(active))

    def _close_all(self) -> None:
        """Close all windows, because no more records come, or none for long."""
        for name, operator in self._operators.items():
            end = operator.closed_at()
            if end is not None:
                self.time.raise_to(end + self.plan.lag_ms(name), self.time.sources)
            self._advance()


def _shown(result: Mapping[str, Any]) -> str:
    """Return what names a result as text: the columns of its key, and its window."""
    named = {WINDOW_START if n == PANE else n.removeprefix(INTERNAL): v for n, v in result.items()}
    return ", ".join(f"{name}={value}" for name, value in named.items())
