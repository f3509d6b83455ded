"""A worker in a thread of its own."""

from __future__ import annotations

import threading

import strandline as sl


class InThread:
    """Runs an app until it is stopped. `numbers` are the partitions of `task`."""

    def __init__(self, app: sl.App, task: str) -> None:
        self.error: BaseException | None = None
        self._app = app
        self._task = task
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._app.run(progress=False)
        except BaseException as error:
            self.error = error

    @property
    def numbers(self) -> list[int]:
        """Return the partitions on which the task works."""
        worker = self._app.runner.worker
        instances = list(worker.instances) if worker else []
        return sorted(i.partition for i in instances if i.spec.name == self._task)

    def stop(self) -> None:
        """Stop the app. Raises the error it has ended with."""
        self._app.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
