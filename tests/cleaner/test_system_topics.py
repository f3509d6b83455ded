"""The log's own topics are cleaned too: what is loaded from them does not change."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from strandline.changelog.embedded.owner import Owner
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.transaction_log import TransactionLog
from strandline.changelog.layout import CONSUMER_OFFSETS, TRANSACTION_STATE
from strandline.changelog.records import CommittedOffset, TopicPartition
from tests.cleaner.model import on_disk
from tests.log.kit import Client
from tests.log.power import PowerWorld

STEPS = 150
PARTITIONS = [TopicPartition("t", n) for n in range(3)]


class Story:
    """A random sequence of plain and transactional offset commits, and of ids that come and go."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.world = PowerWorld()
        self.world.owner.create_topic("t", 3)
        self.clients = [Client(self.world, f"tx-{n}") for n in range(3)]
        self.highest = -1
        for topic in (CONSUMER_OFFSETS, TRANSACTION_STATE):
            config = {"segment.bytes": "4096", "delete.retention.ms": "1000"}
            self.world.owner.alter_topic(topic, config=config)

    def advance_story(self, steps: int) -> None:
        steps_ = (
            self.commit,
            self.commit,
            self.forget,
            self.add,
            self.add,
            self.end,
            self.begin_anew,
        )
        for _ in range(steps):
            self.chance.choice(steps_)()
            self.world.clock.advance(self.chance.choice([0, 10, 400]))
            if self.chance.random() < 0.05:
                self.cleaned()

    def commit(self) -> None:
        self.world.owner.commit_offsets(self.group(), {self.partition(): self.offset()})

    def forget(self) -> None:
        self.world.owner.commit_offsets(self.group(), {self.partition(): None})

    def add(self) -> None:
        client = self.client()
        self.world.owner.add_offsets(
            client.identity, self.group(), {self.partition(): self.offset()}
        )

    def end(self) -> None:
        self.client()._end(commit=self.chance.random() < 0.7)

    def begin_anew(self) -> None:
        n = self.chance.randrange(len(self.clients))
        self.clients[n] = Client(self.world, f"tx-{n}")
        self.highest = max(self.highest, self.clients[n].identity.producer_id)

    def cleaned(self) -> None:
        """Clean everything, and check that nothing visible changes."""
        before = offsets_of(self.world.owner), transactions_of(self.world.owner)
        self.world.owner.clean()
        assert (offsets_of(self.world.owner), transactions_of(self.world.owner)) == before

    def reopened(self, *, killed: bool, lost: bool) -> None:
        """Reopen the log, and check that commits are the same and no producer id is reused."""
        before, storage = offsets_of(self.world.owner), self.world.storage
        if killed:
            storage.crash()
        else:
            self.world.owner.close()
        for path in storage.paths("topics", ".producers") if lost else ():
            storage.lose(path)
        self.world.open()
        assert offsets_of(self.world.owner) == before
        self.clients = [Client(self.world, f"tx-{n}") for n in range(3)]
        assert min(client.identity.producer_id for client in self.clients) > self.highest
        self.highest = max(client.identity.producer_id for client in self.clients)

    def group(self) -> str:
        return self.chance.choice(["g", "h"])

    def partition(self) -> TopicPartition:
        return self.chance.choice(PARTITIONS)

    def offset(self) -> CommittedOffset:
        return CommittedOffset(self.chance.randrange(1000), "m" * self.chance.randrange(200))

    def client(self) -> Client:
        return self.chance.choice(self.clients)


def system_partition(owner: Owner, topic: str) -> Partition:
    return owner._log.catalog.get(topic).partition(0)


def offsets_of(owner: Owner) -> dict[Any, Any]:
    """Return the committed offsets in memory, with the offset of each one's record."""
    committed = owner._log.offsets._committed
    return {key: change for key, change in committed.items() if change[1] is not None}


def transactions_of(owner: Owner) -> dict[str, Any]:
    """Return the transactional ids that an opening would load."""
    return TransactionLog(system_partition(owner, TRANSACTION_STATE)).load()


@pytest.mark.parametrize("seed", range(12))
def test_cleaning_does_not_change_what_is_loaded_from_the_logs_own_topics(seed: int) -> None:
    story = Story(seed)
    for _ in range(4):
        story.advance_story(STEPS // 4)
        story.cleaned()
        killed, lost = story.chance.random() < 0.5, story.chance.random() < 0.5
        story.reopened(killed=killed, lost=lost)
    for client in story.clients:
        client.abort()
    story.world.clock.advance(1001)
    for _ in range(2):  # once to start the tombstones' time, once after it
        story.cleaned()
        story.world.clock.advance(1001)
    story.cleaned()
    kept = system_partition(story.world.owner, CONSUMER_OFFSETS)
    assert len([*on_disk(kept)]) == len(offsets_of(story.world.owner))


def test_the_later_of_a_plain_and_a_transactional_commit_wins_after_cleaning() -> None:
    def plain_last(story: Story) -> int:
        story.world.owner.add_offsets(story.clients[0].identity, "g", {PARTITIONS[0]: _at(1)})
        story.world.owner.commit_offsets("g", {PARTITIONS[0]: _at(2)})
        story.clients[0].commit()
        return 2

    def transactional_last(story: Story) -> int:
        story.world.owner.commit_offsets("g", {PARTITIONS[0]: _at(3)})
        story.world.owner.add_offsets(story.clients[0].identity, "g", {PARTITIONS[0]: _at(4)})
        story.clients[0].commit()
        return 4

    def aborted_last(story: Story) -> int:
        story.world.owner.commit_offsets("g", {PARTITIONS[0]: _at(5)})
        story.world.owner.add_offsets(story.clients[0].identity, "g", {PARTITIONS[0]: _at(6)})
        story.clients[0].abort()
        return 5

    stories: list[Callable[[Story], int]] = [plain_last, transactional_last, aborted_last]
    for tell in stories:
        story = Story(0)
        expected = tell(story)
        story.cleaned()
        story.reopened(killed=True, lost=True)
        committed = story.world.owner.committed("g")
        assert {tp: one.offset for tp, one in committed.items()} == {PARTITIONS[0]: expected}


def _at(offset: int) -> CommittedOffset:
    return CommittedOffset(offset)
