"""Uncommitted values of one table partition, each with the unit of work that wrote it.

The values of a key are a stack, oldest first. A read finds the newest one. A unit that reads or
replaces the value of another unit depends on it (`Unit.needs`), so it is never committed before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

MISSING = object()
"""Result of a read of a key that has no uncommitted value."""


class Writer(Protocol):
    """Part of a unit of work that an overlay needs."""

    dead: bool

    def depend_on(self, other: Writer) -> None:
        """Note that this unit must not be committed before `other`."""
        ...

    def touch(self, overlay: Overlay, key: bytes) -> None:
        """Note that this unit has written `key`."""
        ...


class Overlay:
    """Uncommitted values of a table partition. Used by the thread of the event loop only."""

    def __init__(self) -> None:
        self._stacks: dict[bytes, list[tuple[Writer, bytes | None]]] = {}
        self.undone: Callable[[bytes], None] | None = None
        """Called with each key that has no uncommitted value any more, after a record was undone."""

    def read(self, key: bytes, reader: Writer | None) -> object:
        """Return the newest uncommitted value of a key; None if deleted, MISSING if there is none."""
        stack = self._stacks.get(key)
        if not stack:
            return MISSING
        writer, value = stack[-1]
        if reader is not None:
            reader.depend_on(writer)
        return value

    def write(self, key: bytes, value: bytes | None, writer: Writer) -> None:
        """Add a value; None deletes the key."""
        stack = self._stacks.setdefault(key, [])
        if stack and stack[-1][0] is writer:
            stack[-1] = (writer, value)
            return
        if stack:
            writer.depend_on(stack[-1][0])
        stack.append((writer, value))
        writer.touch(self, key)

    def changed(self, reader: Writer | None) -> dict[bytes, bytes | None]:
        """Return the newest value of every uncommitted key; the reader depends on all of them."""
        return {key: self.read(key, reader) for key in self._stacks}  # type: ignore[misc]

    def latest_of(self, key: bytes, chosen: Collection[Writer]) -> bytes | None:
        """Return the newest value of a key that one of the `chosen` units has written."""
        return next(value for writer, value in reversed(self._stacks[key]) if writer in chosen)

    def forget(self, key: bytes, is_gone: Callable[[Writer], bool]) -> None:
        """Drop the values of a key whose writers are gone: committed, or undone."""
        stack = [entry for entry in self._stacks.get(key, ()) if not is_gone(entry[0])]
        if stack:
            self._stacks[key] = stack
        else:
            self._stacks.pop(key, None)

    def note_undone(self, key: bytes) -> None:
        """Note that the record that has written a key was undone."""
        if self.undone is not None and key not in self._stacks:
            self.undone(key)

    def clear(self) -> None:
        """Drop all values."""
        self._stacks.clear()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._stacks)
