"""Errors for operations that stores do not support although they look like mappings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class NoLen:
    """Mixin that raises TypeError for `len`, `bool` and iteration of a store."""

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
