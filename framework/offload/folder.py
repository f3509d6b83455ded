"""The folder of a target, and the steps of a commit that all kinds of targets share.

    _strandline/target.json     document: the topic and the kind of target that the folder is for
    _strandline/lock            flock of the process that loads
    _strandline/staging/        files being written, `<name>.part`; removed when the next run begins
    _strandline/pending.json    document: a commit whose files are being moved to their places
    _strandline/commits/        documents: the commits of a Parquet target (offload/parquet.py)
    _strandline/last.json       document: the last commit of a table that added files
    _day=…/_hour=…/             files of records, by the time of their records; of Parquet utc_day=…
    part-….parquet              the same, if they are not divided

A commit syncs all files, writes `pending.json` with their names, and moves them. Nothing else puts a
file into its place, so that a file there is either in a commit or in `pending.json`. The target
decides after a crash: it completes the pending commit, or withdraws it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from strandline.changelog.errors import CorruptLog, InvalidConfig, LogLocked
from strandline.changelog.storage import File, Storage, replace
from strandline.framework.offload.progress import VERSION, Progress, decoded
from strandline.framework.offload.target import DataFile, PartitionBy

META = "_strandline"
CLAIM = f"{META}/target.json"
LOCK = f"{META}/lock"
STAGING = f"{META}/staging"
PENDING = f"{META}/pending.json"
LAST = f"{META}/last.json"

T = TypeVar("T", bound=msgspec.Struct)


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The use of a folder: one topic, in one format."""

    version: int = VERSION
    topic: str
    topic_id: str
    format: str
    partition_by: PartitionBy
    table: str = ""
    """Name of the table in its catalog (Iceberg); else empty."""
    period_prefix: str = "_"
    """Begin of the names of the columns in the names of folders (`periods.VISIBLE`)."""


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one commit, and the progress after it."""

    version: int = VERSION
    progress: Progress
    files: Sequence[DataFile]
    columns: bytes = b""
    """Arrow schema of the target after the commit, as an IPC message."""
    catalog: str = ""
    """Digest of the address of the table's catalog (Iceberg); else empty."""


class TargetFolder:
    """A folder that is locked by this process, for one topic and one kind of target."""

    def __init__(self, storage: Storage, claim: Claim) -> None:
        self.storage = storage
        self.claim = claim

    # Files being written --------------------------------------------------------------

    def stage(self, path: str) -> File:
        """Create the file that a commit will move to `path`."""
        return self.storage.create(_staged(path))

    def sweep(self) -> None:
        """Remove what crashed or failed runs have staged."""
        self.storage.remove_tree(STAGING)
        self.storage.make_dir(STAGING)

    def drop_staged(self) -> None:
        """Remove what this run has staged, unless a pending commit needs it."""
        if self.pending() is None:
            self.sweep()

    # A commit -------------------------------------------------------------------------

    def publish(self, commit: Commit) -> None:
        """Announce a commit durably, and move its files, which are synced, to their places."""
        # The names of the files must be durable before the document that promises them.
        self.storage.sync_dir(STAGING)
        self.write(PENDING, commit)
        self.move(commit)

    def move(self, commit: Commit) -> None:
        """Move the files of the pending commit to their places, durably. Raises CorruptLog."""
        folders = sorted({file.path.rpartition("/")[0] for file in commit.files})
        for folder in folders:
            self.storage.make_dir(folder)
        for file in commit.files:
            self._move(file.path)
        for folder in folders:
            self.storage.sync_dir(folder)

    def _move(self, path: str) -> None:
        if self.storage.exists(_staged(path)):
            self.storage.rename(_staged(path), path)
        elif not self.storage.exists(path):
            raise CorruptLog(
                f"{PENDING} lists {path}, which is neither there nor in {STAGING}; put it back, or load "
                "into another folder"
            )

    def pending(self) -> Commit | None:
        """Return the commit that a crash has interrupted; None if there is none."""
        return self.read(PENDING, Commit)

    def withdraw(self, commit: Commit) -> None:
        """Remove the files of the pending commit, which is in no table, and forget it."""
        for file in commit.files:
            self.storage.unlink(file.path)
        for folder in sorted({file.path.rpartition("/")[0] for file in commit.files}):
            if self.storage.exists(folder):
                self.storage.sync_dir(folder)
        self.storage.unlink(PENDING)
        self.storage.sync_dir(META)

    def resolve(self, progress: Progress | None, has: Callable[[Sequence[DataFile]], bool]) -> None:
        """End what a crash has left of a load into a table.

        The commit that was pending is in the table, or its files are removed. Its number does not
        tell, because a table may lose the numbers of its commits, and keep the offsets.

        Args:
            progress: Progress of the table; None before its first commit.
            has: Return True if the table, or a version that it can return to, has any of the files.
                It is called if the progress does not reach that of the pending commit.
        """
        pending = self.pending()
        if pending is not None:
            made = progress is not None and progress.reaches(pending.progress)
            if made or has(pending.files):
                self.settle_pending()
            else:
                self.withdraw(pending)
        self.sweep()

    def settle_pending(self) -> None:
        """End the pending commit, which is in the table, durably. It is `last` if it added files."""
        pending = self.pending()
        # A commit without files is the first one of an empty topic, or leaves what `last` says true.
        if pending and (pending.files or (pending.progress.commit == 1 and self.last() is None)):
            self.storage.rename(PENDING, LAST)
        else:
            self.storage.unlink(PENDING)
        self.storage.sync_dir(META)

    def last(self) -> Commit | None:
        """Return the last commit of a table that added files; None if no load has recorded it."""
        return self.read(LAST, Commit)

    # Documents ------------------------------------------------------------------------

    def write(self, path: str, document: msgspec.Struct) -> None:
        """Replace a document durably."""
        replace(self.storage, path, msgspec.json.format(msgspec.json.encode(document)))

    def read(self, path: str, kind: type[T]) -> T | None:
        """Return a document; None if it does not exist. Raises CorruptLog, FutureFormat."""
        return read_document(self.storage, path, kind)


