"""What a store is not, though it looks like a mapping: of a known length, true or false, iterated as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class NoLen:
    """A store says so, rather than let Python take it for a collection."""

    __slots__ = ()

    def __len__(self) -> int:
        raise TypeError(
            "a store does not know its exact length; use approximate_num_entries(), or count all()"
        )

    def __bool__(self) -> bool:
        raise TypeError(
            "a store is neither true nor false; use `key in store`, or `any(store.all())`"
        )

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a store is not iterated as it is; use store.all(), range() or prefix()")
