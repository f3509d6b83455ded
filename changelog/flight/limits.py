"""Every limit of a log that is served over TCP, with the environment variable that sets it.

docs/security.md says what each protects. Processes that attach over the log's own Unix socket have
no limits, because they run as the user to whom the files belong.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from strandline.changelog.errors import InvalidConfig

MAX_REPLY = 4_096
"""Bytes of one reply of the server during the hello."""
PASS_BYTES = 256 << 10
"""Bytes that are read at a time from one side of a connection, and held until the other takes them."""
VANISHED_MS = 10_000
"""Milliseconds after which a peer that does not acknowledge what was sent is given up."""
IDLE_PROBE_S = 60
"""Seconds without traffic after which a peer is probed."""
DESCRIPTORS_EACH = 3
"""Descriptors of one connection: the peer's socket, and both ends of the one to the gRPC server."""
DESCRIPTORS_OF_THE_LOG = 256
"""Descriptors that are left for the log itself."""
NO_DESCRIPTOR_PAUSE_S = 0.5
"""Seconds during which nothing is accepted after the process ran out of descriptors."""

LINGER_S = 10.0
"""Seconds for which a call that its client has reset counts as one that is in flight."""
MAX_HEADERS = 64 << 10
"""Bytes of the headers of one call."""
MESSAGE_OVERHEAD = 256
"""Bytes that a message takes besides its content."""
CONTROL_FRAMES = 1_000
"""Pings and settings that a client may send at once."""
CONTROL_FRAMES_PER_S = 100
"""Those that it may send each second."""
MAX_REMOTE_APPEND = 120 << 20
"""Bytes of one append call over TCP, packed and unpacked; a batch has 100 MiB at most by default."""
LARGE_APPEND = 16 << 20
"""Bytes from which on a client makes one append call after another."""
PARTITIONS_AT_ONCE = 64
"""Partitions that are read together for an answer, before it is counted."""


def _limit(default: float, variable: str, low: float = 1) -> Any:
    return field(default=default, metadata={"variable": variable, "low": low})


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Limits of one TCP listener."""

    hello_timeout_s: float = _limit(10.0, "STRANDLINE_HELLO_TIMEOUT", 0.01)
    """Seconds from accepting a connection to the end of its hello, TLS included."""
    max_pending: int = _limit(64, "STRANDLINE_MAX_PENDING")
    """Connections that are not authenticated yet."""
    max_pending_per_address: int = _limit(16, "STRANDLINE_MAX_PENDING_PER_ADDRESS")
    """Those of one address, or of one /64 network with IPv6."""
    max_connections: int = _limit(128, "STRANDLINE_MAX_CONNECTIONS")
    """Authenticated connections."""
    max_connections_per_address: int = _limit(64, "STRANDLINE_MAX_CONNECTIONS_PER_ADDRESS")
    """Those of one address."""
    stall_timeout_s: float = _limit(60.0, "STRANDLINE_STALL_TIMEOUT", 0.01)
    """Seconds in which a client takes none of the bytes that wait for it."""

    max_calls_per_client: int = _limit(128, "STRANDLINE_MAX_CALLS_PER_CLIENT")
    """Calls in flight of one client; each takes a thread."""
    max_calls: int = _limit(1_024, "STRANDLINE_MAX_CALLS")
    """Those of all clients."""
    max_request_bytes_per_client: int = _limit(256 << 20, "STRANDLINE_MAX_REQUEST_BYTES_PER_CLIENT")
    """Bytes of requests in flight of one client, and what they become when they are unpacked."""
    max_request_bytes: int = _limit(1 << 30, "STRANDLINE_MAX_REQUEST_BYTES")
    """Those of all clients."""
    max_answer_bytes_per_client: int = _limit(256 << 20, "STRANDLINE_MAX_ANSWER_BYTES_PER_CLIENT")
    """Bytes of records that were fetched and not sent yet, of one client."""
    max_answer_bytes: int = _limit(1 << 30, "STRANDLINE_MAX_ANSWER_BYTES")
    """Those of all clients."""

    @property
    def descriptors(self) -> int:
        """Number of descriptors that the listener may use."""
        return DESCRIPTORS_EACH * self.max_connections + self.max_pending


def limits_from(
    environment: Mapping[str, str] = os.environ, **given: float | None
) -> ListenerLimits:
    """Return the limits: those `given`, else those of the environment, else the defaults.

    Args:
        environment: Variables by name.
        given: Limits by the name of the attribute; None stands for "not given".

    Raises:
        InvalidConfig: A value is not a number, or is too small.

    >>> limits_from({"STRANDLINE_MAX_CONNECTIONS": "7"}, hello_timeout_s=2).max_connections
    7
    """
    values: dict[str, float] = {}
    for limit in fields(ListenerLimits):
        name, low = limit.metadata["variable"], limit.metadata["low"]
        value: Any = given.get(limit.name)
        if value is None and not (value := environment.get(name)):
            continue
        kind: Any = type(limit.default)
        try:
            values[limit.name] = kind(value)
        except ValueError:
            raise InvalidConfig(
                f"{name} is {value!r}; expected a number, such as {limit.default}"
            ) from None
        if not low <= values[limit.name] < 1 << 62:
            raise InvalidConfig(f"{name} is {value}; expected {low} or more")
    return ListenerLimits(**values)  # type: ignore[arg-type]
