"""Keeps a forked child from destroying its parent's clients of librdkafka.

The child has none of their threads. Destroying a client waits for them, or crashes. So in a child
the clients are never destroyed, not even at exit. The child may make clients of its own.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

_watched: weakref.WeakSet[Any] = weakref.WeakSet()


def keep_in_child(owner: Any) -> None:
    """Keep `owner`, and the clients that it refers to, alive in forked children."""
    _watched.add(owner)


def _after_fork_in_child() -> None:
    for owner in list(_watched):
        # A list of them would be emptied at exit.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
    _watched.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
