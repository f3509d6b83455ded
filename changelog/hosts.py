"""Host names in addresses."""

from __future__ import annotations

import ipaddress


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
