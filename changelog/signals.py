"""Signals as something to look at between two steps, so that none is lost.

An exception would be: Python drops a KeyboardInterrupt that is raised within a finalizer. And an
Event takes a lock when it is set, so a signal within the `set` of another, or within a `wait`, would
wait for ever.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

LOOK_SECONDS = 1.0


@contextmanager
def awaited(*numbers: signal.Signals) -> Iterator[SimpleQueue[int]]:
    """A queue into which these signals come; on another thread than the main one nothing does."""
    came: SimpleQueue[int] = SimpleQueue()
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = {number: signal.signal(number, lambda n, _: came.put(n)) for number in numbers}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait(came: SimpleQueue[int]) -> int:
    """The signal that comes first."""
    while True:
        # One just before the wait is handled only when something ends the wait.
        with contextlib.suppress(Empty):
            return came.get(timeout=LOOK_SECONDS)
