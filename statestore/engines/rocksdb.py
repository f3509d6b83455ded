"""RocksDB as an engine: durable, larger than memory, sorted.

These are the rules. Each prevents a failure that was seen:

- The write-ahead log is off, because the changelog serves as one. Every write includes the
  position, so a crash leaves the state as of some position. Since all writes contain that one key,
  an ingested file never overtakes older changes that are still in the memtable.
- A write of at least `SST_MIN_KEYS` keys is a sorted file, written beside the database and moved
  into it. That is several times faster than a batch, and durable when it returns. A smaller write
  is a batch followed by a flush. Both can contain deletions, and a batch also deleted ranges.
- Ingested files all go to level 0, and RocksDB does not slow down ingestion. So a write waits while
  there are more than `MAX_LEVEL0_FILES` files.
- One block cache and one budget for memtables are shared by the whole process.
- A store has eight files open besides its tables (LOCK, LOG, MANIFEST, a log that stays empty,
  three folders, the lock of its folder). So the number of tables that it keeps open depends on the
  number of files that the process may open.
- RocksDB's LOCK is a POSIX lock, which a process loses when it closes any descriptor of that file.
  So nothing else here opens it.
- RocksDB releases its LOCK whenever the database is closed, also if it is closed to be moved,
  removed or created again. So the engine holds a lock of the folder besides
  (statestore/engines/folders.py) until the engine itself is closed.

- The first write creates the database. So a worker of a thousand partitions, most of which have no
  state yet, starts soon and has few files open.

A partition's folder contains `db/`, `tmp/`, and after damage the mark `damaged`. The mark makes the
next opening start over with an empty database, because the changelog has everything. A damaged
database is kept as `db.damaged` until the next one is found.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import rocksdict

from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.errors import (
    MORE_FILES,
    CorruptLog,
    DiskFull,
    FutureFormat,
    InvalidRequest,
    LogLocked,
    StorageFailed,
    StrandlineError,
    TooManyFiles,
    files_allowed,
)
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.storage import Lock
from strandline.statestore.engine import POSITION_KEY, Column, Entry, StorePosition
from strandline.statestore.engines.rocksdb_options import (
    database_options,
    ingest_options,
    write_options,
)
from strandline.statestore.ranges import NO_RANGES, DeletedRanges

P = ParamSpec("P")
R = TypeVar("R")

DATABASE = "db"
CONFIG = "rocksdict-config.json"
"""Name of the database, within a partition's folder."""
_TEMPORARY = "tmp"
"""Name of the folder for files that are being written or removed, within a partition's folder."""
_REMOVED = f"{_TEMPORARY}/gone"
"""Path of a database that is being removed, within a partition's folder."""
DAMAGED = "damaged"
"""Name of the file that marks damage, within a partition's folder."""
SST_MIN_KEYS = 10_000
"""Number of keys from which a write is ingested as a sorted file."""
MAX_LEVEL0_FILES = 20
"""Number of files on level 0 above which writes wait for compaction."""
BACK_PRESSURE_SECONDS = 120.0
"""Maximum seconds that a write waits for compaction."""

log = logging.getLogger("strandline.state")


