"""owner.json: where the owner of a log folder listens, and whether that owner can still be alive.

    {"version": 1, "pid": 4711, "started": "86211", "namespace": "pid:[4026531836]",
     "location": "grpc+unix:///…/owner-5f2c81d0.sock", "token": "…", "folder": [2049, 131, 17…]}

The owner writes it once it serves (temporary file, rename; mode 0600, as the token is in it), and removes it when it
closes. The lock is the truth about who owns; this file only says where to knock.

It names the folder that it was written for, because a copy of a folder that is in use has a copy of this
file too: in a copy it counts for nothing. Names of sockets never come again, so whoever removes its own
removes no other's.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import tempfile
from pathlib import Path
from typing import Literal

import msgspec

from strandline.changelog.decoding import json_decoder
from strandline.changelog.directory import Identity
from strandline.changelog.errors import UNREADABLE, CorruptLog, FutureFormat, StorageFailed
from strandline.changelog.processes import DEAD, state_of
from strandline.changelog.storage import LocalStorage

ENDPOINT_FILE = "owner.json"
MAX_BYTES = 1 << 16
"""Of the endpoint file; a longer one is none."""
VERSION = 1
MAX_SOCKET_PATH = 100
"""Bytes; the kernel's limit is 107 on Linux, 103 on macOS."""

Life = Literal["alive", "stopped", "dead", "unknown"]


class OwnerEndpoint(msgspec.Struct, frozen=True):
    """What the endpoint file says."""

    location: str
    """A Flight location, "grpc+unix:///…"."""
    token: str
    pid: int
    started: str
    """When the process started, as the system tells it: pids come again, (pid, start) does not."""
    namespace: str = ""
    """The pid's namespace; in another one the pid says nothing."""
    version: int = VERSION
    folder: Identity | None = None
    """The log folder that it was written for; None: by a version that did not say."""

    def __repr__(self) -> str:
        """Without the token."""
        return f"Endpoint({self.location!r}, pid={self.pid})"

    @property
    def socket(self) -> str:
        """Path of the Unix socket."""
        return self.location.removeprefix(_UNIX)

    def life(self) -> Life:
        """What the process table says about the owner."""
        if self.namespace != _namespace():
            return "unknown"
        state, started = state_of(self.pid)
        if state in DEAD or started != self.started:
            return "dead"
        return "stopped" if state in "Tt" else "alive"


def new_endpoint(folder: Path | LocalStorage) -> OwnerEndpoint:
    """An endpoint for this process as the owner of `folder`, with a fresh token."""
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
    """Write the endpoint file; readers see the old or the new one, whole. Raises StorageFailed."""
    storage, temporary = _storage(folder), f"{ENDPOINT_FILE}.tmp"
    storage.unlink(temporary)
    with contextlib.closing(storage.create(temporary)) as file:
        file.append(msgspec.json.encode(endpoint))
    storage.rename(temporary, ENDPOINT_FILE)


def withdraw(folder: Path | LocalStorage, endpoint: OwnerEndpoint) -> None:
    """Remove the endpoint file, if it is still this one's, and the socket; nothing in a folder that was lost."""
    storage = _storage(folder)
    with contextlib.suppress(StorageFailed, CorruptLog):
        storage.check()
        if read(storage) == endpoint:
            storage.unlink(ENDPOINT_FILE)
        if Path(endpoint.socket).parent == Path(os.path.realpath(storage.root)):
            storage.unlink(os.path.basename(endpoint.socket))
    _remove_private(endpoint)


def clear(storage: LocalStorage) -> None:
    """Remove what dead owners left, for one that holds the lock: nothing but what is in the folder, or was made for it.

    A copy of a folder names the sockets of the original: those are left alone.
    """
    with contextlib.suppress(CorruptLog):
        left = read(storage)
        if left is not None:
            _remove_private(left)
    for name in storage.list_dir(""):
        if _SOCKET_NAME.fullmatch(name):
            storage.unlink(name)


def read(folder: Path | LocalStorage) -> OwnerEndpoint | None:
    """What the endpoint file says; None if there is none, or if it is that of the folder this is a copy of.

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
    return endpoint if endpoint.folder == storage.identity() else None


def parse(content: bytes, path: str = ENDPOINT_FILE) -> OwnerEndpoint:
    """The endpoint in a file's `content`.

    >>> text = b'{"version": 1, "pid": 7, "started": "9", "location": "grpc+unix:///x", "token": "t"}'
    >>> parse(text).pid
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
_PRIVATE = "strandline-"
_PRIVATE_SOCKET = "owner.sock"
_MARK = "folder"
"""In a private folder, which log folder it was made for."""
_PLAIN = re.compile(r"[\w/.+-]+", re.ASCII)
_SOCKET_NAME = re.compile(r"owner(-[0-9a-f]{8})?\.sock")


def _storage(folder: Path | LocalStorage) -> LocalStorage:
    return folder if isinstance(folder, LocalStorage) else LocalStorage(folder)


def _socket_path(folder: Path, identity: Identity) -> str:
    """In the log folder; where its name is too long, or has characters that a URL changes, in a private one."""
    path = os.path.join(os.path.realpath(folder), f"owner-{secrets.token_hex(4)}.sock")
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH and _PLAIN.fullmatch(path):
        return path
    path = os.path.join(tempfile.mkdtemp(prefix=_PRIVATE), _PRIVATE_SOCKET)
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        path = os.path.join(tempfile.mkdtemp(prefix=_PRIVATE, dir="/tmp"), _PRIVATE_SOCKET)
    with contextlib.closing(LocalStorage(os.path.dirname(path)).create(_MARK)) as file:
        file.append(msgspec.json.encode(identity))
    return path


def _remove_private(endpoint: OwnerEndpoint) -> None:
    """Remove the socket's own folder, if it has one that was made for this log folder."""
    path = Path(endpoint.socket)
    if not path.parent.name.startswith(_PRIVATE) or path.name != _PRIVATE_SOCKET:
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
