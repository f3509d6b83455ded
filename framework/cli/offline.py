"""A log folder that no other process has open, for commands that read or repair all of it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import typer

from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidConfig, LogLocked
from strandline.changelog.flight import background
from strandline.changelog.flight.background import IDLE_S
from strandline.changelog.layout import CATALOG, FOLDER_META, LOCK, TOPICS
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.printable import printable
from strandline.changelog.storage import Lock
from strandline.framework.cli import output
from strandline.framework.cli.loading import local

T = TypeVar("T")

CLOSE_TIMEOUT_S, POLL_S = 5.0, 0.1
"""Seconds that an owner may take to close the log, and seconds between two tries of its lock."""

FolderArgument = Annotated[
    str,
    typer.Argument(metavar="DIR", envvar="STRANDLINE_LOG", help="The folder of the log."),
]


@contextmanager
def held(log: str) -> Iterator[LocalStorage]:
    """Lock a log folder and yield its files. Raise InvalidConfig, LogLocked."""
    folder = local(log)
    if not any((folder / name).exists() for name in (FOLDER_META, CATALOG, TOPICS)):
        raise InvalidConfig(f"{folder} holds no log; give the folder of one")
    storage = LocalStorage(folder)
    lock = _locked(storage)
    try:
        yield storage
    finally:
        lock.release()


def _locked(storage: LocalStorage) -> Lock:
    try:
        return when_unlocked(
            lambda: storage.lock(
                LOCK, f"pid {os.getpid()}, `{' '.join(sys.argv[:2])}`\n", whole=True
            )
        )
    except LogLocked as error:
        raise LogLocked(
            f"{error}: this needs a log that no other process has open; stop that process"
        ) from None


def when_unlocked(take: Callable[[], T]) -> T:
    """Call `take`; if a background owner has the lock, repeat until the owner leaves by itself.

    Raises LogLocked if the owner stays too long, or another process has the log open.
    """
    return _taken(take, in_background=IDLE_S + CLOSE_TIMEOUT_S, others=0.0)


def taking_over(folder: Path, take: Callable[[], T], *, seconds: float, others: float) -> T:
    """Call `take`; if a background owner has the lock, ask it to leave and repeat.

    `seconds` bounds the wait for a background owner, and `others` that for another process that has
    the log open. Raises LogLocked after that.
    """
    return _taken(
        take, in_background=seconds, others=others, ask=lambda: background.ask_to_leave(folder)
    )


def _taken(
    take: Callable[[], T],
    *,
    in_background: float,
    others: float,
    ask: Callable[[], object] = lambda: None,
) -> T:
    clock = SystemClock()
    begun, noted = clock.monotonic(), False
    while True:
        try:
            return take()
        except LogLocked as error:
            waits = background.BACKGROUND in str(error)
            if clock.monotonic() > begun + (in_background if waits else others):
                raise
        if waits:
            if not noted:
                output.note("waiting for the owner in the background to leave")
                noted = True
            ask()  # each time, because a new background owner may have started meanwhile
        time.sleep(POLL_S)


class ReadingBar:
    """Progress bar of a read on stderr, if that is a terminal and the read takes a while.

    It counts bytes, or the given `unit`.
    """

    def __init__(self, title: str, after_seconds: float = 0.5, unit: str = "bytes") -> None:
        self._title = title
        self._unit = unit
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

        counted = TextColumn(
            f"{{task.completed:,.0f}} of {{task.total:,.0f}} {self._unit}", markup=False
        )
        self._shown = Progress(
            TextColumn(printable(self._title), markup=False),
            BarColumn(),
            DownloadColumn(binary_units=True) if self._unit == "bytes" else counted,
            TimeRemainingColumn(),
            console=output.console(stderr=True),
            transient=True,
        )
        self._task = self._shown.add_task(self._title)
        self._shown.start()
