"""Changing a stored value in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from strandline.statestore.store import PartitionStore

K = TypeVar("K")
V = TypeVar("V")


class Edit(Generic[K, V]):
    """Context manager returned by `store.edit(key)`."""

    __slots__ = ("_key", "_store", "_value")

    def __init__(self, store: PartitionStore[K, V], key: K) -> None:
        self._store = store
        self._key = key

    def __enter__(self) -> V:
        self._value = self._store[self._key]
        if self._store._values.immutable or isinstance(self._value, _UNCHANGEABLE):
            raise TypeError(
                f"a value of type {type(self._value).__name__} cannot be changed in place; "
                "set it: store[key] = new_value"
            )
        return self._value

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self._store.put(self._key, self._value)


_UNCHANGEABLE = (int, float, str, bytes, tuple, frozenset)
