"""The folder of the backups of a log.

    backups.meta                    document: what this folder is
    lock                            flock of the process that works here
    <time>-<number>.backup          document: a backup, that is the files of the log at one moment
    blocks/<2 hex>/<64 hex>         up to 4 MiB of a file, named by its BLAKE2b hash of 256 bits

A block is written to a temporary file, synced and renamed; a backup's document is written when all of
its blocks are durable. So a crash leaves at worst blocks that no backup has yet.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Annotated

import msgspec

from strandline.changelog.embedded import document
from strandline.changelog.embedded.folder import FolderMeta
from strandline.changelog.embedded.manifest import Count
from strandline.changelog.embedded.names import LOCK
from strandline.changelog.errors import CorruptLog, InvalidConfig
from strandline.changelog.storage import Lock, Storage

KIND = "backups"
BACKUP_KIND = "backup"
META = "backups.meta"
SUFFIX = ".backup"
BLOCKS = "blocks"
BLOCK_BYTES = 4 << 20

Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
"""It names a file."""


class StoreMeta(msgspec.Struct):
    """What the folder is."""

    log_id: str
    """Of the log that was first backed up here."""


class BackupFile(msgspec.Struct, kw_only=True):
    """A file of the log, as it was."""

    path: str
    size: Count
    closed: bool = False
    """Whether no file of that path ever has another content."""
    content: bytes = b""
    """All of a small file."""
    blocks: list[Digest] = []
    """Those of a file that has no `content`, in order."""


class Backup(msgspec.Struct, kw_only=True):
    """The files of a log at one moment."""

    taken_ms: int
    log: FolderMeta
    files: list[BackupFile]

    @property
    def bytes(self) -> int:
        """Bytes of all its files."""
        return sum(file.size for file in self.files)


class BackupStore:
    """The backups in `storage`, a folder of their own. Not for use by two processes: `locked`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._verified: set[str] = set()
        self._changed: set[str] = set()
        self.written_bytes = 0
        self.repaired_blocks = 0

    @contextlib.contextmanager
    def locked(self, note: str) -> Iterator[None]:
        """Work here alone. Raises LogLocked."""
        lock: Lock = self._storage.lock(LOCK, note, whole=True)
        try:
            yield
        finally:
            lock.release()

    def begin(self, log_id: str) -> None:
        """Make it a folder of backups if it is empty. Raises InvalidConfig if it is something else."""
        self._storage.make_dir("")
        try:
            document.load(self._storage, META, KIND, StoreMeta)
        except FileNotFoundError:
            if set(self._storage.list_dir("")) - {LOCK, f"{META}.tmp"}:
                raise InvalidConfig(
                    "the folder for backups is neither empty nor one that has some; give another"
                ) from None
            document.save(self._storage, META, KIND, StoreMeta(log_id))

    def check(self) -> None:
        """Raise InvalidConfig if there are no backups here."""
        try:
            document.load(self._storage, META, KIND, StoreMeta)
        except FileNotFoundError:
            raise InvalidConfig("this is no folder of backups: it has no backups.meta") from None

    def names(self) -> list[str]:
        """All backups, the earliest first."""
        found = self._storage.list_dir("")
        names = [name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX)]
        return sorted(names, key=_number)

    def load(self, name: str) -> Backup:
        """A backup. Raises InvalidConfig if there is none of that name, CorruptLog."""
        if name not in self.names():
            raise InvalidConfig(
                f"there is no backup {name!r} here; there are {', '.join(self.names()) or 'none'}"
            )
        return document.load(self._storage, name + SUFFIX, BACKUP_KIND, Backup)

    def save(self, backup: Backup) -> str:
        """Add a backup whose blocks are here, durably; return its name."""
        for folder in sorted(self._changed):
            self._storage.sync_dir(folder)
        self._changed.clear()
        name = self._new_name(backup.taken_ms)
        document.save(self._storage, name + SUFFIX, BACKUP_KIND, backup)
        return name

    def _new_name(self, taken_ms: int) -> str:
        moment = datetime.fromtimestamp(taken_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S")
        last = max([_number(name) for name in self.names()], default=0)
        return f"{moment}Z-{last + 1:06d}"

    # Blocks ---------------------------------------------------------------------------

    def put(self, data: bytes | memoryview) -> str:
        """Keep a block, unless it is here and whole; return its digest. `save` makes it durable."""
        digest = digest_of(data)
        if self.has(digest):
            return digest
        folder, path = _folder(digest), _path(digest)
        self._storage.make_dir(folder)
        self.repaired_blocks += self._storage.exists(path)
        temporary = f"{path}.tmp"
        self._storage.unlink(temporary)
        with contextlib.closing(self._storage.create(temporary)) as file:
            file.append(data)
            file.sync()
        self._storage.rename(temporary, path)
        self._changed.add(folder)
        self._verified.add(digest)
        self.written_bytes += len(data)
        return digest

    def has(self, digest: str) -> bool:
        """Whether a block is here and is what its name says; it is read for that once."""
        if digest not in self._verified:
            with contextlib.suppress(FileNotFoundError, CorruptLog):
                self.block(digest)
        return digest in self._verified

    def block(self, digest: str) -> bytes:
        """A block, verified. Raises FileNotFoundError, CorruptLog."""
        path = _path(digest)
        with contextlib.closing(self._storage.open(path)) as file:
            data = bytes(file.read(0, BLOCK_BYTES + 1))
        if digest_of(data) != digest:
            raise CorruptLog(
                f"{path}: the block is damaged; back up again (that writes it anew if the log still "
                "has it), or restore another backup"
            )
        self._verified.add(digest)
        return data


def digest_of(data: bytes | memoryview) -> str:
    """The name of a block."""
    return blake2b(data, digest_size=32).hexdigest()


def _folder(digest: str) -> str:
    return f"{BLOCKS}/{digest[:2]}"


def _path(digest: str) -> str:
    return f"{BLOCKS}/{digest[:2]}/{digest}"


def _number(name: str) -> int:
    found = re.search(r"-(\d{1,12})$", name)
    return int(found[1]) if found else 0
