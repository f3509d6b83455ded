"""A door that many may be inside of, until one shuts it: reads on other threads, and their end."""

from __future__ import annotations

import threading

SHUT_SECONDS = 10.0
"""How long those inside are waited for; each is asked to come out, so it takes a moment."""


class UseGate:
    """Counts who is inside.

    >>> gate = UseGate()
    >>> gate.enter()
    True
    >>> gate.leave()
    >>> gate.shut()
    >>> gate.enter()
    False
    """

    __slots__ = ("_changed", "_inside", "is_shut")

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self.is_shut = False
        """Nobody gets in any more; whoever is inside should come out soon."""

    def enter(self) -> bool:
        """Go in, and `leave` later; False if it is shut."""
        with self._changed:
            if not self.is_shut:
                self._inside += 1
            return not self.is_shut

    def leave(self) -> None:
        """Come out."""
        with self._changed:
            self._inside -= 1
            if self.is_shut and not self._inside:
                self._changed.notify_all()

    def shut(self) -> None:
        """Let nobody in any more, and wait until all are out; harmless when repeated."""
        with self._changed:
            self.is_shut = True
            self._changed.wait_for(lambda: not self._inside, SHUT_SECONDS)
