"""Cache of values in two generations, bounded in bytes.

A value that is read or written is put into the young generation. When the young generation has half
of the limit, it becomes the old one, and the previous old one is dropped. A value read from the old
generation moves to the young one. So values in use stay cached, and a look-up costs one dict
operation without bookkeeping.

Uncommitted values are only in the young generation. They stay there when it is emptied, and are
limited separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

ENTRY_BYTES = 150
"""Approximate bytes that Python needs for an entry, besides its encoded key and value."""


class KeyCache:
    """Maps key objects to values in the form in which the store holds them, or to deletions."""

    __slots__ = ("_counted", "_half", "_old", "_old_mean", "_young_bytes", "additions", "young")

    def __init__(self, limit_bytes: int) -> None:
        self.young: dict[Any, Any] = {}
        """Young generation. Stores look it up directly, so it stays the same object."""
        self._old: dict[Any, Any] = {}
        self._half = limit_bytes // 2
        self._young_bytes = 0
        self._counted = 0
        self._old_mean = 0
        self.additions = 0
        """Number of values added or moved to the young generation so far, except by `finalize`."""

    @property
    def nbytes(self) -> int:
        """Approximate bytes of both generations."""
        return self._young_bytes + self._old_mean * len(self._old)

    def limit(self, limit_bytes: int) -> None:
        """Change the limit; `age` and `drop_old` drop what exceeds it."""
        self._half = limit_bytes // 2

    @property
    def is_old_too_large(self) -> bool:
        """True if the old generation alone exceeds the limit, which has become smaller."""
        return self._old_mean * len(self._old) > 2 * self._half

    def drop_old(self) -> None:
        """Drop the old generation."""
        self._old = {}

    @property
    def is_full(self) -> bool:
        """True if `age` is to be called."""
        return self._young_bytes > self._half

    def absent(self, keys: Iterable[Any]) -> list[Any]:
        """Return the keys that neither generation has a value of, each once, in any order."""
        return list(set(keys).difference(self.young).difference(self._old))

    def recall(self, key: Any) -> Any | None:
        """Move a key from the old generation to the young one; return its value, or None."""
        held = self._old.pop(key, None)
        if held is not None:
            self._put(key, held, self._old_mean)
        return held

    def add(self, key: Any, held: Any, nbytes: int) -> None:
        """Add an entry whose encoded key and value have `nbytes` bytes."""
        self._put(key, held, nbytes + ENTRY_BYTES)

    def add_all(self, entries: Mapping[Any, Any], nbytes: int) -> None:
        """Add entries whose encoded keys and values have `nbytes` bytes, and which it lacks."""
        self.young.update(entries)
        self._young_bytes += nbytes + ENTRY_BYTES * len(entries)
        self._counted += len(entries)
        self.additions += len(entries)

    def finalize(self, nbytes: int) -> None:
        """Count the entries put into `young` directly, when they are committed.

        `nbytes` is the average number of bytes of an encoded key with its value.
        """
        # Keys that were cached before use no more memory.
        self._young_bytes += (len(self.young) - self._counted) * (nbytes + ENTRY_BYTES)
        self._counted = len(self.young)

    def age(self, keep: Mapping[Any, Any]) -> None:
        """Make the young generation the old one; keep the entries of `keep` in the young one."""
        self._old_mean = self._young_bytes // max(1, self._counted)
        self._old = self.young.copy()
        self.young.clear()
        self.young.update(keep)
        self._young_bytes = self._counted = 0

    def forget(self, keys: Iterable[Any]) -> None:
        """Remove some keys."""
        for key in keys:
            # The old generation may have a value from before the last commit.
            self.young.pop(key, None)
            self._old.pop(key, None)
        self._counted = min(self._counted, len(self.young))

    def clear(self) -> None:
        """Remove all keys."""
        self.young.clear()
        self._old = {}
        self._young_bytes = self._counted = 0

    def _put(self, key: Any, held: Any, nbytes: int) -> None:
        self.young[key] = held
        self._young_bytes += nbytes
        self._counted += 1
        self.additions += 1
