"""Declaration of a task: inputs, stores, handler and policies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from strandline.changelog.errors import InvalidConfig
from strandline.changelog.settings import check_choice, check_number
from strandline.framework.handlers import (
    check_arguments,
    check_handler,
    check_methods,
    is_async,
)
from strandline.framework.store import Store
from strandline.framework.timers import TimerKey
from strandline.framework.topic import Topic
from strandline.statestore.internal_names import DEAD_LETTER
from strandline.statestore.spec import AnySpec, StoreSpec

OnError = Literal["fail", "skip", "dead_letter"]
"""Policy for a record whose handler raises."""
MAX_CONCURRENCY = 10_000
"""Maximum number of records of a partition whose handlers run at the same time."""
ON_ERROR = ("fail", "skip", "dead_letter")


@dataclass
class TaskSpec:
    """Declaration of one task of an app."""

    name: str
    inputs: tuple[Topic[Any, Any], ...]
    """Input topics; all have the same number of partitions."""
    stores: tuple[Store[Any, Any], ...]
    handler: Any
    """A function, or a class with `process` and perhaps `init`, `window`, `close`, `on_timer`."""
    on_error: OnError = "fail"
    tombstones: bool = False
    """True if the handler receives tombstones."""
    window_ms: int | None = None
    """Milliseconds between two calls of `window`."""
    concurrency: int = 1
    """Maximum number of records of a partition whose async handlers run at the same time."""
    batch: bool = False
    """True if the handler gets batches of records instead of single ones."""
    first_batch: int | None = None
    """Number of records in the first batch; None if the handler works on whole batches."""
    on_timer: Callable[..., Any] | None = None
    """Timer handler of a task that is a function."""
    dead_letter: Topic[Any, Any] | None = None
    """Dead-letter topic, if `on_error` names it."""
    where: str = field(init=False)
    """File and line of the handler."""

    def __post_init__(self) -> None:
        check_choice(f"task {self.name!r}: on_error", self.on_error, ON_ERROR)
        if not self.inputs:
            raise InvalidConfig(f"task {self.name!r} has no input topic")
        if self.is_class and not callable(getattr(self.handler, "process", None)):
            raise InvalidConfig(f"class {self.name!r} has no method process(self, record)")
        if self.is_class:
            check_methods(f"task {self.name!r}", self.handler)
        else:
            what = f"the handler of task {self.name!r}"
            check_handler(what, self.handler)
            check_arguments(what, self.handler, "batch" if self.batch else "record")
        if self.window_ms is not None:
            check_number(f"task {self.name!r}: window_ms", self.window_ms, 1)
        if self.window_ms is not None and not hasattr(self.handler, "window"):
            raise InvalidConfig(
                f"task {self.name!r}: window_ms= needs a class with a method window(self)"
            )
        if self.window_ms is None and self.is_class and hasattr(self.handler, "window"):
            raise InvalidConfig(
                f"task {self.name!r}: its class has a method window(self), which would never be "
                "called; say how often by window_ms=, or rename the method"
            )
        check_number(f"task {self.name!r}: concurrency", self.concurrency, 1, MAX_CONCURRENCY)
        if self.concurrency > 1 and not self.is_async:
            raise InvalidConfig(
                f"task {self.name!r}: concurrency={self.concurrency} needs an async handler; the "
                "calls of a plain function do not overlap"
            )
        if self.batch:
            self._check_batch()
        self.where = place_of(self.handler)

    @property
    def is_class(self) -> bool:
        """True if the handler is a class."""
        return inspect.isclass(self.handler)

    @cached_property  # asked in every cycle, for each partition
    def is_async(self) -> bool:
        """True if the handler is awaited."""
        return is_async(self.handler.process if self.is_class else self.handler)

    @property
    def has_timers(self) -> bool:
        """True if the task has a timer handler."""
        return self.on_timer is not None or hasattr(self.handler, "on_timer")

    @property
    def timer_store(self) -> StoreSpec[TimerKey, int]:
        """Declaration of the store that holds the task's timers."""
        return timer_store(self.name)

    @property
    def all_stores(self) -> list[AnySpec]:
        """Declarations of the task's stores, including that of its timers."""
        timers = [self.timer_store] if self.has_timers else []
        return [*(store.spec for store in self.stores), *timers]

    def _check_batch(self) -> None:
        if self.is_async:
            raise InvalidConfig(
                f"task {self.name!r}: a handler with batch=True is a plain function, because nothing "
                "would run while it waits; await in a task of single records with concurrency="
            )
        if self.has_timers:
            raise self._timers_in_batch()

    def _timers_in_batch(self) -> InvalidConfig:
        return InvalidConfig(
            f"task {self.name!r}: a task with batch=True has no timers, which fire between single "
            "records; use window_ms=, or a task of single records"
        )

    def set_on_timer(self, handler: Callable[..., Any]) -> None:
        """Set the timer handler: `handler(name)` is called when a timer of the task fires."""
        if self.has_timers:
            raise InvalidConfig(f"task {self.name!r} has a handler for timers already")
        if self.batch:
            raise self._timers_in_batch()
        what = f"the on_timer function of task {self.name!r}"
        check_handler(what, handler, may_be_async=self.is_async)
        check_arguments(what, handler, "name")
        self.on_timer = handler


def timer_store(task: str) -> StoreSpec[TimerKey, int]:
    """Return the declaration of the store that holds the timers of a task."""
    return StoreSpec(f"{task}-timers", key=TimerKey, value=int)


def place_of(handler: Any) -> str:
    """Return file and line of a function, or of a class's `process`, or its repr if unknown.

    It reads no source: `inspect` parses the file of a class, and Python 3.11 fails when two threads
    parse at once (https://github.com/python/cpython/issues/106905).
    """
    function = getattr(handler, "process", handler) if inspect.isclass(handler) else handler
    code = getattr(inspect.unwrap(function), "__code__", None)
    return repr(handler) if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def check_stores(name: str, stores: Sequence[Store[Any, Any]]) -> None:
    """Raise InvalidConfig unless each item is a store that no other task has."""
    for store in stores:
        if not isinstance(store, Store):
            raise InvalidConfig(f"task {name!r}: stores= takes stores of app.store, got {store!r}")
        if store.task not in (None, name):
            raise InvalidConfig(
                f"store {store.name!r} belongs to task {store.task!r} already, so task {name!r}"
                " cannot have it: a store has one writer. Let the first task send what the"
                " second one needs to a topic, or do both in one task"
            )


def dead_letter_topic(spec: TaskSpec) -> Topic[Any, Any]:
    """Return the topic for records that the task's handler cannot handle, in their stored form."""
    schemas = [topic.stored_schema for topic in spec.inputs]
    if any(schema != schemas[0] for schema in schemas):
        raise InvalidConfig(
            f"task {spec.name!r}: on_error='dead_letter' needs inputs whose values are stored"
            ' alike, because they share one dead-letter topic. Give all of them serde="json", which '
            "stores any values as bytes, or use on_error='skip'"
        )
    session = spec.inputs[0].session
    value = bytes if schemas[0] is None else schemas[0]
    topic = Topic[Any, Any](
        session, f"{session.app}-{spec.name}{DEAD_LETTER}", key=bytes, value=value
    )
    topic.is_derived = all(one.is_derived for one in spec.inputs)
    return topic
