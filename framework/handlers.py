"""Handlers: checks that a function can be one, and that a call of it has run to its end.

A handler has run when it has returned and the result is not work that is still to be done. A
generator, a coroutine, a lazy iterator, a future or a function is such work: the call has only
created it. So is a list, tuple, set or dict of coroutines, generators or futures. If the declaration shows that a handler creates one, the declaration is refused. If only
the call shows it (a decorator or a lambda in between), the record fails.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Any

from strandline.changelog.errors import InvalidConfig, InvalidRequest

OPTIONAL_METHODS = ("init", "window", "on_timer", "close")
"""Methods that a class task may have besides `process`."""


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


def check_methods(what: str, declared: type) -> None:
    """Refuse a class task one of whose methods would not run. Raise InvalidConfig."""
    check_handler(f"{what}: process", declared.process)  # type: ignore[attr-defined]
    may_be_async = is_async(declared.process)  # type: ignore[attr-defined]
    for name in OPTIONAL_METHODS:
        method = getattr(declared, name, None)
        if method is not None:
            check_handler(f"{what}: {name}", method, may_be_async=may_be_async)


def check_finished(result: Any, what: str = "the handler") -> None:
    """Refuse a result that is work still to be done.

    Other values are ignored: `lambda record: seen.add(record.key)` returns a count.

    Args:
        result: Result of the call.
        what: Name of the called function, for the message.

    Raises:
        InvalidRequest: `result` is a generator, an awaitable, an iterator, a future or a function,
            or a container of generators, awaitables or futures.
    """
    kind = type(result)
    if kind in _DONE:
        return
    if kind in _CONTAINERS:
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


_DONE = frozenset({int, float, str, bytes, bool, type(None)})
_CONTAINERS = frozenset({tuple, list, dict, set})
_PENDING = (Awaitable, Generator, AsyncGenerator, concurrent.futures.Future)
