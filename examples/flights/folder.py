"""The demo's folder: its own, and clean at the start of every run."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Console

from changelog.embedded.names import LOCK
from changelog.errors import LogLocked
from changelog.storage import LocalStorage, Lock

MARK = "flights-demo"
"""This file says that the demo made the folder, and may remove it."""

PATIENCE = 30.0
"""Seconds to wait for a tool that still looks into the log of the last run."""


def clean(folder: Path, console: Console, *, fresh: bool) -> None:
    """Make `folder` anew. What the demo did not make itself is left alone: SystemExit."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARK).exists():
            raise SystemExit(f"{folder} holds something else than this demo's log; use --log DIR")
        if not (fresh or _agreed(folder, console)):
            raise SystemExit("nothing was changed; --log DIR leaves the last run where it is")
        _remove(folder, console)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()


def _agreed(folder: Path, console: Console) -> bool:
    if not sys.stdin.isatty():
        return True
    answer = console.input(f"Remove what the last run left in {folder}? [Y/n] ")
    return answer.strip().lower() in ("", "y", "yes")


def _remove(folder: Path, console: Console) -> None:
    """Remove the folder, once nobody owns the log in it."""
    lock = _locked(LocalStorage(folder), console)
    try:
        LocalStorage(folder.parent).remove_tree(folder.name)
    finally:
        lock.release()


def _locked(storage: LocalStorage, console: Console) -> Lock:
    until, said = time.monotonic() + PATIENCE, False
    while True:
        try:
            return storage.lock(LOCK, "flights demo")
        except LogLocked as error:
            if time.monotonic() > until:
                raise SystemExit(str(error)) from None
            if not said:
                console.print("waiting for the last one who looks into it to leave …")
                said = True
            time.sleep(0.2)
