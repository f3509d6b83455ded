"""An engine in memory, whose content is lost when the process ends.

It is used for tests, for the test driver, and for small stores whose changelog is replayed quickly.
It is a stack of layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

from strandline.statestore.engine import Column, Entry, StorePosition
from strandline.statestore.layers import MISSING, Change, Layers, overlaid

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

    def scan(self, lower: bytes, upper: bytes | None, *, reverse: bool) -> Iterator[Entry]:
        streams: list[Iterator[Change]] = [
            layer.scan(lower, upper, reverse=reverse) for layer in self._layers.seal()
        ]
        merged: Iterator[Change] = reduce(
            lambda newer, older: overlaid(newer, older, reverse=reverse), streams, iter(())
        )
        return ((key, value) for key, value in merged if value is not None)

    def write(
        self, keys: Column[bytes], values: Column[bytes | None], position: StorePosition
    ) -> None:
        listed = [*values]  # a column makes its objects anew each time that it is gone through
        self._layers.add(keys, listed, 0)
        self._deletions += listed.count(None)
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
