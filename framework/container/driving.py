"""Drivers for the steps of a task instance: one calls the handlers, the other also awaits them.

A generator of steps yields each call to be made. It is resumed when the handler has returned. If
the handler raises, the exception is thrown into the generator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from typing import Any

from strandline.framework.handlers import check_finished

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
                    check_finished(result)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = next(steps)
    except StopIteration as end:
        return int(end.value or 0)


async def drive_async(steps: Steps) -> int:
    """Call the handlers of `steps`, one after another, and await those that are async."""
    try:
        step = next(steps)
        while True:
            try:
                result = step[0](*step[1])
                if inspect.isawaitable(result):
                    result = await result
                if result is not None:
                    check_finished(result)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = next(steps)
    except StopIteration as end:
        return int(end.value or 0)
