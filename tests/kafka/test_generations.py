"""A commit sent before its member knows the group's new generation."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import pytest

from strandline import changelog
from strandline.changelog.errors import RebalanceInProgress, TransactionAborted
from strandline.changelog.groups import Subscription
from strandline.changelog.kafka.transactions import Transactions
from strandline.changelog.records import CommittedOffset, TopicPartition


def test_a_refused_commit_returns_once_the_member_knows_the_new_generation(
    kafka: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next commit would be refused as well."""
    refused = threading.Event()

    def too_early(*_: Any) -> None:
        refused.set()
        raise TransactionAborted("aborted") from RebalanceInProgress("another generation")

    with ExitStack() as closing:
        log, other = (closing.enter_context(changelog.open(kafka)) for _ in range(2))
        log.create_topic(name, 2)
        how = Subscription((name,), together=[[name]], session_timeout_ms=20_000)
        member = log.broker.join_group(name, how)
        held = log.broker.heartbeat(member, 1, 0, (), timeout=10).partitions
        log.broker.heartbeat(member, 2, 1, held)
        one = log.broker._members.of(name, member.member_id)
        before = one._metadata

        def join() -> None:
            refused.wait(20)
            other.broker.join_group(name, how)

        monkeypatch.setattr(Transactions, "add_offsets", too_early)
        second = threading.Thread(target=join)
        second.start()
        producer = log.broker.init_producer(name)
        with pytest.raises(RebalanceInProgress):
            log.broker.add_offsets(
                producer,
                name,
                {TopicPartition(name, 0): CommittedOffset(0)},
                member_id=member.member_id,
            )
        assert refused.is_set()
        assert one._metadata != before
        assert not one.is_over
        log.broker.leave_group(member)  # spares the second member the wait for its partitions
        second.join(30)
        assert not second.is_alive()
