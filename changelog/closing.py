"""Closing of objects: at the end of a `with` block, when garbage collected, or at exit."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Self

_log = logging.getLogger("strandline")

EXIT_SECONDS = 10.0
"""Maximum seconds that the end of the process waits for the closing thread."""


class ClosedByWith:
    """Base of classes whose objects a `with` statement closes at the end of its block."""

    def close(self) -> None:
        """Close the object. Subclasses implement it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class CloseOnce:
    """Calls `close` once: when called itself, when `thing` is garbage collected, or at exit.

    `close` must not refer to `thing`. The garbage collector may run at any allocation, with any
    lock held: the global lock of thread pools, while one starts a thread, or the import lock.
    `close`, or a thread that it waits for, may need the same lock. To avoid a deadlock, `close`
    then runs in a thread that was started before, and the collector does not wait for it.

    >>> class Lamp: ...
    >>> lamp = Lamp()
    >>> close = CloseOnce(lamp, lambda: print("out"))
    >>> close(); close()
    out
    """

    def __init__(self, thing: object, close: Callable[[], None]) -> None:
        _Closer.begin()
        self._close = close
        self._pending = weakref.finalize(thing, self._leave)

    def __call__(self) -> None:
        if self._pending.detach():
            self._close()

    def _leave(self) -> None:
        if threading.main_thread().is_alive():
            _Closer.pending.put(self._close)
        else:
            self._close()  # the process ends, so the closing thread may have ended


class _Closer:
    """The thread that closes garbage-collected objects."""

    pending: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
    """Functions to call; None ends the thread. SimpleQueue.put is reentrant, which is necessary
    because the garbage collector may run within a put and put another one."""
    _thread: threading.Thread | None = None
    _beginning = threading.Lock()

    @classmethod
    def begin(cls) -> None:
        with cls._beginning:
            if cls._thread is None:
                cls._thread = threading.Thread(target=cls._run, name="strandline-closing")
                cls._thread.daemon = True
                cls._thread.start()
                atexit.register(cls._end)

    @classmethod
    def _run(cls) -> None:
        while (close := cls.pending.get()) is not None:
            try:
                close()
            except Exception as error:
                _log.warning("an object left open could not be closed: %s", error, exc_info=True)

    @classmethod
    def _end(cls) -> None:
        if cls._thread is not None:
            cls.pending.put(None)
            cls._thread.join(EXIT_SECONDS)

    @classmethod
    def forget_after_fork(cls) -> None:
        """Reset the state in a forked child: the thread and pending objects are the parent's."""
        cls.pending, cls._thread, cls._beginning = queue.SimpleQueue(), None, threading.Lock()


os.register_at_fork(after_in_child=_Closer.forget_after_fork)
