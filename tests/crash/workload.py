"""The script that goes through every durability step of the log, of its stores and of a task.

It is always the same: the clock is moved by hand, nothing runs beside it, nothing is random. A
`Scene` is one process with all clients of its log. `play` is its life. `go_on` is the next life
after a death: every client carries on, and everything is there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from strandline.changelog.clock import ManualClock
from strandline.changelog.errors import StorageFailed
from strandline.changelog.records import TopicPartition
from strandline.framework.container.folders import StoreFolders
from tests.crash.actors import TIMEOUT_MS, Actors
from tests.crash.oracle import AGED, KEPT, PARTITIONS, T0, T1, Ledger, check
from tests.crash.tally import CHECKPOINT_MS, WORDS, Runner, TwinFolders
from tests.crash.twin import PowerStorage
from tests.crash.windowed import CLICKS, SIZE_MS, WindowedRunner
from tests.log.kit import START_MS
from tests.log.power import PowerWorld

SEGMENTS = {"segment.bytes": "4096"}
AGES = {"segment.bytes": "4096", "retention.ms": "60000", "file.delete.delay.ms": "1000"}
COMPACTED = {"segment.bytes": "4096", "cleanup.policy": "compact", "file.delete.delay.ms": "1000"}
KEYS = (b"ebb", b"flow", b"tide")
FIRST_WORD = 1_000
LARGE = b"." * 1_500
MINUTE_MS = 60_000
CLICK_MS = 9
DELAYS = (0, 0, 2, 0, 30)
"""Number of clicks after which a click is sent."""


AnyRunner = Runner | WindowedRunner


def never() -> bool:
    return False


class Past(NamedTuple):
    """Knowledge that outlives a process: the clients' and the clock's."""

    actors: Actors
    clock: ManualClock
    scene: type[Scene] | None = None
    """Script of the lives; None for `Scene`."""

    def marks(self) -> list[object]:
        """Return values that change whenever a client learns something."""
        actors = self.actors
        return [actors.count, repr(actors.unanswered), *actors.ledger.marks()]

    def copy(self) -> Past:
        """Return a copy that later events do not change."""
        return self._replace(actors=self.actors.copy(None, never), clock=copy.copy(self.clock))

    def next_life(self, storage: PowerStorage, **settings: Any) -> Scene:
        """Return the next life, by the same script."""
        return (self.scene or Scene)(storage, self, **settings)


class Scene:
    """A log in a storage, with all its clients; `past` is their knowledge from earlier lives."""

    watched = (*PARTITIONS, AGED, KEPT, *WORDS)
    """Partitions whose records the ledger keeps."""

    def __init__(
        self,
        storage: PowerStorage,
        past: Past | None = None,
        *,
        durability: str = "fsync",
        may_fail: Callable[[], bool] = never,
    ) -> None:
        past = past or Past(Actors(None, Ledger(self.watched), never), _clock())
        self.clock = copy.copy(past.clock)
        self.actors = past.actors.copy(None, may_fail)
        self.runner: AnyRunner | None = None
        self._storage = storage
        self._durability = durability
        self.may_fail = may_fail

    def open(self) -> None:
        """Open the log. Raises the errors of opening."""
        self.world = PowerWorld(self._storage, clock=self.clock, durability=self._durability)
        self.actors.world = self.world
        self.actors.log_died()

    def past(self) -> Past:
        """Return the clients' knowledge; `copy` keeps it as it is at a moment."""
        return Past(self.actors, self.clock, type(self))

    # Its life -------------------------------------------------------------------------

    def play(self) -> None:
        """Go once through everything."""
        actors = self.actors
        actors.create_topic("t", 1, SEGMENTS)
        actors.create_topic("gone", 1, {})
        actors.create_topic("aged", 1, AGES)
        actors.create_topic("kept", 1, COMPACTED)
        actors.alter_topic("t", 2, {**SEGMENTS, "compression.type": "lz4"})
        actors.alter_config({"log.cleaner.threads": "2", "log.cleaner.backoff.ms": "5"})
        self.task()  # creates its topics
        self._words(6)
        self.task()
        self._compaction()
        self._transactions()
        actors.hold("a", *PARTITIONS)
        self._wait(CHECKPOINT_MS)
        self._words(3)
        self.task()  # with checkpoints
        self._rolls()
        actors.hold("b", *PARTITIONS)
        actors.delete_topic("gone")
        actors.alter_config({"log.cleaner.delete.retention.ms": "5", "log.cleaner.threads": None})
        self._words(2)
        self.task()
        self._takeover()
        if self._reopen():
            self._deletions()
            self._compaction()
            self._words(2)
            self.task()  # restored from checkpoints and the changelog after them
            self._transactions()
            self._reopen()

    def go_on(self) -> None:
        """Let every client carry on without failures. Missing topics are created again."""
        actors = self.actors
        self.task()
        self._ensure("t", 2, SEGMENTS)
        self._ensure("aged", 1, AGES)
        self._ensure("kept", 1, COMPACTED)
        actors.alter_config({"log.cleaner.threads": "3"})
        for number in range(2):
            self._append(number, T0)
            self._append(number, T1)
            self._expect(number not in actors.unanswered, "a batch was never answered")
            for tp in PARTITIONS:
                actors.append_in_transaction(number, self._value(), tp)
            actors.add_offsets(number)
            actors.commit(number)
            self._expect(actors.producers[number], "a transaction failed")
            self._append(number, KEPT)
        actors.commit_offsets()
        actors.hold("d", *PARTITIONS, KEPT)
        actors.clean()
        self._wait(MINUTE_MS)
        actors.ledger.judge_pins(self.world)
        self._words(2)
        self.task()

    def _expect(self, success: object, failure: str) -> None:
        check("goes on", success or self.may_fail(), failure)

    def _ensure(self, name: str, partitions: int, config: dict[str, str]) -> None:
        now = next(iter(self.actors.ledger.topics.get(name, {None})))
        if now is None:
            self.actors.create_topic(name, partitions, config)
        elif now.partitions < partitions:
            self.actors.alter_topic(name, partitions, now.config)

    # Its parts ------------------------------------------------------------------------

    def _transactions(self) -> None:
        """Run transactions of two producers, mixed with plain records; commit some, abort
        others."""
        actors = self.actors
        self._append(0, T0)
        actors.append_in_transaction(0, self._value(), T0)
        actors.append_in_transaction(1, self._value(), T0)
        self._append(1, T1)
        actors.append_in_transaction(0, self._value(), T1)
        actors.add_offsets(0)
        actors.tick()  # makes open transactions durable, and visible to read_uncommitted
        actors.ledger.look(self.world)
        actors.commit(0)
        actors.append_in_transaction(1, self._value(), T1)
        actors.add_offsets(1)
        actors.abort(1)
        actors.commit_offsets()
        actors.append_in_transaction(0, self._value(), T1)
        actors.append_in_transaction(1, self._value(), T1)
        actors.commit(1)
        actors.commit(0)
        actors.tick()

    def _rolls(self) -> None:
        """Roll partitions with plain records, and with committed, aborted and open transactions."""
        actors = self.actors
        for tp in PARTITIONS:
            actors.append_in_transaction(0, self._value(), tp)
            for number in range(4):
                actors.append_in_transaction(1, self._value() + LARGE, tp)
                self._append(number % 2, tp, LARGE)
                if number % 2:
                    actors.abort(1)
        actors.commit(0)
        actors.commit(1)

    def _takeover(self) -> None:
        """Abort an open transaction by a producer's successor, and another by timeout."""
        actors = self.actors
        actors.append_in_transaction(0, self._value(), T0)
        actors.forget(0)
        actors.append_in_transaction(0, self._value(), T1)
        self._wait(TIMEOUT_MS + 1)
        actors.tick()
        actors.commit(0)

    def _deletions(self) -> None:
        """Delete records by retention and by hand."""
        actors = self.actors
        for at_ms in range(3):
            actors.append(0, self._value() + LARGE, AGED, at_ms=at_ms)
        self._wait(2 * MINUTE_MS)
        actors.tick()
        ends = self.world.owner.offsets(PARTITIONS)
        actors.delete_records(T0, ends[T0].last_stable_offset - 1)
        actors.delete_records(T1, ends[T1].last_stable_offset)
        self._wait(MINUTE_MS)
        actors.use_pins()
        actors.tick()  # deletes the files
        actors.ledger.judge_pins(self.world)
        actors.hold("c", *PARTITIONS)
        actors.release_pins()

    def _compaction(self) -> None:
        """Clean plain, committed and aborted records in several segments, and the log's own
        topics."""
        actors = self.actors
        for number, filling in enumerate((LARGE, LARGE, b"", LARGE)):
            actors.append(number % 2, self._value() + filling, KEPT, key=KEYS[number % 2])
            actors.append_in_transaction(number % 2, self._value(), KEPT)
            if number > 1:
                actors.abort(0)
                actors.commit(1)
        actors.hold("k", KEPT)
        actors.clean()
        actors.append(0, self._value(), KEPT, key=KEYS[0])
        actors.clean()  # a clean part together with a dirty one
        self._wait(MINUTE_MS)
        actors.tick()  # deletes the old files
        actors.ledger.judge_pins(self.world)

    def task(self) -> None:
        """Let the task handle all input. Drop the task if the disk fails."""
        try:
            self.start_task().work()
        except StorageFailed:
            if not self.may_fail():
                raise
            self._stop_task()

    def start_task(self) -> AnyRunner:
        """Start the task if it is not running, and restore its stores."""
        if self.runner is None:
            self.runner = self.new_runner(TwinFolders(None, self.clock, self._storage))
            self.runner.start()
        return self.runner

    def new_runner(self, folders: StoreFolders) -> AnyRunner:
        """Return the task, which is not started."""
        return Runner(self.world.owner, self.clock, folders)

    def _stop_task(self) -> None:
        if self.runner is not None:
            self.runner.abandon()
        self.runner = None

    def close(self) -> None:
        """Close the task and the log in order."""
        self._stop_task()
        with self.actors.tolerant():
            self.world.owner.close()
        self.actors.log_died()

    def _reopen(self) -> bool:
        """Close the log in order and open it again. Return False if the disk fails."""
        self.close()
        with self.actors.tolerant():
            self.world.open()
            self.actors.ledger.judge(self.world)
            return True
        return False

    def _words(self, count: int) -> None:
        """Send input for the task."""
        for _ in range(count):
            number = self.actors.next_count()
            key = KEYS[number % len(KEYS)]
            value = msgspec.msgpack.encode(FIRST_WORD + number)
            self.actors.append(number % 2, value, WORDS[len(key) % 2], key=key, at_ms=10 * number)

    def _append(self, number: int, tp: TopicPartition, filling: bytes = b"") -> None:
        self.actors.append(number, self._value() + filling, tp)

    def _value(self) -> bytes:
        return b"v%d" % self.actors.next_count()

    def _wait(self, ms: int) -> None:
        self.clock.advance(ms)


