"""A worker's side of queries: listens on this machine, and beyond it if it is to.

The task's thread takes no part in it. What the two share is the interpreter, and what
`statestore.reader` says.
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
    """Listens from construction, answers once `start`ed, until `close`.

    Args:
        log: Folder of the log, if it is on this machine.
        listen: An address beside the Unix socket (`sockets.listen_beyond`).
        token: What clients at that address must know, 16 characters or more.
        encrypted: Whether the log is reached by TLS, so that nothing beyond this machine may go
            in clear.

    Raises:
        InvalidConfig: The address, or the token, will not do.
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
            self._listeners.append(Listener(sockets.listen_here(log), token))
        except StorageFailed as error:
            _log.warning("no queries on this machine: %s", error)
        if listen is not None:
            try:
                beyond = sockets.listen_beyond(listen, encrypted=encrypted)
            except BaseException:
                self.close()
                raise
            self._listeners.append(Listener(beyond, token))

    @property
    def urls(self) -> Sequence[str]:
        """Where it listens, the nearest first."""
        return [listener.url for listener in self._listeners]

    def start(self, answer: Answering) -> None:
        """Answer requests by `answer`, which is called on many threads."""
        for listener in self._listeners:
            listener.start(answer)

    def close(self) -> None:
        """Listen no more, and send clients away, without waiting for them; harmless when repeated."""
        for listener in self._listeners:
            listener.close()


def _check_token(token: str, listen: str) -> None:
    from strandline.changelog.flight.serve import MIN_TOKEN  # it imports Flight

    if len(token) < MIN_TOKEN:
        raise InvalidConfig(
            f"queries at {listen} need a token of {MIN_TOKEN} characters or more, got {len(token)}: set "
            f"STRANDLINE_TOKEN, for the worker and its clients"
        )
