"""Bytes of a file: the current ones, and those that a power cut would leave."""

from __future__ import annotations

import threading
from random import Random

BLOCK = 64
"""Number of bytes that reach the disk together or not at all."""


class Inode:
    """Bytes of a file: the current ones, and those that a power cut would leave."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self._durable = content
        self._stable = len(content)
        """Number of bytes from the beginning that are the same in both."""
        self._dirty: list[tuple[int, int]] = []
        """Ranges (start, end) that the next sync writes."""
        self._lock = threading.Lock()

    @property
    def is_dirty(self) -> bool:
        """True if a power cut could change the content."""
        return self._stable < max(len(self.content), len(self._durable))

    def clone(self) -> Inode:
        inode = Inode(self._durable)
        inode.content = bytearray(self.content)
        inode._stable, inode._dirty = self._stable, list(self._dirty)
        return inode

    def write(self, position: int, data: bytes) -> None:
        with self._lock:
            if self.content[position : position + len(data)] != data:
                self._stable = min(self._stable, position)
            self.content[position : position + len(data)] = data
            self._dirty.append((position, position + len(data)))

    def truncate(self, size: int) -> None:
        with self._lock:
            del self.content[size:]
            self._stable = min(self._stable, size)

    def forget(self) -> None:
        """Drop unsynced ranges after a failed fsync: they count as written from now on."""
        with self._lock:
            self._dirty = []

    def sync(self) -> None:
        with self._lock:
            size = len(self.content)
            durable = bytearray(self._durable[:size]).ljust(size, b"\0")
            for start, end in self._dirty:
                durable[start:end] = self.content[start:end]
            self._dirty = []
            self._durable = bytes(durable)
            if durable == self.content:
                self._stable = size

    def found(self, *, lost: bool) -> Inode:
        """Return the file after a power cut that loses all unsynced bytes, or none."""
        return Inode(self._durable if lost else bytes(self.content))

    def after_power_cut(self, chance: Random | None) -> Inode:
        """Return the file after a power cut that loses a random part of the unsynced bytes."""
        truncated = self._stable < len(self._durable)
        if chance is None or (truncated and chance.random() < 0.5):
            return self.found(lost=True)
        safe, tail = self.content[: self._stable], self.content[self._stable :]
        return Inode(bytes(safe) + _torn(bytes(tail), chance))


def _torn(tail: bytes, chance: Random) -> bytes:
    """Return a random remainder of bytes that were not synced."""
    how = chance.choice(("none", "all", "beginning", "holes"))
    if how == "none":
        return b""
    if how == "all":
        return tail
    if how == "beginning":
        return tail[: chance.randrange(len(tail) + 1)]
    blocks = [tail[i : i + BLOCK] for i in range(0, len(tail), BLOCK)]
    return b"".join(bytes(len(b)) if chance.random() < 0.4 else b for b in blocks)
