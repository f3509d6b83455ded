"""A gate for reads on other threads, which one thread shuts before it closes the store."""

from __future__ import annotations

import threading

SHUT_SECONDS = 10.0
"""Maximum seconds to wait for the threads inside. They poll `is_shut`, so they leave quickly."""


class UseGate:
    """Counts the threads inside, and waits for them when it is shut.

    >>> gate = UseGate()
    >>> gate.enter()
    True
    >>> gate.leave()
    >>> gate.shut()
    >>> gate.enter()
    False
    """

    __slots__ = ("_changed", "_inside", "_lock", "is_shut")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._inside = 0
        self.is_shut = False
        """True once the gate is shut: threads inside should leave soon."""

    def enter(self) -> bool:
        """Enter; return False if the gate is shut. After True, the thread must call `leave`."""
        with self._lock:
            if not self.is_shut:
                self._inside += 1
            return not self.is_shut

    def leave(self) -> None:
        """Leave after a successful `enter`."""
        with self._lock:
            self._inside -= 1
            if self.is_shut and not self._inside:
                self._changed.notify_all()

    def shut(self) -> None:
        """Shut the gate, and wait until all threads have left. Idempotent."""
        with self._changed:
            self.is_shut = True
            self._changed.wait_for(lambda: not self._inside, SHUT_SECONDS)
