"""View of a store for one step while others run: the partition's state, and its own changes.

The handlers of several records of a partition may run at the same time. Each gets a `StepStore`. It
reads the state as of its look-ups and keeps its changes to itself. When it is the step's turn, in
the order of the records, the changes are added to the partition's state, if everything that the
step has read is still the same. Otherwise the step is to be run again. So the result is that of one
step after another. This is optimistic concurrency control (Kung and Robinson, "On Optimistic Methods
for Concurrency Control", 1981), with values compared instead of versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from strandline.changelog.errors import InvalidTxnState
from strandline.statestore.committing import CommittingStore
from strandline.statestore.counters import Lookups, StoreCounters
from strandline.statestore.engine import Entry
from strandline.statestore.keys import Never
from strandline.statestore.layers import Above
from strandline.statestore.typed_store import TypedStore

K = TypeVar("K")
V = TypeVar("V")


class StepStore(TypedStore[K, V]):
    """One step's view of a partition's store.

    >>> from strandline.statestore import StoreSpec, open_store
    >>> store = open_store(StoreSpec("n", key=str, value=int, default=0, engine="memory"))
    >>> first, second = StepStore(store), StepStore(store)
    >>> first["LHR"] += 1
    >>> second["LHR"] += 1
    >>> first.apply()
    >>> second.is_current(), store["LHR"]
    (False, 1)
    """

    __slots__ = ("_base", "_is_over", "_read", "_scanned")

    def __init__(self, base: CommittingStore[K, V]) -> None:
        super().__init__(base.types, {}, _NOT_COUNTED)
        self._base = base
        self._read: dict[Any, Any] = {}
        """Held values of the keys that were looked up in the partition's store."""
        self._scanned: int | None = None
        """Revision of the partition's store at the first scan; None before one."""
        self._is_over = False

    def is_current(self) -> bool:
        """Return True if the step would read the same if it ran now."""
        if self._scanned not in (None, self._base.revision):
            return False
        return all(self._is_same(self._base.held(key), held) for key, held in self._read.items())

    def apply(self) -> None:
        """Add the changes to the partition's store. There can be no further changes."""
        self._base.absorb(self._dirty)
        self.end()

    def end(self) -> None:
        """Refuse further changes, because the step is over."""
        self._is_over = True
        self.unchecked = Never

    def approximate_num_entries(self) -> int:
        """Return the approximate number of keys; each pending change counts as one more key."""
        return self._base.approximate_num_entries() + len(self._dirty.latest())

    def _load(self, key: Any) -> Any:
        held = self._read[key] = self.young[key] = self._base.held(key)
        return held

    def prepare(self, keys: Sequence[K]) -> None:
        """Read the values of several keys that are likely to be looked up next."""
        self._base.prepare([key for key in keys if key not in self.young])

    def _scan(
        self, above: Above, lower: bytes, upper: bytes | None, *, reverse: bool
    ) -> Iterator[Entry]:
        if self._scanned is None:
            self._scanned = self._base.revision
        return self._base.scan_below(above, lower, upper, reverse=reverse)

    def _writable(self) -> None:
        if self._is_over:
            raise InvalidTxnState(
                f"store {self.spec.name!r} was changed after its handler had ended, so the change "
                "would belong to no record; await everything that the handler starts"
            )

    def _is_same(self, now: Any, held: Any) -> bool:
        return now is held or self._values.dumps(now) == self._values.dumps(held)


_NOT_COUNTED = Lookups(StoreCounters())
"""Counters of steps: the partition's store counts the look-ups that reach it."""
