"""Values at hand: two generations bounded in bytes.

What is read or written goes into the young generation. When that holds half of the limit it
becomes the old one, and the old one is dropped; what is read from the old one moves to the
young. So what is used stays, and a look-up costs one dict operation and no bookkeeping.

Uncommitted values live only in the young generation: they stay there when it is emptied, and
have a limit of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

ENTRY_BYTES = 150
"""About what Python spends on an entry beside its encoded key and value."""


class KeyCache:
    """Key objects to values, each as its store holds it; deletions are remembered too."""

    __slots__ = ("_counted", "_half", "_old", "_old_mean", "_young_bytes", "young")

    def __init__(self, limit_bytes: int) -> None:
        self.young: dict[Any, Any] = {}
        """Looked up first, and directly; the same object for the life of the cache."""
        self._old: dict[Any, Any] = {}
        self._half = limit_bytes // 2
        self._young_bytes = 0
        self._counted = 0
        self._old_mean = 0

    @property
    def is_full(self) -> bool:
        """Whether it is time for `age`."""
        return self._young_bytes > self._half

    def recall(self, key: Any) -> Any | None:
        """What the old generation holds of a key, moved to the young one; else None."""
        held = self._old.pop(key, None)
        if held is not None:
            self._put(key, held, self._old_mean)
        return held

    def add(self, key: Any, held: Any, nbytes: int) -> None:
        """Remember one entry whose encoded key and value have `nbytes`."""
        self._put(key, held, nbytes + ENTRY_BYTES)

    def settle(self, nbytes: int) -> None:
        """What was put into `young` is committed; encoded, a key and its value have `nbytes`."""
        # Keys that were here already take no more room.
        self._young_bytes += (len(self.young) - self._counted) * (nbytes + ENTRY_BYTES)
        self._counted = len(self.young)

    def age(self, keep: Mapping[Any, Any]) -> None:
        """Let the young generation be the old one, but for what is to stay in it."""
        self._old_mean = self._young_bytes // max(1, self._counted)
        self._old = self.young.copy()
        self.young.clear()
        self.young.update(keep)
        self._young_bytes = self._counted = 0

    def forget(self, keys: Iterable[Any]) -> None:
        """Forget some keys."""
        for key in keys:
            # What the old generation holds may be from before the last commit.
            self.young.pop(key, None)
            self._old.pop(key, None)
        self._counted = min(self._counted, len(self.young))

    def clear(self) -> None:
        """Forget everything."""
        self.young.clear()
        self._old = {}
        self._young_bytes = self._counted = 0

    def _put(self, key: Any, held: Any, nbytes: int) -> None:
        self.young[key] = held
        self._young_bytes += nbytes
        self._counted += 1
