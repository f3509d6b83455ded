"""Backups of single table partitions, as Faust's stores have them.

A backup is a copy of the partition's database with its committed state and the changelog position
of that. Files are linked where the file system can, so it takes little time and room. A restored
one replays only what its changelog has got since.

    <appdir>/table-backups/<table>/<partition>/<number>/db
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from strandline.changelog.errors import InvalidRequest, from_os_error
from strandline.changelog.local_storage import LocalStorage
from strandline.statestore.engines.folders import lock_folder
from strandline.statestore.engines.rocksdb import DATABASE, RocksEngine

BACKUPS = "table-backups"
"""Folder of all backups in the app's folder."""
UNFINISHED = "unfinished"
"""Folder of a backup until it is complete, and of a restored database until it is."""


class PartitionBackups:
    """Backups of one partition. Used by one thread at a time.

    Args:
        app: Folder of the app.
        table: Name of the table.
        partition: Number of the partition.
    """

    def __init__(self, app: Path, table: str, partition: int) -> None:
        self._what = f"partition {partition} of table {table!r}"
        self._storage = LocalStorage(app, follow=False)
        self._path = f"{BACKUPS}/{table}/{partition}"
        """Folder of the backups, in the app's folder."""

    def numbers(self) -> list[int]:
        """Return the numbers of all complete backups, ascending."""
        if not self._storage.exists(self._path):
            return []
        names = self._storage.list_dir(self._path)
        return sorted(int(name) for name in names if name.isdecimal())

    def add(self, engine: RocksEngine) -> int:
        """Add a backup of an engine's database; return its number. Raises StorageFailed, DiskFull."""
        number = max(self.numbers(), default=0) + 1
        self._storage.make_dir(self._path)
        # A process that was killed may have left an unfinished backup.
        self._storage.remove_tree(f"{self._path}/{UNFINISHED}")
        self._storage.make_dir(f"{self._path}/{UNFINISHED}")
        engine.copy_to(self._database(UNFINISHED))
        self._storage.rename(f"{self._path}/{UNFINISHED}", f"{self._path}/{number}")
        self._storage.sync_dir(self._path)
        return number

    def keep_newest(self, count: int) -> None:
        """Remove all backups but the newest ones; at least one is kept."""
        for number in self.numbers()[: -max(1, count)]:
            self._storage.remove_tree(f"{self._path}/{number}")

    def restore(self, state: Path, number: int | None) -> None:
        """Replace the database of a partition by a backup.

        Args:
            state: Folder of the partition, which no process may have open.
            number: Number of the backup; None for the newest one.

        Raises:
            InvalidRequest: There is no such backup.
            LogLocked: A worker has the partition open.
            StorageFailed: A file cannot be read or written. Then the state is empty or as before.
        """
        known = self.numbers()
        wanted = max(known, default=0) if number is None else number
        if wanted not in known:
            raise InvalidRequest(
                f"{self._what} has no backup {'at all' if number is None else number}; in "
                f"{self._storage.root / self._path} there are {known}"
            )
        parent = LocalStorage(state.parent, follow=False)
        parent.make_dir(state.name)
        lock = lock_folder(parent, state.name)
        try:
            fresh = f"{state.name}/{UNFINISHED}"
            parent.remove_tree(fresh)
            _copy(parent, self._database(wanted), fresh)
            parent.remove_tree(f"{state.name}/{DATABASE}")
            parent.rename(fresh, f"{state.name}/{DATABASE}")
            parent.sync_dir(state.name)
        finally:
            lock.release()

    def _database(self, folder: int | str) -> Path:
        return self._storage.root / self._path / str(folder) / DATABASE


def _copy(storage: LocalStorage, source: Path, target: str) -> None:
    """Copy a database's files durably. Links would change the backup with the database."""
    try:
        shutil.copytree(source, storage.root / target)
    except OSError as error:
        raise from_os_error(error, "copy", str(source)) from error
    for name in storage.list_dir(target):
        with contextlib.closing(storage.open(f"{target}/{name}", writable=True)) as file:
            file.sync()
