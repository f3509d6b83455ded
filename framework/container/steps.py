"""Steps of a task instance: calls of its handlers, which are undone if they raise.

There are two drivers: one calls the handlers, the other leaves that to its caller, which awaits them.

A generator of steps yields each call to be made. It is resumed when the handler has returned. If
the handler raises, the exception is thrown into the generator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any

from strandline.framework.container.error_policy import ErrorPolicy
from strandline.framework.context import TaskContext
from strandline.framework.decoding import Chunk
from strandline.framework.handlers import INFRASTRUCTURE_ERRORS, check_result
from strandline.framework.outbox import Outbox
from strandline.framework.panics import as_exception
from strandline.framework.record import Record
from strandline.framework.topic import Topic
from strandline.framework.trial import Trial
from strandline.statestore.store import AnyStore

Step = tuple[Callable[..., Any], tuple[Any, ...]]
Steps = Generator[Step, None, int]


def drive(steps: Steps) -> int:
    """Call the handlers of `steps`, one after another; return what the generator returns."""
    try:
        step = next(steps)
        while True:
            try:
                result = step[0](*step[1])
                if result is not None:
                    check_result(result)
            except BaseException as error:
                if (found := as_exception(error)) is None:
                    raise
                step = steps.throw(found)
            else:
                step = next(steps)
    except StopIteration as end:
        return int(end.value or 0)


async def drive_async(steps: Steps, call: Callable[..., Awaitable[None]]) -> int:
    """Let `call` make the calls of `steps`, one after another."""
    try:
        step = next(steps)
        while True:
            try:
                await call(*step)
            except BaseException as error:
                if (found := as_exception(error)) is None:
                    raise
                step = steps.throw(found)
            else:
                step = next(steps)
    except StopIteration as end:
        return int(end.value or 0)


class StepRunner:
    """Runs the steps of one task instance: undoes one that raises, and applies the error policy."""

    def __init__(
        self,
        context: TaskContext,
        stores: Sequence[AnyStore],
        outboxes: Mapping[Topic[Any, Any], Outbox],
        policy: ErrorPolicy,
        trial: Trial,
    ) -> None:
        self.changed = False
        """True if a step ran since the last commit."""
        self.has_run = False
        """True if a step has run in this slice."""
        self._ends_early = False
        """True if the slice is to end after the running step."""
        self._context = context
        self._stores = stores
        self._outboxes = outboxes
        self._policy = policy
        self._trial = trial
        self._logs = [store.changed for store in stores]
        self._marks = [0] * len(stores)

    def begin_slice(self) -> None:
        """Begin a slice. At least one step runs in it, even if `cut` is called before that step."""
        self._ends_early = self.has_run = False

    def cut(self) -> None:
        """End the slice after the running step. May be called from any thread."""
        self._ends_early = True

    def may_continue(self) -> bool:
        """Return True if another step may run before the worker commits or does other work."""
        is_cut = self._ends_early and self.has_run
        return not (is_cut or self._policy.failure is not None or self._trial.is_over)

    def run(
        self, record: Record[Any, Any], what: Chunk | str, call: Callable[..., Any], *args: Any
    ) -> Steps:
        """Call a handler as one step.

        Returns:
            1 if the handler succeeded; 0 if the policy was applied to its error.
        """
        self._context.record = record
        if self._policy.apply_verdict(record, what):
            self._note(record, what)
            return 0
        self._mark()
        try:
            yield call, args
        except BaseException as error:
            self._undo(record)
            if isinstance(error, INFRASTRUCTURE_ERRORS) or not isinstance(error, Exception):
                raise
            self._note(record, what)
            self._policy.resolve(record, what, error)
            return 0
        self._note(record, what)
        return 1

    def _note(self, record: Record[Any, Any], what: Chunk | str, steps: int = 1) -> None:
        """Note that steps have run, as part of the next commit."""
        # Not before their end, because a commit may come while an async handler runs.
        self.changed = self.has_run = True
        self._trial.done += steps
        self._policy.note_step(record, what)

    def try_all(
        self, record: Record[Any, Any], chunk: Chunk, call: Callable[..., Any], *args: Any
    ) -> bool:
        """Call a handler of several records as one step, without applying the policy.

        Returns:
            True if the handler succeeded; False if its changes were undone because it raised.
        """
        self._context.record = record
        self._mark()
        try:
            if (result := call(*args)) is not None:
                check_result(result)
        except BaseException as error:
            self._undo(record)
            if isinstance(error, INFRASTRUCTURE_ERRORS) or as_exception(error) is None:
                raise
            return False
        self._note(record, chunk, len(chunk.batch))
        return True

    def _mark(self) -> None:
        self._marks[:] = [store.mark() for store in self._stores]

    def _undo(self, record: Record[Any, Any]) -> None:
        """Roll the stores back to the marks of the running step; drop the sends of `record`."""
        for store, mark in zip(self._stores, self._marks, strict=True):
            store.rollback(mark)
        for box in self._outboxes.values():
            box.cut(record)
