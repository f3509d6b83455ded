"""Closing what nobody closed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable


class Closing:
    """Calls `close` once: when it is called itself, when `thing` has become garbage, or at exit.

    `close` must not refer to `thing`. Garbage is collected wherever something is allocated, whatever
    locks are held there: that of all thread pools, while one of them starts a thread, or that of a
    module being imported. `close` may want them, and threads it waits for may. So it has a thread of
    its own then, and nobody waits for it.

    >>> class Lamp: ...
    >>> lamp = Lamp()
    >>> close = Closing(lamp, lambda: print("out"))
    >>> close(); close()
    out
    """

    def __init__(self, thing: object, close: Callable[[], None]) -> None:
        self._close = close
        self._pending = weakref.finalize(thing, self._close_apart)

    def __call__(self) -> None:
        if self._pending.detach():
            self._close()

    def _close_apart(self) -> None:
        if threading.main_thread().is_alive():
            threading.Thread(target=self._close, name="strandline-closing").start()
        else:
            self._close()  # the process ends, and starts no threads any more
