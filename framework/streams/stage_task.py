"""A stage at work on one partition: the handler of a batch task.

    process         rows of a batch → executor → topics; then time advances, and windows close
    before_commit   results of the keys that changed → topics
    window          by the wall clock: partitions that are idle; at the end of input: all windows

A step leaves all that must survive it in stores: state in those of the operators, watermarks in that
of the stage. If it raises, everything in memory is forgotten and found again in the stores.

Whether a record is late depends on the partition that it was first read from alone: it is late if
that partition's own watermark had closed its windows. So lateness depends neither on the division
into batches nor on how the partitions' records were mixed on the way. Windows close by the least
watermark of all sources, which is never after that of a single one. Through internal topics, rows
carry the watermark that decides whether they are late, and marks the one that closes windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from strandline.changelog.errors import InvalidRecord
from strandline.framework.batch import Batch, BatchHandler
from strandline.framework.context import TaskContext, current_task, running
from strandline.framework.streams.executor import Ends, Executor
from strandline.framework.streams.nodes import Emit
from strandline.framework.streams.operators.operator import StageOperator
from strandline.framework.streams.operators.panes import PANE
from strandline.framework.streams.schemas import INTERNAL, ROW, TIME, WATERMARK
from strandline.framework.streams.stage_plan import StagePlan, source_name, writer_name
from strandline.framework.streams.stage_rows import SOURCE, InternalTopic, TopicRows, divided, write
from strandline.framework.streams.stage_time import StageTime
from strandline.framework.streams.stateful import WINDOW_START, OutputNode, Repartition
from strandline.framework.streams.watermark import NO_WATERMARK

if TYPE_CHECKING:
    import polars as pl


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
        """Time in ms of the wall clock at which the partition began."""
        self._batch: Batch | None = None
        """Batch being handled, for late records."""
        self._late = 0
        """Number of late rows of the batch so far."""
        self._marked: dict[Repartition, int] = {}
        """Watermark of the last mark to each internal topic."""
        self._last_active: dict[str, int] = {}
        """Time in ms of the wall clock at which each source was last seen active."""

    # Calls of the task instance ----------------------------------------------------------------

    def init(self, context: TaskContext) -> None:
        """Begin with the sources that are known."""
        self._time = self._new_time(context)
        self._begun = context.record.timestamp

    def process(self, batch: Batch) -> None:
        """Pass the records of a batch through the stage, and let time advance by them."""
        try:
            self._batch = batch
            time = self.time  # rows that no mark comes with are judged by the operators' watermarks
            frame = self._rows(batch)
            if not frame.is_empty():
                self._write(self._executor.run({batch.topic: frame}))
            self._advance()
            time.write()
            self._note_time()
        except BaseException:
            self.restored()
            raise
        finally:
            self._batch, self._late = None, 0

    def before_commit(self) -> None:
        """Send the results of keys that changed."""
        for name, operator in self._operators.items():
            if self._executor.takes(name, "update") and self.plan.is_aggregate(name):
                self._emit(name, operator.updates(), "update")

    def window(self) -> None:
        """Look for sources that are idle; close all windows if the input is over."""
        try:
            if current_task().ending:
                self._close_all()
            else:
                self._look_for_idle(current_task().record.timestamp)
            self.time.write()
        except BaseException:
            self.restored()
            raise

    def is_open(self) -> bool:
        """Return True if an operator has open windows."""
        return any(operator.closed_at() is not None for operator in self._operators.values())

    def restored(self) -> None:
        """Forget what is in memory."""
        if (context := running()) is not None:
            context.refused = []
        if self._time is not None:
            self._time.forget()
        self._marked = {}
        self._knows_time = False
        for operator in self._operators.values():
            operator.forget()

    @property
    def time(self) -> StageTime:
        """Watermarks of the partition. The operators know theirs afterwards."""
        if self._time is None:  # `init` ran before a restart
            self._time = self._new_time(current_task())
        if not self._knows_time:
            self._knows_time = True
            now = self._time.watermark
            for name, operator in self._operators.items():
                lag = self.plan.lag_ms(name)
                operator.watermark = now if now <= NO_WATERMARK else now - lag
        return self._time

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
            return frame.with_columns(pl.Series(WATERMARK, marks), numbers)
        rows, found = divided(reader.frame(batch))
        for source, watermark in found.select(SOURCE, WATERMARK).rows():
            if not self.plan.is_writer(source, batch.topic):
                continue
            if watermark is None:
                self.time.set_idle(source)
            else:
                self.time.reached(source, watermark)
        rows = rows.drop(SOURCE)
        if ROW not in reader.node.schema:
            return rows
        return rows.with_columns(pl.Series(ROW, np.arange(len(rows))))

    def _note_time(self) -> None:
        """Let the task instance know the watermark and the number of late rows, for metrics."""
        context, watermark = current_task(), self.time.watermark
        context.late += self._late
        context.watermark = watermark if watermark > NO_WATERMARK else None

    def _note_late(self, rows: pl.DataFrame) -> None:
        """Count late rows, and send the records that they come from to the topic for them."""
        self._late += len(rows)
        self._keep_late(rows)

    def _keep_late(self, rows: pl.DataFrame) -> None:
        """Send the records that late rows come from to the topic for late records."""
        topic = None if self._batch is None else self.plan.late_topic(self._batch.topic)
        if topic is None or ROW not in rows.columns or self._batch is None:
            return
        numbers = rows[ROW].drop_nulls().unique(maintain_order=True)
        if len(numbers):
            topic.send_stored(self._batch.stored_rows(numbers.to_arrow()))

    def _write(self, ends: Ends) -> None:
        """Send the rows that reach the ends of the stage."""
        for sink, rows in ends.items():
            if isinstance(sink, Repartition):
                self._keep_late_for_readers(sink, rows)
                self.plan.internal[sink].send(rows)
            elif isinstance(sink, OutputNode):
                write(sink, rows)

    def _keep_late_for_readers(self, sink: Repartition, rows: pl.DataFrame) -> None:
        """Send the records that will be late after an internal topic to the topic for them.

        The stage that reads the internal topic counts their rows, but does not have the records.
        """
        if self._batch is None or self.plan.late_topic(self._batch.topic) is None:
            return
        for reader in self.plan.readers(sink):
            late = reader.late(rows[TIME], rows[WATERMARK])
            if late is not None and late.any():
                self._keep_late(rows.filter(late))

    def _emit(self, name: str, results: pl.DataFrame | None, emit: Emit | None) -> None:
        if results is not None and not results.is_empty():
            self._write(self._executor.emit(name, results, emit))

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
            except Exception as error:
                undo()
                if len(part) == 1:
                    keys = self.plan.result_key(name)
                    self._refuse(name, error, part.select(keys).row(0, named=True))
                    continue
                half = len(part) // 2
                waiting += [part[half:], part[:half]]

    def _undoing(self) -> Callable[[], None]:
        """Return a function that takes back what the operators do and send from now on."""
        sends = [topic.sending() for topic in self.plan.written]
        stores = [store.columns() for store in self.plan.stores.values()]
        marks, late = [store.mark() for store in stores], self._late
        in_memory = [(operator, operator.mark()) for operator in self._operators.values()]

        def undo() -> None:
            for store, mark in zip(stores, marks, strict=True):
                store.rollback(mark)
            for operator, kept in in_memory:
                operator.undo(kept)
            for unsend in sends:
                unsend()
            self._late = late

        return undo

    def _refuse(self, name: str, error: Exception, result: Mapping[str, Any]) -> None:
        """Leave a result out, by the policy of the task. Raises the error if it may not be."""
        named = InvalidRecord(
            f"{name}: there is no result for {_shown(result)}: {type(error).__name__}: {error}"
        )
        named.__cause__ = error
        if not current_task().refuses(error):
            raise error
        current_task().refused.append(named)

    # Time --------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Let the operators close what the watermark has passed, each after those before it.

        Windows of a number of rows close without a watermark, too.
        """
        watermark = self.time.watermark
        is_known = watermark > NO_WATERMARK
        for name, operator in self._operators.items():
            results = operator.advance(watermark - (self.plan.lag_ms(name) if is_known else 0))
            self._emit_each(name, results, self.plan.final_of(name))
            if self.plan.is_aggregate(name):
                # The state is gone before the commit, which could not send its last update.
                self._emit_each(name, results, "update")
        if is_known:
            self._send_marks()

    def _send_marks(self) -> None:
        """Send marks to the internal topics whose windows they may close."""
        for sink, internal in self.plan.internal.items():
            if sink not in self.plan.stage.nodes:
                continue
            watermark = self.time.watermark - self.plan.lag_before_ms(sink)
            step = self.plan.mark_every_ms(sink)
            if watermark // step > self._marked.get(sink, NO_WATERMARK) // step:
                self._marked[sink] = watermark
                self._send_mark(internal, watermark, watermark)

    def _send_mark(self, internal: InternalTopic, watermark: int | None, time: int) -> None:
        source = writer_name(internal.topic.name, current_task().partition)
        internal.send_mark(source, watermark, time)

    def _new_time(self, context: TaskContext) -> StageTime:
        return StageTime(self.plan.times, self.plan.sources(context.partition, context.infos))

    def _look_for_idle(self, now: int) -> None:
        """Let sources that were silent for long hold nothing back; see `App.stream`."""
        time = self.time
        for source in time.take_active():
            self._last_active[source] = now
        idle_ms, close_ms = self.plan.options.idle_ms, self.plan.options.close_idle_ms
        silent = {
            source: now - self._last_active.setdefault(source, self._begun)
            for source in time.sources
        }
        was_idle = time.is_idle
        for source, silence in silent.items():
            if idle_ms is not None and silence >= idle_ms and self.plan.is_topic(source):
                time.set_idle(source)
        if time.is_idle and not was_idle:
            self._tell_idle(now)
        if close_ms is not None and silent and min(silent.values()) >= close_ms:
            self._close_all()
        self._advance()

    def _tell_idle(self, now: int) -> None:
        for sink, internal in self.plan.internal.items():
            if sink in self.plan.stage.nodes:
                self._send_mark(internal, None, now)

    def _close_all(self) -> None:
        """Close all windows, because no more records come, or none for long."""
        for name, operator in self._operators.items():
            end = operator.closed_at()
            if end is not None:
                self.time.raise_to(end + self.plan.lag_ms(name))
            self._advance()


def _shown(result: Mapping[str, Any]) -> str:
    """Return what names a result as text: the columns of its key, and its window."""
    named = {WINDOW_START if n == PANE else n.removeprefix(INTERNAL): v for n, v in result.items()}
    return ", ".join(f"{name}={value}" for name, value in named.items())
