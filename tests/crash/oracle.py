"""The promises made to clients, and the check that an opened log keeps them.

The ledger notes acknowledged records, aborted ones, and those whose outcome is unknown. After each
opening it is compared with the view of readers:

- an acknowledged record is there once, at its offset; a committed transaction is whole, with
  its offsets; nothing of an aborted or unfinished one is visible; an outcome that was in doubt
  is decided once;
- no transaction stays open, no offset shows two records, no producer identity is assigned
  twice, and no position that a reader had reached counts as diverged (KIP-320);
- in a compacted topic a record with a later one of the same key may be removed, and then never
  reappears;
- a pinned range reads the same until its pin is released or has expired;
- topics exist as they were last changed, and no topic id is assigned twice; so do settings.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple

from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import StrandlineError
from strandline.changelog.layout import CONSUMER_OFFSETS, TRANSACTION_STATE
from strandline.changelog.pins import PinName, PinnedRange, PinnedRanges
from strandline.changelog.records import ConsumerRecord, Isolation, ProducerIdentity, TopicPartition
from tests.log.kit import World

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
PARTITIONS = (T0, T1)
KEPT = TopicPartition("kept", 0)
"""Partition of a compacted topic."""
AGED = TopicPartition("aged", 0)
"""Partition of a topic whose records are deleted when they are old."""
SYSTEM = (TopicPartition(CONSUMER_OFFSETS, 0), TopicPartition(TRANSACTION_STATE, 0))
GROUPS = ("g0", "g1", "plain")
"""Groups of the two transactional producers, and of a plain consumer; all read T0."""


Promise = Literal[
    "opens",
    "acknowledged",
    "transactions",
    "offsets",
    "identities",
    "groups",
    "topics",
    "pins",
    "state",
    "outputs",
    "goes on",
    "check",
]

PROMISES: dict[Promise, str] = {
    "opens": "the log opens, whatever a crash left",
    "acknowledged": "what was acknowledged is there, once, and nothing half",
    "transactions": "committed transactions are whole, others nowhere, none is left open",
    "offsets": "no offset shows two records, no position that was read diverges",
    "identities": "no producer id and epoch is given twice",
    "groups": "a group is where it last committed",
    "topics": "topics and settings are as they were last made, changed or deleted",
    "pins": "what was pinned is read as it was",
    "state": "stores equal the fold of the committed input",
    "outputs": "each output is there once",
    "goes on": "producers, consumers and tasks go on",
    "check": "check finds nothing wrong",
}


class Violation(AssertionError):
    """Raised if a promise was broken."""

    def __init__(self, promise: Promise, broken: str) -> None:
        super().__init__(f"{promise}: {broken}")
        self.promise = promise


def check(promise: Promise, kept: object, broken: str) -> None:
    if not kept:
        raise Violation(promise, broken)


# The ledger ---------------------------------------------------------------------------


class Settings(NamedTuple):
    """Requested settings of a topic."""

    partitions: int
    config: dict[str, str]

    def __hash__(self) -> int:
        return hash((self.partitions, *sorted(self.config.items())))


@dataclass
class Transaction:
    """Content of a transactional producer's transaction so far."""

    group: str
    records: dict[bytes, tuple[TopicPartition, int]] = field(default_factory=dict)
    offset: int | None = None
    began_ms: int | None = None


class Pinned(NamedTuple):
    """Content of a pin at its creation."""

    ranges: dict[TopicPartition, PinnedRange]
    rows: list[tuple[TopicPartition, int, bytes]]
    expires_ms: int


