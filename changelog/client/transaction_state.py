"""The state of a producer: the calls that are allowed, and the error that made it fail."""

from __future__ import annotations

from enum import Enum

from strandline.changelog.errors import (
    InvalidRequest,
    InvalidTxnState,
    ProducerFenced,
    TransactionAborted,
)


class ProducerPhase(Enum):
    """State of a transactional producer; a plain one stays READY until it is closed."""

    READY = "no transaction is open"
    OPEN = "a transaction is open"
    ABORTABLE = "the transaction failed and must be aborted"
    IN_DOUBT = "it is not known whether the transaction was committed"
    FENCED = "another instance with this transactional id has taken over"
    CLOSED = "the producer is closed"


class TransactionState:
    """The state of one producer; `changelog.client.producer` draws the transitions."""

    def __init__(self, *, transactional: bool) -> None:
        self.transactional = transactional
        self.state = ProducerPhase.READY
        self.failure: BaseException | None = None
        """Error that made the producer ABORTABLE or FENCED."""

    def become(self, state: ProducerPhase, failure: BaseException | None = None) -> None:
        """Change to `state`."""
        self.state, self.failure = state, failure

    def fail(self, error: BaseException) -> None:
        """Mark an open transaction as failed; afterwards it can only be aborted.

        After ProducerFenced it cannot even be aborted.
        """
        if self.state is ProducerPhase.OPEN:
            self.become(
                ProducerPhase.FENCED
                if isinstance(error, ProducerFenced)
                else ProducerPhase.ABORTABLE,
                error,
            )

    def require_sending(self) -> None:
        """Raise unless records may be sent now."""
        self.require(ProducerPhase.OPEN if self.transactional else ProducerPhase.READY)

    def require_transaction(self, *allowed: ProducerPhase) -> None:
        """Raise unless the producer is transactional and in one of these states."""
        if not self.transactional:
            raise InvalidTxnState(
                "this producer has no transactional_id; create it with one to use transactions"
            )
        self.require(*allowed)

    def require(self, *allowed: ProducerPhase) -> None:
        """Raise unless the producer is in one of these states.

        Raises InvalidTxnState, TransactionAborted, ProducerFenced or InvalidRequest.
        """
        if self.state in allowed:
            return
        if self.state is ProducerPhase.FENCED and self.failure is not None:
            raise self.failure
        if self.state is ProducerPhase.ABORTABLE:
            raise TransactionAborted(
                f"the transaction failed and must be aborted with abort_transaction(): "
                f"{self.failure}"
            ) from self.failure
        if self.state is ProducerPhase.CLOSED:
            raise InvalidRequest("the producer is closed")
        hint = "; call begin_transaction() first" if self.state is ProducerPhase.READY else ""
        raise InvalidTxnState(f"this call is not allowed now: {self.state.value}{hint}")
