"""Many lives of a log, each cut short at some operation: the promises hold in the next.

A seed determines a story: plain and transactional producers write to two partitions, offsets are
committed, segments roll, records are deleted, the clock ticks. The disk fails now and then. At some
operation the power is cut or the process is killed, perhaps again while the log recovers. A ledger
(tests/crash/oracle.py) keeps the promises. After each opening it is compared with the visible
records. At the end producers carry on: a batch in doubt, sent again, is there once.

STRANDLINE_POWER_CUT_SEEDS=5000 runs that many stories, =1234:1235 repeats one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from random import Random

import pytest

from strandline.changelog.embedded.context import LogContext
from strandline.changelog.embedded.transaction_log import TransactionLog
from strandline.changelog.errors import DiskFull, StorageFailed, StrandlineError
from strandline.changelog.layout import CONSUMER_OFFSETS, TRANSACTION_STATE
from strandline.changelog.producer_state import ProducerStates
from tests.crash.actors import Actors
from tests.crash.oracle import PARTITIONS, Ledger, check
from tests.crash.twin import Died, Operation, PowerStorage
from tests.log.power import PowerWorld, stopping_after, taking_turns

LIVES = 4
DEFAULT_SEEDS = range(60)
SEEDS_FOR_DETECTION = range(60)


# Stories ------------------------------------------------------------------------------


class Fault:
    """A disk that begins to fail at some operation: once, for one folder, or altogether."""

    def __init__(self, chance: Random) -> None:
        self._left = chance.randrange(60)
        self._scope = chance.choice(("once", "folder", "all"))
        self._error: type[StorageFailed] = chance.choice((DiskFull, StorageFailed))
        self._folder: str | None = None

    @property
    def struck(self) -> bool:
        return self._folder is not None

    def __call__(self, operation: Operation) -> None:
        if operation.kind in ("read", "unlink"):
            return
        self._left -= 1
        if self._left == -1:
            self._folder = operation.folder
        strikes = self.struck and (
            self._left == -1
            or self._scope == "all"
            or (self._scope == "folder" and self._folder == operation.folder)
        )
        if strikes:
            raise self._error(f"cannot {operation.kind} {operation.path}: so says the test")


class Story:
    """The story of a seed: four lives, and a peaceful one after them."""

    def __init__(self, seed: int, storage: type[PowerStorage] = PowerStorage) -> None:
        self.chance = chance = Random(seed)
        self.durability = "os" if chance.random() < 0.15 else "fsync"
        self.world = PowerWorld(storage(chance), durability=self.durability)
        self.world.owner.create_topic("t", 2, config={"segment.bytes": "4096"})
        self.ledger = Ledger()
        self.fault: Fault | None = None
        self.actors = Actors(self.world, self.ledger, self._has_failed)
        self.count = 0
        self.trace: list[Operation] = []

    def tell(self) -> None:
        for _ in range(LIVES):
            self._live()
            self._die()
            self._recover()
            self.ledger.judge(self.world)
        self._live_in_peace()

    def _has_failed(self) -> bool:
        return self.fault is not None and self.fault.struck

    # A life ---------------------------------------------------------------------------

    def _live(self) -> None:
        self.fault = Fault(self.chance) if self.chance.random() < 0.4 else None
        self._arm(stop_after=self.chance.randrange(120))
        with suppress(Died):
            for _ in range(self.chance.randrange(10, 80)):
                self._step()
            if self.chance.random() < 0.5:
                with self.actors.tolerant():
                    self.world.owner.close()
        self.actors.log_died()

    def _arm(self, stop_after: int) -> None:
        stop = stopping_after(stop_after)

        def hook(operation: Operation) -> None:
            self.trace.append(operation)
            stop(operation)
            if self.fault is not None:
                self.fault(operation)

        self.world.storage.hook = hook

    def _die(self) -> None:
        if self.durability == "fsync" and self.chance.random() < 0.7:
            self.world.storage.power_cut()
        else:
            self.world.storage.crash()

    def _recover(self) -> None:
        """Open the log, after up to two deaths or disk errors on the way."""
        for _ in range(self.chance.randrange(3)):
            self.fault = Fault(self.chance) if self.chance.random() < 0.3 else None
            self._arm(stop_after=self.chance.randrange(40))
            with suppress(Died), self.actors.tolerant():
                self.world.open()
            self._die()
        self.fault = None
        self.world.open()

    def _live_in_peace(self) -> None:
        """Let every client carry on without failures, and check that everything is there."""
        actors = self.actors
        for number in range(2):
            self._append(number)
            check("goes on", number not in actors.unanswered, "a batch was never answered")
        for number in range(2):
            for tp in PARTITIONS:
                actors.append_in_transaction(number, self._value(), tp)
            actors.add_offsets(number)
            actors.commit(number)
            check("goes on", actors.producers[number] is not None, "a transaction failed in peace")
        actors.commit_offsets()
        self.world.reopen()
        self.ledger.judge(self.world)

    # Its steps ------------------------------------------------------------------------

    def _step(self) -> None:
        what, actors = self.chance.random(), self.actors
        number = self.chance.randrange(2)
        if what < 0.30:
            self._append(number)
        elif what < 0.60:
            tp = self.chance.choice(PARTITIONS)
            actors.append_in_transaction(number, self._value(), tp)
        elif what < 0.66:
            actors.add_offsets(number)
        elif what < 0.80:
            actors.commit(number, ask_again=self.chance.random() < 0.5)
        elif what < 0.86:
            actors.abort(number)
        elif what < 0.90:
            actors.commit_offsets()
        elif what < 0.93:
            self._delete_records()
        elif what < 0.95:
            self.ledger.look(self.world)
        else:
            self.world.clock.advance(self.chance.choice((0, 1_000, 11_000)))
            actors.tick()

    def _append(self, number: int) -> None:
        self.actors.append(number, self._value(), self.chance.choice(PARTITIONS))

    def _delete_records(self) -> None:
        tp = self.chance.choice(PARTITIONS)
        ends = self.world.owner.offsets([tp])[tp]
        self.actors.delete_records(tp, self.chance.randint(ends.log_start, ends.last_stable_offset))

    def _value(self) -> bytes:
        self.count += 1
        return b"%d" % self.count + b"." * self.chance.choice((0, 500, 1500))


# The tests ----------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one operation after another, because a seed must always give the same story."""
    monkeypatch.setattr(LogContext, "in_parallel", taking_turns)


