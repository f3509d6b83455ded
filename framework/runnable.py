"""How an app is run: the methods of `App` that start a worker in this process and end it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from strandline.framework.container import running
from strandline.framework.container.worker import Worker
from strandline.framework.options import Until

if TYPE_CHECKING:
    from strandline.framework.app import App
    from strandline.framework.container.restore import OnRestore


class Runnable:
    """The part of `App` that runs it."""

    _worker: Worker | None = None

    @property
    def _this(self) -> App:
        return cast("App", self)

    def run(
        self,
        until: Until | None = None,
        *,
        count: int | None = None,
        timeout: float | None = None,
        progress: bool | OnRestore = True,
        metrics: str | None = None,
    ) -> int:
        """Run the tasks; return how many records were handled.

        Without limits a run lasts until `stop`, SIGINT or SIGTERM (a second signal does not wait
        for the commit). Of several limits the first one that is reached ends the run. Inside of
        a running asyncio loop (a notebook) the app runs in a thread of its own;
        `await app.run_async(...)` does not block the loop.

        Args:
            until: "idle" ends the run when all records are handled and committed; `window` is
                called before, where records were handled since its last call. "end" says that
                the input is over: all timers in stream time fire too, in order of time, before
                the windows. Both are asked of the whole app, in all processes that run it.
            count: Number of records to handle.
            timeout: Seconds to run.
            progress: True draws a bar while stores are restored, if there is a terminal and it
                takes a while; a function is called with a RestoreProgress now and then.
            metrics: "host:port" at which Prometheus finds this process; port 0 is a free one.

        Returns:
            Number of records handled.

        Raises:
            TaskFailed: A task instance has stopped at a record; the others are done.
            InvalidConfig: A declaration or argument is wrong, or the address is in use.
        """
        limits = running.RunLimits(until, count, timeout)
        if running.inside_event_loop():
            return running.in_thread(
                lambda: running.run(self._this, limits, progress=progress, metrics=metrics)
            )
        return running.run(self._this, limits, progress=progress, metrics=metrics)

    async def run_async(
        self,
        until: Until | None = None,
        *,
        count: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - `run`'s, and an orderly stop
        metrics: str | None = None,
    ) -> int:
        """`run` for use inside of asyncio: the loop goes on. Cancelling it stops the app."""
        limits = running.RunLimits(until, count, timeout)
        work = asyncio.ensure_future(
            asyncio.to_thread(running.run, self._this, limits, progress=False, metrics=metrics)
        )
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self.stop()
            await work
            raise

    def stop(self) -> None:
        """Let `run` end after a last commit; from any thread."""
        worker = self._worker
        if worker is not None:
            worker.stop()

    def main(self) -> None:
        """The app's own command line: run, reset, describe …"""
        from strandline.framework.cli import app_main

        app_main(self._this)
