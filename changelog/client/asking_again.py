"""A commit whose answer is lost is asked for again, because asking decides nothing anew."""

from __future__ import annotations

from strandline.changelog.client.producer import Producer
from strandline.changelog.client.transaction_state import ProducerPhase
from strandline.changelog.errors import Retriable

ASK_AGAIN = 3
"""How often a commit without an answer is repeated, each time for the delivery timeout."""


def commit_until_known(producer: Producer) -> None:
    """Commit the producer's transaction, again while the log does not say whether it did.

    Raises what `Producer.commit_transaction` does.
    """
    for _ in range(ASK_AGAIN):
        try:
            producer.commit_transaction()
            return
        except Retriable:
            if producer.state is not ProducerPhase.IN_DOUBT:
                raise
    producer.commit_transaction()
