"""Offsets at which a Faust consumer begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from strandline.changelog.client.producer import Producer
from strandline.changelog.clock import SystemClock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import OffsetOutOfRange
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import CommittedOffset, TopicPartition
from strandline.framework.faust.fetched_records import ReadHistories, fetch_records
from strandline.framework.faust.positions import starting_offsets, within

T0 = TopicPartition("t", 0)


@pytest.fixture
def owner() -> Iterator[Owner]:
    with closing(Owner(MemoryStorage(), background=False)) as owner:
        owner.create_topic("t", 1)
        with Producer(owner) as producer:
            for number in range(5):
                producer.send("t", b"v%d" % number)
        yield owner


def start(owner: Owner, reset: str = "earliest", group: str | None = "g") -> int:
    """Return the offset at which a consumer begins."""
    return starting_offsets(owner, group, [T0], reset, SystemClock())[T0]


@pytest.mark.parametrize("group", ["g", None])
def test_without_a_committed_offset_the_policy_decides(owner: Owner, group: str | None) -> None:
    assert (start(owner, "earliest", group), start(owner, "latest", group)) == (0, 5)


def test_the_committed_offset_is_taken(owner: Owner) -> None:
    owner.commit_offsets("g", {T0: CommittedOffset(3)})
    assert (start(owner, "earliest"), start(owner, "latest")) == (3, 3)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_records_that_retention_has_removed_are_skipped_and_no_others(
    owner: Owner, reset: str, caplog: pytest.LogCaptureFixture
) -> None:
    owner.commit_offsets("g", {T0: CommittedOffset(1)})
    owner.delete_records(T0, 4)
    assert start(owner, reset) == 4
    assert "records from 1 on are gone" in caplog.text


def test_the_offset_of_a_deleted_topic_of_the_same_name_counts_for_nothing(owner: Owner) -> None:
    owner.commit_offsets("g", {T0: CommittedOffset(3)})
    owner.delete_topic("t")
    owner.create_topic("t", 1)
    assert start(owner) == 0


def test_an_offset_after_the_end_is_refused(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka does not say of which history an offset is."""
    monkeypatch.setattr(owner, "committed", lambda *_: {T0: CommittedOffset(9)})
    with pytest.raises(
        OffsetOutOfRange, match="t-0: the app goes on at offset 9, but the log ends"
    ):
        start(owner)


@pytest.mark.parametrize("offset", [3, 9])
def test_an_offset_of_another_history_is_refused(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    other = CommittedOffset(
        offset, topic_id=owner.topic("t").topic_id, leader_epoch=0, incarnation="another"
    )

    def committed(*_: Any) -> dict[TopicPartition, CommittedOffset]:
        return {T0: other}

    monkeypatch.setattr(owner, "committed", committed)
    with pytest.raises(OffsetOutOfRange, match=f"t-0: the app goes on at offset {offset}, but"):
        start(owner)


def replace_topic(owner: Owner, count: int) -> None:
    """Delete the topic and create it again, with a number of records."""
    owner.delete_topic("t")
    owner.create_topic("t", 1)
    with Producer(owner) as producer:
        for number in range(count):
            producer.send("t", b"new%d" % number)


@pytest.mark.parametrize("count", [5, 9])
def test_a_topic_that_was_created_again_does_not_continue_the_old_one(
    owner: Owner, count: int
) -> None:
    histories = ReadHistories()
    histories.note(T0, 0, fetch_records(owner, {T0: 0})[T0].source)
    replace_topic(owner, count)
    found = fetch_records(owner, {T0: 5})[T0].source
    with pytest.raises(OffsetOutOfRange, match="deleted and created again"):
        histories.note(T0, 5, found)
    owner.commit_offsets("g", {T0: histories.named(T0, 5)})
    assert owner.committed("g", [T0]) == {}


def test_a_position_that_was_sought_is_compared_with_nothing(owner: Owner) -> None:
    histories = ReadHistories()
    histories.note(T0, 0, fetch_records(owner, {T0: 0})[T0].source)
    replace_topic(owner, 9)
    histories.note(T0, 0, fetch_records(owner, {T0: 0})[T0].source)
    owner.commit_offsets("g", {T0: histories.named(T0, 9)})
    assert start(owner) == 9


def test_positions_are_not_moved_into_another_topic_of_the_name(owner: Owner) -> None:
    read = ReadHistories()
    read.note(T0, 0, owner.fetch({T0: 0})[T0])
    assert within(owner, {T0: 9}, read) == {T0: 5}
    owner.delete_topic("t")
    owner.create_topic("t", 1)
    assert within(owner, {T0: 5}) == {T0: 0}
    with pytest.raises(OffsetOutOfRange, match="deleted and created again"):
        within(owner, {T0: 5}, read)
