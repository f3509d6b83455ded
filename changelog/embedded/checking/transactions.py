"""The transaction log, and what ties the partitions of a transaction together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from strandline.changelog.embedded.checking.findings import CheckReport, Severity
from strandline.changelog.embedded.checking.scanned import LostMarker, ScannedPartition
from strandline.changelog.embedded.transaction_log import TransactionRecord, parsed
from strandline.changelog.records import TopicPartition

Place = tuple[str, int]
"""A partition by its topic's id and its number."""
Partitions = Mapping[Place, ScannedPartition]


class PartitionReach(NamedTuple):
    """How far a partition must go, and who says so."""

    offset: int
    because: str


@dataclass
class TransactionFacts:
    """What the transaction log says, all of its records taken together."""

    states: dict[str, TransactionRecord] = field(default_factory=dict)
    """The last record of each transactional id."""
    names: dict[int, str] = field(default_factory=dict)
    """The transactional id of each producer id."""
    committed: dict[int, int] = field(default_factory=dict)
    """By producer id, the last epoch whose transaction was committed."""
    reaches: dict[Place, PartitionReach] = field(default_factory=dict)
    """How far each partition was durable when a transaction was committed in it."""
    block_end: int = 0
    """All producer ids given out are below it."""
    complete: bool = False
    """Whether no record of the log is missing."""

    def is_live(self, producer_id: int, epoch: int, place: Place) -> bool:
        """Whether opening the log completes that transaction in that partition."""
        state = self.states.get(self.names.get(producer_id, ""))
        return (
            state is not None
            and (state.state, state.producer_id, state.epoch) == ("prepare", producer_id, epoch)
            and any((p.topic_id, p.partition) == place for p in state.partitions)
        )

    def name(self, producer_id: int) -> str:
        """The producer as people know it."""
        known = self.names.get(producer_id)
        return f"{known!r}" if known is not None else f"producer {producer_id}"


def read_transactions(report: CheckReport, log: ScannedPartition | None) -> TransactionFacts:
    """What the transaction log says; contradictions in it are findings."""
    facts = TransactionFacts()
    if log is None:
        return facts
    facts.complete = log.contiguous
    for batch in log.committed():
        for record in batch.records():
            said = parsed(record)
            if isinstance(said, int):
                facts.block_end = max(facts.block_end, said)
            elif said is not None and said.state is None:
                facts.states.pop(said.transactional_id, None)
            elif said is not None and said.state is not None:
                _check_follows(report, log, record.offset, facts, said.transactional_id, said.state)
                _note(facts, said.transactional_id, said.state)
    return facts


def check_transactions(
    report: CheckReport, partitions: Partitions, facts: TransactionFacts
) -> None:
    """Hold the partitions against the transaction log and against one another."""
    _check_ids(report, partitions, facts)
    outcomes = _check_outcomes(report, partitions, facts)
    for place, scanned in partitions.items():
        for producer_id in scanned.producers.open_producers:
            _check_open(report, place, scanned, producer_id, facts, outcomes)


def check_reaches(
    report: CheckReport, partitions: Partitions, reaches: Mapping[Place, PartitionReach]
) -> None:
    """Each partition must go as far as something else in the folder says that it went."""
    for place, reach in reaches.items():
        scanned = partitions.get(place)
        if scanned is not None and scanned.next_offset < reach.offset:
            report.add(
                Severity.DAMAGE,
                "end",
                scanned.folder,
                f"ends at offset {scanned.end}, but {reach.because} reaches to {reach.offset}",
                partition=scanned.topic_partition,
                offsets=(scanned.end, reach.offset),
            )


def _check_follows(
    report: CheckReport,
    log: ScannedPartition,
    offset: int,
    facts: TransactionFacts,
    name: str,
    state: TransactionRecord,
) -> None:
    before = facts.states.get(name)
    if before is None:
        return
    if (state.producer_id, state.epoch) < (before.producer_id, before.epoch):
        report.add(
            Severity.DAMAGE,
            "epoch",
            log.folder,
            f"{name!r} has producer id {state.producer_id}, epoch {state.epoch} after "
            f"{before.producer_id}, {before.epoch}: an epoch was given out twice",
            partition=log.topic_partition,
            offsets=(offset, offset + 1),
            way_out="`strandline repair` cannot tell what is right and leaves it",
        )


