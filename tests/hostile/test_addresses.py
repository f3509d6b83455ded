"""Addresses that are none, written by a user or announced by a member of a group."""

from __future__ import annotations

import pytest

from strandline.changelog.errors import InvalidConfig, OwnerUnavailable
from strandline.changelog.flight.address import parse_url
from strandline.changelog.hosts import parse_host_port, split_url
from strandline.framework.querying import sockets
from strandline.framework.querying.connections import Connections
from strandline.framework.querying.messages import Describe

NO_HOSTS = ["a..b", "a" * 64, "é" * 64, ".", "[x", "[::1", "h℀"]
"""Hosts that Python's functions refuse with a UnicodeError, a ValueError, or not at all."""


@pytest.mark.parametrize("host", NO_HOSTS, ids=ascii)
def test_a_url_without_a_host_is_invalid(host: str) -> None:
    with pytest.raises(InvalidConfig):
        parse_url(f"strandline://{host}:1", {})
    with pytest.raises(InvalidConfig):
        sockets.listen_network(f"tcp://{host}:1")


@pytest.mark.parametrize("host", NO_HOSTS, ids=ascii)
@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_a_member_that_announces_no_address_is_not_there(scheme: str, host: str) -> None:
    url = f"{scheme}://{host}:1"
    with pytest.raises(OwnerUnavailable):
        Connections().ask(url, Describe("store"), object, timeout=1.0)


@pytest.mark.parametrize(
    "host", ["db", "my_host", "db.example.", "münchen.example", "[fe80::1%eth0]"]
)
def test_other_hosts_are_accepted(host: str) -> None:
    assert parse_host_port(f"{host}:1").port == 1
    assert split_url(f"strandline://{host}:1").netloc == f"{host}:1"
