"""Events of Faust whose block, `async with event:`, does not acknowledge a record that failed in it.

Faust acknowledges at the end of the block, whatever has ended it. Here the record is handled again
if the agent was stopped, and follows the policy if the agent has raised. An agent that catches the
exception outside of the block has handled the record; that shows when it asks for the next one.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

from faust.events import Event


class Iteration(NamedTuple):
    """A stream, and the task that iterates over it."""

    stream: Any
    task: asyncio.Task[Any] | None

    def asks_after(self, event: Any) -> bool:
        """Return True if the stream was asked for the record after `event`, by a living task."""
        task = self.task
        is_ending = task is None or task.done() or task.cancelling() > 0
        return self.stream.current_event is not event and not is_ending


current_iteration: ContextVar[Iteration | None] = ContextVar("current_iteration", default=None)
"""The iteration that has delivered the record that is handled now."""


class RecordEvent(Event):
    """Event of a record. Agents that decode it in the same way share it."""

    _acked_in: frozenset[int] = frozenset()
    """Identities of the streams in whose iteration it was acknowledged."""

    def ack(self) -> bool:
        """Acknowledge the record, unless its stream does so when it is asked for the next one.

        Both together, and two calls, would count for two of the agents that read the record.
        """
        iteration = self._iteration()
        if iteration is not None:
            stream = iteration.stream
            if stream.enable_acks or id(stream) in self._acked_in:
                return False
            self._acked_in |= {id(stream)}
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

    def _iteration(self) -> Iteration | None:
        """Return the iteration that stands at this event; None in a batch of several."""
        iteration = current_iteration.get()
        return iteration if iteration and iteration.stream.current_event is self else None

    async def _fail_batch(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            await self.app.crash(error)
        else:
            self.app.transport.link.ledger.must_rewind = True
