"""Handlers: checks that a function can be one, and that a call of it has run to its end.

A handler has run when it has returned None or plain data. Any other object may be work that is
still to be done: a generator, a coroutine, a future, a lazy query. No list of such types is ever
complete, so the list here is that of plain data. If the declaration shows that a handler creates a
generator or a coroutine, the declaration is refused. If only the call shows it (a decorator or a
lambda in between), the record fails.

A result that is used, such as the key that a key function returns, has a type that is checked
elsewhere. `check_finished` only gives it a better message.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import dataclasses
import datetime as dt
import enum
import functools
import inspect
import numbers
import sys
import uuid
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from strandline.changelog.errors import (
    CorruptLog,
    Fenced,
    InvalidConfig,
    InvalidRequest,
    NotAuthorized,
    StorageFailed,
    TransactionAborted,
    Unauthenticated,
)
from strandline.statestore.aggregates.reducer import Reducer

METHOD_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "process": ("record",),
    "init": ("context",),
    "window": (),
    "on_timer": ("name",),
    "close": (),
}
"""Arguments of the methods that a class task may have; it must have `process`."""
INFRASTRUCTURE_ERRORS: tuple[type[BaseException], ...] = (
    StorageFailed,
    CorruptLog,
    Fenced,
    TransactionAborted,
    NotAuthorized,
    Unauthenticated,
    MemoryError,
)
"""Errors of log, disk or process, to which `on_error` does not apply: no record causes them."""


def is_async(handler: Any) -> bool:
    """Return True if calling a handler returns a coroutine, which must be awaited.

    This holds for async functions, methods and partials of them, and for objects with an async
    `__call__`.

    >>> async def handler(record): ...
    >>> is_async(handler), is_async(functools.partial(handler)), is_async(print)
    (True, True, False)
    """
    return _any_form(handler, inspect.iscoroutinefunction)


def check_handler(what: str, handler: Any, *, may_be_async: bool = True) -> None:
    """Refuse a handler whose declaration shows that a call of it does not run it.

    Args:
        what: Name of the handler, for the message.
        handler: Function, method, partial, or object with `__call__`.
        may_be_async: True if the caller awaits the handler.

    Raises:
        InvalidConfig: The handler cannot be called, contains `yield`, or is async and may not be.
    """
    if not callable(handler):
        raise InvalidConfig(f"{what} cannot be called: {handler!r}")
    if _any_form(handler, inspect.isgeneratorfunction) or _any_form(
        handler, inspect.isasyncgenfunction
    ):
        raise InvalidConfig(
            f"{what} has `yield`, so calling it would run none of its code; leave out `yield`, and"
            " send results with topic.send(key, value)"
        )
    if not may_be_async and is_async(handler):
        raise InvalidConfig(
            f"{what} is async, but nothing would await it; make it a plain function, or make the"
            " task's own handler (`process` of a class) async too"
        )


def check_arguments(what: str, handler: Any, *arguments: str) -> None:
    """Refuse a handler that cannot be called with these positional arguments.

    Of a decorated function that of the decorator counts, which may call the other one with more.

    Raises:
        InvalidConfig: Every call would raise TypeError, which `on_error` might take for an error of
            the record.

    >>> check_arguments("the handler", print, "record")
    """
    try:
        signature = inspect.signature(handler, follow_wrapped=False)
    except (TypeError, ValueError):
        return  # a function written in C may not tell its parameters
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise InvalidConfig(
            f"{what} is called with {', '.join(arguments) or 'no argument'}, but is declared as "
            f"{getattr(handler, '__name__', handler)}{signature}: {error}"
        ) from None


def check_methods(what: str, declared: type) -> None:
    """Refuse a class task one of whose methods would not run. Raise InvalidConfig."""
    is_process_async = is_async(declared.process)  # type: ignore[attr-defined]
    for name, arguments in METHOD_ARGUMENTS.items():
        method = getattr(declared, name, None)
        if method is None and name != "process":
            continue
        may_be_async = is_process_async or name == "process"
        check_handler(f"{what}: {name}", method, may_be_async=may_be_async)
        if inspect.isfunction(inspect.getattr_static(declared, name)):
            check_arguments(f"{what}: {name}", method, "self", *arguments)


def check_reducers(aggregates: Mapping[str, Any]) -> None:
    """Refuse a reducer whose functions a call does not run. Raises InvalidConfig.

    Args:
        aggregates: Aggregates by their names.
    """
    for name, reducer in aggregates.items():
        if not isinstance(reducer, Reducer):
            continue
        given = {"init": reducer.init, "add": reducer.add, "merge": reducer.merge_states}
        for argument, function in given.items():
            if callable(function):
                what = f"{name}: {argument}= of sl.reducer"
                check_handler(what, function, may_be_async=False)


def check_result(result: Any, what: str = "the handler") -> None:
    """Refuse a result that is neither None nor plain data, of a function whose result is unused.

    Plain data is ignored: `lambda record: seen.add(record.key)` returns a count. Plain data is
    numbers, text, bytes, times, enums, UUIDs, frames and arrays, and the containers, dataclasses
    and structs of plain data. A class that can be iterated, awaited or called is not plain data.

    Args:
        result: Result of the call.
        what: Name of the called function, for the message.

    Raises:
        InvalidRequest: `result`, or something in it, is another object.
    """
    if type(result) in _SCALARS:
        return
    rest, seen = [result], dict[int, Any]()
    while rest:
        one = rest.pop()
        if type(one) in _SCALARS or id(one) in seen:
            continue
        seen[id(one)] = one
        parts = _parts(one)
        if parts is None:
            for pending in (one, *rest):
                _discard(pending)
            raise InvalidRequest(_other_result(one, result, what))
        rest.extend(parts)


def _parts(value: Any) -> Iterable[Any] | None:
    """Return what plain data contains, nothing for a scalar; None if `value` is not plain data."""
    kind = type(value)
    if _defines(kind, "__await__", "__aiter__", "__anext__", "__next__", "__call__"):
        return None
    if isinstance(value, _NUMBERS_AND_TEXT):
        return ()
    if isinstance(value, dict) and kind.__iter__ in _DATA_ITERATION:
        return (*dict.keys(value), *dict.values(value))
    if isinstance(value, _CONTAINERS) and kind.__iter__ in _DATA_ITERATION:
        return tuple(value)
    if _is_array(value):
        return ()
    if _defines(kind, "__iter__"):
        return None
    if isinstance(value, msgspec.Struct):
        return (getattr(value, name) for name in value.__struct_fields__)
    if dataclasses.is_dataclass(kind):
        return (getattr(value, field.name, None) for field in dataclasses.fields(kind))
    return None


def _defines(kind: type, *names: str) -> bool:
    """Return True if objects of class `kind` have one of the special methods."""
    # Not hasattr, which also finds the methods of the class itself: each class can be called.
    return any(name in vars(base) for base in kind.__mro__ for name in names)


def _is_array(value: Any) -> bool:
    """Return True for arrays and tables whose values are in memory; a lazy frame is none."""
    if isinstance(value, np.ndarray):
        return bool(value.dtype.kind != "O")
    if isinstance(value, _ARROW):
        return True
    polars = sys.modules.get("polars")
    return polars is not None and isinstance(value, polars.DataFrame | polars.Series)


def _other_result(found: Any, result: Any, what: str) -> str:
    """Return the message for a result that is, or contains, an object that is not plain data."""
    inside = "" if found is result else f"a {_kind(result)} with "
    if (work := _unfinished(found)) is not None:
        return f"{what} has not run: it returned {inside}{work}"
    return (
        f"{what} returned {inside}an object of class {_full_kind(found)}, which is neither None nor"
        " plain data, and may be work that nothing would do; use the object in the function, and"
        " return None"
    )


def check_finished(result: Any, what: str = "the handler") -> None:
    """Refuse a result that is work still to be done, of a function whose result is used.

    Args:
        result: Result of the call.
        what: Name of the called function, for the message.

    Raises:
        InvalidRequest: `result` is a generator, an awaitable, an iterator, a future or a function,
            or a container of generators, awaitables or futures.
    """
    kind = type(result)
    if kind in _SCALARS:
        return
    if kind in (tuple, list, dict, set):
        _check_elements(result, what)
        return
    found = _unfinished(result)
    if found is not None:
        _discard(result)
        raise InvalidRequest(f"{what} has not run: it returned {found}")


def _check_elements(results: Any, what: str) -> None:
    """Refuse a container that holds calls that have not run.

    Functions and iterators are not refused here, because they may be values; a generator is not.
    """
    elements = results.values() if type(results) is dict else results
    pending = [one for one in elements if isinstance(one, _PENDING)]
    if pending:
        found = _unfinished(pending[0])
        for one in pending:
            _discard(one)
        raise InvalidRequest(f"{what} has not run: it returned a {_kind(results)} with {found}")


def no_timer(name: Any) -> None:
    """Do nothing; the timer function of a task that has no timers."""


def _unfinished(result: Any) -> str | None:
    """Return the kind of work that `result` is and how to complete it; None if it is complete."""
    if inspect.isawaitable(result):
        return (
            f"an awaitable ({_kind(result)}) that nothing awaits; declare the async function itself,"
            " or let the decorator around it be async"
        )
    if isinstance(result, AsyncIterator | Iterator):
        return (
            f"an iterator ({_kind(result)}) that nothing iterates; use a `for` loop and"
            " topic.send(key, value) instead of `yield` or `map`"
        )
    if isinstance(result, concurrent.futures.Future):
        return "a future, whose work would not be part of the commit; wait for its result()"
    if callable(result):
        return (
            f"a callable ({_kind(result)}) that nothing calls; a decorator that takes arguments"
            " needs its parentheses"
        )
    return None


def _discard(result: Any) -> None:
    """Close a coroutine that is never awaited, so that Python does not warn about it."""
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
    elif isinstance(result, asyncio.Future | concurrent.futures.Future):
        result.cancel()


def _any_form(handler: Any, test: Callable[[Any], bool]) -> bool:
    """Return True if `test` holds for the function inside a partial or callable object."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if test(handler):
        return True
    plain = inspect.isroutine(handler) or inspect.isclass(handler)
    return not plain and test(getattr(type(handler), "__call__", None))  # noqa: B004


def _kind(result: Any) -> str:
    return type(result).__name__


def _full_kind(result: Any) -> str:
    kind = type(result)
    return f"{kind.__module__}.{kind.__qualname__}"


_SCALARS = frozenset({int, float, str, bytes, bool, type(None)})
_NUMBERS_AND_TEXT = (
    str,
    bytes,
    bytearray,
    memoryview,
    range,
    numbers.Number,
    np.generic,
    dt.date,
    dt.time,
    dt.timedelta,
    enum.Enum,
    uuid.UUID,
)
_CONTAINERS = (tuple, list, set, frozenset, collections.deque)
_DATA_ITERATION = frozenset(kind.__iter__ for kind in (*_CONTAINERS, dict, collections.OrderedDict))
"""Iteration of containers whose elements exist; a subclass with another one may make its own."""
_ARROW = (pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table, pa.Scalar)
_PENDING = (Awaitable, Generator, AsyncGenerator, concurrent.futures.Future)
