"""A transaction lives and dies with the connection it began on.

When a connection ends, whoever owns the log aborts what was open on it: the old owner if it
lives, the recovery of the next if not. A client that goes on over a new connection must not add to such
a transaction, nor commit what is left of it. So the guard remembers on which connection each
began, and decides:

    on another connection …    append, offsets    commit                       abort
    sent before                TransactionAborted TransactionAborted           pass on
    commit asked, no answer    TransactionAborted resolve: try to abort first   pass on

"Resolve": a committed transaction refuses to be aborted, any other is aborted by it, so
after the attempt the outcome is certain, whatever the owner had or had not written.
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
    """A commit was asked for, and no answer is known."""


class TransactionGuard:
    """The transactions that this process's producers have begun and not ended.

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
        """Before a transactional append or offsets. Raises TransactionAborted."""
        with self._lock:
            begun = self._of(producer)
            if begun is None:
                self._begun[producer.producer_id] = _Begun(producer, connection)
            elif begun.connection != connection:
                raise _lost(producer)

    def ending(self, producer: ProducerIdentity, connection: int, *, commit: bool) -> Way:
        """Before the end of a transaction: which way to go. Raises TransactionAborted."""
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
        """The outcome is known."""
        with self._lock:
            if self._of(producer) is not None:
                del self._begun[producer.producer_id]

    def _of(self, producer: ProducerIdentity) -> _Begun | None:
        begun = self._begun.get(producer.producer_id)
        return begun if begun is not None and begun.identity == producer else None


def _lost(producer: ProducerIdentity) -> TransactionAborted:
    return TransactionAborted(
        f"the transaction of producer {producer.producer_id} (epoch {producer.epoch}) was open when the "
        "connection to the log's owner was lost, and is aborted; call init_producer and go on "
        "from the last commit"
    )
