"""Calls that may never return, made in a separate thread.

librdkafka loses a transaction's call if the broker that it waits for is removed from its list at
the wrong moment: the handler of the response returns without notifying the caller (`_DESTROY` and
`_OUTDATED` in rdkafka_txnmgr.c, at least in releases up to 2.15). The call then never returns,
whatever its timeout.
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
    """Makes one call after the other in a thread. A hanging call is abandoned in its thread."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        threading.Thread(
            target=_make, args=(self._calls,), name="strandline-transactions", daemon=True
        ).start()

    def __call__(self, call: Callable[[], T], seconds: float) -> T:
        """Return the result of `call`, or raise its error; TimeoutError after `seconds`.

        After a TimeoutError the thread is still blocked, so later calls would time out too.
        """
        answer: Future[T] = Future()
        self._calls.put((answer, call))
        return answer.result(seconds)

    def close(self) -> None:
        """End the thread after its current call."""
        self._calls.put(None)


def _make(calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (asked := calls.get()) is not None:
        answer, call = asked
        try:
            answer.set_result(called(call))
        except BaseException as error:
            answer.set_exception(error)
        del asked, answer, call
