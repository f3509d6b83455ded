"""The asyncio loop in which a worker runs its async handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class EventLoop:
    """The asyncio loop of one worker's thread, created when it is first needed."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(self, work: Awaitable[T]) -> T:
        """Run the loop until `work` has ended; return its result or raise its error."""

        async def awaited() -> T:
            return await work

        if self._runner is None:
            # With a factory of its own, a runner leaves the loop of the thread as it is.
            self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        # Not `Runner.run`: signals are the worker's to handle.
        return self._runner.get_loop().run_until_complete(awaited())

    def close(self) -> None:
        """Cancel what handlers have left running, wait for its end, and close. Idempotent."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None
