"""Closing what nobody closed."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable

_log = logging.getLogger("strandline")

EXIT_SECONDS = 10.0
"""How long the end of the process waits for what is being closed."""


class CloseOnce:
    """Calls `close` once: when it is called itself, when `thing` has become garbage, or at exit.

    `close` must not refer to `thing`. Garbage is collected wherever something is allocated, whatever
    locks are held there: that of all thread pools, while one of them starts a thread, or that of a
    module being imported. `close` may want them, and so may threads that it waits for. So it is left
    to a thread that is there already, and nobody waits for it.

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
            self._close()  # the process ends


class _Closer:
    """The thread that closes what was garbage."""

    pending: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
    """May be filled by the garbage collector, even while it is being filled."""
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
                _log.warning("what nobody had closed could not be: %s", error, exc_info=True)

    @classmethod
    def _end(cls) -> None:
        if cls._thread is not None:
            cls.pending.put(None)
            cls._thread.join(EXIT_SECONDS)

    @classmethod
    def forget_after_fork(cls) -> None:
        """In a forked child there is no such thread, and what is pending is the parent's."""
        cls.pending, cls._thread, cls._beginning = queue.SimpleQueue(), None, threading.Lock()


os.register_at_fork(after_in_child=_Closer.forget_after_fork)
