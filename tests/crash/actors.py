"""Clients of a log that note in a ledger what the log promised them.

They are plain and transactional producers, a consumer that commits offsets, and an administrator
that creates, changes and deletes topics.

A plain producer outlives the log's process: it sends a batch again that was not acknowledged. A
transactional producer starts again after each opening.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from strandline.changelog.errors import (
    StorageFailed,
    TransactionAborted,
    UnknownPartition,
    UnknownTopic,
)
from strandline.changelog.pins import PinName, PinnedRange
from strandline.changelog.records import CommittedOffset, TopicPartition
from tests.crash.oracle import (
    AGED,
    KEPT,
    T0,
    Ledger,
    Pinned,
    Settings,
    Transaction,
    check,
    records,
)
from tests.log.kit import START_MS, Client

TIMEOUT_MS = 10_000
PIN_MS = 180_000
"""Milliseconds that an unused pin is kept."""
PLAIN = TRANSACTIONAL = 2
"""Number of producers of either kind."""


class Sent(NamedTuple):
    """A plain batch of one record."""

    value: bytes
    tp: TopicPartition
    key: bytes
    at_ms: int


class Actors:
    """All clients of one log. Each method is one call, with whatever answer it gets."""

    def __init__(self, world: Any, ledger: Ledger, may_fail: Callable[[], bool]) -> None:
        self.world = world
        self.ledger = ledger
        self.may_fail = may_fail
        """True once the disk has failed, so that storage errors are expected."""
        self.count = 0
        self.plain: list[Client | None] = [None] * PLAIN
        self.unanswered: dict[int, Sent] = {}
        self.producers: list[Client | None] = [None] * TRANSACTIONAL

    def copy(self, world: Any, may_fail: Callable[[], bool]) -> Actors:
        """Return the same clients at this moment, for another log."""
        twin = Actors(world, self.ledger.copy(), may_fail)
        twin.count = self.count
        twin.unanswered = dict(self.unanswered)
        twin.plain = [client and _copied(client) for client in self.plain]
        return twin

    def log_died(self) -> None:
        """Note that the log's process has died."""
        self.ledger.died()
        self.producers = [None] * TRANSACTIONAL

    def next_count(self) -> int:
        """Return a number that was never used before, for values and offsets."""
        self.count += 1
        return self.count

    def forget(self, number: int) -> None:
        """Drop a transactional producer. The next call on its number starts another one."""
        self._give_up(number)

    @contextmanager
    def tolerant(self) -> Iterator[None]:
        """Expect storage errors once the disk has failed, and only then.

        Errors about a missing topic are expected then too, because its creation may have failed.
        """
        try:
            yield
        except (StorageFailed, UnknownTopic, UnknownPartition):
            if not self.may_fail():
                raise

    # Plain producers ------------------------------------------------------------------

    def append(
        self, number: int, value: bytes, tp: TopicPartition, *, key: bytes = b"k", at_ms: int = 0
    ) -> None:
        """Send a new batch, or the previous one again if it was not acknowledged."""
        client = self._plain(number)
        if client is None:
            return
        sent = self.unanswered.setdefault(number, Sent(value, tp, key, at_ms))
        value, tp, key, at_ms = sent
        may_be_there = self.ledger.sent(value, tp)
        if tp == KEPT:
            self.ledger.keys[value] = key
        with self.tolerant():
            appended = client.append(
                value, topic=tp.topic, partition=tp.partition, key=key, times=START_MS + at_ms
            )
            check(
                "acknowledged",
                may_be_there or not appended.duplicate,
                f"{value[:9]!r} is reported as a duplicate",
            )
            del self.unanswered[number]
            self.ledger.acknowledged(value, tp, appended.base_offset, duplicate=appended.duplicate)

    def _plain(self, number: int) -> Client | None:
        """Return the plain producer of that number, after its init_producer."""
        if self.plain[number] is None:
            with self.tolerant():
                self.plain[number] = client = Client(self.world)
                self.ledger.introduce(client.identity)
        client = self.plain[number]
        if client is not None:
            client.world = self.world
        return client

    # Transactional producers ----------------------------------------------------------

    def append_in_transaction(self, number: int, value: bytes, tp: TopicPartition) -> None:
        def append(client: Client) -> None:
            self.ledger.void.add(value)  # not to be seen until the append has returned
            if tp == KEPT:
                self.ledger.keys[value] = b"k"
            offset = client.append(value, topic=tp.topic, partition=tp.partition).base_offset
            self.ledger.void.discard(value)
            self.ledger.open[number].records[value] = tp, offset

        self._in_transaction(number, append)

    def add_offsets(self, number: int) -> None:
        offset, group = self.next_count(), self.ledger.open[number].group

        def add(client: Client) -> None:
            self.world.owner.add_offsets(client.identity, group, {T0: CommittedOffset(offset)})
            self.ledger.open[number].offset = offset

        self._in_transaction(number, add)

    def _in_transaction(self, number: int, act: Callable[[Client], None]) -> None:
        client = self._producer(number)
        if client is None:
            return
        transaction = self.ledger.open[number]
        if transaction.began_ms is None:
            transaction.began_ms = self.world.clock.now_ms()
        try:
            with self.tolerant():
                act(client)
                return
        except TransactionAborted:
            self._check_overdue(transaction)
        self._give_up(number)

    def _producer(self, number: int) -> Client | None:
        """Return the transactional producer of that number, after its init_producer."""
        if self.producers[number] is None:
            with self.tolerant():
                self.producers[number] = client = Client(self.world, f"tx-{number}")
                self.ledger.introduce(client.identity)
        return self.producers[number]

    def _give_up(self, number: int) -> None:
        """Note the transaction as aborted. The producer starts again."""
        self.ledger.aborted(self._take(number))
        self.producers[number] = None

    def _take(self, number: int) -> Transaction:
        """Return the content of the producer's transaction, and begin an empty one."""
        transaction = self.ledger.open[number]
        self.ledger.open[number] = Transaction(transaction.group)
        return transaction

    def _check_overdue(self, transaction: Transaction) -> None:
        began = transaction.began_ms
        overdue = began is not None and self.world.clock.now_ms() - began > TIMEOUT_MS
        check("transactions", overdue, "a transaction was aborted in time")

    def commit(self, number: int, *, ask_again: bool = False) -> None:
        """End the transaction. With `ask_again`, call once more if the first call fails."""
        client = self.producers[number]
        if client is None:
            return
        transaction = self._take(number)
        self.ledger.transactions.append(transaction)
        if transaction.offset is not None:
            self.ledger.offsets.setdefault(transaction.group, {None}).add(transaction.offset)
        for attempt in range(1 + ask_again):
            try:
                with self.tolerant():
                    self._end(client, commit=True)
                    self._ended(transaction, is_committed=True)
                    return
            except TransactionAborted:
                if attempt == 0:  # the second call may fail because the first did
                    self._check_overdue(transaction)
                self._ended(transaction, is_committed=False)
                break
        self.producers[number] = None

    def abort(self, number: int) -> None:
        client = self.producers[number]
        self.ledger.aborted(self._take(number))
        if client is None:
            return
        with self.tolerant():
            self._end(client, commit=False)
            return
        self.producers[number] = None

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

    # Other clients --------------------------------------------------------------------

    def commit_offsets(self) -> None:
        offset = self.next_count()
        self.ledger.offsets.setdefault("plain", {None}).add(offset)
        with self.tolerant():
            self.world.owner.commit_offsets("plain", {T0: CommittedOffset(offset)})
            self.ledger.offsets["plain"] = {offset}

    def delete_records(self, tp: TopicPartition, target: int) -> None:
        """Move the partition's start up to an offset."""
        self.ledger.starts[tp].add(target)
        with self.tolerant():
            self.ledger.starts[tp] = {self.world.owner.delete_records(tp, target)}

    def hold(self, since: str, *tps: TopicPartition) -> None:
        """Pin all committed records. Pins with another `since` need not be kept from now on."""
        name, pins = PinName("reader", since, f"u{self.next_count()}"), self.ledger.pins
        with self.tolerant():
            ends = self.world.owner.offsets(tps)
            ranges = {
                tp: PinnedRange(e.topic_id, e.log_start, e.last_stable_offset)
                for tp, e in ends.items()
            }
            for other in [other for other in pins if other.since != since]:
                del pins[other]
            self.world.owner.pins.hold(name, ranges, timeout_ms=PIN_MS)
            rows = [
                (tp, record.offset, record.value)
                for tp in tps
                for record in records(self.world.owner, tp)
            ]
            pins[name] = Pinned(ranges, rows, self.world.clock.now_ms() + PIN_MS)

    def use_pins(self) -> None:
        """Use every pin, which restarts its timeout."""
        for name, kept in self.ledger.pins.items():
            with self.tolerant():
                self.world.owner.pins.use(name)
                expires = self.world.clock.now_ms() + PIN_MS
                self.ledger.pins[name] = kept._replace(expires_ms=expires)

    def release_pins(self) -> None:
        """Release every pin."""
        for name in list(self.ledger.pins):
            del self.ledger.pins[name]
            with self.tolerant():
                self.world.owner.pins.release(name.holder, name.until)

    def tick(self) -> None:
        """Run the log's periodic work. Retention may delete whole segments of the aged
        partition."""
        with self.tolerant():
            with suppress(UnknownTopic):
                aged = self.world.owner._log.partition(AGED)
                bases = {segment.base_offset for segment in aged.segments}
                self.ledger.starts[AGED] |= bases | {aged.log_end}
            self.world.owner.tick()

    def clean(self) -> None:
        """Clean every compacted topic, also the log's own. The cleaner keeps errors of a pass to
        itself."""
        with self.tolerant():
            self.world.owner.clean()

    def create_topic(self, name: str, partitions: int, config: dict[str, str]) -> None:
        self.ledger.topic_changes(name, settings := Settings(partitions, config))
        with self.tolerant():
            self.world.owner.create_topic(name, partitions, config=config)
            self.ledger.topic_is(name, settings)

    def alter_topic(self, name: str, partitions: int, config: dict[str, str]) -> None:
        """Change settings of a topic. Settings that are not named stay."""
        self.ledger.topic_changes(name, settings := Settings(partitions, config))
        with self.tolerant():
            self.world.owner.alter_topic(name, partitions=partitions, config=config)
            self.ledger.topic_is(name, settings)

    def alter_config(self, changes: dict[str, str | None]) -> None:
        """Change settings of the log as a whole."""
        self.ledger.settings_change(changes)
        with self.tolerant():
            self.ledger.settings_are(self.world.owner.alter_config(changes))

    def delete_topic(self, name: str) -> None:
        self.ledger.topic_changes(name, None)
        with self.tolerant():
            self.world.owner.delete_topic(name)
            self.ledger.topic_is(name, None)


def _copied(client: Client) -> Client:
    twin = copy.copy(client)
    twin.sequences = dict(client.sequences)
    return twin
