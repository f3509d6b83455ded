"""Keeps a forked child from using its parent's handles, and from using this transport at all.

A lock that was held at the fork stays locked in the child, an answer never arrives, and both
processes would write to one socket. gRPC's threads are missing too, so new connections of the child
would hang. Therefore everything in this package raises an error in such a child.
"""

from __future__ import annotations

import os
import weakref

from strandline.changelog.errors import Fenced
from strandline.changelog.forks import keep_in_child

_guards: weakref.WeakSet[ForkGuard] = weakref.WeakSet()


class ForkGuard:
    """Detects that this process is a forked child of the one that made the guard.

    Raises Fenced if it is made in a child of a process that has opened a log.
    """

    __slots__ = ("__weakref__", "_foreign")

    def __init__(self) -> None:
        _Process.check()
        _Process.used = True
        self._foreign = False
        _guards.add(self)
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


def forbid_in_children() -> None:
    """Forbid this transport to the forked children of this process, because it serves a log."""
    _Process.used = True


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
    for guard in list(_guards):
        guard.disown()


os.register_at_fork(after_in_child=_after_fork_in_child)
