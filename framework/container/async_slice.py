"""A slice of a worker's time in which its asyncio loop runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

GATHER_S = 0.01
"""Seconds for which a slice goes on when an instance could start more handlers than it has records
for, which are fetched between slices. A slice that had no record at all goes on to its end."""


class AsyncSlice:
    """One slice, shared by all async instances of a worker."""

    def __init__(self, seconds: float, left: float, *, is_last: bool = False) -> None:
        self.until = time.perf_counter() + seconds
        """Time of `perf_counter` at which no instance begins another step."""
        self.left = left
        """Number of records that may still be handed out."""
        self.is_last = is_last
        """True if only the running handlers are waited for."""
        self._has_need = asyncio.Event()
        self._gather_s = seconds

    def handed_out(self) -> None:
        """Count a record that was handed out."""
        self.left -= 1
        self._gather_s = GATHER_S

    def needs_input(self) -> None:
        """End the slice soon, because an instance needs more records or has ended its work."""
        self._has_need.set()

    async def over(self, mains: Collection[asyncio.Task[int]]) -> None:
        """Wait until the slice is over or none of the tasks is running. Raises a task's error.

        Afterwards no record is handed out before the next slice. Tasks that still run keep this one
        until then, and the next one counts only those that were handed out before it.
        """
        try:
            async with asyncio.timeout(max(0, self.until - time.perf_counter())):
                await self._has_need.wait()
        except TimeoutError:
            pass
        else:
            await asyncio.wait(mains, timeout=self._gather_s)
        self.left = 0
        for main in mains:
            if main.done():
                main.result()
