"""The backup folder of a log.

    backups.meta                    document: identity of the folder
    lock                            flock of the process that uses it
    <time>-<number>.backup          document: a backup, that is, the log's files at one moment
    blocks/<2 hex>/<64 hex>         up to 4 MiB of a file, named by its 256-bit BLAKE2b hash

A block is written to a temporary file, synced and renamed. A backup's document is written after all
of its blocks are durable. A crash therefore leaves at most blocks that are in no backup yet.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Annotated

import msgspec

from strandline.changelog.embedded import document
from strandline.changelog.embedded.folder import FolderMeta
from strandline.changelog.embedded.manifest import Count
from strandline.changelog.errors import CorruptLog, InvalidConfig
from strandline.changelog.layout import LOCK
from strandline.changelog.storage import Lock, Storage

KIND = "backups"
BACKUP_KIND = "backup"
META = "backups.meta"
SUFFIX = ".backup"
BLOCKS = "blocks"
BLOCK_BYTES = 4 << 20

Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
"""Hash of a block in hexadecimal digits, which is also its file name."""

_BLOCK_FILE = re.compile(r"[0-9a-f]{64}(?:\.tmp)?")
"""Pattern of the files of blocks, complete or not."""


class StoreMeta(msgspec.Struct):
    """Identity of a backup folder."""

    log_id: str
    """Id of the log that was first backed up here."""


class BackupFile(msgspec.Struct, kw_only=True):
    """A file of the log at the moment of a backup."""

    path: str
    """Path relative to the log folder."""
    size: Count
    """Size in bytes."""
    closed: bool = False
    """True if the content of this path never changes."""
    content: bytes = b""
    """Content of a small file."""
    blocks: list[Digest] = []
    """Hashes of the file's blocks, in order, if `content` is empty."""


class Backup(msgspec.Struct, kw_only=True):
    """A backup: the files of a log at one moment."""

    taken_ms: int
    """Moment of the backup, in milliseconds since the epoch."""
    log: FolderMeta
    """Identity of the log."""
    files: list[BackupFile]

    @property
    def bytes(self) -> int:
        """Total bytes of all files."""
        return sum(file.size for file in self.files)


class BackupStore:
    """The backups in a folder; writers must hold `locked`, because only one process may write."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._verified: set[str] = set()
        self._changed: set[str] = set()
        self.written_bytes = 0
        self.repaired_blocks = 0

    @contextlib.contextmanager
    def locked(self, note: str) -> Iterator[None]:
        """Lock the folder against other processes. Raises LogLocked."""
        lock: Lock = self._storage.lock(LOCK, note, whole=True)
        try:
            yield
        finally:
            lock.release()

    def begin(self, log_id: str) -> None:
        """Initialize an empty folder. Raises InvalidConfig if the folder has other files."""
        self._storage.make_dir("")
        self.check_empty_or_own()
        if not self._is_own():
            document.save(self._storage, META, KIND, StoreMeta(log_id))

    def check_empty_or_own(self) -> None:
        """Raise InvalidConfig if the folder has files of something else than backups."""
        if not self._is_own() and set(self._storage.list_dir("")) - {LOCK, f"{META}.tmp"}:
            raise InvalidConfig(
                "the folder for backups is neither empty nor a backup folder; give another"
            )

    def check(self, path: str) -> None:
        """Raise InvalidConfig, which names the folder by `path`, if it is not a backup folder."""
        if not self._is_own():
            raise InvalidConfig(f"{path} is not a backup folder: it has no backups.meta")

    def _is_own(self) -> bool:
        """Return True if the folder is a backup folder."""
        try:
            document.load(self._storage, META, KIND, StoreMeta)
        except FileNotFoundError:
            return False
        return True

    def names(self) -> list[str]:
        """Return the names of all backups, the earliest first."""
        found = self._storage.list_dir("")
        names = [name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX)]
        return sorted(names, key=_number)

    def load(self, name: str) -> Backup:
        """Load a backup. Raises InvalidConfig if it does not exist, CorruptLog."""
        if name not in self.names():
            raise InvalidConfig(
                f"there is no backup {name!r} here; there are {', '.join(self.names()) or 'none'}"
            )
        return document.load(self._storage, name + SUFFIX, BACKUP_KIND, Backup)

    def save(self, backup: Backup) -> str:
        """Add a backup durably and return its name; its blocks must have been put before."""
        # The names of new blocks must be durable before the document that refers to them.
        for folder in sorted(self._changed):
            self._storage.sync_dir(folder)
        self._changed.clear()
        name = self._new_name(backup.taken_ms)
        document.save(self._storage, name + SUFFIX, BACKUP_KIND, backup)
        return name

    def remove(self, names: Iterable[str]) -> None:
        """Remove backups durably; their blocks remain."""
        for name in names:
            self._storage.unlink(name + SUFFIX)
        self._storage.sync_dir("")

    def _new_name(self, taken_ms: int) -> str:
        moment = datetime.fromtimestamp(taken_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S")
        last = max([_number(name) for name in self.names()], default=0)
        return f"{moment}Z-{last + 1:06d}"

    # Blocks ---------------------------------------------------------------------------

    def put(self, data: bytes | memoryview) -> str:
        """Store a block unless it exists undamaged; return its digest. `save` makes it durable."""
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
        """Return True if a block exists and matches its hash; it is read once to verify that."""
        if digest not in self._verified:
            with contextlib.suppress(FileNotFoundError, CorruptLog):
                self.block(digest)
        return digest in self._verified

    def block(self, digest: str) -> bytes:
        """Read and verify a block. Raises FileNotFoundError, CorruptLog."""
        path = _path(digest)
        with contextlib.closing(self._storage.open(path)) as file:
            data = bytes(file.read(0, BLOCK_BYTES + 1))
        if digest_of(data) != digest:
            raise CorruptLog(
                f"{path}: the block is damaged; back up again (which rewrites it if the log still has "
                "it), or restore another backup"
            )
        self._verified.add(digest)
        return data

    def remove_blocks(self, kept: set[str]) -> tuple[int, int]:
        """Remove all other blocks and what was partly written; return their number and bytes."""
        count = freed = 0
        for folder in self._storage.list_dir(BLOCKS) if self._storage.exists(BLOCKS) else ():
            for name in self._storage.list_dir(f"{BLOCKS}/{folder}"):
                if _BLOCK_FILE.fullmatch(name) is None or name in kept:
                    continue
                path = f"{BLOCKS}/{folder}/{name}"
                with contextlib.closing(self._storage.open(path)) as file:
                    freed += file.size()
                self._storage.unlink(path)
                self._verified.discard(name)
                count += 1
        return count, freed


def digest_of(data: bytes | memoryview) -> str:
    """Return the hash of a block, which names its file."""
    return blake2b(data, digest_size=32).hexdigest()


def _folder(digest: str) -> str:
    return f"{BLOCKS}/{digest[:2]}"


def _path(digest: str) -> str:
    return f"{BLOCKS}/{digest[:2]}/{digest}"


def _number(name: str) -> int:
    """Return the number in a backup's name; names are sorted by it, whatever the clock did."""
    found = re.search(r"-(\d{1,12})$", name)
    return int(found[1]) if found else 0
