"""Hosts and ports in addresses."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from strandline.changelog.errors import InvalidConfig
from strandline.changelog.secret import masked

_HOST_PORT = re.compile(r"(?:\[([^\]@]+)\]|([^:\[\]@/?#\s]*))(?::(\d{1,5}))?")
HIGHEST_PORT = 65_535


class HostPort(NamedTuple):
    """A host and a port."""

    host: str
    """Name or address; an IPv6 address is without brackets."""
    port: int

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


def parse_host_port(text: str, *, host: str = "", port: int | None = None) -> HostPort:
    """Return the host and the port in a text.

    Args:
        text: "host:port", an IPv6 address in brackets.
        host: Host if the text has none; without it, a host is required.
        port: Port if the text has none; without it, a port is required.

    Raises:
        InvalidConfig: The text is something else.

    >>> parse_host_port("[::1]:80"), str(parse_host_port("db", port=7361))
    (HostPort(host='::1', port=80), 'db:7361')
    """
    found = _HOST_PORT.fullmatch(text)
    if found is not None and (found[3] or found[1] or found[2]):
        there = found[1] or found[2] or host
        number = port if found[3] is None else int(found[3])
        if number is not None and number <= HIGHEST_PORT and _may_be_resolved(there):
            return HostPort(there, number)
    raise InvalidConfig(f"expected host:port, got {masked(text)!r}")


def _may_be_resolved(host: str) -> bool:
    """Return False for a name that sockets refuse with a UnicodeError, such as "a..b"."""
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL, which may come from another process.

    Raises:
        InvalidConfig: The text is no URL. `urlsplit` raises ValueError, which may show a password.

    >>> split_url("strandline://db:7361").netloc
    'db:7361'
    """
    try:
        return urlsplit(url)
    except ValueError:
        raise InvalidConfig(
            f"{masked(url)!r:.200} is no URL: its host is a name, or an address in brackets"
        ) from None


def is_loopback(host: str) -> bool:
    """Return True for a loopback address or "localhost". Other names are not resolved.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("db")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bracketed(host: str) -> str:
    """Return a host as it is written before a port: an IPv6 address in brackets.

    >>> bracketed("::1"), bracketed("db")
    ('[::1]', 'db')
    """
    return f"[{host}]" if ":" in host else host


def network_of(address: str) -> str:
    """Return the network by which limits count an address: its /64 for IPv6, else the address.

    One machine usually has a whole /64 network, so limits by address would be without effect.

    >>> network_of("192.0.2.1"), network_of("2001:db8::1:2"), network_of("::ffff:192.0.2.1")
    ('192.0.2.1', '2001:db8::/64', '192.0.2.1')
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
