"""An engine in memory, whose content is lost when the process ends.

It is used for tests, for the test driver, and for small stores whose changelog is replayed quickly.
It is a stack of layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strandline.statestore.engine import Column, Entry, StorePosition
from strandline.statestore.layers import MISSING, NOTHING, Layers, visible
from strandline.statestore.ranges import NO_RANGES, DeletedRanges

PURGE_DELETIONS = 1_024
"""Number of deletions below which they are kept: merging the layers costs more than they do."""


class MemoryEngine:
    """Engine in memory; implements `Engine`."""

    def __init__(self) -> None:
        self._layers = Layers()
        self._deletions = 0
        """Number of deletions since the last purge."""
        self._position: StorePosition | None = None

    def position(self) -> StorePosition | None:
        return self._position

    def is_empty(self) -> bool:
        return not self._layers

    def get(self, key: bytes) -> bytes | None:
        value = self._layers.find(key)
        return None if value is MISSING else value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def scan(self, lower: bytes, upper: bytes | None, /, *, reverse: bool) -> Iterator[Entry]:
        return visible(NOTHING, self._layers.seal(), None, (lower, upper), reverse=reverse)

    def write(
        self,
        keys: Column[bytes],
        values: Column[bytes | None],
        position: StorePosition,
        ranges: DeletedRanges = NO_RANGES,
    ) -> None:
        listed = [*values]  # a column creates its objects again at each iteration
        self._deletions += listed.count(None)
        if ranges:  # They apply to sealed layers only.
            self._deletions += sum(layer.num_covered(ranges) for layer in self._layers.seal())
        self._layers.add(keys, listed, 0, ranges)
        # A purge goes through all keys, so there is one for each time that half of them are deletions.
        if self._deletions > max(PURGE_DELETIONS, self._layers.num_changes() // 2):
            self._layers.purge()
            self._deletions = 0
        self._position = position

    def wipe(self) -> None:
        self._layers.clear()
        self._deletions = 0
        self._position = None

    def approximate_num_entries(self) -> int:
        return self._layers.num_changes()

    def disk_bytes(self) -> int:
        return 0

    def close(self) -> None:
        pass
