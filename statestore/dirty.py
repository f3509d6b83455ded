"""The log of what the running transaction has changed.

A change goes straight into the dict of values at hand, so that a commit has nothing to move,
and into this log, which is kept for the whole transaction: it says what the changelog is to
get, and what to take back. Taken back to a mark it undoes a record whose handler failed, taken
back to its beginning an aborted transaction.

The log is two lists rather than one of pairs, as a pair for each change costs more than both.
They are the same objects for the life of the store: its hot path holds on to them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from itertools import islice
from typing import Any

from strandline.statestore.layers import Change, between


class DirtyKeys:
    """Changed keys and their held values since the last commit."""

    __slots__ = ("_encode", "_index", "_latest", "_objects", "_seen", "changed", "nbytes", "put")

    def __init__(self, encode: Callable[[Any], bytes]) -> None:
        self.changed: list[Any] = []
        """The key of each change, oldest first."""
        self.put: list[Any] = []
        """The held value it was given."""
        self.nbytes = 0
        """Bytes of the values put that take room beyond a few words."""
        self._encode = encode
        self._latest: dict[Any, Any] = {}
        self._seen = 0
        self._index: list[bytes] = []
        self._objects: dict[bytes, Any] = {}

    def latest(self) -> dict[Any, Any]:
        """The last value of each changed key, in the order in which they were first changed."""
        return self._latest_at(len(self.changed))

    def rollback(self, mark: int) -> tuple[dict[Any, Any], set[Any]]:
        """Cut the log back to `mark` entries.

        Returns the keys that have an earlier value in it, with that, and those that have none.
        """
        undone = set(self.changed[mark:])
        del self.changed[mark:], self.put[mark:]
        if self._seen > mark:
            self._forget()
        latest = self._latest_at(mark) if undone else {}
        earlier = {key: latest[key] for key in undone if key in latest}
        return earlier, undone - earlier.keys()

    def clear(self) -> None:
        """Forget everything: it has been committed, or taken back."""
        self.changed.clear()
        self.put.clear()
        self.nbytes = 0
        self._forget()

    def scan(
        self,
        dumps: Callable[[Any], bytes | None],
        lower: bytes,
        upper: bytes | None,
        *,
        reverse: bool,
    ) -> list[Change]:
        """The changes of [lower, upper) as bytes, in the order of their keys, as of now."""
        latest = self.latest()
        self._extend_index()
        names = between(self._index, lower, upper)
        found = [(name, dumps(latest[self._objects[name]])) for name in names]
        return found[::-1] if reverse else found

    def _latest_at(self, end: int) -> dict[Any, Any]:
        if self._seen < end:
            fresh = slice(self._seen, end)
            self._latest.update(zip(self.changed[fresh], self.put[fresh], strict=True))
            self._seen = end
        return self._latest

    def _extend_index(self) -> None:
        """Index the keys that came since the last scan; they are the last of `latest`."""
        fresh = list(islice(reversed(self._latest), len(self._latest) - len(self._index)))
        encoded = {self._encode(key): key for key in fresh}
        self._objects.update(encoded)
        if len(encoded) > _FEW:
            self._index.extend(encoded)
            self._index.sort()
        else:
            for name in encoded:
                insort(self._index, name)

    def _forget(self) -> None:
        if self._seen:
            self._latest, self._seen = {}, 0
            self._index, self._objects = [], {}


_FEW = 8
