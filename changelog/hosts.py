"""Names of machines, as they stand in addresses."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether it is this machine, as only this machine sees it; of another name it is not known.

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
    """As it stands before a port: an address with colons in brackets.

    >>> bracketed("::1"), bracketed("db")
    ('[::1]', 'db')
    """
    return f"[{host}]" if ":" in host else host
