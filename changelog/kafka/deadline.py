"""Calls that may never come back, made in a thread of their own.

librdkafka loses sight of a transaction's call if the broker that it is waiting for is taken out of its list
at the wrong moment: the answer's handler returns without telling the caller (`_DESTROY` and `_OUTDATED` in
its rdkafka_txnmgr.c, releases up to 2.15 at least). Whoever waits for it waits for ever, whatever
timeout was given.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from strandline.changelog.kafka.callbacks import called

T = TypeVar("T")


class DeadlineCaller:
    """Makes one call after the other, until it is closed. A call that hangs is left to itself."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        threading.Thread(
            target=_make, args=(self._calls,), name="strandline-transactions", daemon=True
        ).start()

    def __call__(self, call: Callable[[], T], seconds: float) -> T:
        """What it gives, or raises. Raises TimeoutError; then there is no use in calling again."""
        answer: Future[T] = Future()
        self._calls.put((answer, call))
        return answer.result(seconds)

    def close(self) -> None:
        """Let the thread end, when it can."""
        self._calls.put(None)


def _make(calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (asked := calls.get()) is not None:
        answer, call = asked
        try:
            answer.set_result(called(call))
        except BaseException as error:
            answer.set_exception(error)
        del asked, answer, call