class RocksEngine:
    """Engine on RocksDB in one partition's folder; implements `Engine`.

    A damaged database is moved aside and replaced by an empty one, which the changelog restores.
    `lock` is the lock of the folder, which `close` releases. Raises LogLocked if the database is
    open in this or another process, and FutureFormat if a newer version has written it.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        sst_from: int = SST_MIN_KEYS,
        clock: Clock | None = None,
        lock: Lock | None = None,
    ) -> None:
        self.folder = Path(folder)
        self._lock = lock
        if lock is not None:
            # Releases the lock of an engine that is garbage-collected without being closed.
            weakref.finalize(self, lock.release).atexit = False
        self._storage = LocalStorage(self.folder, follow=False)
        self._clock = clock or SystemClock()
        self._sst_from = sst_from
        self._scans: weakref.WeakSet[Generator[Entry, None, None]] = weakref.WeakSet()
        self._files_written = 0
        self._position: StorePosition | None = None
        self._db: Any = None
        """The database; None until there is one."""
        self._closed = False
        self._storage.make_dir("")
        self._open_or_recreate()
        try:  # after opening, because another process may write there until RocksDB's lock is ours
            # Not made anew each time, because a new folder costs an fsync.
            if self._storage.list_dir(_TEMPORARY):
                self._storage.remove_tree(_TEMPORARY)
        except BaseException:
            self.close()
            raise

    def position(self) -> StorePosition | None:
        return self._position

    def is_empty(self) -> bool:
        return self._position is None

    def get(self, key: bytes) -> bytes | None:
        if self._db is None and self._is_absent():
            return None
        found: bytes | None = self._guarded("read", self._db.get, key)
        return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self._is_absent():
            return [None] * len(keys)
        found: Any = self._guarded("read", self._db.get, [*keys])
        return list(found)

    def scan(self, lower: bytes, upper: bytes | None, /, *, reverse: bool) -> Iterator[Entry]:
        if self._is_absent():
            return iter(())
        options = rocksdict.ReadOptions()
        lower = max(lower, _AFTER_POSITION)
        if upper is not None:
            options.set_iterate_upper_bound(upper)
        start = None if reverse else lower
        items = self._guarded("scan", self._db.items, reverse, start, options)
        # `_down_to` replaces set_iterate_lower_bound, which sets the upper one in rocksdict 0.3.29.
        scan = self._entries(_down_to(lower, items) if reverse else items, lower, upper, reverse)
        self._scans.add(scan)
        return scan

    def write(
        self,
        keys: Column[bytes],
        values: Column[bytes | None],
        position: StorePosition,
        ranges: DeletedRanges = NO_RANGES,
    ) -> None:
        if self._is_absent():
            self._check_folder()  # before opening, which would create a database at the path
            self._open()
        self._wait_for_compaction()
        self._check_folder()
        try:
            if ranges or len(keys) < self._sst_from:
                self._guarded("write", self._write_batch, keys, values, position, ranges)
            else:
                self._guarded("write", self._ingest, keys, values, position)
        except BaseException:
            # A batch whose flush has failed is in the memtable, and so is its position.
            with contextlib.suppress(StrandlineError):
                self._position = self._stored_position(self._db)
            raise
        self._position = position

    def wipe(self) -> None:
        self._discard_database()

    def copy_to(self, folder: str | os.PathLike[str]) -> None:
        """Write a copy of the database, as it is now, into a folder that does not exist.

        Files that do not change any more are linked, if the file system can do so. Raises
        InvalidRequest if there is no database yet, StorageFailed, DiskFull.
        """
        if self._is_absent():
            raise InvalidRequest(
                f"the state in {self.folder} is empty, so there is nothing to copy"
            )
        checkpoint = self._guarded("copy", rocksdict.Checkpoint, self._db)
        self._guarded("copy", checkpoint.create_checkpoint, str(folder))
        config = self.folder / DATABASE / CONFIG
        if config.exists():  # rocksdict's own file, of which RocksDB knows nothing
            self._guarded("copy", shutil.copyfile, config, Path(folder) / CONFIG)

    def take_over(self, other: RocksEngine) -> None:
        """Replace the database by that of `other`, whose folder is beside this one.

        The caller removes `other`. If moving fails, both engines are closed, and the database is in
        one of the two folders.
        """
        other._close_database()
        parent, here = LocalStorage(self.folder.parent), self.folder.name
        try:
            self._discard_database()
            parent.rename(f"{other.folder.name}/{DATABASE}", f"{here}/{DATABASE}")
            parent.sync_dir(here)
            self._open_or_recreate()
        except BaseException:
            self.close()
            other.close()
            raise

    def remove(self) -> None:
        """Remove the database and the folder while the lock is held, then close the engine."""
        try:
            self._discard_database()
            LocalStorage(self.folder.parent).remove_tree(self.folder.name)
        finally:
            self.close()

    def approximate_num_entries(self) -> int:
        if self._is_absent():
            return 0
        estimate = self._guarded("read", self._db.property_int_value, "rocksdb.estimate-num-keys")
        return max(0, (estimate or 0) - (not self.is_empty()))

    def disk_bytes(self) -> int:
        if self._is_absent():
            return 0
        size = self._guarded("read", self._db.property_int_value, "rocksdb.total-sst-files-size")
        return size or 0

    def level0_files(self) -> int:
        """Return the number of files on level 0, which wait to be compacted."""
        if self._is_absent():
            return 0
        return int(self._db.property_int_value("rocksdb.num-files-at-level0") or 0)

    def _is_absent(self) -> bool:
        """Return True if there is no database yet. Raises InvalidRequest after `close`."""
        if self._db is None and self._closed:
            raise InvalidRequest(f"the state in {self.folder} was closed")
        return self._db is None

    def close(self) -> None:
        self._close_database()
        self._closed = True
        if self._lock is not None:
            self._lock.release()

    def _close_database(self) -> None:
        for scan in list(self._scans):
            with contextlib.suppress(ValueError):  # raised if another thread runs the scan
                scan.close()
        try:
            if self._db is not None:
                self._db.close()
        except rocksdict.DbClosedError:
            pass
        except Exception as error:
            # The database is closed nevertheless, and its content is in the changelog.
            fields = {"folder": self.folder, "error": error}
            log.warning("closing the state in %s: %s", self.folder, error, extra=fields)

    def _check_folder(self) -> None:
        """Raise FolderLost if the folder or its lock file is no longer at its path.

        RocksDB uses paths, so it would write into a folder that has replaced this one.
        """
        self._storage.check()
        if self._lock is not None:
            self._lock.check()

    def _discard_database(self) -> None:
        """Close and remove the database.

        It is renamed first, because a database that is removed in part would be taken for damaged.
        """
        self._check_folder()
        self._close_database()
        self._db = self._position = None
        self._storage.remove_tree(_REMOVED)
        if self._storage.exists(DATABASE):  # `take_over` of another engine may have moved it away
            self._storage.make_dir(_TEMPORARY)
            self._storage.rename(DATABASE, _REMOVED)
            self._storage.remove_tree(_REMOVED)

    def _open_or_recreate(self) -> None:
        """Open the database if there is one; if it is damaged, move it aside."""
        try:
            if self._storage.exists(DATABASE):
                self._open()
        except FutureFormat:
            raise
        except CorruptLog as error:
            self._keep_damaged(str(error))
        if self._storage.exists(DAMAGED):
            self._close_database()
            self._keep_damaged("damage was met when it was last read")

    def _open(self) -> None:
        database = self.folder / DATABASE
        # RocksDB would create the folder and its parents with permissions for all users to read.
        self._storage.make_dir(DATABASE)
        self._storage.check_for_library(DATABASE)
        options = database_options()
        # Without options of its own, the column family of a database that exists is opened with
        # the defaults of RocksDB: no filter, and a block cache that is not the shared one.
        families = {"default": options}
        db = self._guarded("open", rocksdict.Rdict, str(database), options, families)
        try:
            self._check_folder()  # RocksDB has opened the path, which may lead elsewhere by now
            db.set_write_options(write_options())
            position = self._stored_position(db)
            if position is None and next(iter(db.keys()), None) is not None:
                raise CorruptLog(f"{database} holds entries but no position")
        except BaseException:
            db.close()
            raise
        # Only now, because readers on other threads use it at once.
        self._db, self._position = db, position

    def _stored_position(self, db: Any) -> StorePosition | None:
        found = self._guarded("read", db.get, POSITION_KEY)
        return StorePosition.from_bytes(found) if found is not None else None

    def _entries(
        self, items: Iterator[Any], lower: bytes, upper: bytes | None, reverse: bool
    ) -> Generator[Entry, None, None]:
        last: bytes | None = None
        for entry in items:
            last = entry[0]
            yield entry
        self._guarded("scan", self._check_end, last, lower, upper, reverse)

    def _check_end(
        self, last: bytes | None, lower: bytes, upper: bytes | None, reverse: bool
    ) -> None:
        """Raise the error that ended a scan early, because rocksdict's iterators end silently.

        Nothing beyond the scan's bounds is read: there may be many deletions to pass.
        """
        options = rocksdict.ReadOptions()
        if upper is not None:
            options.set_iterate_upper_bound(upper)
        probe = self._db.iter(options)
        if reverse:
            probe.seek(lower)
            if not (probe.valid() and (last is None or probe.key() < last)):
                probe.status()
                return
        if last is None:
            probe.seek_to_last() if reverse else probe.seek(lower)
        else:
            probe.seek(last)
            if probe.valid():
                probe.prev() if reverse else probe.next()
        probe.status()

    def _write_batch(
        self,
        keys: Column[bytes],
        values: Column[bytes | None],
        position: StorePosition,
        ranges: DeletedRanges,
    ) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for lower, upper in ranges:
            batch.delete_range(max(lower, _AFTER_POSITION), upper or _AFTER_ALL_KEYS)
        _put_all(batch, keys, values, position)
        self._db.write(batch)
        self._db.flush()

    def _ingest(
        self, keys: Column[bytes], values: Column[bytes | None], position: StorePosition
    ) -> None:
        self._files_written += 1
        name = f"{_TEMPORARY}/{self._files_written}.sst"
        path = str(self.folder / name)
        self._storage.make_dir(_TEMPORARY)
        try:
            file = rocksdict.SstFileWriter(database_options())
            file.open(path)
            _put_all(file, keys, values, position)
            file.finish()
            self._db.ingest_external_file([path], ingest_options())
        finally:
            self._storage.unlink(name)  # left only if ingestion has failed, else it was moved

    def _wait_for_compaction(self) -> None:
        """Wait while level 0 has too many files. Raises StorageFailed if compaction is too slow."""
        if self.level0_files() <= MAX_LEVEL0_FILES:
            return
        caught_up = wait_until(
            lambda: self.level0_files() <= MAX_LEVEL0_FILES, BACK_PRESSURE_SECONDS, self._clock
        )
        if not caught_up:
            raise StorageFailed(
                f"{self.folder} has {self.level0_files()} files on level 0 and compaction did "
                f"not catch up in {BACK_PRESSURE_SECONDS:.0f} s; see {self.folder}/db/LOG"
            )

    def _keep_damaged(self, reason: str) -> None:
        """Keep the damaged database as `db.damaged`, and remove the mark."""
        log.warning(
            "the state in %s is damaged and is rebuilt from its changelog: %s",
            *(self.folder, reason),
            extra={"folder": self.folder},
        )
        self._storage.remove_tree("db.damaged")
        if self._storage.exists(DATABASE):
            self._storage.rename(DATABASE, "db.damaged")
        self._storage.unlink(DAMAGED)
        self._db = self._position = None

    def _guarded(self, doing: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except StrandlineError:
            raise
        except Exception as error:
            raise self._translated(error, doing) from error

    def _translated(self, error: Exception, doing: str) -> StrandlineError:
        """Return the error that a RocksDB error stands for; mark the folder if it is damaged."""
        if isinstance(error, StrandlineError):
            return error
        what = f"cannot {doing} the state in {self.folder}: {error}"
        if isinstance(error, rocksdict.DbClosedError):
            return InvalidRequest(f"{what}; the store was closed")
        text = str(error)
        if any(phrase in text for phrase in _FULL):
            return DiskFull(f"{what}; make room, then open it again")
        if "Too many open files" in text:
            return TooManyFiles(f"{what} ({files_allowed()}); {MORE_FILES}")
        if "/LOCK" in text:
            return LogLocked(f"{what}; another worker has it, stop that one")
        # When opening, these texts mean that a file is missing or belongs to another database.
        strange = doing == "open" and ("No such file" in text or "Invalid argument" in text)
        if strange or "Corruption" in text:
            with contextlib.suppress(FileExistsError, StorageFailed):
                self._storage.create(DAMAGED).close()
            return CorruptLog(f"{what}; start again: it is rebuilt from the changelog")
        return StorageFailed(what)


def _put_all(
    target: rocksdict.WriteBatch | rocksdict.SstFileWriter,
    keys: Column[bytes],
    values: Column[bytes | None],
    position: StorePosition,
) -> None:
    target[POSITION_KEY] = position.to_bytes()
    # A loop in Python, because other threads can run meanwhile, unlike during one in C.
    for key, value in zip(keys, values, strict=True):
        if value is None:
            del target[key]
        else:
            target[key] = value


def _down_to(lower: bytes, items: Iterator[Any]) -> Iterator[Any]:
    return takewhile(lambda item: item[0] >= lower, items)


def wait_until(condition: Callable[[], bool], timeout: float, clock: Clock) -> bool:
    """Poll `condition` for at most `timeout` seconds, at least once; return True once it holds."""
    deadline = clock.monotonic() + timeout
    pause = threading.Event()
    while not condition():
        if clock.monotonic() >= deadline:
            return False
        pause.wait(_POLL_SECONDS)
    return True


_FULL = ("No space left", "quota exceeded", "File too large")
_AFTER_POSITION = b"\x01"
_AFTER_ALL_KEYS = b"\xff"
"""Bound above every key of a store; keys begin with a tag (`statestore.ordered`)."""
_POLL_SECONDS = 0.02
