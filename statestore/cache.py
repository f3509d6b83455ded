"""Committed values at hand: two generations bounded in bytes.

What is read or written goes into the young generation. When that holds half of the limit it
becomes the old one, and the old one is dropped; what is read from the old one moves to the
young. So what is used stays, and a look-up costs one dict operation and no bookkeeping.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ENTRY_BYTES = 150
"""About what Python spends on an entry beside its encoded key and value."""


class Cache:
    """Key objects to values, each as its store holds it; deletions are remembered too."""

    __slots__ = ("_half", "_old", "_old_mean", "_young_bytes", "young")

    def __init__(self, limit_bytes: int) -> None:
        self.young: dict[Any, Any] = {}
        """Looked up first, and directly."""
        self._old: dict[Any, Any] = {}
        self._half = limit_bytes // 2
        self._young_bytes = 0
        self._old_mean = 0

    def recall(self, key: Any) -> Any | None:
        """What the old generation holds of a key, moved to the young one; else None."""
        held = self._old.pop(key, None)
        if held is not None:
            self._put(key, held, self._old_mean)
        return held

    def add(self, key: Any, held: Any, nbytes: int) -> None:
        """Remember one entry whose encoded key and value have `nbytes`."""
        self._put(key, held, nbytes + ENTRY_BYTES)

    def update(self, entries: Mapping[Any, Any], nbytes: int) -> None:
        """Remember entries whose encoded keys and values have `nbytes` together."""
        before = len(self.young)
        self.young.update(entries)
        # Keys that were here already take no more room.
        share = (len(self.young) - before) / max(1, len(entries))
        self._young_bytes += int((nbytes + ENTRY_BYTES * len(entries)) * share)
        self._age()

    def clear(self) -> None:
        """Forget everything."""
        self.young, self._old, self._young_bytes = {}, {}, 0

    def _put(self, key: Any, held: Any, nbytes: int) -> None:
        self.young[key] = held
        self._young_bytes += nbytes
        self._age()

    def _age(self) -> None:
        if self._young_bytes > self._half:
            self._old_mean = self._young_bytes // max(1, len(self.young))
            self._old = self.young
            self.young = {}
            self._young_bytes = 0
