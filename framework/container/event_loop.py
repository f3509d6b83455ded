"""The asyncio loop in which a worker runs its async handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class EventLoop:
    """The asyncio loop of one worker's thread, created when it is first needed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Awaitable[T]) -> T:
        """Run the loop until `work` has ended; return its result or raise its error."""

        async def awaited() -> T:
            return await work

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(awaited())

    def close(self) -> None:
        """Close the loop. Idempotent."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None
