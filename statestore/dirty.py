"""Log of the changes made by the running transaction.

A change is written directly to the dict of cached values, so that a commit has nothing to move, and
is appended to this log. The log is kept for the whole transaction. It contains the records for the
changelog, and is also the undo log. Cutting it back to a mark undoes a record whose handler failed;
cutting it back to its beginning undoes an aborted transaction.

The log is two lists rather than one of pairs, because a pair for each change costs more than both.
They stay the same objects for the life of the store, because its fast path refers to them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from strandline.statestore.layers import Change, span
from strandline.statestore.ranges import NO_RANGES, DeletedRanges, are_many
from strandline.statestore.values import DELETED


@dataclass(frozen=True, slots=True)
class RangeDeletion:
    """Deletion of all keys of [lower, upper), which are logged from `first` to `end`.

    If a scan has found no value in the interval, it has no such keys.
    """

    first: int
    end: int
    lower: bytes
    upper: bytes | None


class DirtyKeys:
    """Keys changed since the last commit, with their values in the form in which they are held."""

    __slots__ = (
        "_cuts",
        "_deletions",
        "_encode",
        "_held",
        "_index",
        "_indexed",
        "_indexed_deletions",
        "_latest",
        "_names",
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
        self._cuts = 0
        """Number of times that the log was cut back."""
        self._encode = encode
        self._latest: dict[Any, Any] = {}
        self._seen = 0
        # The index has the changes before `_indexed`, without the keys deleted by a range since.
        self._indexed = 0
        self._indexed_deletions = 0
        self._index: list[bytes] = []
        self._held: list[Any] = []
        """Value of each key of the index."""
        self._names: dict[Any, bytes] = {}
        """Encoded keys that were in the index."""

    def latest(self) -> dict[Any, Any]:
        """Return the last value of each changed key, in the order of the first changes."""
        return self._latest_at(len(self.changed))

    def delete_range(self, lower: bytes, upper: bytes | None, keys: Sequence[Any]) -> None:
        """Log the deletion of `keys`, which are all keys with a value in [lower, upper)."""
        first = len(self.changed)
        self.changed += keys
        self.put += repeat(DELETED, len(keys))
        if are_many(len(keys)):
            self._add_range(RangeDeletion(first, len(self.changed), lower, upper))

    @property
    def moment(self) -> tuple[int, int]:
        """State of the log, which is the same as long as nothing is changed."""
        return self._cuts, len(self.changed)

    def note_empty(self, moment: tuple[int, int], lower: bytes, upper: bytes | None) -> None:
        """Note that no key of [lower, upper) had a value at `moment`, if that is still the same."""
        if moment == self.moment:
            self._add_range(RangeDeletion(len(self.changed), len(self.changed), lower, upper))

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
        self._cuts += 1
        del self.changed[mark:], self.put[mark:]
        if self._deletions and self._deletions[-1].end > mark:
            self._deletions = [deletion for deletion in self._deletions if deletion.end <= mark]
            self.ranges = DeletedRanges((each.lower, each.upper) for each in self._deletions)
        if self._seen > mark:
            self._latest, self._seen = {}, 0
        if self._indexed > mark:
            self._forget_index()
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
        self._cuts += 1
        if self._seen:
            self._latest, self._seen = {}, 0
        self._forget_index()

    def scan(
        self,
        dumps: Callable[[Any], bytes | None],
        lower: bytes,
        upper: bytes | None,
        *,
        reverse: bool,
    ) -> Iterator[Change]:
        """Return the encoded changes of [lower, upper) as of now, in the order of their keys.

        Those that a range has deleted are left out.
        """
        self._extend_index()
        places = span(self._index, lower, upper)
        # Copies, which are cheap, because later changes move the items. A scan that ends early
        # encodes few of the values.
        names = self._index[places.start : places.stop]
        held = self._held[places.start : places.stop]
        if reverse:
            names.reverse()
            held.reverse()
        return zip(names, map(dumps, held), strict=True)

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
        fresh = slice(self._indexed, end)
        latest = dict(zip(self.changed[fresh], self.put[fresh], strict=True))
        self._indexed = end
        new = [key for key in latest if key not in self._names]
        self._names.update(zip(new, map(self._encode, new), strict=True))
        held = {self._names[key]: value for key, value in latest.items()}
        if len(held) <= _FEW_KEYS:
            for name, value in held.items():
                self._insert(name, value)
        elif held:
            merged = dict(zip(self._index, self._held, strict=True)) | held
            # The list has sorted runs, which Python's sort merges in linear time.
            self._index = sorted(merged)
            self._held = [merged[name] for name in self._index]

    def _insert(self, name: bytes, value: Any) -> None:
        place = bisect_left(self._index, name)
        if place < len(self._index) and self._index[place] == name:
            self._held[place] = value
        else:
            self._index.insert(place, name)
            self._held.insert(place, value)

    def _remove_from_index(self, deletion: RangeDeletion) -> None:
        places = span(self._index, deletion.lower, deletion.upper)
        del self._index[places.start : places.stop]
        del self._held[places.start : places.stop]
        self._indexed = deletion.end

    def _forget_index(self) -> None:
        self._indexed = self._indexed_deletions = 0
        self._index, self._held, self._names = [], [], {}


_FEW_KEYS = 8
"""Maximum number of keys that are inserted into the index one by one; more are sorted in."""
