"""A log folder that nobody else has open, for commands that look at all of it or mend it."""

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
from strandline.changelog.embedded.names import CATALOG, FOLDER_META, LOCK, TOPICS
from strandline.changelog.errors import InvalidConfig, LogLocked
from strandline.changelog.flight import background
from strandline.changelog.flight.background import IDLE
from strandline.changelog.storage import LocalStorage, Lock
from strandline.framework.cli import output
from strandline.framework.cli.loading import local
from strandline.framework.terminal import printable

T = TypeVar("T")

LEAVING, POLL = 5.0, 0.1
"""Seconds that an owner may take to close the log; and after which its lock is tried again."""

FolderArgument = Annotated[
    str,
    typer.Argument(metavar="DIR", envvar="STRANDLINE_LOG", help="The folder of the log."),
]


@contextmanager
def held(log: str) -> Iterator[LocalStorage]:
    """The files of a log folder, with its lock. Raises InvalidConfig, LogLocked."""
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
        return once_left(
            lambda: storage.lock(
                LOCK, f"pid {os.getpid()}, `{' '.join(sys.argv[:2])}`\n", whole=True
            )
        )
    except LogLocked as error:
        raise LogLocked(
            f"{error}: this needs a log that nobody has open; stop that process"
        ) from None


def once_left(take: Callable[[], T]) -> T:
    """What `take` gives once an owner in the background has left, which it does by itself.

    Raises LogLocked if that is waited for in vain, or somebody else has the log open.
    """
    return _taken(take, in_background=IDLE + LEAVING, others=0.0)


def in_place_of(folder: Path, take: Callable[[], T], *, seconds: float, others: float) -> T:
    """What `take` gives once an owner in the background has left, which is asked to.

    It is waited for `seconds`, somebody else who has the log open `others` seconds. Raises
    LogLocked if that is in vain.
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
    begun, told = clock.monotonic(), False
    while True:
        try:
            return take()
        except LogLocked as error:
            waits = background.BACKGROUND in str(error)
            if clock.monotonic() > begun + (in_background if waits else others):
                raise
        if waits:
            if not told:
                output.note("waiting for the owner in the background to leave")
                told = True
            ask()  # again and again: it may be one that has just come
        time.sleep(POLL)


class ReadingBar:
    """Draws a bar of what was read on standard error, if that is a terminal and it takes a while.

    What is counted is bytes, or what `unit` calls it.
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
