"""The demo's own log, emptied at the start of every run."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Console

from examples.flights import app as job
from strandline.changelog.errors import LogLocked
from strandline.changelog.layout import LOCK
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.storage import Lock

MARK = "flights-demo"
"""File that marks a folder as made by the demo, which may therefore remove it."""

LOCK_TIMEOUT_S = 30.0
"""Seconds to wait for a tool that still reads the log of the last run."""


def clean(log: str, console: Console, *, fresh: bool) -> None:
    """Make the log empty: a folder, or the demo's topics in a cluster.

    Data that the demo did not create is not touched; the demo then exits with SystemExit.
    """
    if "://" in log:
        _clean_cluster(log, console, fresh=fresh)
    else:
        _clean_folder(Path(log), console, fresh=fresh)


def _clean_cluster(log: str, console: Console, *, fresh: bool) -> None:
    job.app.log = log
    with job.app as app:
        broker = app.broker()
        present = {info.name for info in broker.topics()} & {
            job.flights.name,
            job.carrier_delays.name,
        }
        if not present:
            return
        if not (fresh or _agreed(f"{log}: topics {', '.join(sorted(present))}", console)):
            raise SystemExit("nothing was changed")
        app.reset()
        for name in present:
            broker.delete_topic(name)


def _clean_folder(folder: Path, console: Console, *, fresh: bool) -> None:
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARK).exists():
            raise SystemExit(f"{folder} holds something else than this demo's log; use --log DIR")
        if not (fresh or _agreed(str(folder), console)):
            raise SystemExit("nothing was changed; --log DIR leaves the last run where it is")
        _remove(folder, console)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()


def _agreed(where: str, console: Console) -> bool:
    if not sys.stdin.isatty():
        return True
    answer = console.input(f"Remove what the last run left in {where}? [Y/n] ")
    return answer.strip().lower() in ("", "y", "yes")


def _remove(folder: Path, console: Console) -> None:
    """Remove the folder, once no process owns the log in it."""
    lock = _locked(LocalStorage(folder), console)
    try:
        LocalStorage(folder.parent).remove_tree(folder.name)
    finally:
        lock.release()


def _locked(storage: LocalStorage, console: Console) -> Lock:
    until, noted = time.monotonic() + LOCK_TIMEOUT_S, False
    while True:
        try:
            return storage.lock(LOCK, "flights demo", whole=True)
        except LogLocked as error:
            if time.monotonic() > until:
                raise SystemExit(str(error)) from None
            if not noted:
                console.print("waiting for a process that still reads the log to end …")
                noted = True
            time.sleep(0.2)
