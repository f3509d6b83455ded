"""The content of a RocksDB folder, read without changing anything in it.

RocksDB opens a database read-only, but rocksdict writes a file of its own beside it; so what is
opened is a temporary folder of links to the database's files.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rocksdict

from strandline.changelog.errors import CorruptLog
from strandline.statestore.engine import POSITION_KEY, Entry, StorePosition
from strandline.statestore.engines.rocksdb import DATABASE
from strandline.statestore.ordered import FIRST_KEY

NOT_LINKED = {"LOCK", "LOG", "rocksdict-config.json"}


class DatabaseContent:
    """A database that is open to be looked at."""

    def __init__(self, database: rocksdict.Rdict, folder: Path) -> None:
        self._database = database
        self._folder = folder

    def position(self) -> StorePosition | None:
        """Up to where of its changelog it reaches. Raises CorruptLog, FutureFormat."""
        try:
            found = self._database.get(POSITION_KEY)
        except Exception as error:
            raise _unreadable(self._folder, error) from error
        return None if found is None else StorePosition.from_bytes(found)

    def entries(self) -> Iterator[Entry]:
        """All keys and values, by ascending keys. Raises CorruptLog where one is damaged."""
        last: bytes | None = None
        items: Any = self._database.items(from_key=FIRST_KEY)
        for entry in items:
            last = entry[0]
            yield entry
        try:
            self._check_end(last)
        except Exception as error:
            raise _unreadable(self._folder, error) from error

    def _check_end(self, last: bytes | None) -> None:
        """Raise what ended a scan early: rocksdict's iterators end without a word at damage."""
        probe = self._database.iter()
        probe.seek(FIRST_KEY if last is None else last)
        if last is not None and probe.valid():
            probe.next()
        probe.status()


def is_unfinished(folder: Path) -> bool:
    """Whether the database of a partition's folder was being made when its process was killed.

    It has nothing in it then, and begins anew when it is opened.
    """
    names = {file.name for file in (folder / DATABASE).iterdir()}
    return "CURRENT" not in names and not any(name.endswith(".sst") for name in names)


@contextmanager
def inspected(folder: Path) -> Iterator[DatabaseContent]:
    """The database of a partition's folder. Raises CorruptLog."""
    with tempfile.TemporaryDirectory(prefix="strandline-") as links:
        for file in (folder / DATABASE).iterdir():
            if file.name not in NOT_LINKED:
                os.symlink(file.resolve(), Path(links) / file.name)
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(create_if_missing=False)
        access = rocksdict.AccessType.read_only()
        try:
            database = rocksdict.Rdict(links, options, access_type=access)
        except Exception as error:
            raise _unreadable(folder, error) from error
        try:
            yield DatabaseContent(database, folder)
        finally:
            database.close()


def _unreadable(folder: Path, error: Exception) -> CorruptLog:
    return CorruptLog(f"the state in {folder} cannot be read: {error}")
