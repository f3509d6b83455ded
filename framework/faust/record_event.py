"""Events of Faust that each stream acknowledges once, and none whose block has failed.

Faust acknowledges at the end of a block, `async with event:`, whatever has ended it. Here the record
is handled again if the agent was stopped, and follows the policy if the agent has raised. An agent
that catches the exception outside of the block has handled the record; that shows when it asks for
the next one.

Faust counts down the streams that read a record with each acknowledgement. So one agent that
acknowledges twice would do it for another agent too, whose effects a crash would then lose.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

from faust.agents import current_agent
from faust.events import Event


class Iteration(NamedTuple):
    """A stream, and the task that iterates over it."""

    stream: Any
    task: asyncio.Task[Any] | None

    def asks_after(self, event: Any) -> bool:
        """Return True if a running task has requested the record after `event` from the stream."""
        task = self.task
        is_ending = task is None or task.done() or task.cancelling() > 0
        return self.stream.current_event is not event and not is_ending


current_iteration: ContextVar[Iteration | None] = ContextVar("current_iteration", default=None)
"""The iteration that has delivered the record that is handled now."""


class RecordEvent(Event):
    """Event of a record. Agents that decode it in the same way share it."""

    _streams: tuple[Any, ...] = ()
    """Streams that have delivered it."""
    _acked_in: tuple[Any, ...] = ()
    """Streams in which it was acknowledged."""

    def note_delivered(self, stream: Any) -> None:
        """Note that a stream delivers the record."""
        self._streams += (stream,)

    def note_acked(self, stream: Any) -> None:
        """Note that the record was acknowledged in a stream."""
        self._acked_in += (stream,)

    def ack(self) -> bool:
        """Acknowledge the record, once in each stream, in a task of its own too.

        A stream that acknowledges by itself does so when it is asked for the next record.
        """
        stream = self._stream()
        if stream is not None:
            if stream in self._acked_in or (stream.enable_acks and stream.current_event is self):
                return False
            self.note_acked(stream)
        acked: bool = super().ack()
        return acked

    async def __aexit__(
        self, kind: object = None, error: BaseException | None = None, trace: object = None
    ) -> bool | None:
        """Acknowledge the record at the end of its block."""
        unit = self.app.transport.link.ledger.unit_of(self.message)
        if error is not None and unit is not None:
            iteration = self._iteration()
            if iteration is not None:
                unit.has_gone_on = partial(iteration.asks_after, self)
            else:  # in a batch, where nothing shows that the agent goes on
                unit.interrupted = True
                await self._fail_batch(error)
        left: bool | None = await super().__aexit__(kind, error, trace)
        return left

    def _stream(self) -> Any:
        """Return the stream of the code that runs now; None if it is not certain."""
        iteration = current_iteration.get()
        if iteration is not None and iteration.stream in self._streams:
            return iteration.stream
        agent: Any = current_agent()
        read = {} if agent is None else {one.stream.get_active_stream() for one in agent._actors}
        mine = [one for one in self._streams if one in read] or self._streams
        return mine[0] if len(mine) == 1 else None

    def _iteration(self) -> Iteration | None:
        """Return the iteration that stands at this event; None in a batch of several."""
        iteration = current_iteration.get()
        return iteration if iteration and iteration.stream.current_event is self else None

    async def _fail_batch(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            await self.app.crash(error)
        else:
            self.app.transport.link.ledger.must_rewind = True
