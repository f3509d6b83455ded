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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from strandline.statestore.layers import Change, span
from strandline.statestore.ranges import NO_RANGES, DeletedRanges
from strandline.statestore.values import DELETED

RANGE_MIN_KEYS = 64
"""Number of keys from which their deletion is kept as a range; fewer are deleted one by one.

Each range slows down RocksDB's look-ups a little until it is compacted.
"""


@dataclass(frozen=True, slots=True)
class RangeDeletion:
    """Deletion of all keys of [lower, upper), which are logged from `first` to `end`."""

    first: int
    end: int
    lower: bytes
    upper: bytes | None


class DirtyKeys:
    """Keys changed since the last commit, with their values in the form in which they are held."""

    __slots__ = (
        "_deletions",
        "_encode",
        "_index",
        "_indexed",
        "_indexed_deletions",
        "_latest",
        "_names",
        "_objects",
        "_seen",
        "changed",
        "nbytes",
        "put",
        "ranges",
    )

    def __init__(self, encode: Callable[[Any], bytes]) -> None:
        self.changed: list[Any] = []
        """Key of each change, oldest first."""
        self.put: list[Any] = []
        """Held value of each change."""
        self.nbytes = 0
        """Bytes of the values put that are larger than a few machine words."""
        self.ranges = NO_RANGES
        """Ranges in which only keys of this log have a value."""
        self._deletions: list[RangeDeletion] = []
        self._encode = encode
        self._latest: dict[Any, Any] = {}
        self._seen = 0
        # The index has the changes before `_indexed`, without the keys deleted by a range since.
        self._indexed = 0
        self._indexed_deletions = 0
        self._index: list[bytes] = []
        self._objects: dict[bytes, Any] = {}
        self._names: dict[Any, bytes] = {}

    def latest(self) -> dict[Any, Any]:
        """Return the last value of each changed key, in the order of the first changes."""
        return self._latest_at(len(self.changed))

    def delete_range(self, lower: bytes, upper: bytes | None, keys: Sequence[Any]) -> None:
        """Log the deletion of `keys`, which are all keys with a value in [lower, upper)."""
        first = len(self.changed)
        self.changed += keys
        self.put += repeat(DELETED, len(keys))
        if len(keys) >= RANGE_MIN_KEYS:
            self._add_range(RangeDeletion(first, len(self.changed), lower, upper))

    def absorb(self, later: DirtyKeys) -> None:
        """Log the changes of another log after these."""
        before = len(self.changed)
        self.changed += later.changed
        self.put += later.put
        self.nbytes += later.nbytes
        for deletion in later._deletions:
            first, end = before + deletion.first, before + deletion.end
            self._add_range(replace(deletion, first=first, end=end))

    def rollback(self, mark: int) -> tuple[dict[Any, Any], set[Any]]:
        """Cut the log back to `mark` entries.

        Returns:
            The undone keys that have an earlier value in the log, with that value; and the undone
            keys that have none.
        """
        undone = set(self.changed[mark:])
        del self.changed[mark:], self.put[mark:]
        if self._deletions and self._deletions[-1].end > mark:
            self._deletions = [deletion for deletion in self._deletions if deletion.end <= mark]
            self.ranges = DeletedRanges((each.lower, each.upper) for each in self._deletions)
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
        self.ranges = NO_RANGES
        self._deletions.clear()
        self._forget()

    def scan(
        self,
        dumps: Callable[[Any], bytes | None],
        lower: bytes,
        upper: bytes | None,
        *,
        reverse: bool,
    ) -> list[Change]:
        """Return the encoded changes of [lower, upper) as of now, in the order of their keys.

        Those that a range has deleted are left out.
        """
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

    def _add_range(self, deletion: RangeDeletion) -> None:
        self._deletions.append(deletion)
        self.ranges |= DeletedRanges([(deletion.lower, deletion.upper)])

    def _extend_index(self) -> None:
        """Index the changes since the last scan."""
        for deletion in self._deletions[self._indexed_deletions :]:
            self._index_changes(deletion.first)
            self._remove_from_index(deletion)
        self._indexed_deletions = len(self._deletions)
        self._index_changes(len(self.changed))

    def _index_changes(self, end: int) -> None:
        """Index the changes up to place `end` of the log."""
        names = self._names
        fresh = {key for key in self.changed[self._indexed : end] if key not in names}
        self._indexed = end
        encoded = {self._encode(key): key for key in fresh}
        self._objects.update(encoded)
        names.update(zip(encoded.values(), encoded, strict=True))
        if len(encoded) > _FEW_KEYS:
            self._index.extend(encoded)
            self._index.sort()
        else:
            for name in encoded:
                insort(self._index, name)

    def _remove_from_index(self, deletion: RangeDeletion) -> None:
        places = span(self._index, deletion.lower, deletion.upper)
        for name in self._index[places.start : places.stop]:
            del self._names[self._objects.pop(name)]
        del self._index[places.start : places.stop]
        self._indexed = deletion.end

    def _forget(self) -> None:
        if self._seen:
            self._latest, self._seen = {}, 0
            self._indexed = self._indexed_deletions = 0
            self._index, self._objects, self._names = [], {}, {}


_FEW_KEYS = 8
"""Maximum number of keys that are inserted into the index one by one; more are sorted in."""
