"""A worker's side of queries: listens on this machine, and on the network if configured.

Queries are answered on their own threads. They share the interpreter with the task's thread, and
the state that `statestore.reader` describes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from strandline.changelog.errors import InvalidConfig, StorageFailed
from strandline.framework.querying import sockets
from strandline.framework.querying.listener import Answering, Listener

_log = logging.getLogger("strandline")


class QueryEndpoint:
    """Listens from construction until `close`, and answers after `start`.

    Args:
        log: Folder of the log; None if it is not on this machine.
        listen: Network address in addition to the Unix socket (`sockets.listen_network`).
        token: Token that clients at that address must know, with at least 16 characters.
        encrypted: Whether the log is accessed by TLS. Then clients on other machines must use TLS.

    Raises:
        InvalidConfig: The address or the token is not valid.
    """

    def __init__(
        self,
        log: Path | None,
        listen: str | None = None,
        token: str = "",
        *,
        encrypted: bool = False,
    ) -> None:
        self._listeners: list[Listener] = []
        if listen is not None:
            _check_token(token, listen)
        try:
            self._listeners.append(Listener(sockets.listen_local(log), token))
        except StorageFailed as error:
            _log.warning("no queries on this machine: %s", error)
        if listen is not None:
            try:
                network = sockets.listen_network(listen, encrypted=encrypted)
            except BaseException:
                self.close()
                raise
            self._listeners.append(Listener(network, token))

    @property
    def urls(self) -> Sequence[str]:
        """URLs of the listeners, the Unix socket first."""
        return [listener.url for listener in self._listeners]

    def start(self, answer: Answering) -> None:
        """Begin to answer requests by `answer`, which is called on many threads."""
        for listener in self._listeners:
            listener.start(answer)

    def close(self) -> None:
        """Stop listening and disconnect clients, without waiting for them. Idempotent."""
        for listener in self._listeners:
            listener.close()


def _check_token(token: str, listen: str) -> None:
    from strandline.changelog.flight.serve import MIN_TOKEN_CHARS  # it imports Flight

    if len(token) < MIN_TOKEN_CHARS:
        raise InvalidConfig(
            f"queries at {listen} need a token of {MIN_TOKEN_CHARS} characters or more, "
            f"got {len(token)}; set STRANDLINE_TOKEN for the worker and its clients"
        )
