"""The asyncio loop in which a worker runs its async handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any

from strandline.changelog.errors import Retriable


class EventLoop:
    """A loop of one worker's thread, made when it is first needed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Sequence[Coroutine[Any, Any, int]]) -> list[int]:
        """Run coroutines beside each other until all have ended; return what each returned.

        Raises the error of one of them, one that is not Retriable if there is any.
        """

        async def together() -> list[int | BaseException]:
            return await asyncio.gather(*work, return_exceptions=True)

        # All have come to an end: one that was left within a handler would go on at the next call,
        # beside another that is given the same records.
        done = self._opened().run_until_complete(together())
        if failed := [one for one in done if isinstance(one, BaseException)]:
            raise min(failed, key=lambda error: isinstance(error, Retriable))
        return [one for one in done if not isinstance(one, BaseException)]

    def run_one(self, work: Awaitable[Any]) -> Any:
        """Return what an awaitable returns. Raises what it raises."""

        async def awaited() -> Any:
            return await work

        return self._opened().run_until_complete(awaited())

    def close(self) -> None:
        """Close the loop; harmless when repeated."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def _opened(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop
