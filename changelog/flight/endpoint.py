"""owner.json: where the owner of a log folder listens, and whether that owner can still be alive.

    {"version": 1, "pid": 4711, "started": "86211", "namespace": "pid:[4026531836]",
     "location": "grpc+unix:///…/owner.sock", "token": "…"}

The owner writes it once it serves (temporary file, rename; mode 0600, as the token is in it), and removes it when it
closes. The lock is the truth about who owns; this file only says where to knock.
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

from changelog.decoding import json_decoder
from changelog.errors import UNREADABLE, CorruptLog, FutureFormat, from_os_error
from changelog.processes import DEAD, state_of

ENDPOINT_FILE = "owner.json"
SOCKET_FILE = "owner.sock"
TOKEN_VARIABLE = "STRANDLINE_TOKEN"  # noqa: S105
"""The environment variable with what others ask for: logs at URLs, workers for queries."""
VERSION = 1
MAX_SOCKET_PATH = 100
"""Bytes; the kernel's limit is 107 on Linux, 103 on macOS."""

Life = Literal["alive", "stopped", "dead", "unknown"]


class Endpoint(msgspec.Struct, frozen=True):
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


def new_endpoint(folder: Path) -> Endpoint:
    """An endpoint for this process as the owner of `folder`, with a fresh token."""
    return Endpoint(
        location=_UNIX + _socket_path(folder),
        token=secrets.token_urlsafe(32),
        pid=os.getpid(),
        started=state_of(os.getpid())[1],
        namespace=_namespace(),
    )


def publish(folder: Path, endpoint: Endpoint) -> None:
    """Write the endpoint file; readers see the old or the new one, whole."""
    target = folder / ENDPOINT_FILE
    temporary = folder / f"{ENDPOINT_FILE}.tmp"
    try:
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(endpoint))
        os.replace(temporary, target)
    except OSError as error:
        raise from_os_error(error, "write", str(target)) from error


def withdraw(folder: Path, endpoint: Endpoint) -> None:
    """Remove the endpoint file, if it is still this one's, and the socket."""
    with contextlib.suppress(OSError, CorruptLog):
        if read(folder) == endpoint:
            (folder / ENDPOINT_FILE).unlink()
    remove_socket(endpoint)


def remove_socket(endpoint: Endpoint) -> None:
    """Remove the socket, and its folder if that was made for it."""
    socket = Path(endpoint.socket)
    with contextlib.suppress(OSError):
        socket.unlink()
    if socket.parent.name.startswith(_PRIVATE):
        with contextlib.suppress(OSError):
            socket.parent.rmdir()


def read(folder: Path) -> Endpoint | None:
    """What the endpoint file says; None if there is none. Raises CorruptLog, FutureFormat."""
    path = folder / ENDPOINT_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise from_os_error(error, "read", str(path)) from error
    return parse(content, str(path))


def parse(content: bytes, path: str = ENDPOINT_FILE) -> Endpoint:
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
_decode = json_decoder(Endpoint).decode

_UNIX = "grpc+unix://"
_PRIVATE = "strandline-"
_PLAIN = re.compile(r"[\w/.+-]+", re.ASCII)


def _socket_path(folder: Path) -> str:
    """In the log folder; where its name is too long, or has characters that a URL changes, in a private one."""
    path = os.path.join(os.path.realpath(folder), SOCKET_FILE)
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH and _PLAIN.fullmatch(path):
        return path
    path = os.path.join(tempfile.mkdtemp(prefix=_PRIVATE), SOCKET_FILE)
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        path = os.path.join(tempfile.mkdtemp(prefix=_PRIVATE, dir="/tmp"), SOCKET_FILE)
    return path


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
