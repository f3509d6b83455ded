"""A forked child must not use its parent's handles, nor this transport at all.

The child has its parent's memory but none of its threads: a lock held at the fork stays locked, an
answer never comes, and both would write to one socket. gRPC's own threads are gone as well, so a
child of a process that has used it cannot make connections of its own either: they would hang.
So in such a child everything here refuses with an error, and nothing of the parent's is torn down.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

from strandline.changelog.errors import Fenced

_watched: weakref.WeakKeyDictionary[Any, tuple[Any, ...]] = weakref.WeakKeyDictionary()
_kept: list[Any] = []


class ForkGuard:
    """Knows whether this is still the process that made it. Raises Fenced where it cannot be made."""

    __slots__ = ("__weakref__", "_foreign")

    def __init__(self) -> None:
        _Process.check()
        self._foreign = False
        keep_in_child(self)

    @property
    def foreign(self) -> bool:
        """Whether this process is a forked child of the one that made it."""
        return self._foreign

    def check(self) -> None:
        """Raise Fenced in a forked child."""
        if self._foreign:
            _Process.check()

    def disown(self) -> None:
        """This is a child now."""
        self._foreign = True


def keep_in_child(owner: Any, *handles: Any) -> None:
    """In forked children, never destroy `handles`: their destructors wait for threads that are gone."""
    _Process.used = True
    _watched[owner] = handles


def leave_alone(handle: Any) -> None:
    """Never destroy `handle`, not even at exit."""
    _kept.append(handle)
    # pyarrow shuts servers down at exit by a weakref.finalize, which only this table knows.
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        found = finalizer.peek()
        if found is not None and found[0] is handle:
            finalizer.detach()


class _Process:
    """What this process may do."""

    used = False
    """Whether a log was opened here."""
    parent = 0
    """The process that had opened one when it forked this; 0 if there is none such."""

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
