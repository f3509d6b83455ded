"""URLs of logs on other machines.

    strandline://host:port                        unencrypted, for a trusted network
    strandline+tls://host:port?ca=/path/ca.pem    TLS; without `ca`, the system's certificates
        &cert=/path/cert.pem&key=/path/key.pem    with the client's own certificate
    grpc://…  grpc+tcp://…  grpc+tls://…          the same, by Flight's names

The token is taken from the environment (`credentials`), from `token-file=/path` in the query, or
from `token=…` there, which is visible to everyone who sees the URL.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from strandline.changelog.clock import Clock
from strandline.changelog.credentials import read_token, token_of
from strandline.changelog.errors import InvalidConfig, from_os_error
from strandline.changelog.flight.client import DEADLINE_S, FlightBroker
from strandline.changelog.flight.connection_target import ConnectionTarget
from strandline.changelog.flight.failover import FailoverBroker, LogLink
from strandline.changelog.flight.grants import Grants
from strandline.changelog.hosts import parse_host_port, split_url
from strandline.changelog.location import SERVED, options_of

DEFAULT_PORT = 7361


def parse_url(url: str, environment: Mapping[str, str] = os.environ) -> ConnectionTarget:
    """Return the address and credentials in a URL. Raises InvalidConfig.

    >>> parse_url("strandline://db?token=t").location
    'grpc+tcp://db:7361'
    """
    # Split by hand, because a token may contain any character, "#" too.
    place, _, query = url.partition("?")
    parts = split_url(place)
    options = options_of(query)
    token, file = options.pop("token", ""), options.pop("token-file", "")
    ca, certificate, key = (options.pop(name, None) for name in ("ca", "cert", "key"))
    try:
        location = f"{SERVED[parts.scheme]}://{parse_host_port(parts.netloc, port=DEFAULT_PORT)}"
    except KeyError:
        raise InvalidConfig(f"{parts.scheme}:// is not one of {', '.join(SERVED)}") from None
    of_tls = {"ca": ca, "cert": certificate, "key": key}
    misplaced = [] if location.startswith("grpc+tls") else [n for n, v in of_tls.items() if v]
    if options or parts.path.strip("/") or misplaced:
        raise InvalidConfig(
            f"expected {parts.scheme}://host:port?token-file=…, with ca=…, cert=… and key=… for TLS "
            f"(strandline+tls://); got path {parts.path!r} and options {[*sorted(options), *misplaced]}"
        )
    if key and not certificate:
        raise InvalidConfig("key=… is the private key of a certificate; give cert=… too")
    if token and file:
        raise InvalidConfig("the URL has both token=… and token-file=…; give one of them")
    token = token or (read_token(file) if file else token_of(environment))
    name = f"{parts.scheme}://{parts.netloc}"
    trusted = read_pem(ca) if ca else None
    return ConnectionTarget(location, token, name, ca=trusted, certificate=certificate, key=key)


def connect(
    url: str,
    *,
    token: str | None = None,
    deadline: float = DEADLINE_S,
    clock: Clock | None = None,
) -> FailoverBroker:
    """Connect to the log at `url`; the broker reconnects when the connection is lost.

    Args:
        url: URL of the log, see above.
        token: Token to use instead of the URL's.
        deadline: Seconds for connecting, and for each call.
        clock: Measures time.

    Returns:
        The log.

    Raises:
        OwnerUnavailable: No server answers in time, or none listens at the address.
        Unauthenticated: The token is missing or wrong.
        InvalidConfig: The URL is wrong.
    """
    target = parse_url(url)
    if token is not None:
        target = replace(target, token=token)

    grants = Grants()

    def connect_once(seconds: float) -> LogLink:
        broker = FlightBroker(
            target,
            deadline=deadline,
            connect_within=max(seconds, 0.1),
            clock=clock,
            grants=grants,
        )
        return LogLink(broker, lambda: broker.lost, broker.close)

    return FailoverBroker(connect_once, deadline=deadline, name=target.name, clock=clock)


def read_pem(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a certificate or key file. Raises InvalidConfig if it is missing."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise InvalidConfig(f"there is no file {path}; give the path of a PEM file") from None
    except OSError as error:
        raise from_os_error(error, "read", str(path)) from error
