"""Reading the content of a RocksDB folder without changing anything in it.

RocksDB can open a database read-only, but rocksdict writes a file of its own beside it. So a
temporary folder with links to the database's files is opened instead.
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
from strandline.changelog.local_storage import LocalStorage
from strandline.statestore.engine import POSITION_KEY, Entry, StorePosition
from strandline.statestore.engines.rocksdb import DATABASE
from strandline.statestore.ordered import FIRST_KEY

NOT_LINKED = {"LOCK", "LOG", "rocksdict-config.json"}
"""Names of files that are not linked, because opening the database writes them."""


class DatabaseContent:
    """A database that is open for inspection."""

    def __init__(self, database: rocksdict.Rdict, folder: Path) -> None:
        self._database = database
        self._folder = folder

    def position(self) -> StorePosition | None:
        """Return the stored changelog position; None if none. Raises CorruptLog, FutureFormat."""
        try:
            found = self._database.get(POSITION_KEY)
        except Exception as error:
            raise _unreadable(self._folder, error) from error
        return None if found is None else StorePosition.from_bytes(found)

    def entries(self) -> Iterator[Entry]:
        """Yield all keys and values, by ascending keys. Raises CorruptLog at a damaged one."""
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
        """Raise the error that ended a scan early, because rocksdict's iterators end silently."""
        probe = self._database.iter()
        probe.seek(FIRST_KEY if last is None else last)
        if last is not None and probe.valid():
            probe.next()
        probe.status()


def is_unfinished(folder: Path) -> bool:
    """Return True if the process was killed while it created the database of a partition's folder.

    Such a database has no entries, and is created again when it is opened.
    """
    names = {file.name for file in (folder / DATABASE).iterdir()}
    return "CURRENT" not in names and not any(name.endswith(".sst") for name in names)


@contextmanager
def inspected(folder: Path) -> Iterator[DatabaseContent]:
    """Open the database of a partition's folder for inspection.

    Raises CorruptLog, and StorageFailed if it has a symbolic link or a file of another user.
    """
    LocalStorage(folder, follow=False).check_for_library(DATABASE)
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
