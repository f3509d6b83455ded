"""A handler has run when it has returned None or plain data; any other result fails the record."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import gc
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import strandline as sl
from strandline.changelog.records import TopicPartition
from strandline.framework.testing import TestDriver


def generator(record: Any) -> Iterator[None]:
    yield


async def coroutine(record: Any) -> None:
    """Do nothing."""


async def async_generator(record: Any) -> AsyncIterator[None]:
    yield


class CallableGenerator:
    def __call__(self, record: Any) -> Iterator[None]:
        yield


class AsyncCallable:
    def __init__(self, done: list[Any]) -> None:
        self._done = done

    async def __call__(self, record: Any) -> None:
        await asyncio.sleep(0)
        self._done.append(record.value)


def decorated(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a handler in a plain function, as decorators often do."""

    @functools.wraps(handler)
    def around(*arguments: Any) -> Any:
        return handler(*arguments)

    return around


def retry(times: int) -> Callable[..., Any]:
    def decorate(handler: Callable[..., Any]) -> Callable[..., Any]:
        def around(record: Any) -> None:
            for _ in range(times):
                handler(record)

        return around

    return decorate


def future(record: Any) -> concurrent.futures.Future[None]:
    return concurrent.futures.Future()


def of_class(method: str) -> Callable[..., Any]:
    """Return a handler whose result is of a class that has only one method."""
    kind = type("Deferred", (), {method: lambda self, *_: iter([1])})
    return lambda record: kind()


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any


@dataclasses.dataclass
class Lazy:
    left: Any

    def __iter__(self) -> Iterator[Any]:
        return iter([self.left])


