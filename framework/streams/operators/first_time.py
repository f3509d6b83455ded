"""Earliest time in a store whose keys begin with times, so that most looks at it cost nothing."""

from __future__ import annotations

from typing import Any

from strandline.framework.store import Store, columns_of


class FirstTime:
    """Lower bound of the times of a store's keys, which are tuples that begin with a time."""

    def __init__(self, store: Store[Any, Any]) -> None:
        self._store = store
        self._value: int | None = None

    def get(self) -> int | None:
        """Return a time in ms that no key is before; None if there are no keys."""
        if self._value is None:
            first = next(iter(columns_of(self._store).all()), None)
            self._value = None if first is None else first[0][0]
        return self._value

    def added(self, time: Any) -> None:
        """Note that a key with a time in ms was added."""
        if self._value is not None:
            self._value = min(self._value, int(time))

    def removed_before(self, time: int) -> None:
        """Note that the keys with times before `time` (ms) were removed."""
        self._value = time

    def forget(self) -> None:
        """Look the first key up again when it is needed."""
        self._value = None