def _note(facts: TransactionFacts, name: str, state: TransactionRecord) -> None:
    facts.states[name] = state
    facts.names[state.producer_id] = name
    if state.state != "empty":
        facts.committed[state.producer_id] = state.epoch
    for prepared in state.partitions:
        place = (prepared.topic_id, prepared.partition)
        if facts.reaches.get(place, PartitionReach(-1, "")).offset < prepared.end:
            facts.reaches[place] = PartitionReach(
                prepared.end, f"a committed transaction of {name!r}"
            )


def _check_ids(report: CheckReport, partitions: Partitions, facts: TransactionFacts) -> None:
    seen = [max(p.producers.entries, default=-1) for p in partitions.values()]
    highest = max([*seen, *facts.names], default=-1)
    if highest >= facts.block_end:
        report.add(
            Severity.REPAIRABLE,
            "producer ids",
            "",
            f"producer id {highest} is in use, but only those below {facts.block_end} were set "
            f"aside: the record that says so is lost",
        )


def _check_outcomes(
    report: CheckReport, partitions: Partitions, facts: TransactionFacts
) -> dict[tuple[int, int], bool]:
    """By producer id and epoch, how the last transactions ended, where some partition says it."""
    outcomes: dict[tuple[int, int], bool] = {}
    first: dict[tuple[int, int], TopicPartition] = {}
    for scanned in partitions.values():
        here = scanned.topic_partition
        for producer_id, (next_epoch, committed) in scanned.last_markers.items():
            key = (producer_id, next_epoch - 1)
            there = first.setdefault(key, here)
            problem = ""
            if outcomes.setdefault(key, committed) != committed:
                problem = f"was {_word(committed)} in {here} and {_word(not committed)} in {there}"
            elif not _agrees(facts, key, committed):
                problem = f"was {_word(committed)} in {here}; the transaction log says otherwise"
            if problem:
                report.add(
                    Severity.DAMAGE,
                    "outcome",
                    scanned.folder,
                    f"the transaction of {facts.name(producer_id)}, epoch {key[1]}, {problem}",
                    partition=here,
                    way_out="`strandline repair` cannot tell what is right and leaves it",
                )
    return outcomes


def _agrees(facts: TransactionFacts, key: tuple[int, int], committed: bool) -> bool:
    producer_id, epoch = key
    if producer_id not in facts.names:
        return True  # forgotten, or never a transactional id: nothing is known of it
    last = facts.committed.get(producer_id, -1)
    return epoch <= last or not facts.complete if committed else epoch != last


def _check_open(
    report: CheckReport,
    place: Place,
    scanned: ScannedPartition,
    producer_id: int,
    facts: TransactionFacts,
    outcomes: Mapping[tuple[int, int], bool],
) -> None:
    epoch = scanned.producers.epoch(producer_id)
    first = scanned.producers.open_since(producer_id)
    what = f"the transaction of {facts.name(producer_id)}, epoch {epoch}, since offset {first}"
    severity, way_out = Severity.NOTE, ""
    if facts.is_live(producer_id, epoch, place):
        what, way_out = (
            f"{what} is committed, its end not written here",
            "opening the log does that",
        )
    elif facts.committed.get(producer_id) == epoch or outcomes.get((producer_id, epoch)):
        severity = Severity.REPAIRABLE
        what = f"{what} was committed, and its end is lost here"
        way_out = "run `strandline repair` before the log is opened, which would abort it here"
        if all(end.producer_id != producer_id for end in scanned.lost_ends):
            scanned.lost_ends.append(LostMarker(producer_id, epoch, first, [], certain=True))
    else:
        what, way_out = f"{what} is open", "opening the log aborts it"
    report.add(
        severity,
        "open transaction",
        scanned.folder,
        what,
        partition=scanned.topic_partition,
        offsets=(first, scanned.end),
        way_out=way_out,
    )


def _word(committed: bool) -> str:
    return "committed" if committed else "aborted"
