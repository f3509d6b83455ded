"""Log files for the output of workers, which are read on terminals."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Protocol

from strandline.changelog.errors import from_os_error
from strandline.changelog.printable import printable

FILE_BYTES = 10 << 20
"""Size in bytes at which a file is rotated; one old file is kept."""


class WorkerOutput(Protocol):
    """Destination of the lines that workers print."""

    def take(self, worker: int, lines: Sequence[str]) -> None:
        """Take lines of a worker."""
        ...


class LogFiles:
    """Files `worker-0.log`, `worker-1.log` … in a folder, created if need be.

    Raises StorageFailed.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._files = [
                _File(
                    folder / f"worker-{number}.log",
                    maxBytes=FILE_BYTES,
                    backupCount=1,
                    encoding="utf-8",
                )
                for number in range(workers)
            ]
        except OSError as error:
            raise from_os_error(error, "write the workers' logs to", str(folder)) from error

    def take(self, worker: int, lines: Sequence[str]) -> None:
        """Append lines to a worker's file, with control characters escaped."""
        for line in lines:
            self._files[worker].handle(logging.makeLogRecord({"msg": printable(line)}))

    def close(self) -> None:
        for file in self._files:
            file.close()


class _File(RotatingFileHandler):
    """File that drops lines which cannot be written: a full disk must not stop the supervisor."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Ignore the error."""
