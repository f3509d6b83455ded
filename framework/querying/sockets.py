"""Sockets on which workers listen for queries.

    unix:///…/queries/<id>.sock     in the log's folder or a folder of the user; same user only
    tcp://host:port                 for clients that prove to know the token; unencrypted
    tls://host:port                 the same, with TLS

A Unix socket is renamed to its final name after it listens. So a socket with a final name that
refuses connections belongs to a dead worker, and is removed.
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
import struct
import tempfile
from pathlib import Path
from typing import NamedTuple

from strandline.changelog.errors import InvalidConfig, from_os_error
from strandline.changelog.flight import hello
from strandline.changelog.flight.private import MAX_SOCKET_PATH_BYTES, PREFIX, temporary_folder
from strandline.changelog.hosts import bracketed, is_loopback, parse_host_port, split_url
from strandline.changelog.layout import QUERIES
from strandline.changelog.location import options_of
from strandline.changelog.secret import masked
from strandline.changelog.tls import server_context
from strandline.changelog.trust import TRUST_VARIABLE, check_owner, is_trusted

UNIX, TCP, TLS = "unix://", "tcp://", "tls://"
BACKLOG_CONNECTIONS = 128
_CREDENTIALS = "3i"
"""Struct format of SO_PEERCRED: process, user and group of the peer of a Unix socket."""
_SUFFIX = ".sock"
_ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - any address; clients get the host's name


class ListeningSocket(NamedTuple):
    """A socket that listens."""

    socket: socket.socket
    url: str
    """URL to which clients connect."""
    tls: ssl.SSLContext | None = None
    """TLS context for connections; None for unencrypted connections."""
    certificate: bytes | None = None
    """Certificate that clients receive (DER); None without TLS."""


def listen_local(log: Path | None) -> ListeningSocket:
    """Listen on a new Unix socket, for processes of this user.

    `log` is the log's folder; None if it is not on this machine. Raises StorageFailed, and
    UntrustedFolder if the folder for the socket belongs to another user.
    """
    folder = _folder(log)
    path = folder / f"{secrets.token_hex(8)}{_SUFFIX}"
    listening = socket.socket(socket.AF_UNIX)
    temporary = path.with_suffix(".new")
    try:
        listening.bind(str(temporary))
        os.chmod(temporary, 0o600)
        listening.listen(BACKLOG_CONNECTIONS)
        os.rename(temporary, path)
    except OSError as error:
        listening.close()
        raise from_os_error(error, "listen at", str(path)) from error
    return ListeningSocket(listening, f"{UNIX}{path}")


def listen_network(address: str, *, encrypted: bool = False) -> ListeningSocket:
    """Listen on a TCP socket.

    Args:
        address: "host:port" for unencrypted connections from this machine only, "tcp://host:port"
            for unencrypted connections from anywhere, or "tls://host:port?certificate=…&key=…"
            with the paths of two PEM files. Port 0 selects a free port.
        encrypted: Whether the log is accessed by TLS. Then only connections from this machine may
            be unencrypted.

    Raises:
        InvalidConfig: The address is not valid or not allowed, or cannot be bound.
    """
    scheme, place, tls, certificate = _parse_address(address)
    host, port = parse_host_port(place)
    if encrypted and tls is None and not is_loopback(host):
        raise InvalidConfig(
            f"the log is accessed by TLS, but {address} would send its data unencrypted; use "
            f"tls://{place}?certificate=…&key=…"
        )
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG_CONNECTIONS)
    except OSError as error:
        raise InvalidConfig(f"cannot listen at {address}: {error}") from error
    name = socket.gethostname() if host in _ANY_ADDRESS else host
    return ListeningSocket(
        listening, f"{scheme}{bracketed(name)}:{listening.getsockname()[1]}", tls, certificate
    )


def connect(url: str, timeout: float, ca: bytes | None = None) -> socket.socket:
    """Connect to a worker. Raises OSError.

    `ca` are trusted certificates for TLS (PEM); None for those of the system.
    """
    if url.startswith(UNIX):
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(timeout)
            connection.connect(url.removeprefix(UNIX))
            _check_peer(connection, url)
        except BaseException:
            connection.close()
            raise
        return connection
    if not url.startswith((TCP, TLS)):
        raise OSError(f"{url!r:.200} is not the address of a worker")
    try:
        host, port = parse_host_port(url[len(TCP) :])
    except InvalidConfig as error:  # a group member may announce anything
        raise OSError(str(error)) from None
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


def certificate_of(connection: socket.socket) -> bytes | None:
    """Return the peer's certificate (DER); None without TLS."""
    if not isinstance(connection, ssl.SSLSocket):
        return None
    return connection.getpeercert(binary_form=True)


def binding(url: str, certificate: bytes | None) -> bytes:
    """Return the binding of a hello to one worker: its announced URL and its certificate (DER).

    So a group member that announces an address of its own cannot pass on a proof that it receives.
    """
    return hello.binding(b"strandline queries", url, certificate)


