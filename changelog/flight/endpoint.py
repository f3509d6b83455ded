"""owner.json: the address at which the owner of a log folder listens, and its process.

    {"version": 1, "pid": 4711, "started": "86211", "namespace": "pid:[4026531836]",
     "location": "grpc+unix:///…/owner-5f2c81d0.sock", "token": "…", "folder": [2049, 131, 17…]}

The owner writes the file when it begins to serve (temporary file, then rename; mode 0600, because
it contains the token) and removes it when it closes. Only the lock decides which process owns the
folder; this file only has the address.

The file names the folder for which it was written, because a copy of a folder in use contains a
copy of this file. The file is ignored in such a copy. Socket names are never reused, so an owner
that removes its socket cannot remove the socket of another owner.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path
from typing import Literal

import msgspec

from strandline.changelog.decoding import json_decoder
from strandline.changelog.directory import Identity
from strandline.changelog.errors import UNREADABLE, CorruptLog, FutureFormat, StorageFailed
from strandline.changelog.flight.private import PREFIX, fits, private_socket
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.processes import DEAD, state_of

ENDPOINT_FILE = "owner.json"
MAX_BYTES = 1 << 16
"""Maximum size in bytes of the endpoint file; only so many are read."""
VERSION = 1

Life = Literal["alive", "stopped", "dead", "unknown"]


class OwnerEndpoint(msgspec.Struct, frozen=True):
    """Content of the endpoint file."""

    location: str
    """Flight location of the socket, "grpc+unix:///…"."""
    token: str
    pid: int
    started: str
    """Start time of the process, as the system reports it: pids are reused, (pid, start) is not."""
    namespace: str = ""
    """Namespace of the pid; the pid means nothing in another namespace."""
    version: int = VERSION
    folder: Identity | None = None
    """Log folder for which the file was written; None in files of older versions."""

    def __repr__(self) -> str:
        """Return a description without the token."""
        return f"OwnerEndpoint({self.location!r}, pid={self.pid})"

    @property
    def socket(self) -> str:
        """Path of the Unix socket."""
        return self.location.removeprefix(_UNIX)

    def life(self) -> Life:
        """Return the owner's state by the process table; "unknown" from another pid namespace."""
        if self.namespace != _namespace():
            return "unknown"
        state, started = state_of(self.pid)
        if state in DEAD or started != self.started:
            return "dead"
        return "stopped" if state in "Tt" else "alive"


def new_endpoint(folder: Path | LocalStorage) -> OwnerEndpoint:
    """Return a new endpoint, with a new token, for this process as the owner of `folder`."""
    storage = _storage(folder)
    identity = storage.identity()
    return OwnerEndpoint(
        location=_UNIX + _socket_path(storage.root, identity),
        token=secrets.token_urlsafe(32),
        pid=os.getpid(),
        started=state_of(os.getpid())[1],
        namespace=_namespace(),
        folder=identity,
    )


def publish(folder: Path | LocalStorage, endpoint: OwnerEndpoint) -> None:
    """Replace the endpoint file atomically. Raises StorageFailed."""
    storage, temporary = _storage(folder), f"{ENDPOINT_FILE}.tmp"
    storage.unlink(temporary)
    with contextlib.closing(storage.create(temporary)) as file:
        file.append(msgspec.json.encode(endpoint))
    storage.rename(temporary, ENDPOINT_FILE)


def withdraw(folder: Path | LocalStorage, endpoint: OwnerEndpoint) -> None:
    """Remove the endpoint file and the socket.

    The file is kept if another owner has replaced it. Nothing is removed if the folder itself was
    moved or replaced.
    """
    storage = _storage(folder)
    with contextlib.suppress(StorageFailed, CorruptLog):
        storage.check()
        if read(storage) == endpoint:
            storage.unlink(ENDPOINT_FILE)
        if Path(endpoint.socket).parent == Path(os.path.realpath(storage.root)):
            storage.unlink(os.path.basename(endpoint.socket))
    _remove_private(endpoint)


def clear(storage: LocalStorage) -> None:
    """Remove the sockets of dead owners; only the holder of the lock may call this.

    Only sockets in the folder, or in a private folder made for it, are removed. An endpoint file
    that was copied with the folder names sockets of the original, which are kept.
    """
    with contextlib.suppress(CorruptLog):
        left = read(storage)
        if left is not None:
            _remove_private(left)
    for name in storage.list_dir(""):
        if _SOCKET_NAME.fullmatch(name):
            storage.unlink(name)


