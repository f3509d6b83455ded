"""Requests that are repeated until the log can answer them.

A commit whose answer was lost is requested again. That is safe, because the log answers it with the
outcome of the first request.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from strandline.changelog.broker import Broker
from strandline.changelog.client.producer import Producer
from strandline.changelog.client.transaction_state import ProducerPhase
from strandline.changelog.clock import Clock
from strandline.changelog.errors import CoordinatorLoading, Retriable
from strandline.changelog.records import CommittedOffset, TopicPartition

PAUSE_S = 0.02
"""Seconds between two requests for committed offsets."""
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


def stable_offsets(
    broker: Broker,
    group: str,
    partitions: Collection[TopicPartition],
    clock: Clock,
    *,
    within_s: float,
) -> dict[TopicPartition, CommittedOffset]:
    """Return the committed offsets of a group, after the transactions that are about to change them.

    Raises CoordinatorLoading if such a transaction stays open for `within_s` seconds.
    """
    deadline = clock.monotonic() + within_s
    while True:
        try:
            return broker.committed(group, partitions)
        except CoordinatorLoading:
            if clock.monotonic() > deadline:
                raise
        threading.Event().wait(PAUSE_S)
