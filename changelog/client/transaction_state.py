"""Where a producer stands: which calls fit, and what made it fail."""

from __future__ import annotations

from enum import Enum

from strandline.changelog.errors import (
    InvalidRequest,
    InvalidTxnState,
    ProducerFenced,
    TransactionAborted,
)


class ProducerPhase(Enum):
    """Where a transactional producer is; a plain one stays READY until it is closed."""

    READY = "no transaction is open"
    OPEN = "a transaction is open"
    ABORTABLE = "the transaction failed and must be aborted"
    IN_DOUBT = "the log did not say whether the transaction was committed"
    FENCED = "another instance with this transactional id has taken over"
    CLOSED = "the producer is closed"


class TransactionState:
    """The state of one producer; its changes are drawn in `changelog.client.producer`."""

    def __init__(self, *, transactional: bool) -> None:
        self.transactional = transactional
        self.state = ProducerPhase.READY
        self.failure: BaseException | None = None
        """Why it is ABORTABLE or FENCED."""

    def become(self, state: ProducerPhase, failure: BaseException | None = None) -> None:
        """Go on to `state`."""
        self.state, self.failure = state, failure

    def fail(self, error: BaseException) -> None:
        """In a transaction: only aborting is left, or nothing."""
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
        """Raise unless this producer has transactions and is in one of these states."""
        if not self.transactional:
            raise InvalidTxnState(
                "this producer has no transactional_id; create it with one to use transactions"
            )
        self.require(*allowed)

    def require(self, *allowed: ProducerPhase) -> None:
        """Raise InvalidTxnState, TransactionAborted, ProducerFenced unless in one of these states."""
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
        raise InvalidTxnState(f"this call does not fit: {self.state.value}{hint}")