class WindowedScene(Scene):
    """A life with nothing but a stream with windows, and the clicks that it reads."""

    watched = CLICKS

    def play(self) -> None:
        """Close windows in several commits, with checkpoints and a restore between them."""
        self.task()  # creates its topics
        self._clicks(7)
        self.task()
        self._clicks(9)
        self._wait(CHECKPOINT_MS)
        self.task()  # with checkpoints
        self._clicks(8)
        self.task()
        if self._reopen():
            self._clicks(6)
            self.task()
            self._reopen()

    def go_on(self) -> None:
        """Handle what is left, and go on until all windows so far are closed."""
        self.task()
        self._clicks(4)
        self.task()
        end = self.actors.next_count() * CLICK_MS + 10 * SIZE_MS
        for tp in CLICKS:
            self._click(self.actors.next_count(), tp, end)
        self.task()

    def new_runner(self, folders: StoreFolders) -> AnyRunner:
        return WindowedRunner(self.world.owner, self.clock, folders)

    def _clicks(self, count: int) -> None:
        """Send clicks, some of them out of order, and some late."""
        for _ in range(count):
            number = self.actors.next_count()
            delay = DELAYS[number % len(DELAYS)]
            self._click(number, CLICKS[number % len(CLICKS)], max(0, number - delay) * CLICK_MS)

    def _click(self, number: int, tp: TopicPartition, at_ms: int) -> None:
        value = msgspec.msgpack.encode(FIRST_WORD + number)
        self.actors.append(number % 2, value, tp, key=KEYS[number % 3], at_ms=at_ms)


def _clock() -> ManualClock:
    return ManualClock(START_MS)
