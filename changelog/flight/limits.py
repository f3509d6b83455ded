"""Every limit of a log served over TCP, with the environment variable that sets it.

The reasons are in docs/security.md. Processes that attach over the log's own Unix socket have no
limits, because they run as the owner of the files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from strandline.changelog.errors import InvalidConfig
from strandline.changelog.flight.messages import MAX_MESSAGE_BYTES

MAX_REPLY_BYTES = 4_096
"""Maximum number of bytes of one reply of the server during the hello."""
PASS_BYTES = 256 << 10
"""Size in bytes of the copy buffer for each direction of a connection."""
VANISHED_MS = 10_000
"""Milliseconds without acknowledgement after which a peer is disconnected."""
IDLE_PROBE_S = 60
"""Seconds without traffic after which a peer is probed."""
DESCRIPTORS_EACH = 3
"""Number of descriptors of one connection: the peer's socket, and both ends of that to gRPC."""
DESCRIPTORS_OF_THE_LOG = 256
"""Number of descriptors reserved for the log itself."""
NO_DESCRIPTOR_PAUSE_S = 0.5
"""Seconds without accepting connections after the process has run out of descriptors."""

LINGER_S = 10.0
"""Seconds for which a call counts as in flight after its client has reset it."""
MAX_HEADERS_BYTES = 64 << 10
"""Maximum number of bytes of the headers of one call."""
MESSAGE_OVERHEAD_BYTES = 256
"""Bytes counted for each message in addition to its content."""
CONTROL_FRAMES = 1_000
"""Maximum number of pings and settings that a client may send at once."""
CONTROL_FRAMES_PER_S = 100
"""Sustained number of pings and settings that a client may send per second."""
MAX_REMOTE_APPEND_BYTES = 120 << 20
"""Maximum bytes of the batches of one append call over TCP, as sent and unpacked.

By default a batch has at most 100 MiB.
"""
MAX_CALL_BYTES = MAX_REMOTE_APPEND_BYTES + MAX_MESSAGE_BYTES
"""Maximum bytes of one message over TCP: an append with its schemas."""
COPIES_OF_A_MESSAGE = 2
"""Number of times that gRPC holds a message: as it arrives, and as the body of a call."""
LARGE_APPEND_BYTES = 16 << 20
"""Size in bytes from which a client sends append calls one at a time."""
PARTITIONS_AT_ONCE = 64
"""Number of partitions that are located together, and that share what is left of an answer."""
FIRST_BATCH_BYTES = 120 << 20
"""Minimum bytes that a fetch reserves, because its first batch is read whatever its size."""
RESERVING_S = 30.0
"""Maximum seconds for which a call waits for others that are reading, or whose client is gone."""
COUNTED_ANSWER_BYTES = 64 << 10
"""Minimum size of a counted answer other than that of a fetch: smaller ones are as few as calls."""
RELEASE_BYTES = 16 << 20
"""Size in bytes of an answer whose memory is returned to the system if its client is gone."""


def _limit(default: float, variable: str, low: float = 1) -> Any:
    return field(default=default, metadata={"variable": variable, "low": low})


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Limits of one TCP listener."""

    hello_timeout_s: float = _limit(10.0, "STRANDLINE_HELLO_TIMEOUT", 0.01)
    """Seconds from accepting a connection to the end of its hello, TLS included."""
    max_pending: int = _limit(64, "STRANDLINE_MAX_PENDING")
    """Maximum number of connections that are not authenticated yet."""
    max_pending_per_address: int = _limit(16, "STRANDLINE_MAX_PENDING_PER_ADDRESS")
    """Maximum number of unauthenticated connections of one address, or one IPv6 /64 network."""
    max_connections: int = _limit(128, "STRANDLINE_MAX_CONNECTIONS")
    """Maximum number of authenticated connections."""
    max_connections_per_address: int = _limit(64, "STRANDLINE_MAX_CONNECTIONS_PER_ADDRESS")
    """Maximum number of authenticated connections of one address, or one IPv6 /64 network."""
    stall_timeout_s: float = _limit(60.0, "STRANDLINE_STALL_TIMEOUT", 0.01)
    """Seconds after which a client that reads none of its pending bytes is disconnected."""

    max_calls_per_client: int = _limit(128, "STRANDLINE_MAX_CALLS_PER_CLIENT")
    """Maximum number of calls in flight of one client; each uses a thread."""
    max_calls: int = _limit(1_024, "STRANDLINE_MAX_CALLS")
    """Maximum number of calls in flight of all clients."""
    max_request_bytes_per_client: int = _limit(768 << 20, "STRANDLINE_MAX_REQUEST_BYTES_PER_CLIENT")
    """Maximum bytes of requests in flight of one client, with all copies that the server makes."""
    max_request_bytes: int = _limit(2 << 30, "STRANDLINE_MAX_REQUEST_BYTES")
    """Maximum bytes of requests in flight of all clients."""
    max_answer_bytes_per_client: int = _limit(256 << 20, "STRANDLINE_MAX_ANSWER_BYTES_PER_CLIENT")
    """Maximum bytes of records that were fetched but not sent to one client."""
    max_answer_bytes: int = _limit(1 << 30, "STRANDLINE_MAX_ANSWER_BYTES")
    """Maximum bytes of records that were fetched but not sent to all clients."""

    @property
    def descriptors(self) -> int:
        """Maximum number of descriptors that the listener uses."""
        return DESCRIPTORS_EACH * self.max_connections + self.max_pending


def limits_from(
    environment: Mapping[str, str] = os.environ, **given: float | None
) -> ListenerLimits:
    """Return limits from `given`, else from the environment, else the defaults.

    Args:
        environment: Environment variables by name.
        given: Limits by attribute name; None means "not given".

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