class LazyList(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([1])


class Point(NamedTuple):
    x: int


class Shape(msgspec.Struct):
    x: Any


class Colour(enum.Enum):
    RED = 1


# Detected at declaration --------------------------------------------------------------


@pytest.mark.parametrize(
    "handler",
    [
        generator,
        async_generator,
        CallableGenerator(),
        functools.partial(generator),
        functools.partial(CallableGenerator()),
    ],
)
def test_a_handler_with_yield_is_refused(handler: Any) -> None:
    app = sl.App("app")
    with pytest.raises(sl.InvalidConfig, match="yield.*topic\\.send"):
        app.task(app.topic("in"), name="t")(handler)
    assert not app.declared.tasks


@pytest.mark.parametrize("handler", [5, None, object()])
def test_an_object_that_cannot_be_called_is_refused(handler: Any) -> None:
    app = sl.App("app")
    with pytest.raises(sl.InvalidConfig, match="cannot be called"):
        app.task(app.topic("in"), name="t")(handler)


@pytest.mark.parametrize("method", ["process", "init", "window", "on_timer", "close"])
@pytest.mark.parametrize("body", [generator, async_generator])
def test_a_class_with_yield_in_any_method_is_refused(method: str, body: Any) -> None:
    app = sl.App("app")
    methods = {"process": lambda self, record: None, method: body}
    with pytest.raises(sl.InvalidConfig, match=f"{method} has `yield`"):
        app.task(app.topic("in"))(type("Task", (), methods))


def takes_nothing() -> None:
    pass


def takes_two(record: Any, other: Any) -> None:
    pass


def takes_a_name(*, record: Any) -> None:
    pass


def takes_more(record: Any, *others: Any, times: int = 3) -> None:
    pass


@pytest.mark.parametrize("handler", [takes_nothing, takes_two, takes_a_name, lambda: None])
def test_a_function_that_cannot_take_one_argument_is_refused(handler: Any) -> None:
    """As a handler, a batch handler, and a function for timers."""
    app = sl.App("app", log="memory")
    words = app.topic("words", value=str)
    for batch, word in ((False, "record"), (True, "batch")):
        with pytest.raises(sl.InvalidConfig, match=f"is called with {word}, but is declared as"):
            app.task(words, batch=batch)(handler)
    app.task(words, name="good")(takes_more)
    with pytest.raises(sl.InvalidConfig, match="is called with name, but is declared as"):
        app.on_timer("good")(handler)


def test_a_function_whose_decorator_gives_it_more_arguments_is_accepted() -> None:
    """The function that is called counts, and not the one that `functools.wraps` names."""

    def with_database(handler: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(handler)
        def wrapper(record: Any) -> None:
            handler(record, "database")

        return wrapper

    class Task:
        @with_database
        def process(self, record: Any, database: str) -> None: ...

    app = sl.App("app", log="memory")
    words = app.topic("words", value=str)
    app.task(words, name="good")(with_database(takes_two))
    app.on_timer("good")(with_database(takes_two))
    with pytest.raises(sl.InvalidConfig, match="process is called with self, record"):
        app.task(words)(Task)  # this decorator's function has no place for `self`


@pytest.mark.parametrize("method", ["process", "init", "window", "on_timer", "close"])
def test_a_class_whose_method_cannot_be_called_is_refused(method: str) -> None:
    methods: dict[str, Any] = {
        "process": lambda self, record: None,
        method: lambda self, one, two: None,
    }
    app = sl.App("app", log="memory")
    task = app.task(app.topic("words", value=str), window_ms=10 if method == "window" else None)
    with pytest.raises(sl.InvalidConfig, match=f"{method} is called with self"):
        task(type("Task", (), methods))
    static = {"process": staticmethod(lambda record: None), "init": classmethod(lambda c, x: None)}
    app.task(app.topic("words", value=str))(type("Static", (), static))


@pytest.mark.parametrize("method", ["init", "window", "on_timer", "close"])
def test_an_async_method_next_to_a_plain_process_is_refused(method: str) -> None:
    app = sl.App("app")
    methods = {"process": lambda self, record: None, method: coroutine}
    with pytest.raises(sl.InvalidConfig, match=f"{method} is async.*process"):
        app.task(app.topic("in"))(type("Task", (), methods))


def test_a_class_whose_window_would_never_be_called_is_refused() -> None:
    app = sl.App("app")
    methods = {"process": lambda self, record: None, "window": lambda self: None}
    with pytest.raises(sl.InvalidConfig, match="window.* would never be called; .*window_ms="):
        app.task(app.topic("in"))(type("Task", (), methods))


@pytest.mark.parametrize("handler", [coroutine, generator, AsyncCallable([])])
def test_a_timer_function_that_would_not_run_is_refused(handler: Any) -> None:
    app = sl.App("app")
    app.task(app.topic("in"), name="t")(lambda record: None)
    with pytest.raises(sl.InvalidConfig, match="on_timer function of task 't'"):
        app.on_timer("t")(handler)


@pytest.mark.parametrize("key", [coroutine, generator, async_generator, AsyncCallable([]), 5])
def test_a_key_function_that_would_not_run_is_refused(key: Any) -> None:
    app = sl.App("app")
    with pytest.raises(sl.InvalidConfig, match="key function of repartition 'by'"):
        app.repartition(app.topic("in"), key, name="by")


def test_a_default_factory_that_would_not_run_is_refused() -> None:
    async def factory() -> int:
        return 0

    with pytest.raises(sl.InvalidConfig, match="default_factory of store 's' is async"):
        sl.App("app").store("s", default_factory=factory)


def test_an_upgrade_that_would_not_run_is_refused() -> None:
    async def upgrade(old: int) -> str:
        return str(old)

    with pytest.raises(sl.InvalidConfig, match="upgrade of store 's' is async"):
        sl.App("app").store("s", value=str, upgrade=upgrade)


@pytest.mark.parametrize("argument", ["init", "add", "merge"])
def test_functions_of_a_reducer_that_would_not_run_are_refused(argument: str) -> None:
    async def function(*_: Any) -> list[Any]:
        return []

    functions: dict[str, Any] = {
        "init": list,
        "add": lambda old, _: old,
        "merge": lambda old, _: old,
    }
    made = sl.reducer(**{**functions, argument: function}, returns=int)
    app = sl.App("app")
    with pytest.raises(sl.InvalidConfig, match=f"words: {argument}= of sl.reducer is async"):
        app.aggregates("s", words=made)
    with pytest.raises(sl.InvalidConfig, match=f"words: {argument}= of sl.reducer is async"):
        app.stream(app.topic("in", value=str)).group_by("key").agg(words=made)


# Detected at the call -----------------------------------------------------------------


async def returns_a_coroutine(record: Any) -> Any:
    return coroutine(record)


UNFINISHED: dict[str, Callable[..., Any]] = {
    "a decorated generator": decorated(generator),
    "a decorated async function": decorated(coroutine),
    "a decorated async generator": decorated(async_generator),
    "a lambda of an async function": lambda record: coroutine(record),
    "a lazy iterator": lambda record: map(print, [record]),
    "a future": future,
    "a decorator without its parentheses": retry(lambda record: None),  # type: ignore[arg-type]
    "an async function that returns one": returns_a_coroutine,
    "a tuple of calls of async functions": lambda record: (coroutine(record), coroutine(record)),
    "a list of calls of generators": lambda record: [1, generator(record)],
    "a set of futures": lambda record: {future(record)},
    "a dict of calls of async functions": lambda record: {"a": coroutine(record)},
    "a list of functions": lambda record: [print],
    "a list of lazy iterators": lambda record: [map(print, [record])],
    "a nested call of an async function": lambda record: {"a": [(1, coroutine(record))]},
    "a key that is a future": lambda record: {future(record): 1},
    "a field that is a generator": lambda record: Pair(1, generator(record)),
    "an object with only __await__": of_class("__await__"),
    "a reader of Arrow batches": lambda record: pa.table({"a": [1]}).to_reader(),
}

OTHER: dict[str, Callable[..., Any]] = {
    **{
        f"an object with only {name}": of_class(name)
        for name in ("__iter__", "__aiter__", "__next__", "__anext__", "__getitem__", "run")
    },
    "an object of a dataclass that iterates": lambda record: Lazy(1),
    "a list that makes its elements": lambda record: LazyList(),
    "a lazy frame": lambda record: pl.LazyFrame({"a": [1]}),
    "an array of objects": lambda record: np.array([object()]),
    "an object in a list": lambda record: [1, object()],
    "a view of a dict": lambda record: {"a": 1}.keys(),
}


@pytest.mark.parametrize("stores", [0, 1, 2])
@pytest.mark.parametrize("handler", UNFINISHED.values(), ids=UNFINISHED)
def test_a_record_whose_handler_has_not_run_fails(handler: Any, stores: int) -> None:
    app = sl.App("app")
    words = app.topic("words", value=int)
    own = [app.store(f"s{n}", value=int) for n in range(stores)]
    app.task(words, name="t", stores=own)(handler)
    driver = TestDriver(app)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a coroutine that was never awaited is a RuntimeWarning
        with pytest.raises(sl.TaskFailed, match="words-0 @ 0 .*the handler has not run"):
            driver.run([1, 2])
        gc.collect()
    assert driver.owner.committed("app")[TopicPartition("words", 0)].offset == 0


@pytest.mark.parametrize(
    ("batch", "is_async"),
    [(False, False), (False, True), (True, False)],
    ids=["records", "async", "batches"],
)
@pytest.mark.parametrize("handler", OTHER.values(), ids=OTHER)
def test_a_record_whose_handler_returns_another_object_fails(
    handler: Any, batch: bool, is_async: bool
) -> None:
    app = sl.App("app")
    words, out = app.topic("words", value=int), app.topic("out", value=int)

    def plain(given: Any) -> Any:
        out.send(None, 1)
        return handler(given)

    async def awaited(given: Any) -> Any:
        return plain(given)

    app.task(words, name="t", batch=batch)(awaited if is_async else plain)
    driver = TestDriver(app)
    with pytest.raises(sl.TaskFailed, match=r"words-0 @ 0 .*returned .*an object of class .*\."):
        driver.run([1, 2])
    assert driver.output(out) == []


@pytest.mark.parametrize("handler", UNFINISHED.values(), ids=UNFINISHED)
def test_a_record_whose_handler_has_not_run_follows_the_policy(handler: Any) -> None:
    app = sl.App("app")
    words, out = app.topic("words", value=int), app.topic("out", value=int)

    @app.task(words, on_error="dead_letter", name="t")
    def sometimes(record: Any) -> Any:
        out.send(None, record.value)
        return handler(record) if record.value < 0 else None

    driver = TestDriver(app).run([1, -1, 2])
    assert [record.value for record in driver.output(out)] == [1, 2]
    [letter] = driver.output(app.declared.topics["app-t-dead-letter"])
    assert b"has not run" in dict(letter.headers)["error.message"]


@pytest.mark.parametrize("method", ["init", "window", "on_timer"])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("result", [iter([1]), object()])
def test_other_methods_that_have_not_run_fail_the_task(
    method: str, is_async: bool, result: Any
) -> None:
    app = sl.App("app")
    words = app.topic("words", value=int)

    async def process(self: Any, record: Any) -> None:
        sl.set_timer("x", 0, clock="wall")

    def plain(self: Any, record: Any) -> None:
        sl.set_timer("x", 0, clock="wall")

    methods = {
        "process": process if is_async else plain,
        "on_timer": lambda self, name: None,
        "window": lambda self: None,
        method: lambda self, *_: result,
    }
    app.task(words, window_ms=1)(type("Task", (), methods))
    driver = TestDriver(app)
    with pytest.raises(
        sl.TaskFailed, match=rf"{method.removeprefix('on_')}.*(has not run|returned an object)"
    ):
        driver.run([1]).advance(1)


def test_a_key_function_that_returns_a_coroutine_fails_its_record() -> None:
    app = sl.App("app")
    words = app.topic("words", value=int)

    async def key(record: Any) -> str:
        return "k"

    by = app.repartition(words, lambda record: key(record), name="by", key_type=dict)
    app.task(by, name="t")(lambda record: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(sl.TaskFailed, match="the key function has not run"):
            TestDriver(app).run([1])
        gc.collect()


@pytest.mark.parametrize(
    "result",
    [
        *(None, 1, "x", b"x", 1.5, 1j, range(2), decimal.Decimal(1), uuid.UUID(int=1), Colour.RED),
        *(dt.datetime(2020, 1, 1), dt.date(2020, 1, 1), dt.timedelta(1), np.int64(1), np.bool_(1)),
        *([1], {"a": 1}, (1, 2), [[None]], {1}, [], Point(1), collections.Counter("a")),
        *(collections.OrderedDict(a=1), collections.deque([1]), Pair(1, [Shape(2)]), Shape({})),
        *(np.array([1]), pa.array([1]), pa.table({"a": [1]}), pl.DataFrame({"a": [1]})),
        sl.Record("k", 1),
    ],
    ids=lambda result: type(result).__name__,
)
def test_a_returned_plain_value_is_ignored(result: Any) -> None:
    app = sl.App("app")
    words, seen = app.topic("words", value=int), app.counter("seen")

    def count(record: Any) -> Any:
        seen.add(record.key)
        return result

    app.task(words, stores=[seen])(count)
    assert TestDriver(app).run([("a", 1), ("a", 2)]).store(seen) == {"a": 2}


def test_a_result_that_contains_itself_is_ignored() -> None:
    app = sl.App("app")
    words, itself = app.topic("words", value=int), list[Any]()
    itself.append(itself)
    app.task(words, name="t")(lambda record: itself)
    TestDriver(app).run([1])


# Awaited handlers ---------------------------------------------------------------------


@pytest.mark.parametrize("around", [lambda handler: handler, functools.partial])
def test_an_object_with_an_async_call_is_awaited(around: Any) -> None:
    app, done = sl.App("app"), list[int]()
    app.task(app.topic("words", value=int), name="t")(around(AsyncCallable(done)))
    TestDriver(app).run([1, 2])
    assert done == [1, 2]


def test_an_async_close_is_awaited() -> None:
    app, closed = sl.App("app"), list[int]()

    @app.task(app.topic("words", value=int, partitions=2))
    class Session:
        def init(self, context: sl.TaskContext) -> None:
            self.partition = context.partition

        async def process(self, record: Any) -> None:
            """Do nothing."""

        async def close(self) -> None:
            await asyncio.sleep(0)
            closed.append(self.partition)

    driver = TestDriver(app).run([1])
    driver.close()
    assert closed == [0, 1]


@pytest.mark.parametrize("close", [decorated(coroutine), lambda self: object()])
def test_a_close_that_has_not_run_is_an_error(close: Any) -> None:
    app = sl.App("app")

    @app.task(app.topic("words", value=int))
    class Session:
        def process(self, record: Any) -> None:
            """Do nothing."""

    Session.close = close  # type: ignore[attr-defined]
    driver = TestDriver(app).run([1])
    with pytest.raises(sl.InvalidRequest, match="close of task 'Session' (has not run|returned)"):
        driver.close()
    driver.close()
