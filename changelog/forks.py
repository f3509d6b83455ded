"""Keeps a forked child from destroying handles of its parent, and from waiting for its locks.

A child has a copy of its parent's memory but none of its threads. Destroying a handle of gRPC or of
librdkafka waits for these threads, or crashes. So in a child the handles are never destroyed, not
even at exit. And a lock that another thread held at the fork is never released.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable
from typing import Any, Self

_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()
_watched: weakref.WeakKeyDictionary[Any, tuple[Any, ...]] = weakref.WeakKeyDictionary()


def keep_in_child(owner: Any, *handles: Any) -> None:
    """Keep `owner`, all that it refers to, and `handles` from being destroyed in forked children."""
    _watched[owner] = handles


class ForkSafeLock:
    """Context manager of a lock that is a new one in forked children.

    >>> import threading
    >>> with ForkSafeLock(threading.RLock) as lock, lock:
    ...     pass
    """

    __slots__ = ("__weakref__", "_lock", "_make")

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = make()
        _locks.add(self)

    def renew(self) -> None:
        """Replace the lock."""
        self._lock = self._make()

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *_error: object) -> None:
        self._lock.release()


def leave_alone(handle: Any) -> None:
    """Keep `handle` from ever being destroyed, even at exit."""
    _keep(handle)
    # pyarrow shuts servers down at exit by a weakref.finalize. Only this private table has it.
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        found = finalizer.peek()
        if found is not None and found[0] is handle:
            finalizer.detach()


def _keep(handle: Any) -> None:
    # A reference that a module holds would end at exit.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


def _after_fork_in_child() -> None:
    for owner, handles in list(_watched.items()):
        _keep(owner)
        for handle in handles:
            leave_alone(handle)
    _watched.clear()
    for lock in _locks:
        lock.renew()


os.register_at_fork(after_in_child=_after_fork_in_child)
