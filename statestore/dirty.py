"""Log of the changes made by the running transaction.

A change is written directly to the dict of cached values, so that a commit has nothing to move, and
is appended to this log. The log is kept for the whole transaction. It contains the records for the
changelog, and is also the undo log. Cutting it back to a mark undoes a record whose handler failed;
cutting it back to its beginning undoes an aborted transaction.

The log is two lists rather than one of pairs, because a pair for each change costs more than both.
They stay the same objects for the life of the store, because its fast path refers to them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from itertools import islice
from typing import Any

from strandline.statestore.layers import Change, span


class DirtyKeys:
    """Keys changed since the last commit, with their values in the form in which they are held."""

    __slots__ = ("_encode", "_index", "_latest", "_objects", "_seen", "changed", "nbytes", "put")

    def __init__(self, encode: Callable[[Any], bytes]) -> None:
        self.changed: list[Any] = []
        """Key of each change, oldest first."""
        self.put: list[Any] = []
        """Held value of each change."""
        self.nbytes = 0
        """Bytes of the values put that are larger than a few machine words."""
        self._encode = encode
        self._latest: dict[Any, Any] = {}
        self._seen = 0
        self._index: list[bytes] = []
        self._objects: dict[bytes, Any] = {}

    def latest(self) -> dict[Any, Any]:
        """Return the last value of each changed key, in the order of the first changes."""
        return self._latest_at(len(self.changed))

    def rollback(self, mark: int) -> tuple[dict[Any, Any], set[Any]]:
        """Cut the log back to `mark` entries.

        Returns:
            The undone keys that have an earlier value in the log, with that value; and the undone
            keys that have none.
        """
        undone = set(self.changed[mark:])
        del self.changed[mark:], self.put[mark:]
        if self._seen > mark:
            self._forget()
        latest = self._latest_at(mark) if undone else {}
        earlier = {key: latest[key] for key in undone if key in latest}
        return earlier, undone - earlier.keys()

    def clear(self) -> None:
        """Clear the log after a commit or a complete rollback."""
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
        """Return the encoded changes of [lower, upper) as of now, in the order of their keys."""
        latest = self.latest()
        self._extend_index()
        names = (self._index[place] for place in span(self._index, lower, upper))
        found = [(name, dumps(latest[self._objects[name]])) for name in names]
        return found[::-1] if reverse else found

    def _latest_at(self, end: int) -> dict[Any, Any]:
        if self._seen < end:
            fresh = slice(self._seen, end)
            self._latest.update(zip(self.changed[fresh], self.put[fresh], strict=True))
            self._seen = end
        return self._latest

    def _extend_index(self) -> None:
        """Index the keys first changed since the last scan, which are the last ones of `latest`."""
        fresh = list(islice(reversed(self._latest), len(self._latest) - len(self._index)))
        encoded = {self._encode(key): key for key in fresh}
        self._objects.update(encoded)
        if len(encoded) > _FEW_KEYS:
            self._index.extend(encoded)
            self._index.sort()
        else:
            for name in encoded:
                insort(self._index, name)

    def _forget(self) -> None:
        if self._seen:
            self._latest, self._seen = {}, 0
            self._index, self._objects = [], {}


_FEW_KEYS = 8
"""Maximum number of keys that are inserted into the index one by one; more are sorted in."""
