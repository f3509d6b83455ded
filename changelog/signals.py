"""Signals in a queue that the main thread checks between two steps, so that none is lost.

Exceptions can be lost, because Python drops a KeyboardInterrupt that is raised within a finalizer.
An Event can deadlock, because it takes a lock: a signal that arrives during the `set` of another
signal, or during a `wait`, would wait for ever.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

CHECK_INTERVAL_S = 1.0
"""Maximum seconds that a wait may delay the handling of a signal."""


@contextmanager
def awaited(*numbers: signal.Signals) -> Iterator[SimpleQueue[int]]:
    """Yield a queue that receives these signals; on threads other than the main one, none."""
    received: SimpleQueue[int] = SimpleQueue()
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, lambda n, _: received.put(n)) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait(received: SimpleQueue[int]) -> int:
    """Wait for the first signal and return its number."""
    while True:
        # Python runs the handler of a signal that arrives just before the wait only after the
        # wait has ended. A timeout bounds that delay.
        with contextlib.suppress(Empty):
            return received.get(timeout=CHECK_INTERVAL_S)