def read(folder: Path | LocalStorage) -> OwnerEndpoint | None:
    """Return the endpoint file's content; None if it is missing or belongs to another folder.

    Raises CorruptLog, FutureFormat, StorageFailed.
    """
    storage = _storage(folder)
    try:
        with contextlib.closing(storage.open(ENDPOINT_FILE)) as file:
            content = bytes(file.read(0, MAX_BYTES))
    except FileNotFoundError:
        return None
    storage.check_trusted()
    endpoint = parse(content, str(storage.root / ENDPOINT_FILE))
    if endpoint.folder is None:
        here = Path(os.path.realpath(storage.root))
        return endpoint if Path(endpoint.socket).parent == here else None
    return _here(endpoint, storage) if endpoint.folder == storage.identity() else None


def _here(endpoint: OwnerEndpoint, storage: LocalStorage) -> OwnerEndpoint:
    """Return the endpoint with a socket in the folder at this process's own path of the folder.

    In another container the owner may have the same folder mounted at another path.
    """
    name = os.path.basename(endpoint.socket)
    path = os.path.join(os.path.realpath(storage.root), name)
    if not _SOCKET_NAME.fullmatch(name) or not fits(path) or _is_private(Path(endpoint.socket)):
        return endpoint
    return msgspec.structs.replace(endpoint, location=_UNIX + path)


def parse(content: bytes, path: str = ENDPOINT_FILE) -> OwnerEndpoint:
    """Return the endpoint in a file's `content`. Raises CorruptLog, FutureFormat.

    >>> text = b'{"version": 1, "pid": 7, "started": "9", "location": "grpc+unix:///x",'
    >>> parse(text + b' "token": "t"}').pid
    7
    """
    try:
        version = _decode_version(content).version
        if version > VERSION:
            raise FutureFormat(
                f"{path} has version {version}, this release reads up to {VERSION}; upgrade strandline"
            )
        return _decode(content)
    except UNREADABLE as error:
        raise CorruptLog(
            f"{path} is not an endpoint file ({error}); if no process owns the log, delete it"
        ) from error


class _Version(msgspec.Struct):
    version: int = 0


_decode_version = json_decoder(_Version).decode
_decode = json_decoder(OwnerEndpoint).decode

_UNIX = "grpc+unix://"
_PRIVATE_SOCKET = "owner.sock"
_MARK = "folder"
"""File in a private folder that names the log folder for which it was made."""
_SOCKET_NAME = re.compile(r"owner(-[0-9a-f]{8})?\.sock")


def _storage(folder: Path | LocalStorage) -> LocalStorage:
    return folder if isinstance(folder, LocalStorage) else LocalStorage(folder)


def _socket_path(folder: Path, identity: Identity) -> str:
    """Return a path for a new socket in the log folder.

    It is in a new private folder if the path would be too long, or has characters that a URL
    escapes.
    """
    path = os.path.join(os.path.realpath(folder), f"owner-{secrets.token_hex(4)}.sock")
    if fits(path):
        return path
    path = private_socket(_PRIVATE_SOCKET)
    with contextlib.closing(LocalStorage(os.path.dirname(path)).create(_MARK)) as file:
        file.append(msgspec.json.encode(identity))
    return path


def _is_private(socket: Path) -> bool:
    """Return True if a socket is in a private folder of its own."""
    return socket.parent.name.startswith(PREFIX) and socket.name == _PRIVATE_SOCKET


def _remove_private(endpoint: OwnerEndpoint) -> None:
    """Remove the socket's private folder if it was made for this log folder."""
    path = Path(endpoint.socket)
    if not _is_private(path):
        return
    storage = LocalStorage(path.parent)
    with contextlib.suppress(OSError, StorageFailed):
        with contextlib.closing(storage.open(_MARK)) as file:
            mark = bytes(file.read(0, MAX_BYTES))
        if mark == msgspec.json.encode(endpoint.folder):
            storage.unlink(_PRIVATE_SOCKET)
            storage.unlink(_MARK)
            os.rmdir(path.parent)


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