def seeds() -> range:
    """Return the seeds. STRANDLINE_POWER_CUT_SEEDS is their number, or FIRST:END."""
    wanted = os.environ.get("STRANDLINE_POWER_CUT_SEEDS")
    if not wanted:
        return DEFAULT_SEEDS
    first, _, end = wanted.rpartition(":")
    return range(int(first or 0), int(end))


def test_promises_survive_every_death() -> None:
    for seed in seeds():
        try:
            Story(seed).tell()
        except (AssertionError, StrandlineError, OSError, RuntimeError) as error:
            raise AssertionError(
                f"seed {seed}: {type(error).__name__}: {error}\n"
                f"replay: STRANDLINE_POWER_CUT_SEEDS={seed}:{seed + 1} pytest {__file__}"
            ) from error


@pytest.mark.long
def test_a_seed_always_gives_the_same_story() -> None:
    for seed in DEFAULT_SEEDS[:5]:
        once, again = Story(seed), Story(seed)
        once.tell()
        again.tell()
        assert once.trace == again.trace


def lying(kind: str, name: str) -> type[PowerStorage]:
    """Return a disk that acknowledges some operation on the files of a topic and skips it."""
    # A log's first identifiers belong to itself, its two system topics, and the topic `t`.
    number = {CONSUMER_OFFSETS: 2, TRANSACTION_STATE: 3, "t": 4}[name]

    class LyingStorage(PowerStorage):
        def __init__(self, chance: Random | None = None) -> None:
            super().__init__(chance)
            self.lies = lambda o: o.kind == kind and o.path.startswith(f"topics/{number:032x}")

    return LyingStorage


def first_violation(storage: type[PowerStorage] = PowerStorage) -> str | None:
    """Return the violation of the first story that has one."""
    for seed in SEEDS_FOR_DETECTION:
        story = Story(seed, storage)
        if story.durability == "os":
            continue
        try:
            story.tell()
        except (AssertionError, StrandlineError) as error:
            return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.damages
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("fsync", "t"),
        ("fsync", CONSUMER_OFFSETS),
        ("fsync", TRANSACTION_STATE),
        ("sync_dir", "t"),
    ],
)
def test_the_checker_detects_a_disk_that_lies(kind: str, name: str) -> None:
    assert first_violation(lying(kind, name))


@pytest.mark.long
@pytest.mark.damages
def test_the_checker_detects_a_commit_without_the_fsync_of_its_prepare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TransactionLog, "sync", lambda _: None)
    found = first_violation()
    assert found is not None
    assert "Violation" in found


@pytest.mark.damages
def test_the_checker_detects_retries_that_are_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ProducerStates, "check", lambda *_: None)
    found = first_violation()
    assert found is not None
    assert "Violation" in found