@contextlib.contextmanager
def claimed(storage: Storage, claim: Claim, where: str) -> Iterator[TargetFolder]:
    """Lock the folder of a target, created if it does not exist, and yield it.

    `where` is its path, for messages.

    Raises:
        InvalidConfig: The folder has other files, or is for another topic or another format.
        LogLocked: Another process loads into it.
    """
    storage.make_dir("")
    _check(storage, claim, where)
    storage.make_dir(META)
    try:
        lock = storage.lock(LOCK, f"pid {os.getpid()}, `strandline offload {claim.topic}`\n")
    except LogLocked as error:
        raise LogLocked(f"{error}: another load into this folder is running; wait for it") from None
    try:
        found = _check(storage, claim, where)  # again: it may have been claimed meanwhile
        if found is None:
            replace(storage, CLAIM, msgspec.json.format(msgspec.json.encode(claim)))
        yield TargetFolder(storage, found or claim)
    finally:
        lock.release()


def read_document(storage: Storage, path: str, kind: type[T]) -> T | None:
    """Return a document; None if it does not exist. Raises CorruptLog, FutureFormat."""
    try:
        with contextlib.closing(storage.open(path)) as file:
            return decoded(kind, bytes(file.read(0, file.size())), path)
    except FileNotFoundError:
        return None


def _check(storage: Storage, claim: Claim, where: str) -> Claim | None:
    """Return the claim of the same load; None without any. Raise InvalidConfig for another."""
    found = read_document(storage, CLAIM, Claim)
    if found is None:
        others = [name for name in storage.list_dir("") if name != META]
        if others:
            raise InvalidConfig(
                f"{where} has {others[0]!r} and no {CLAIM}: it was not made by a load of a topic; "
                "give a new or empty folder"
            )
        return None
    if found.topic_id != claim.topic_id:
        raise InvalidConfig(
            f"{where} has topic {found.topic!r} (id {found.topic_id}), and topic {claim.topic!r} has id "
            f"{claim.topic_id}: it is another topic, or was deleted and created again; give another folder"
        )
    for name in ("format", "partition_by", "table"):
        was, now = getattr(found, name), getattr(claim, name)
        if was != now:
            raise InvalidConfig(
                f"{where} was loaded with {name} {was!r}, got {now!r}; keep that, or give another folder"
            )
    return found


def _staged(path: str) -> str:
    """Return the path of a file while it is written."""
    return f"{STAGING}/{path.rpartition('/')[2]}.part"
