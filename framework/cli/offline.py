"""A log folder that nobody else has open, for commands that look at all of it or mend it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from changelog.clock import SystemClock
from changelog.embedded.names import CATALOG, FOLDER_META, LOCK, TOPICS
from changelog.errors import InvalidConfig, LogLocked
from changelog.flight.background import IDLE
from changelog.storage import LocalStorage
from framework.cli import output

FolderArgument = Annotated[
    Path,
    typer.Argument(metavar="DIR", envvar="STRANDLINE_LOG", help="The folder of the log."),
]


@contextmanager
def held(folder: Path) -> Iterator[LocalStorage]:
    """The files of a log folder, with its lock. Raises InvalidConfig, LogLocked."""
    if not any((folder / name).exists() for name in (FOLDER_META, CATALOG, TOPICS)):
        raise InvalidConfig(f"{folder} holds no log; give the folder of one")
    storage = LocalStorage(folder)
    try:
        lock = storage.lock(LOCK, f"pid {os.getpid()}, `{' '.join(sys.argv[:2])}`\n")
    except LogLocked as error:
        raise LogLocked(
            f"{error}: this needs a log that nobody has open. Stop that process; an owner in the "
            f"background leaves by itself {IDLE:.0f} s after the last command"
        ) from None
    try:
        yield storage
    finally:
        lock.release()


class ReadingBar:
    """Draws a bar of what was read on standard error, if that is a terminal and it takes a while."""

    def __init__(self, title: str, after_seconds: float = 0.5) -> None:
        self._title = title
        self._after_seconds = after_seconds
        self._clock = SystemClock()
        self._begun = self._clock.monotonic()
        self._shown: Any = None
        self._task: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self._shown is None:
            early = self._clock.monotonic() - self._begun < self._after_seconds
            if early or not sys.stderr.isatty():
                return
            self._show()
        self._shown.update(self._task, completed=done, total=total)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.stop()

    def _show(self) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._shown = Progress(
            TextColumn(self._title),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TimeRemainingColumn(),
            console=output.console(stderr=True),
            transient=True,
        )
        self._task = self._shown.add_task(self._title)
        self._shown.start()