def is_in_clear(url: str) -> bool:
    """Return True if other machines could read what is sent to `url`."""
    if not url.startswith(TCP):
        return not url.startswith((UNIX, TLS))
    try:
        return not is_loopback(parse_host_port(url[len(TCP) :]).host)
    except InvalidConfig:
        return True


def is_reachable(url: str) -> bool:
    """Return False for a Unix socket that does not exist on this machine."""
    return not url.startswith(UNIX) or os.path.exists(url.removeprefix(UNIX))


def remove(url: str) -> None:
    """Remove the Unix socket of a URL, and its folder if that was created for this socket."""
    if not url.startswith(UNIX):
        return
    path = Path(url.removeprefix(UNIX))
    with contextlib.suppress(OSError):
        path.unlink()
    if path.parent.name.startswith(PREFIX):
        with contextlib.suppress(OSError):
            path.parent.rmdir()


def _check_peer(connection: socket.socket, url: str) -> None:
    """Raise OSError if a user who is not trusted listens on a Unix socket.

    The path comes from the group's metadata, and a group member may announce any path.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return
    size = struct.calcsize(_CREDENTIALS)
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, user, _ = struct.unpack(_CREDENTIALS, found)
    if not is_trusted(user):
        raise PermissionError(
            f"user {user} listens at {url}, and this process runs as user {os.geteuid()}; run it as "
            f"that user, or set {TRUST_VARIABLE}=1 if all users who can join the group are trusted"
        )


def _parse_address(address: str) -> tuple[str, str, ssl.SSLContext | None, bytes | None]:
    """Return scheme, "host:port", TLS context and certificate (DER) of an address.

    Raises InvalidConfig, also if other machines could connect without TLS and the address does not
    allow that by "tcp://".
    """
    place, _, query = address.partition("?")
    parts = split_url(place if "://" in place else f"//{place}")
    options = options_of(query)
    if parts.scheme == "tls" and options.keys() == {"certificate", "key"}:
        return TLS, parts.netloc, server_context(**options), _der(options["certificate"])
    if parts.scheme not in ("", "tcp") or options or parts.path:
        raise InvalidConfig(
            f"expected host:port, tcp://host:port or tls://host:port?certificate=…&key=…, got {masked(address)!r}"
        )
    if not parts.scheme and not is_loopback(parse_host_port(parts.netloc).host):
        raise InvalidConfig(
            f"{address} can be reached from other machines, and without TLS the data can be read on "
            f"the network; use tls://{address}?certificate=…&key=…, or tcp://{address} if the network "
            "is trusted"
        )
    return TCP, parts.netloc, None, None


def _der(path: str) -> bytes:
    """Return the first certificate of a PEM file (DER), the one that clients receive."""
    found = re.search(
        r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", _text(path), re.DOTALL
    )
    if found is None:
        raise InvalidConfig(f"there is no certificate in {path}; give a PEM file")
    return ssl.PEM_cert_to_DER_cert(found[0])


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"cannot read {path}: {error}") from error


def _folder(log: Path | None) -> Path:
    """Return the folder for sockets, without sockets of dead workers.

    It is in the log's folder. If there is none, or its path is too long or not UTF-8, as URLs are,
    it is a folder of this user for temporary files.
    """
    folder = None if log is None else Path(os.path.realpath(log)) / QUERIES
    if folder is None or _fits_no_url(folder):
        folder = Path(temporary_folder()) / f"strandline.{os.getuid()}"
        if _fits_no_url(folder):
            folder = Path("/tmp") / folder.name  # noqa: S108 - its owner is checked
        if _belongs_to_another(folder):
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder.parent))
    _make(folder)
    _clear(folder)
    return folder


def _fits_no_url(folder: Path) -> bool:
    try:
        path = str(folder).encode()
    except UnicodeEncodeError:
        return True
    return len(path) + len("/" + "0" * 16 + _SUFFIX) > MAX_SOCKET_PATH_BYTES


def _belongs_to_another(folder: Path) -> bool:
    """Return True if another user has created the folder, which any user can do in /tmp."""
    with contextlib.suppress(FileNotFoundError):
        about = folder.lstat()
        return not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid()
    return False


def _make(folder: Path) -> None:
    """Create the folder unless it exists, and make it private.

    Raises StorageFailed, and UntrustedFolder if it belongs to another user, whose mode may change.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISLNK(found.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        check_owner(found, str(folder))
        if found.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise from_os_error(error, "make the folder", str(folder)) from error


def _clear(folder: Path) -> None:
    """Remove the sockets of workers that were killed."""
    for path in folder.glob(f"*{_SUFFIX}"):
        try:
            if not stat.S_ISSOCK(path.lstat().st_mode):
                continue  # not a worker's
            connect(f"{UNIX}{path}", 1.0).close()
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                path.unlink()
        except OSError:
            continue  # its worker is busy, or has just removed it
