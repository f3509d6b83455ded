"""The effects of each record until its commit, and the records that a commit may take.

Each record that Faust delivers is a unit of work. Its sends and table writes are kept under it. The
unit is done when all agents have acknowledged the record. A commit takes of each partition the
units before the first one that is not done. Then it leaves out every unit that depends on one
that was left out, and all units after it in its partition, until nothing changes:

    a table value     a unit depends on the unit whose uncommitted value it has read or replaced
    a batch           records handled together (`stream.take`) depend on each other

So a committed result never contains a trace of a record whose own effects are not committed, even
if several agents work on one table at the same time.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from strandline.changelog.records import Headers, TopicPartition
from strandline.framework.faust.overlay import Overlay, Writer

_log = logging.getLogger("strandline")


class Delivered(Protocol):
    """Part of a Faust message that the ledger needs."""

    tp: TopicPartition
    offset: int
    tracked: bool
    """True after an agent has begun with it."""
    acked: bool


class Sent(NamedTuple):
    """One record to be appended with the commit."""

    number: int
    """Position in the order of all sends."""
    topic: str
    partition: int | None
    """None: chosen when the record is appended, because it has no key."""
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers


@dataclass(eq=False, slots=True)
class Unit:
    """One record, or work without a record, with its effects."""

    message: Delivered | None = None
    """Record of this unit; None for work outside of records, which is always done."""
    sent: list[Sent] = field(default_factory=list)
    touched: list[tuple[Overlay, bytes]] = field(default_factory=list)
    """Table keys that it has written."""
    needs: set[Unit] = field(default_factory=set)
    """Units without which it must not be committed."""
    delivering: bool = False
    """True while Faust decodes the record and hands it to its agents."""
    interrupted: bool = False
    """True if an agent ended without finishing the record, although Faust has acknowledged it."""
    has_gone_on: Callable[[], bool] | None = None
    """Set when an exception has left the record's block (`async with event`), which acknowledges it all
    the same. Returns True once the agent has gone on, and so does not fail or end by it."""
    undecodable: str | None = None
    """Error of the agents that could not decode the record; others may have done so."""
    resolved: bool = False
    """True if its agent raised and the policy has decided: it is done, whatever Faust says."""
    sealed: bool = False
    """True from the moment a commit has taken it."""
    settled: bool = False
    """True after its commit."""
    dead: bool = False
    """True if it was dropped: its record is delivered again, and further effects are ignored."""

    @property
    def is_done(self) -> bool:
        """True if it may be committed."""
        message = self.message
        if message is None or self.resolved:
            return True
        if not message.acked or self.interrupted or self.delivering:
            return False
        return self.has_gone_on is None or self.has_gone_on()

    @property
    def is_begun(self) -> bool:
        """True if an agent has begun with its record."""
        return self.message is not None and self.message.tracked

    def depend_on(self, other: Writer) -> None:
        """Note that this unit must not be committed before `other`."""
        if other is not self and isinstance(other, Unit) and not other.settled:
            self.needs.add(other)

    def touch(self, overlay: Overlay, key: bytes) -> None:
        """Note that it has written `key`."""
        self.touched.append((overlay, key))


class CommitPlan(NamedTuple):
    """Work that a commit takes."""

    units: frozenset[Unit]
    offsets: Mapping[TopicPartition, int]
    """Next offset to read, by source partition."""
    sent: list[Sent]
    """Records to append, in the order in which they were sent."""
    changes: Mapping[Overlay, Mapping[bytes, bytes | None]]
    """Newest value of each changed table key; None is a deletion."""

    def __bool__(self) -> bool:
        return bool(self.units)


class Ledger:
    """All work that is not committed. Used by the thread of the event loop only."""

    def __init__(self) -> None:
        self._queues: dict[TopicPartition, deque[Unit]] = {}
        self._units: dict[int, Unit] = {}
        """Units by the identity of their message, which they keep alive."""
        self._loose: list[Unit] = []
        self._delivered: dict[TopicPartition, int] = {}
        """Offset of the last record of each partition since everything was dropped."""
        self._dropped: list[Delivered] = []
        """Records that an agent had begun with when they were dropped; it may still have them."""
        self.must_rewind = False
        """True if all records must be read again: a batch has mixed dropped records with others, or a
        record came twice."""
        self._numbers = itertools.count()

    def deliver(self, message: Delivered) -> Unit:
        """Add the unit of a record, before Faust gets the record.

        A record that comes once more, without anything dropped or sought in between, may have been
        committed. Neither it nor what follows it is committed, and all are read again.
        """
        unit = Unit(message)
        if message.offset <= self._delivered.get(message.tp, -1):
            _log.error(
                "%s: offset %d was handed on before; all records are read again",
                *(message.tp, message.offset),
                extra={"offset": message.offset},
            )
            unit.interrupted = self.must_rewind = True
        else:
            self._delivered[message.tp] = message.offset
        queue = self._queues.get(message.tp)
        if queue is None:
            queue = self._queues[message.tp] = deque()
        queue.append(unit)
        self._units[id(message)] = unit
        return unit

    def sought(self, partition: TopicPartition) -> None:
        """Accept any next offset of a partition, because the app has changed its position."""
        self._delivered.pop(partition, None)

    def uncommitted(self, partition: TopicPartition) -> int:
        """Return the number of records of a partition that are not committed."""
        queue = self._queues.get(partition)
        return 0 if queue is None else len(queue)

    def unit_of(self, message: object) -> Unit | None:
        """Return the unit of a record; None if it is settled or was never delivered."""
        unit = self._units.get(id(message))
        return unit if unit is not None and unit.message is message else None

    def loose(self) -> Unit:
        """Return a new unit for work outside of records; the next commit takes it."""
        unit = Unit()
        self._loose.append(unit)
        return unit

    def batch(self, belongs: Callable[[TopicPartition], bool]) -> Unit:
        """Return a new unit for work on a batch: the records of some partitions in agents' hands.

        The batch and its records are committed together. Records that still wait for an agent are
        not among them: batches of an agent that is never idle would all be one commit. If the agent
        has records that were dropped meanwhile, the batch may contain them, so its effects are
        dropped too. All its records are read again.
        """
        members = [
            member
            for partition, queue in self._queues.items()
            for member in (queue if belongs(partition) else ())
            if member.is_begun and not member.is_done
        ]
        if any(belongs(message.tp) and not message.acked for message in self._dropped):
            for member in members:
                member.interrupted = True
            self.must_rewind = True
            return Unit(dead=True)
        unit = self.loose()
        for member in members:
            unit.needs.add(member)
            member.needs.add(unit)
        return unit

    def send(self, unit: Unit, topic: str, partition: int | None, *content: object) -> None:
        """Add a record (key, value, timestamp in ms, headers) to the effects of a unit."""
        if not unit.dead:
            unit.sent.append(Sent(next(self._numbers), topic, partition, *content))  # type: ignore[arg-type]

    def plan(self) -> CommitPlan:
        """Return the work that may be committed now, and seal it."""
        chosen = self._closed_choice()
        offsets = {}
        for partition, queue in self._queues.items():
            for unit in itertools.takewhile(chosen.__contains__, queue):
                assert unit.message is not None
                offsets[partition] = unit.message.offset + 1
        changes: dict[Overlay, dict[bytes, bytes | None]] = {}
        for unit in chosen:
            unit.sealed = True
            for overlay, key in unit.touched:
                changes.setdefault(overlay, {})[key] = overlay.latest_of(key, chosen)
        sent = sorted(one for unit in chosen for one in unit.sent)
        return CommitPlan(frozenset(chosen), offsets, sent, changes)

    def settle(self, plan: CommitPlan) -> None:
        """Drop the work of a commit that has succeeded."""
        for unit in plan.units:
            unit.settled = True
            unit.needs.clear()
            if unit.message is not None:
                self._units.pop(id(unit.message), None)
        for unit in plan.units:
            _forget_values(unit)
        for partition in plan.offsets:
            queue = self._queues[partition]
            while queue and queue[0].settled:
                queue.popleft()
        self._loose = [unit for unit in self._loose if not unit.settled]

    def undo(self, unit: Unit) -> bool:
        """Drop the effects of a unit; False, without effect, if other units depend on it."""
        if any(unit in other.needs for other in self._all()):
            return False
        unit.dead = True
        _forget_values(unit)
        for overlay, key in unit.touched:
            overlay.note_undone(key)
        unit.dead = False
        unit.touched.clear()
        unit.sent.clear()
        unit.needs.clear()
        return True

    def discard(self) -> int:
        """Drop everything, because all partitions are read again from their committed offsets.

        Returns:
            The number of records dropped.
        """
        dropped = list(self._all())
        for unit in dropped:
            unit.dead = True
        for unit in dropped:
            _forget_values(unit)
        begun = (unit.message for unit in dropped if unit.message is not None)
        self._dropped = [
            message for message in (*self._dropped, *begun) if message.tracked and not message.acked
        ]
        self.must_rewind = False
        self._delivered.clear()
        self._queues.clear()
        self._units.clear()
        self._loose.clear()
        return len(dropped)

    def has_started(self) -> bool:
        """Return True if an agent is working on a record."""
        return any(
            unit.is_begun and not unit.is_done and not unit.interrupted for unit in self._all()
        )

    def _closed_choice(self) -> set[Unit]:
        """Return the done units that depend on no other units."""
        queues = {
            partition: list(itertools.takewhile(lambda unit: unit.is_done, queue))
            for partition, queue in self._queues.items()
        }
        loose = list(self._loose)
        while True:
            chosen = {unit for queue in [*queues.values(), loose] for unit in queue}

            def is_closed(unit: Unit, chosen: set[Unit] = chosen) -> bool:
                return all(need in chosen or need.settled for need in unit.needs)

            if all(map(is_closed, chosen)):
                return chosen
            queues = {tp: list(itertools.takewhile(is_closed, of)) for tp, of in queues.items()}
            loose = list(filter(is_closed, loose))

    def _all(self) -> Iterable[Unit]:
        return itertools.chain(*self._queues.values(), self._loose)


def _forget_values(unit: Unit) -> None:
    for overlay, key in unit.touched:
        overlay.forget(key, _is_gone)


def _is_gone(writer: Writer) -> bool:
    return writer.dead or (isinstance(writer, Unit) and writer.settled)
