"""What the running transaction has changed, and how to take back a part of it.

`changes` maps each changed key to its new value; before a change the value it replaces goes
into `undo`, so that a record whose handler fails leaves no trace. Both are the same objects
for the life of the store: its hot path holds on to them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from itertools import islice
from typing import Any

from statestore.layers import Change, between


class Dirty:
    """Changed keys and their held values since the last commit."""

    __slots__ = ("_encode", "_index", "_objects", "changes", "nbytes", "undo")

    def __init__(self, encode: Callable[[Any], bytes]) -> None:
        self.changes: dict[Any, Any] = {}
        """Key object to held value."""
        self.undo: list[tuple[Any, Any | None]] = []
        """Key and what `changes` held of it before (None: nothing), oldest first."""
        self.nbytes = 0
        """Bytes of the values put that take room beyond a few words."""
        self._encode = encode
        self._index: list[bytes] = []
        self._objects: dict[bytes, Any] = {}

    def put(self, key: Any, held: Any) -> None:
        """Change one key."""
        self.undo.append((key, self.changes.get(key)))
        self.changes[key] = held

    def rollback(self, mark: int) -> None:
        """Take back everything since `undo` had `mark` entries."""
        while len(self.undo) > mark:
            key, held = self.undo.pop()
            if held is None:
                del self.changes[key]
            else:
                self.changes[key] = held
        self._forget_index()

    def clear(self) -> None:
        """Forget everything: it has been committed, or never was."""
        self.changes.clear()
        self.undo.clear()
        self.nbytes = 0
        self._forget_index()

    def scan(
        self,
        dumps: Callable[[Any], bytes | None],
        lower: bytes,
        upper: bytes | None,
        *,
        reverse: bool,
    ) -> list[Change]:
        """The changes of [lower, upper) as bytes, in the order of their keys, as of now."""
        self._extend_index()
        keys = between(self._index, lower, upper)
        found = [(key, dumps(self.changes[self._objects[key]])) for key in keys]
        return found[::-1] if reverse else found

    def _extend_index(self) -> None:
        """Index the keys that came since the last scan; they are the last of `changes`."""
        fresh = list(islice(reversed(self.changes), len(self.changes) - len(self._index)))
        encoded = {self._encode(key): key for key in fresh}
        self._objects.update(encoded)
        if len(encoded) > _FEW:
            self._index.extend(encoded)
            self._index.sort()
        else:
            for key in encoded:
                insort(self._index, key)

    def _forget_index(self) -> None:
        if self._index:
            self._index, self._objects = [], {}


_FEW = 8
