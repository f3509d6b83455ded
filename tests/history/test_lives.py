"""A position is trusted only in a log with the same history, after any copies and restores of
folders.

Copies of one folder are written to, killed, copied and swapped. A reader keeps positions with all
records read before each. The content is the oracle: a position that a log trusts must have been
read after exactly the records that this log has before it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from random import Random

import pytest

from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.checking.findings import Severity
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.history import continues, epoch_before
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import Append, ReadPosition, TopicPartition
from tests.log.kit import START_MS, columns

T0 = TopicPartition("t", 0)
SEEDS = range(30)
STEPS = 40


class Untrue(Exception):
    """A position is trusted in a log that has other records before it."""


@dataclass
class Copy:
    """A copy of the log folder, and its owner, if it is open."""

    storage: MemoryStorage
    owner: Owner | None = None


@dataclass(frozen=True)
class Kept:
    """A position, and all records read before it."""

    position: ReadPosition
    content: tuple[tuple[int, bytes], ...]


@dataclass
class Lives:
    """Copies of a log of one partition. All randomness comes from the seed."""

    seed: int
    kept: list[Kept] = field(default_factory=list)
    trusted: int = 0
    refused: int = 0

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)
        self.clock = ManualClock(START_MS)
        self.durability = self.chance.choice(["fsync", "os"])
        self.copies = [Copy(MemoryStorage())]
        self.written = 0
        self.owner(self.copies[0]).create_topic("t")

    def owner(self, one: Copy) -> Owner:
        if one.owner is None:
            one.owner = Owner(
                one.storage,
                clock=self.clock,
                durability=self.durability,  # type: ignore[arg-type]
                background=False,
            )
        return one.owner

    def live(self) -> None:
        steps = [self.write, self.write, self.read, self.read, self.close, self.crash]
        for _ in range(STEPS):
            one = self.chance.choice(self.copies)
            self.chance.choice([*steps, self.back_up, self.put_back])(one)
            self.look(self.chance.choice(self.copies))
        for one in self.copies:
            self.look(one)
            self.close(one)
            findings = check_log(one.storage, clock=self.clock).report.findings
            assert not [found for found in findings if found.severity > Severity.NOTE]

    def write(self, one: Copy) -> None:
        owner = self.owner(one)
        transactional = self.chance.random() < 0.5
        producer = owner.init_producer("tx" if transactional else None)
        values = [b"%d" % (self.written + n) for n in range(self.chance.randint(1, 3))]
        self.written += len(values)
        owner.append([Append(*T0, columns(values), producer, 0, transactional)])
        if transactional and self.chance.random() < 0.7:
            owner.end_transaction(producer, commit=self.chance.random() < 0.7)

    def read(self, one: Copy) -> None:
        """Keep a position somewhere in the log, identified by the fetched epochs."""
        owner = self.owner(one)
        content = self.content(owner)
        at = self.chance.choice([0, *(offset for offset, _ in content)])
        got = owner.fetch({T0: at}, max_bytes=self.chance.choice([1, 1 << 20]))[T0]
        epoch = epoch_before(got.epochs, got.next_offset)
        named = owner.topic("t").topic_id, epoch.number, epoch.incarnation
        before = tuple(row for row in content if row[0] < got.next_offset)
        self.kept.append(Kept(ReadPosition(got.next_offset, *named), before))

    def close(self, one: Copy) -> None:
        if one.owner is not None:
            one.owner.close()
            one.owner = None

    def crash(self, one: Copy) -> None:
        one.storage.crash()
        one.owner = None

    def back_up(self, one: Copy) -> None:
        """Copy a closed folder to another place."""
        self.close(one)
        if len(self.copies) < 4:
            self.copies.append(Copy(copy.deepcopy(one.storage)))

    def put_back(self, one: Copy) -> None:
        """Replace a folder by one of the copies."""
        self.close(one)
        other = self.chance.choice(self.copies)
        self.close(other)
        other.storage = copy.deepcopy(one.storage)

    def content(self, owner: Owner) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        at = 0
        while True:
            got = owner.fetch({T0: at})[T0]
            rows = (record for batch in got.batches for record in batch.records())
            found += [(record.offset, record.value) for record in rows]
            if got.next_offset == at:
                return found
            at = got.next_offset

    def look(self, one: Copy) -> None:
        """Check that each trusted position was read after the same records."""
        owner = self.owner(one)
        now, content = owner.offsets([T0])[T0], self.content(owner)
        for each in self.kept:
            offset = each.position.offset
            if now.divergence(each.position):
                self.refused += 1
                continue
            self.trusted += 1
            here = tuple(row for row in content if row[0] < offset)
            if here != each.content:
                raise Untrue(f"seed {self.seed}: {each.position} is trusted, by {now.epochs}")
            got = owner.fetch({T0: offset})[T0]
            assert continues(got.epochs, offset, now.epoch_before(offset).incarnation)


@pytest.mark.parametrize("first", SEEDS[::10])
def test_a_trusted_position_was_read_after_the_same_records(first: int) -> None:
    trusted = refused = 0
    for seed in range(first, first + 10):
        lives = Lives(seed)
        lives.live()
        trusted, refused = trusted + lives.trusted, refused + lives.refused
    assert trusted > 100
    assert refused > 100


def test_the_oracle_detects_openings_that_begin_no_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partition, "_begin_epoch_by_append", lambda _: None)
    with pytest.raises(Untrue):
        for seed in SEEDS:
            Lives(seed).live()


def test_a_continued_history_is_never_refused() -> None:
    for seed in SEEDS[:10]:
        lives = Lives(seed)
        (one,) = lives.copies
        for _ in range(STEPS):
            lives.chance.choice([lives.write, lives.read, lives.close, lives.crash])(one)
            lives.look(one)
        assert lives.refused == 0
        lives.close(one)
