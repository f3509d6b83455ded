"""Binds each transaction to the connection on which it began.

When a connection ends, the transactions that are open on it are aborted: by the old owner if it
lives, otherwise by the recovery of the next owner. A client with a new connection must neither add
to such a transaction nor commit the rest of it. So the guard remembers the connection on which each
transaction began, and decides:

    on another connection …    append, offsets    commit                       abort
    records were sent          TransactionAborted TransactionAborted           pass on
    commit sent, no answer     TransactionAborted resolve: try to abort first  pass on

"Resolve" makes the outcome certain: an attempt to abort fails if the transaction was committed, and
aborts it otherwise.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

from strandline.changelog.errors import TransactionAborted
from strandline.changelog.records import ProducerIdentity

Way = Literal["pass on", "resolve"]


@dataclass(slots=True)
class _Begun:
    identity: ProducerIdentity
    connection: int
    committing: bool = False
    """True if a commit was sent and its answer is not known."""


class TransactionGuard:
    """Open transactions of this process's producers.

    >>> guard, producer = TransactionGuard(), ProducerIdentity(7, 0)
    >>> guard.sending(producer, connection=1)
    >>> guard.ending(producer, connection=1, commit=True)
    'pass on'
    >>> guard.ending(producer, connection=2, commit=True)
    'resolve'
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: dict[int, _Begun] = {}

    def sending(self, producer: ProducerIdentity, connection: int) -> None:
        """Record that a transactional append or offsets will be sent.

        Raises TransactionAborted if the transaction began on another connection.
        """
        with self._lock:
            begun = self._of(producer)
            if begun is None:
                self._begun[producer.producer_id] = _Begun(producer, connection)
            elif begun.connection != connection:
                raise _lost(producer)

    def ending(self, producer: ProducerIdentity, connection: int, *, commit: bool) -> Way:
        """Return how to end a transaction on this connection.

        Raises TransactionAborted for a commit if the transaction is aborted already.
        """
        with self._lock:
            begun = self._of(producer)
            if begun is None:
                return "pass on"
            if begun.connection == connection:
                begun.committing |= commit
                return "pass on"
            if not commit:
                return "pass on"
            if begun.committing:
                return "resolve"
            raise _lost(producer)

    def ended(self, producer: ProducerIdentity) -> None:
        """Remove a transaction whose outcome is known."""
        with self._lock:
            if self._of(producer) is not None:
                del self._begun[producer.producer_id]

    def _of(self, producer: ProducerIdentity) -> _Begun | None:
        begun = self._begun.get(producer.producer_id)
        return begun if begun is not None and begun.identity == producer else None


def _lost(producer: ProducerIdentity) -> TransactionAborted:
    return TransactionAborted(
        f"the transaction of producer {producer.producer_id} (epoch {producer.epoch}) was open when the "
        "connection to the log's owner was lost, and is aborted; call init_producer and continue "
        "from the last commit"
    )
