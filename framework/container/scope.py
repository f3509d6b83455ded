"""Scope of a task's handlers: their context, and where the handles of stores and topics lead.

Synchronous handlers work in the scope of their instance: changes go to the stores and outboxes of
the partition, and are undone if the handler raises. Async handlers get a scope of their own for
each step, because several may run at the same time, and a commit may come while they run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strandline.framework import context
from strandline.framework.context import TaskContext
from strandline.framework.outbox import Outbox
from strandline.framework.record import Record
from strandline.framework.store import Store, bind_store
from strandline.framework.timers import Timers
from strandline.framework.topic import Topic, bind_topic
from strandline.statestore.step_store import StepStore
from strandline.statestore.store import AnyStore
from strandline.statestore.typed_store import TypedStore

Outboxes = Mapping[Topic[Any, Any], Outbox]


class Scope:
    """Scope of a task instance, or of one of its steps."""

    __slots__ = ("context", "handles", "outboxes", "stores")

    def __init__(
        self,
        context: TaskContext,
        handles: Sequence[Store[Any, Any]],
        stores: Sequence[TypedStore[Any, Any]],
        outboxes: Outboxes,
    ) -> None:
        self.context = context
        self.handles = handles
        self.stores = stores
        """Stores in the order of the handles."""
        self.outboxes = outboxes

    def bind(self) -> None:
        """Bind the handles to this scope, in this thread or asyncio task."""
        context.enter(self.context)
        for handle, store in zip(self.handles, self.stores, strict=True):
            bind_store(handle, store)
        for topic, box in self.outboxes.items():
            bind_topic(topic, box)

    def unbind(self) -> None:
        """Unbind the handles."""
        for handle in self.handles:
            bind_store(handle, None)
        for topic in self.outboxes:
            bind_topic(topic, None)
        context.leave()


class StepScope(Scope):
    """Scope of one step, whose changes are kept apart until `apply`."""

    __slots__ = ("_base", "_step_stores")

    def __init__(
        self,
        base: Scope,
        stores: Sequence[AnyStore],
        record: Record[Any, Any],
        stream_time: int,
    ) -> None:
        """Make the scope of a step.

        Args:
            base: Scope of the task instance.
            stores: Its stores in the order of the handles, and then that of its timers, if any.
            record: Record of the step.
            stream_time: Stream time of the step, in ms.
        """
        of = base.context
        self._base = base
        self._step_stores = [StepStore(store) for store in stores]
        timers = None if of.timers is None else Timers(self._step_stores[-1])
        own = TaskContext(of.app, of.task, of.partition, timers, of.step)
        own.record, own.stream_time, own.ending = record, stream_time, of.ending
        outboxes = {topic: box.of_step(own) for topic, box in base.outboxes.items()}
        super().__init__(own, base.handles, self._step_stores[: len(base.handles)], outboxes)

    def is_current(self) -> bool:
        """Return True if the step would read the same if it ran now."""
        return all(store.is_current() for store in self._step_stores)

    def apply(self) -> None:
        """Add what the step did to the work of the task instance. It may have ended before."""
        for store in self._step_stores:
            store.apply()
        base = self._base.context.timers
        if base is not None and self.context.timers is not None:
            base.absorb(self.context.timers)
        for topic, box in self.outboxes.items():
            if not box.is_empty:
                self._base.outboxes[topic].absorb(box)
            box.end()

    def end(self) -> None:
        """Refuse later uses of the stores and outboxes of the step."""
        for store in self._step_stores:
            store.end()
        for box in self.outboxes.values():
            box.end()
