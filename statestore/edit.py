"""Changing a stored value in place."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

K = TypeVar("K")
K_contra = TypeVar("K_contra", contravariant=True)
V = TypeVar("V")


class Editable(Protocol[K_contra, V]):
    """Methods of a store that an edit calls."""

    def __getitem__(self, key: K_contra, /) -> V: ...
    def put(self, key: K_contra, value: V, /) -> None: ...


class Edit(Generic[K, V]):
    """Context manager returned by `store.edit(key)`."""

    __slots__ = ("_immutable", "_key", "_store", "_value")

    def __init__(self, store: Editable[K, V], key: K, *, immutable: bool) -> None:
        self._store = store
        self._key = key
        self._immutable = immutable
        """True if no value of the store can be changed in place."""

    def __enter__(self) -> V:
        self._value = self._store[self._key]
        if self._immutable or isinstance(self._value, _UNCHANGEABLE):
            raise TypeError(
                f"a value of type {type(self._value).__name__} cannot be changed in place; "
                "set it: store[key] = new_value"
            )
        return self._value

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self._store.put(self._key, self._value)


_UNCHANGEABLE = (int, float, str, bytes, tuple, frozenset)
