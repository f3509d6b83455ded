"""Admission of calls: each names its client by headers, before the server reads its body."""

from __future__ import annotations

import hmac
from typing import Any

from pyarrow import flight

from strandline.changelog.credentials import HOW_TO_GIVE_ONE
from strandline.changelog.errors import InvalidRequest, Unauthenticated
from strandline.changelog.flight.clients import Client, Clients
from strandline.changelog.flight.grants import GRANTS_HEADER
from strandline.changelog.flight.messages import (
    SESSION_HEADER,
    encode,
    failure_of,
)


class CallGate(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses every call without the token or the credential of a client of the front."""

    def __init__(self, token: str, clients: Clients) -> None:
        self._token = token.encode()
        self._clients = clients

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> Caller:
        shown = _header(headers, "authorization")
        credential = shown.removeprefix("Bearer ")
        client = self._clients.find(credential)
        local = bool(self._token) and hmac.compare_digest(credential.encode(), self._token)
        if client is None and not local:
            refusal = Unauthenticated(
                "the log's owner does not accept this token"
                if shown
                else f"the log's owner asks for a token; {HOW_TO_GIVE_ONE}"
            )
            raise flight.FlightUnauthenticatedError("refused", encode(failure_of(refusal)))
        if client is not None and info.method in _READ_BY_ARROW:
            # Refused here, because Arrow reads the schema of the stream before its handler runs.
            no_stream = InvalidRequest("unknown stream: a client over TCP sends none")
            raise flight.FlightServerError("refused", encode(failure_of(no_stream)))
        if client is not None and not client.begin_call():
            raise flight.FlightUnavailableError("the connection of this call has ended")
        return Caller(_header(headers, SESSION_HEADER), client, _header(headers, GRANTS_HEADER))


class Caller(flight.ServerMiddleware):  # type: ignore[misc]
    """Caller of one call: its session, its grants and its connection."""

    def __init__(self, session: str, client: Client | None, grants: str) -> None:
        self.session = session
        self.grants = grants
        """Grants for producers and members, as hexadecimal digits; "" if there are none."""
        self.client = client
        """Connection of the front that the call uses; None for a process of the same user."""

    def call_completed(self, exception: Exception | None) -> None:
        """Record the end of the call, also of one whose client is gone."""
        if self.client is not None:
            self.client.end_call()


def _header(headers: dict[str, list[str]], name: str) -> str:
    """Return the first value of a header; "" if there is none."""
    return str(next(iter(headers.get(name, [])), ""))


_READ_BY_ARROW = (flight.FlightMethod.DO_PUT, flight.FlightMethod.DO_EXCHANGE)
"""Calls with a stream from the client, whose Arrow messages are read before the handler runs."""


GATE = "strandline-gate"
