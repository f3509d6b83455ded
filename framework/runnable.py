"""Methods of `App` that start a worker in this process and end it."""

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
    """The methods of `App` that run it."""

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
        """Run the tasks until a limit is reached, `stop` is called, or SIGINT or SIGTERM arrives.

        The run ends with a commit. A second signal ends it without waiting for the commit. If
        several limits are given, the first one that is reached ends the run. Inside a running
        asyncio loop (a notebook) the app runs in a thread of its own and this call blocks; `await
        app.run_async(...)` does not block the loop.

        Args:
            until: None, the default, runs on. "idle" ends the run when all records are handled and
                committed; before that it calls each `window` whose task handled records since its
                last call. "end" also ends the input: all timers in stream time fire in order of
                time before the windows are called. Both are conditions on the whole app, in all
                processes that run it.
            count: Number of records to handle. None, the default, is no limit.
            timeout: Seconds to run. None, the default, is no limit.
            progress: True, the default, draws a bar while stores are restored if there is a
                terminal and the restore takes a while. A function is called with a RestoreProgress
                now and then. False does neither.
            metrics: Address "host:port" at which Prometheus reads the metrics of this process; port
                0 chooses a free one. By default there is none.

        Returns:
            Number of records handled.

        Raises:
            TaskFailed: A task instance has stopped at a record. The other instances have finished.
            StorageFailed: The disk failed; committed results stay.
            InvalidConfig: A declaration or an argument is not valid, or the address is in use.
        """
        limits = running.RunLimits(until, count, timeout)
        if running.inside_event_loop():
            return running.in_thread(
                lambda: running.run(self._this, limits, progress=progress, metrics=metrics),
                self.stop,
            )
        return running.run(self._this, limits, progress=progress, metrics=metrics)

    async def run_async(
        self,
        until: Until | None = None,
        *,
        count: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in `run`; it ends with a commit
        metrics: str | None = None,
    ) -> int:
        """Run the tasks as `run` does, without blocking the asyncio loop.

        Cancelling it stops the app after a last commit.

        Args:
            until: None, "idle" or "end", as in `run`.
            count: Number of records to handle. None, the default, is no limit.
            timeout: Seconds to run. None, the default, is no limit.
            metrics: Address "host:port" for Prometheus, as in `run`.

        Returns:
            Number of records handled.

        Raises:
            TaskFailed: A task instance has stopped at a record. The other instances have finished.
        """
        limits = running.RunLimits(until, count, timeout)
        work = asyncio.ensure_future(
            asyncio.to_thread(running.run, self._this, limits, progress=False, metrics=metrics)
        )
        # A thread cannot be cancelled. The shield keeps the future alive after a cancellation, so
        # that the worker can be stopped and its last commit awaited.
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            while not work.done():  # `stop` has no effect before the thread has made the worker
                self.stop()
                await asyncio.wait([work], timeout=running.STOP_INTERVAL_S)
            work.result()
            raise

    def stop(self) -> None:
        """End `run` after a last commit. It may be called from any thread."""
        worker = self._worker
        if worker is not None:
            worker.stop()

    def main(self) -> None:
        """Run the app's own command line: `run`, `describe`, `reset` and others."""
        from strandline.framework.cli import app_main

        app_main(self._this)
