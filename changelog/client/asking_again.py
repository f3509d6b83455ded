"""Commits with retries: a commit whose answer was lost is requested again.

A repeated request is safe, because the log answers it with the outcome of the first one.
"""

from __future__ import annotations

from strandline.changelog.client.producer import Producer
from strandline.changelog.client.transaction_state import ProducerPhase
from strandline.changelog.errors import Retriable

MAX_RETRIES = 3
"""Number of times that an unanswered commit is repeated, each for the delivery timeout."""


def commit_until_known(producer: Producer) -> None:
    """Commit the producer's transaction, and retry while the outcome is unknown.

    Raises the errors of `Producer.commit_transaction`.
    """
    for _ in range(MAX_RETRIES):
        try:
            producer.commit_transaction()
            return
        except Retriable:
            if producer.state is not ProducerPhase.IN_DOUBT:
                raise
    producer.commit_transaction()
