"""A commit sent before its member knows the group's new generation."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import pytest

from strandline import changelog
from strandline.changelog.client.asking_again import stable_offsets
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import (
    RebalanceInProgress,
    TransactionAborted,
)
from strandline.changelog.groups import Subscription
from strandline.changelog.kafka.transactions import Transactions
from strandline.changelog.log import Log
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


def test_a_commit_without_offsets_sets_back_none_of_an_open_transaction(
    kafka: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka checks a membership with offsets only, so the current ones are committed again."""
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    with changelog.open(kafka) as log:
        log.create_topic(name, 2)
        how = Subscription((name,), together=[[name]], session_timeout_ms=20_000)
        member = log.broker.join_group(name, how)
        log.broker.heartbeat(member, 1, 0, (), timeout=10)
        before = log.producer(transactional_id=f"{name}-before")
        mine = log.producer(transactional_id=name)
        with mine.transaction():
            mine.send_offsets_to_transaction({}, member)
        assert offsets(log, name) == {first: 0, second: 0}
        before.begin_transaction()
        before.send_offsets_to_transaction({first: 9}, name)
        asked = threading.Event()
        ask = log.broker._groups.committed

        def committed(*args: Any, **options: Any) -> Any:
            try:
                return ask(*args, **options)
            finally:
                asked.set()

        def commit() -> None:
            assert asked.wait(20)
            before.commit_transaction()

        monkeypatch.setattr(log.broker._groups, "committed", committed)
        late = threading.Thread(target=commit)
        late.start()
        with mine.transaction():
            mine.send_offsets_to_transaction({}, member)
            late.join(20)
        assert offsets(log, name) == {first: 9, second: 0}
        mine.close()
        before.close()
        log.broker.leave_group(member)


def offsets(log: Log, group: str) -> dict[TopicPartition, int]:
    """Return the committed offsets of a group, as soon as they are stable."""
    found = stable_offsets(
        log.broker,
        group,
        [TopicPartition(group, 0), TopicPartition(group, 1)],
        SystemClock(),
        within_s=10.0,
    )
    return {tp: one.offset for tp, one in found.items()}