@dataclass
class Ledger:
    """All promises so far."""

    partitions: tuple[TopicPartition, ...] = PARTITIONS
    """Partitions that the ledger watches."""
    topics: dict[str, set[Settings | None]] = field(default_factory=dict)
    """Possible settings by topic; None means that the topic does not exist."""
    settings: list[dict[str, str]] = field(default_factory=lambda: [{}])
    """Possible settings of the log as a whole."""
    topic_ids: dict[str, str] = field(default_factory=dict)
    """Topic names by topic id."""
    certain: dict[bytes, tuple[TopicPartition, int]] = field(default_factory=dict)
    """Partition and offset of acknowledged and committed records, by value."""
    void: set[bytes] = field(default_factory=set)
    """Values that must never be seen: aborted, or in a transaction without a commit call."""
    batches: dict[bytes, TopicPartition] = field(default_factory=dict)
    """Partitions of plain batches that were sent and not acknowledged, by value."""
    missing: set[bytes] = field(default_factory=set)
    """Values of such batches that an opening did not find."""
    open: dict[int, Transaction] = field(
        default_factory=lambda: {0: Transaction("g0"), 1: Transaction("g1")}
    )
    """Transaction in progress, by producer."""
    transactions: list[Transaction] = field(default_factory=list)
    """Transactions whose commit was not answered."""
    offsets: dict[str, set[int | None]] = field(default_factory=dict)
    """Possible committed offsets, by group."""
    starts: dict[TopicPartition, set[int]] = field(default_factory=dict)
    """Possible start offsets, by partition."""
    keys: dict[bytes, bytes] = field(default_factory=dict)
    """Keys of values in the compacted partition."""
    replaced: set[bytes] = field(default_factory=set)
    """Values in the compacted partition that were removed."""
    places: dict[tuple[TopicPartition, int], bytes] = field(default_factory=dict)
    """Value that was seen at each offset, by any reader."""
    identities: set[ProducerIdentity] = field(default_factory=set)
    reached: set[tuple[TopicPartition, int, int]] = field(default_factory=set)
    """End positions up to which a reader could have read, with their leader epoch."""
    pins: dict[PinName, Pinned] = field(default_factory=dict)
    """Pins that must exist."""

    def __post_init__(self) -> None:
        for tp in self.partitions:
            self.starts.setdefault(tp, {0})

    def marks(self) -> list[object]:
        """Return values that change whenever the ledger changes."""
        sizes = [len(getattr(self, known.name)) for known in fields(self)]
        return [*sizes, repr((self.topics, self.settings, self.open, self.offsets, self.starts))]

    def copy(self) -> Ledger:
        """Return a copy of the promises at this moment."""
        return copy.deepcopy(self)

    def introduce(self, identity: ProducerIdentity) -> None:
        check("identities", identity not in self.identities, f"{identity} was given out twice")
        self.identities.add(identity)

    def sent(self, value: bytes, tp: TopicPartition) -> bool:
        """Note a plain batch that is sent. Return True if it may already be in the log."""
        was_missing = value in self.missing
        self.missing.discard(value)
        self.batches[value] = tp
        return not was_missing

    def acknowledged(
        self, value: bytes, tp: TopicPartition, offset: int, *, duplicate: bool
    ) -> None:
        del self.batches[value]
        if value in self.certain:
            check(
                "acknowledged",
                self.certain[value] == (tp, offset),
                f"{value[:9]!r} has two offsets",
            )
            check(
                "acknowledged",
                duplicate,
                f"{value[:9]!r}, found after an opening, was written again",
            )
        self.certain[value] = (tp, offset)
        self.place(tp, offset, value)

    def place(self, tp: TopicPartition, offset: int, value: bytes) -> None:
        known = self.places.setdefault((tp, offset), value)
        check(
            "offsets", known == value, f"{tp} showed {known[:9]!r} at {offset}, then {value[:9]!r}"
        )

    def _is_replaced(self, value: bytes, offset: int) -> bool:
        """Return True if a record may be removed because of a later one with the same key."""
        key = self.keys.get(value)
        return key is not None and any(
            self.keys.get(other) == key and later > offset
            for other, (_, later) in self.certain.items()
        )

    def committed(self, transaction: Transaction) -> None:
        self.certain.update(transaction.records)
        if transaction.offset is not None:
            self.offsets[transaction.group] = {transaction.offset}

    def aborted(self, transaction: Transaction) -> None:
        self.void.update(transaction.records)

    def died(self) -> None:
        """Note the death of the log's process: open transactions were never committed."""
        for number, transaction in self.open.items():
            self.aborted(transaction)
            self.open[number] = Transaction(transaction.group)

    def topic_changes(self, name: str, to: Settings | None) -> None:
        """Note a requested change; `topic_is` notes that it was done."""
        self.topics.setdefault(name, {None}).add(to)

    def topic_is(self, name: str, settings: Settings | None) -> None:
        self.topics[name] = {settings}

    def settings_change(self, changes: dict[str, str | None]) -> None:
        """Note a requested change; `settings_are` notes that it was done."""
        changed = [{**given, **changes} for given in self.settings]
        kept = [{k: v for k, v in given.items() if v is not None} for given in changed]
        self.settings += [given for given in kept if given not in self.settings]

    def settings_are(self, given: dict[str, str]) -> None:
        check("topics", given in self.settings, f"what is set is {given}")
        self.settings = [given]

    # After an opening -----------------------------------------------------------------

    def judge(self, world: World) -> None:
        """Compare an opened log with the promises, and decide what was in doubt."""
        self._judge_topics(world)
        self.settings_are(world.owner.describe_config())
        there = self._there(world)
        ends = world.owner.offsets([*there, *SYSTEM])
        for tp, end in ends.items():
            check(
                "transactions",
                end.last_stable_offset == end.high_watermark,
                f"a transaction hangs in {tp}",
            )
        for tp, epoch, end_seen in self.reached:
            check(
                "offsets",
                end_seen <= ends[tp].epoch_end(epoch),
                f"{end_seen} in {tp} counts as diverged",
            )
        for tp in there:
            start = ends[tp].log_start
            check(
                "acknowledged",
                self._may_start(tp, start),
                f"{tp} starts at {start}, not at {self.starts[tp]}",
            )
            self.starts[tp] = {start}
        shown: dict[bytes, tuple[TopicPartition, int]] = {}
        for tp in there:
            for record in records(world.owner, tp):
                check(
                    "acknowledged",
                    record.value not in shown,
                    f"{record.value[:9]!r} is there twice",
                )
                shown[record.value] = (tp, record.offset)
                self.place(tp, record.offset, record.value)
        groups = {group: committed(world, group) for group in GROUPS}
        self._judge_batches(shown)
        self._judge_transactions(shown, groups)
        self._judge_records(shown)
        for group, position in groups.items():
            expected = self.offsets.get(group, {None})
            check(
                "groups", position in expected, f"group {group} is at {position}, not in {expected}"
            )
            self.offsets[group] = {position}
        self.judge_pins(world)
        self._see(world)

    def judge_pins(self, world: World) -> None:
        """Check that pinned ranges read the same as at the pin's creation."""
        for name, kept in self.pins.items():
            if world.clock.now_ms() < kept.expires_ms:
                try:
                    rows = pinned_rows(world.owner, name, kept.ranges)
                except StrandlineError as error:
                    raise Violation("pins", str(error)) from error
                check("pins", rows == kept.rows, f"{name} shows {len(rows)} of {len(kept.rows)}")

    def _judge_topics(self, world: World) -> None:
        found = {info.name: info for info in world.owner.topics()}
        for name, allowed in self.topics.items():
            info = found.get(name)
            now = None if info is None else Settings(info.partitions, dict(info.config))
            check("topics", now in allowed, f"topic {name} is {now}, not in {allowed}")
            self.topics[name] = {now}
        for name, info in found.items():
            known = self.topic_ids.setdefault(info.topic_id, name)
            check(
                "topics",
                known == name,
                f"{info.topic_id} was the id of {known} and is that of {name}",
            )

    def _there(self, world: World) -> list[TopicPartition]:
        """Return the watched partitions that exist."""
        counts = {info.name: info.partitions for info in world.owner.topics()}
        return [tp for tp in self.partitions if tp.partition < counts.get(tp.topic, 0)]

    def _may_start(self, tp: TopicPartition, start: int) -> bool:
        """Return True for a known start, or one after it with only unused offsets in between."""
        offsets = [offset for where, offset in self.places if where == tp]
        return any(
            before <= start and not any(before <= offset < start for offset in offsets)
            for before in self.starts[tp]
        )

    def _judge_batches(self, shown: dict[bytes, tuple[TopicPartition, int]]) -> None:
        for value in self.batches:
            if value in shown:
                check("acknowledged", value not in self.missing, f"{value[:9]!r} has come back")
                self.certain.setdefault(value, shown[value])
            elif value not in self.certain:  # otherwise it was found once, and deleted since
                self.missing.add(value)

    def _judge_transactions(
        self, shown: dict[bytes, tuple[TopicPartition, int]], groups: dict[str, int | None]
    ) -> None:
        for transaction in self.transactions:
            kept = [value for value in transaction.records if self._is_kept(transaction, value)]
            found = [value for value in kept if value in shown]
            check(
                "transactions",
                len(found) in (0, len(kept)),
                f"half a transaction: {len(found)} of {len(kept)}",
            )
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
        return offset >= min(self.starts[tp]) and not self._is_replaced(value, offset)

    def _judge_records(self, shown: dict[bytes, tuple[TopicPartition, int]]) -> None:
        for value, (tp, offset) in self.certain.items():
            if offset >= min(self.starts[tp]):
                found = shown.get(value)
                if found is None and self._is_replaced(value, offset):
                    self.replaced.add(value)
                    continue
                check(
                    "acknowledged",
                    found == (tp, offset) and value not in self.replaced,
                    f"{value[:9]!r} at {offset} of {tp} is at {found}",
                )
        for value in shown:
            check("transactions", value not in self.void, f"{value[:9]!r} was aborted and is shown")
            check(
                "acknowledged",
                value in self.certain,
                f"{value[:9]!r} is shown and was never sent or committed",
            )

    def look(self, world: World) -> None:
        """Read while the log is in use, and check that only committed records are visible."""
        self._see(world)
        hidden = self.void.union(*(transaction.records for transaction in self.open.values()))
        for tp in self._there(world):
            for record in records(world.owner, tp):
                hides = record.value in hidden
                check("transactions", not hides, f"{record.value[:9]!r} is shown and not committed")

    def _see(self, world: World) -> None:
        """Note all records that any reader could have seen by now."""
        there = self._there(world)
        ends = world.owner.offsets([*there, *SYSTEM])
        self.reached |= {(tp, e.leader_epoch, e.high_watermark) for tp, e in ends.items()}
        for tp in there:
            for record in records(world.owner, tp, "read_uncommitted"):
                self.place(tp, record.offset, record.value)


def records(
    owner: Owner, tp: TopicPartition, isolation: Isolation = "read_committed"
) -> Iterator[ConsumerRecord]:
    """Yield all records that a reader gets."""
    position = owner.offsets([tp])[tp].log_start
    while True:
        fetched = owner.fetch({tp: position}, isolation=isolation)[tp]
        for batch in fetched.batches:
            yield from batch.records()
        if fetched.next_offset == position:
            return
        position = fetched.next_offset


def pinned_rows(
    owner: Owner, name: PinName, ranges: PinnedRanges
) -> list[tuple[TopicPartition, int, bytes]]:
    """Return all records that a reader of a pin gets."""
    rows = []
    for tp, span in ranges.items():
        position = span.start
        while position < span.end:
            fetched = owner.pins.fetch(name, tp, position, max_bytes=4096)
            rows += [
                (tp, record.offset, record.value)
                for batch in fetched.batches
                for record in batch.records()
                if record.offset < span.end
            ]
            position = fetched.next_offset
    return rows


def committed(world: World, group: str) -> int | None:
    offset = world.owner.committed(group).get(T0)
    return None if offset is None else offset.offset
