"""What the running transaction has changed, and how to take it back.

A change goes straight into `young`, the dict of values at hand, so that a commit has nothing to
move. What it replaces goes into a log, which is kept for the whole transaction: taken back to a
mark it undoes a record whose handler failed, taken back to its beginning an aborted transaction.
The log is two lists rather than one of pairs, as a pair for each change costs more than both.

`young` and the lists are the same objects for the life of the store: its hot path holds on to
them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from itertools import islice
from typing import Any

from statestore.layers import Change, between


class Dirty:
    """The keys changed since the last commit, and what was held of them before."""

    __slots__ = ("_encode", "_index", "_keys", "_objects", "_seen", "before", "changed", "nbytes", "young")

    def __init__(self, encode: Callable[[Any], bytes], young: dict[Any, Any]) -> None:
        self.young = young
        self.changed: list[Any] = []
        """The key of each change, oldest first."""
        self.before: list[Any | None] = []
        """What `young` held of that key before (None: nothing)."""
        self.nbytes = 0
        """Bytes of the values put that take room beyond a few words."""
        self._encode = encode
        self._keys: dict[Any, None] = {}
        self._seen = 0
        self._index: list[bytes] = []
        self._objects: dict[bytes, Any] = {}

    def keys(self) -> dict[Any, None]:
        """Each changed key once, in the order in which they were first changed."""
        if self._seen < len(self.changed):
            self._keys.update(dict.fromkeys(self.changed[self._seen :]))
            self._seen = len(self.changed)
        return self._keys

    def put(self, key: Any, held: Any) -> None:
        """Change one key."""
        self.changed.append(key)
        self.before.append(self.young.get(key))
        self.young[key] = held

    def rollback(self, mark: int) -> None:
        """Take back everything since the log had `mark` entries."""
        while len(self.changed) > mark:
            key, held = self.changed.pop(), self.before.pop()
            if held is None:
                del self.young[key]
            else:
                self.young[key] = held
        self._forget_keys()

    def clear(self) -> None:
        """Forget everything: it has been committed, or taken back."""
        self.changed.clear()
        self.before.clear()
        self.nbytes = 0
        self._forget_keys()

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
        names = between(self._index, lower, upper)
        found = [(name, dumps(self.young[self._objects[name]])) for name in names]
        return found[::-1] if reverse else found

    def _extend_index(self) -> None:
        """Index the keys that came since the last scan; they are the last of `keys`."""
        keys = self.keys()
        fresh = list(islice(reversed(keys), len(keys) - len(self._index)))
        encoded = {self._encode(key): key for key in fresh}
        self._objects.update(encoded)
        if len(encoded) > _FEW:
            self._index.extend(encoded)
            self._index.sort()
        else:
            for name in encoded:
                insort(self._index, name)

    def _forget_keys(self) -> None:
        if self._seen:
            self._keys, self._seen = {}, 0
            self._index, self._objects = [], {}


_FEW = 8
