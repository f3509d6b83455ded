"""The asyncio loop in which a worker runs its async handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any

from strandline.changelog.errors import Retriable


class EventLoop:
    """The asyncio loop of one worker's thread, created when it is first needed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Sequence[Coroutine[Any, Any, int]]) -> list[int]:
        """Run coroutines concurrently until all have ended; return their results.

        If some have failed, the error of one is raised, preferably one that is not Retriable.
        """

        async def gathered() -> list[int | BaseException]:
            return await asyncio.gather(*work, return_exceptions=True)

        # All coroutines must end before this returns. One left suspended in a handler would
        # resume at the next call, beside another one that handles the same records again.
        done = self._opened().run_until_complete(gathered())
        if failed := [one for one in done if isinstance(one, BaseException)]:
            raise min(failed, key=lambda error: isinstance(error, Retriable))
        return [one for one in done if not isinstance(one, BaseException)]

    def run_one(self, work: Awaitable[Any]) -> Any:
        """Run an awaitable to its end; return its result or raise its error."""

        async def awaited() -> Any:
            return await work

        return self._opened().run_until_complete(awaited())

    def close(self) -> None:
        """Close the loop. Idempotent."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def _opened(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop
