"""Where workers listen.

    unix:///…/queries/<id>.sock     in the log's folder, or one of the user's; for them, on this machine
    tcp://host:port                 for whoever shows the token; in clear
    tls://host:port                 the same, with TLS

A socket gets its name when it listens, so what has a name and refuses is dead, and is cleared away.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import socket
import ssl
import stat
import tempfile
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from changelog.embedded.names import QUERIES
from changelog.errors import InvalidConfig, from_os_error
from changelog.flight.endpoint import MAX_SOCKET_PATH
from changelog.hosts import bracketed, is_loopback

UNIX, TCP, TLS = "unix://", "tcp://", "tls://"
BACKLOG = 128
_PRIVATE = "strandline-"
_SUFFIX = ".sock"
_EVERY = ("0.0.0.0", "::")  # noqa: S104 - they stand for all addresses; clients are told a name


class Listening(NamedTuple):
    """A socket that listens."""

    socket: socket.socket
    url: str
    """Where clients connect."""
    tls: ssl.SSLContext | None = None
    """What connections are wrapped in."""


def listen_here(log: Path | None) -> Listening:
    """A socket for this user on this machine. `log` is the log's folder, if known.

    Raises StorageFailed.
    """
    folder = _folder(log)
    path = folder / f"{secrets.token_hex(8)}{_SUFFIX}"
    listening = socket.socket(socket.AF_UNIX)
    unnamed = path.with_suffix(".new")
    try:
        listening.bind(str(unnamed))
        os.chmod(unnamed, 0o600)
        listening.listen(BACKLOG)
        os.rename(unnamed, path)
    except OSError as error:
        listening.close()
        raise from_os_error(error, "listen at", str(path)) from error
    return Listening(listening, f"{UNIX}{path}")


def listen_beyond(address: str) -> Listening:
    """A TCP socket at "host:port" of this machine; port 0 takes a free one.

    "tcp://host:port" may be any address, in clear; "tls://host:port?certificate=…&key=…" names two
    PEM files. Raises InvalidConfig.
    """
    scheme, place, tls = _asked_for(address)
    host, port = host_and_port(place)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise InvalidConfig(f"cannot listen at {address}: {error}") from error
    name = socket.gethostname() if host in _EVERY else host
    return Listening(listening, f"{scheme}{bracketed(name)}:{listening.getsockname()[1]}", tls)


def connect(url: str, timeout: float, ca: bytes | None = None) -> socket.socket:
    """A connection to a worker. `ca` is what TLS trusts, PEM; None: what the system does. Raises OSError."""
    if url.startswith(UNIX):
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(timeout)
            connection.connect(url.removeprefix(UNIX))
        except BaseException:
            connection.close()
            raise
        return connection
    host, port = host_and_port(url[len(TCP) :])
    connection = socket.create_connection((host, port), timeout)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if url.startswith(TCP):
            return connection
        context = ssl.create_default_context(cadata=None if ca is None else ca.decode())
        return context.wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise


def is_reachable(url: str) -> bool:
    """Whether it makes sense to connect: a Unix socket must be on this machine."""
    return not url.startswith(UNIX) or os.path.exists(url.removeprefix(UNIX))


def remove(url: str) -> None:
    """Remove the socket of a URL, and its folder if that was made for it."""
    if not url.startswith(UNIX):
        return
    path = Path(url.removeprefix(UNIX))
    with contextlib.suppress(OSError):
        path.unlink()
    if path.parent.name.startswith(_PRIVATE):
        with contextlib.suppress(OSError):
            path.parent.rmdir()


def host_and_port(text: str) -> tuple[str, int]:
    """Raises InvalidConfig.

    >>> host_and_port("[::1]:80"), host_and_port("db:0")
    (('::1', 80), ('db', 0))
    """
    found = re.fullmatch(r"(?:\[([^\]]+)\]|([^:]+)):(\d{1,5})", text)
    if found is None or int(found[3]) > 65_535:
        raise InvalidConfig(f"expected host:port, got {text!r}")
    return found[1] or found[2], int(found[3])


def _asked_for(address: str) -> tuple[str, str, ssl.SSLContext | None]:
    """Scheme, host:port, and what TLS needs. In clear, other machines must have been meant."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    options = dict(parse_qsl(parts.query))
    if parts.scheme == "tls" and options.keys() == {"certificate", "key"}:
        return TLS, parts.netloc, _tls(**options)
    if parts.scheme not in ("", "tcp") or options or parts.path:
        raise InvalidConfig(
            f"expected host:port, tcp://host:port or tls://host:port?certificate=…&key=…, got {address!r}"
        )
    if not parts.scheme and not is_loopback(host_and_port(parts.netloc)[0]):
        raise InvalidConfig(
            f"{address} can be reached from other machines, and in clear anybody on the way can read "
            f"token and data: say tls://{address}?certificate=…&key=…, or tcp://{address} if you trust them"
        )
    return TCP, parts.netloc, None


def _tls(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise InvalidConfig(f"cannot use {certificate} with {key}: {error}") from error
    return context


def _folder(log: Path | None) -> Path:
    """Where the socket goes: with the log, or where there is no log or its path is too long, with the user's others."""
    folder = None if log is None else Path(os.path.realpath(log)) / QUERIES
    if folder is None or _is_too_long(folder):
        folder = Path(tempfile.gettempdir()) / f"strandline.{os.getuid()}"
        if _is_too_long(folder):
            folder = Path("/tmp") / folder.name  # noqa: S108 - whose it is, is looked at
        if _belongs_to_another(folder):
            return Path(tempfile.mkdtemp(prefix=_PRIVATE, dir=folder.parent))
    _make(folder)
    _clear(folder)
    return folder


def _is_too_long(folder: Path) -> bool:
    return len(os.fsencode(folder)) + len("/" + "0" * 16 + _SUFFIX) > MAX_SOCKET_PATH


def _belongs_to_another(folder: Path) -> bool:
    """Whether somebody else has taken a name that everybody could take."""
    with contextlib.suppress(FileNotFoundError):
        about = folder.lstat()
        return not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid()
    return False


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise from_os_error(error, "make the folder", str(folder)) from error


def _clear(folder: Path) -> None:
    """Remove the sockets of workers that were killed."""
    for path in folder.glob(f"*{_SUFFIX}"):
        try:
            if not stat.S_ISSOCK(path.lstat().st_mode):
                continue  # nothing of ours
            connect(f"{UNIX}{path}", 1.0).close()
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                path.unlink()
        except OSError:
            continue  # it is busy, or went just now
