"""Many lives of a log, each cut short somewhere: what was promised holds in the next.

A seed tells a story: plain and transactional producers write to two partitions, offsets are
committed, segments roll, records are deleted, the clock ticks; the disk fails now and then; at
some operation the power goes or the process is killed, perhaps again while the log recovers. A
ledger keeps what was acknowledged, what was taken back, and what nobody can know; after
each opening it is held against what readers see:

- what was acknowledged is there once, at its offset; a committed transaction is whole, with
  its offsets; an aborted or unfinished one is nowhere; what was in doubt is decided once;
- no transaction is left open, no offset shows two records, no producer identity is given
  twice, and no position that a reader had reached counts as diverged (KIP-320);
- producers go on: a batch in doubt, sent again, is there once.

STRANDLINE_POWER_CUT_SEEDS=5000 runs so many stories, =1234:1235 tells one again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random

import pytest

from changelog.embedded.environment import Environment
from changelog.embedded.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from changelog.embedded.producer_state import ProducerStates
from changelog.embedded.transaction_log import TransactionLog
from changelog.errors import DiskFull, StorageFailed, StrandlineError, TransactionAborted
from changelog.records import CommittedOffset, Isolation, ProducerIdentity, TopicPartition
from tests.log.kit import Client
from tests.log.power import Died, Operation, PowerStorage, PowerWorld, stopping_after, taking_turns

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
PARTITIONS = (T0, T1)
SYSTEM = (TopicPartition(CONSUMER_OFFSETS, 0), TopicPartition(TRANSACTION_STATE, 0))
TIMEOUT_MS = 10_000
LIVES = 4
DEFAULT_SEEDS = range(60)
SEEDS_TO_BE_FOUND_OUT = range(60)


class Violation(AssertionError):
    """A promise was broken."""


def check(promise: object, broken: str) -> None:
    if not promise:
        raise Violation(broken)


# What should be there -----------------------------------------------------------------


@dataclass
class Transaction:
    """What a transactional producer has put into its transaction so far."""

    group: str
    records: dict[bytes, tuple[TopicPartition, int]] = field(default_factory=dict)
    offset: int | None = None
    began_ms: int | None = None


@dataclass
class Ledger:
    """All that was promised so far."""

    certain: dict[bytes, tuple[TopicPartition, int]] = field(default_factory=dict)
    """Acknowledged or committed: partition and offset."""
    void: set[bytes] = field(default_factory=set)
    """Never to be seen: aborted, or in a transaction that nobody asked to commit."""
    batches: dict[bytes, TopicPartition] = field(default_factory=dict)
    """Plain batches that were sent and not acknowledged."""
    missing: set[bytes] = field(default_factory=set)
    """Those of them that an opening did not find."""
    transactions: list[Transaction] = field(default_factory=list)
    """Those whose commit was not answered."""
    offsets: dict[str, set[int | None]] = field(default_factory=dict)
    """By group, what may be committed."""
    starts: dict[TopicPartition, set[int]] = field(
        default_factory=lambda: {tp: {0} for tp in PARTITIONS}
    )
    """Where each partition may begin."""
    places: dict[tuple[TopicPartition, int], bytes] = field(default_factory=dict)
    """Which record was seen at an offset, by anybody."""
    identities: set[ProducerIdentity] = field(default_factory=set)
    reached: set[tuple[TopicPartition, int, int]] = field(default_factory=set)
    """Positions up to which somebody could have read, with their leader epoch."""

    def introduce(self, identity: ProducerIdentity) -> None:
        check(identity not in self.identities, f"{identity} was given out twice")
        self.identities.add(identity)

    def sent(self, value: bytes, tp: TopicPartition) -> bool:
        """A plain batch is under way; whether it may already be there."""
        was_missing = value in self.missing
        self.missing.discard(value)
        self.batches[value] = tp
        return not was_missing

    def acknowledged(
        self, value: bytes, tp: TopicPartition, offset: int, *, duplicate: bool
    ) -> None:
        del self.batches[value]
        if value in self.certain:
            check(self.certain[value] == (tp, offset), f"{value[:9]!r} has two offsets")
            check(duplicate, f"{value[:9]!r}, found after an opening, was written again")
        self.certain[value] = (tp, offset)
        self.place(tp, offset, value)

    def place(self, tp: TopicPartition, offset: int, value: bytes) -> None:
        known = self.places.setdefault((tp, offset), value)
        check(known == value, f"{tp} showed {known[:9]!r} at {offset}, then {value[:9]!r}")

    def committed(self, transaction: Transaction) -> None:
        self.certain.update(transaction.records)
        if transaction.offset is not None:
            self.offsets[transaction.group] = {transaction.offset}

    def aborted(self, transaction: Transaction) -> None:
        self.void.update(transaction.records)

    # After an opening -----------------------------------------------------------------

    def judge(self, world: PowerWorld) -> None:
        """Hold an opened log against the promises, and settle what was in doubt."""
        ends = world.owner.offsets([*PARTITIONS, *SYSTEM])
        for tp, end in ends.items():
            check(end.last_stable_offset == end.high_watermark, f"a transaction hangs in {tp}")
        for tp, epoch, end_seen in self.reached:
            check(end_seen <= ends[tp].epoch_end(epoch), f"{end_seen} in {tp} counts as diverged")
        for tp in PARTITIONS:
            start = ends[tp].log_start
            check(self._may_start(tp, start), f"{tp} starts at {start}, not at {self.starts[tp]}")
            self.starts[tp] = {start}
        shown: dict[bytes, tuple[TopicPartition, int]] = {}
        for tp in PARTITIONS:
            for offset, value in records(world, tp, "read_committed"):
                check(value not in shown, f"{value[:9]!r} is there twice")
                shown[value] = (tp, offset)
                self.place(tp, offset, value)
        groups = {group: committed(world, group) for group in ("g0", "g1", "plain")}
        self._judge_batches(shown)
        self._judge_transactions(shown, groups)
        self._judge_records(shown)
        for group, position in groups.items():
            expected = self.offsets.get(group, {None})
            check(position in expected, f"group {group} is at {position}, not in {expected}")
            self.offsets[group] = {position}
        self.look(world, ())

    def _may_start(self, tp: TopicPartition, start: int) -> bool:
        """At a known place, or past it, if only offsets that were never given lie between."""
        offsets = [offset for where, offset in self.places if where == tp]
        return any(
            before <= start and not any(before <= offset < start for offset in offsets)
            for before in self.starts[tp]
        )

    def _judge_batches(self, shown: dict[bytes, tuple[TopicPartition, int]]) -> None:
        for value in self.batches:
            if value in shown:
                check(value not in self.missing, f"{value[:9]!r} has come back")
                self.certain.setdefault(value, shown[value])
            elif value not in self.certain:  # else it was found once, and deleted since
                self.missing.add(value)

    def _judge_transactions(
        self, shown: dict[bytes, tuple[TopicPartition, int]], groups: dict[str, int | None]
    ) -> None:
        for transaction in self.transactions:
            kept = [value for value in transaction.records if self._is_kept(transaction, value)]
            found = [value for value in kept if value in shown]
            check(len(found) in (0, len(kept)), f"half a transaction: {len(found)} of {len(kept)}")
            is_committed = bool(found) or (
                not kept and transaction.offset in (groups[transaction.group], None)
            )
            if is_committed:
                self.committed(transaction)
            else:
                self.aborted(transaction)
        self.transactions = []

    def _is_kept(self, transaction: Transaction, value: bytes) -> bool:
        tp, offset = transaction.records[value]
        return offset >= min(self.starts[tp])

    def _judge_records(self, shown: dict[bytes, tuple[TopicPartition, int]]) -> None:
        for value, (tp, offset) in self.certain.items():
            if offset >= min(self.starts[tp]):
                found = shown.get(value)
                check(found == (tp, offset), f"{value[:9]!r} at {offset} of {tp} is at {found}")
        for value in shown:
            check(value not in self.void, f"{value[:9]!r} was aborted and is shown")
            check(value in self.certain, f"{value[:9]!r} is shown and nobody knows it")

    def look(self, world: PowerWorld, open_: Iterable[Transaction]) -> None:
        """Read while the log is in use."""
        ends = world.owner.offsets([*PARTITIONS, *SYSTEM])
        self.reached |= {(tp, e.leader_epoch, e.high_watermark) for tp, e in ends.items()}
        hidden = self.void.union(*(transaction.records for transaction in open_))
        for tp in PARTITIONS:
            for offset, value in records(world, tp, "read_uncommitted"):
                self.place(tp, offset, value)
            for _, value in records(world, tp, "read_committed"):
                check(value not in hidden, f"{value[:9]!r} is shown and not committed")


def records(
    world: PowerWorld, tp: TopicPartition, isolation: Isolation
) -> Iterator[tuple[int, bytes]]:
    """Offset and value of all that a reader sees."""
    position = world.owner.offsets([tp])[tp].log_start
    while True:
        fetched = world.owner.fetch({tp: position}, isolation=isolation)[tp]
        for batch in fetched.batches:
            values = batch.columns.column("value").to_pylist()
            yield from zip(batch.offsets.to_pylist(), values, strict=True)
        if fetched.next_offset == position:
            return
        position = fetched.next_offset


def committed(world: PowerWorld, group: str) -> int | None:
    offset = world.owner.committed(group).get(T0)
    return None if offset is None else offset.offset


# What happens -------------------------------------------------------------------------


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
    """What a seed tells: four lives, and after them a peaceful one."""

    def __init__(self, seed: int, storage: type[PowerStorage] = PowerStorage) -> None:
        self.chance = chance = Random(seed)
        self.durability = "os" if chance.random() < 0.15 else "fsync"
        self.world = PowerWorld(storage(chance), durability=self.durability)
        self.world.owner.create_topic("t", 2, config={"segment.bytes": "4096"})
        self.ledger = Ledger()
        self.plain = [Client(self.world) for _ in range(2)]
        for client in self.plain:
            self.ledger.introduce(client.identity)
        self.unanswered: dict[Client, tuple[bytes, TopicPartition]] = {}
        self.producers: list[Client | None] = [None, None]
        self.open = [Transaction("g0"), Transaction("g1")]
        self.fault: Fault | None = None
        self.count = 0
        self.trace: list[Operation] = []

    def tell(self) -> None:
        for _ in range(LIVES):
            self._live()
            self._die()
            self._recover()
            self.ledger.judge(self.world)
        self._live_in_peace()

    # A life ---------------------------------------------------------------------------

    def _live(self) -> None:
        self.fault = Fault(self.chance) if self.chance.random() < 0.4 else None
        self._arm(stop_after=self.chance.randrange(120))
        with suppress(Died):
            for _ in range(self.chance.randrange(10, 80)):
                self._step()
            if self.chance.random() < 0.5:
                with self._tolerant():
                    self.world.owner.close()
        for transaction in self.open:
            self.ledger.aborted(transaction)
        self.producers = [None, None]
        self.open = [Transaction("g0"), Transaction("g1")]

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
            with suppress(Died), self._tolerant():
                self.world.open()
            self._die()
        self.fault = None
        self.world.open()

    def _live_in_peace(self) -> None:
        """Everybody goes on, nothing happens, and everything is there."""
        for client in self.plain:
            self._append(client)
            check(client not in self.unanswered, "a batch was never answered")
        for number in range(2):
            for tp in PARTITIONS:
                self._append_in_transaction(number, tp)
            self._add_offsets(number)
            self._commit(number)
            check(self.producers[number] is not None, "a transaction failed in peace")
        self._commit_offsets()
        self.world.reopen()
        self.ledger.judge(self.world)

    @contextmanager
    def _tolerant(self) -> Iterator[None]:
        """Errors of storage are expected once the disk has failed, and only then."""
        try:
            yield
        except StorageFailed:
            if self.fault is None or not self.fault.struck:
                raise

    # Its steps ------------------------------------------------------------------------

    def _step(self) -> None:
        what = self.chance.random()
        number = self.chance.randrange(2)
        if what < 0.30:
            self._append(self.plain[number])
        elif what < 0.60:
            self._append_in_transaction(number, self.chance.choice(PARTITIONS))
        elif what < 0.66:
            self._add_offsets(number)
        elif what < 0.80:
            self._commit(number)
        elif what < 0.86:
            self._abort(number)
        elif what < 0.90:
            self._commit_offsets()
        elif what < 0.93:
            self._delete_records(self.chance.choice(PARTITIONS))
        elif what < 0.95:
            self.ledger.look(self.world, self.open)
        else:
            self.world.clock.advance(self.chance.choice((0, 1_000, 11_000)))
            with self._tolerant():
                self.world.owner.tick()

    def _value(self) -> bytes:
        self.count += 1
        return b"%d" % self.count + b"." * self.chance.choice((0, 500, 1500))

    def _append(self, client: Client) -> None:
        value, tp = self.unanswered.get(client) or (self._value(), self.chance.choice(PARTITIONS))
        self.unanswered[client] = value, tp
        may_be_there = self.ledger.sent(value, tp)
        with self._tolerant():
            appended = client.append(value, partition=tp.partition)
            check(may_be_there or not appended.duplicate, f"{value[:9]!r} is said to be there")
            del self.unanswered[client]
            self.ledger.acknowledged(value, tp, appended.base_offset, duplicate=appended.duplicate)

    def _append_in_transaction(self, number: int, tp: TopicPartition) -> None:
        value = self._value()

        def append(client: Client) -> None:
            self.ledger.void.add(value)  # until it is known to be in
            offset = client.append(value, partition=tp.partition).base_offset
            self.ledger.void.discard(value)
            self.open[number].records[value] = tp, offset

        self._in_transaction(number, append)

    def _add_offsets(self, number: int) -> None:
        self.count += 1
        offset, group = self.count, self.open[number].group

        def add(client: Client) -> None:
            self.world.owner.add_offsets(client.identity, group, {T0: CommittedOffset(offset)})
            self.open[number].offset = offset

        self._in_transaction(number, add)

    def _in_transaction(self, number: int, act: Callable[[Client], None]) -> None:
        client = self._producer(number)
        if client is None:
            return
        transaction = self.open[number]
        if transaction.began_ms is None:
            transaction.began_ms = self.world.clock.now_ms()
        try:
            with self._tolerant():
                act(client)
                return
        except TransactionAborted:
            self._check_overdue(transaction)
        self._give_up(number)

    def _producer(self, number: int) -> Client | None:
        """The transactional producer of that number, after its init_producer."""
        if self.producers[number] is None:
            with self._tolerant():
                self.producers[number] = client = Client(self.world, f"tx-{number}")
                self.ledger.introduce(client.identity)
        return self.producers[number]

    def _give_up(self, number: int) -> None:
        """The transaction is lost, the producer begins anew."""
        self.ledger.aborted(self.open[number])
        self.open[number] = Transaction(f"g{number}")
        self.producers[number] = None

    def _check_overdue(self, transaction: Transaction) -> None:
        began = transaction.began_ms
        overdue = began is not None and self.world.clock.now_ms() - began > TIMEOUT_MS
        check(overdue, "a transaction was aborted in time")

    def _commit(self, number: int) -> None:
        client, transaction = self.producers[number], self.open[number]
        if client is None:
            return
        self.open[number] = Transaction(f"g{number}")
        self.ledger.transactions.append(transaction)
        if transaction.offset is not None:
            self.ledger.offsets.setdefault(transaction.group, {None}).add(transaction.offset)
        try:
            with self._tolerant():
                self._end(client, commit=True)
                self._ended(transaction, is_committed=True)
                return
            self._ask_again(client, transaction)
        except TransactionAborted:
            self._check_overdue(transaction)
            self._ended(transaction, is_committed=False)
        self.producers[number] = None

    def _ask_again(self, client: Client, transaction: Transaction) -> None:
        """A commit that failed may be asked about; whatever the answer says then counts."""
        if self.chance.random() < 0.5:
            return
        try:
            with self._tolerant():
                self._end(client, commit=True)
                self._ended(transaction, is_committed=True)
        except TransactionAborted:
            self._ended(transaction, is_committed=False)

    def _end(self, client: Client, *, commit: bool) -> None:
        before = client.identity
        client.commit() if commit else client.abort()
        if client.identity != before:
            self.ledger.introduce(client.identity)

    def _ended(self, transaction: Transaction, *, is_committed: bool) -> None:
        self.ledger.transactions.remove(transaction)
        if is_committed:
            self.ledger.committed(transaction)
        else:
            self.ledger.aborted(transaction)
            if transaction.offset is not None:
                self.ledger.offsets[transaction.group].discard(transaction.offset)

    def _abort(self, number: int) -> None:
        client = self.producers[number]
        self.ledger.aborted(self.open[number])
        self.open[number] = Transaction(f"g{number}")
        if client is None:
            return
        with self._tolerant():
            self._end(client, commit=False)
            return
        self.producers[number] = None

    def _commit_offsets(self) -> None:
        self.count += 1
        self.ledger.offsets.setdefault("plain", {None}).add(self.count)
        with self._tolerant():
            self.world.owner.commit_offsets("plain", {T0: CommittedOffset(self.count)})
            self.ledger.offsets["plain"] = {self.count}

    def _delete_records(self, tp: TopicPartition) -> None:
        ends = self.world.owner.offsets([tp])[tp]
        target = self.chance.randint(ends.log_start, ends.last_stable_offset)
        self.ledger.starts[tp].add(target)
        with self._tolerant():
            self.ledger.starts[tp] = {self.world.owner.delete_records(tp, target)}


# The tests ----------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """One operation after another, or a seed would not tell the same story again."""
    monkeypatch.setattr(Environment, "at_once", taking_turns)


def seeds() -> range:
    """STRANDLINE_POWER_CUT_SEEDS: a number of seeds, or FIRST:END."""
    wanted = os.environ.get("STRANDLINE_POWER_CUT_SEEDS")
    if not wanted:
        return DEFAULT_SEEDS
    first, _, end = wanted.rpartition(":")
    return range(int(first or 0), int(end))


def test_what_was_promised_survives_every_death() -> None:
    for seed in seeds():
        try:
            Story(seed).tell()
        except (AssertionError, StrandlineError, OSError, RuntimeError) as error:
            raise AssertionError(
                f"seed {seed}: {type(error).__name__}: {error}\n"
                f"replay: STRANDLINE_POWER_CUT_SEEDS={seed}:{seed + 1} pytest {__file__}"
            ) from error


def test_a_seed_tells_the_same_story_again() -> None:
    for seed in DEFAULT_SEEDS[:5]:
        once, again = Story(seed), Story(seed)
        once.tell()
        again.tell()
        assert once.trace == again.trace


def lying(kind: str, name: str) -> type[PowerStorage]:
    """A disk that says yes to some operation on the files of a topic and does nothing."""
    # A log's first identifiers go to itself, to its two system topics, and to the topic `t`.
    number = {CONSUMER_OFFSETS: 2, TRANSACTION_STATE: 3, "t": 4}[name]

    class LyingStorage(PowerStorage):
        def __init__(self, chance: Random | None = None) -> None:
            super().__init__(chance)
            self.lies = lambda o: o.kind == kind and o.path.startswith(f"topics/{number:032x}")

    return LyingStorage


def first_violation(storage: type[PowerStorage] = PowerStorage) -> str | None:
    """What the checker says of the first story that goes wrong."""
    for seed in SEEDS_TO_BE_FOUND_OUT:
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
def test_the_checker_finds_out_a_disk_that_lies(kind: str, name: str) -> None:
    assert first_violation(lying(kind, name))


@pytest.mark.damages
def test_the_checker_finds_out_a_commit_without_the_fsync_of_its_prepare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TransactionLog, "sync", lambda _: None)
    found = first_violation()
    assert found is not None
    assert "Violation" in found


@pytest.mark.damages
def test_the_checker_finds_out_producers_whose_retries_are_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ProducerStates, "check", lambda *_: None)
    found = first_violation()
    assert found is not None
    assert "Violation" in found
