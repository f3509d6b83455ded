"""Keeps a forked child from using its parent's handles, and from using this transport at all.

The child has a copy of its parent's memory but none of its threads. A lock that was held at the
fork stays locked, an answer never arrives, and both processes would write to one socket. gRPC's
threads are missing too, so new connections of the child would hang. Therefore everything in this
package raises an error in such a child, and the child destroys no handle of its parent.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

from strandline.changelog.errors import Fenced

_watched: weakref.WeakKeyDictionary[Any, tuple[Any, ...]] = weakref.WeakKeyDictionary()
_kept: list[Any] = []


class ForkGuard:
    """Detects that this process is a forked child of the one that made the guard.

    Raises Fenced if it is made in a child of a process that has opened a log.
    """

    __slots__ = ("__weakref__", "_foreign")

    def __init__(self) -> None:
        _Process.check()
        self._foreign = False
        keep_in_child(self)

    @property
    def foreign(self) -> bool:
        """True in a forked child of the process that made the guard."""
        return self._foreign

    def check(self) -> None:
        """Raise Fenced in a forked child."""
        if self._foreign:
            _Process.check()

    def disown(self) -> None:
        """Mark the guard as used in a forked child."""
        self._foreign = True


def keep_in_child(owner: Any, *handles: Any) -> None:
    """Keep `handles` alive in forked children, whose destructors would wait for missing threads."""
    _Process.used = True
    _watched[owner] = handles


def leave_alone(handle: Any) -> None:
    """Keep `handle` from ever being destroyed, even at exit."""
    _kept.append(handle)
    # pyarrow shuts servers down at exit by a weakref.finalize. Only this private table has it.
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        found = finalizer.peek()
        if found is not None and found[0] is handle:
            finalizer.detach()


class _Process:
    """State of this process concerning forks."""

    used = False
    """True once a log was opened in this process."""
    parent = 0
    """Process id of the parent if it had opened a log before it forked this process; else 0."""

    @classmethod
    def check(cls) -> None:
        if cls.parent:
            raise Fenced(
                f"this process ({os.getpid()}) was forked from process {cls.parent} after that had opened "
                "a log, so it can neither use that log nor open one; start processes with "
                'multiprocessing.get_context("spawn"), or open logs only after forking'
            )


def _after_fork_in_child() -> None:
    if _Process.used:
        _Process.parent = os.getppid()
    for owner, handles in list(_watched.items()):
        _kept.append(owner)
        for handle in handles:
            leave_alone(handle)
        if isinstance(owner, ForkGuard):
            owner.disown()


os.register_at_fork(after_in_child=_after_fork_in_child)
