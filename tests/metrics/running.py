"""Workers in threads, and their metrics."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from strandline.changelog.log import Log
from strandline.changelog.metrics import exposition
from tests.metrics.scraping import Scrape, parsed
from tests.workers.pipeline import Pipeline, pipeline


class Running:
    """A worker of the pipeline in a thread of its own."""

    def __init__(self, log: Log, state: Path, **options: Any) -> None:
        settings = {"commit_interval_ms": 10, "session_timeout_ms": 30_000, **options}
        self.made: Pipeline = pipeline(log, state_dir=state, **settings)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.made.app.run(progress=False)

    def scraped(self) -> Scrape:
        return parsed(exposition(self.made.app.runner.metrics()))

    def exports(self, number: float, name: str, **labels: Any) -> bool:
        """Return True if the metric has this value."""
        try:
            return self.scraped()(name, **labels) == number
        except KeyError:
            return False

    def stop(self) -> None:
        self.made.app.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()


@contextmanager
def running(log: Log, state: Path, **options: Any) -> Iterator[Running]:
    made = Running(log, state, **options)
    try:
        yield made
    finally:
        made.stop()
