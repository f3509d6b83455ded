"""The transaction log, compared with the partitions of its transactions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from strandline.changelog.embedded.checking.findings import CheckReport, Severity
from strandline.changelog.embedded.checking.scanned import LostMarker, ScannedPartition
from strandline.changelog.embedded.transaction_log import TransactionRecord, parsed
from strandline.changelog.records import TopicPartition

PartitionKey = tuple[str, int]
"""Topic id and number of a partition."""
Partitions = Mapping[PartitionKey, ScannedPartition]


class PartitionReach(NamedTuple):
    """Minimum end of a partition, and the evidence for it."""

    offset: int
    because: str
    """Evidence, as the subject of a sentence ("the committed offset of group 'g'")."""


@dataclass
class TransactionFacts:
    """The state of all transactions according to the transaction log."""

    states: dict[str, TransactionRecord] = field(default_factory=dict)
    """Last record of each transactional id."""
    names: dict[int, str] = field(default_factory=dict)
    """Transactional id of each producer id."""
    committed: dict[int, int] = field(default_factory=dict)
    """Last epoch with a committed transaction, by producer id."""
    reaches: dict[PartitionKey, PartitionReach] = field(default_factory=dict)
    """Durable end of each partition at its last committed transaction."""
    block_end: int = 0
    """End (exclusive) of the producer ids reserved so far; all assigned ones are smaller."""
    complete: bool = False
    """True if no record of the transaction log is missing."""

    def is_live(self, producer_id: int, epoch: int, place: PartitionKey) -> bool:
        """Return True if opening the log commits this transaction in this partition."""
        state = self.states.get(self.names.get(producer_id, ""))
        return (
            state is not None
            and (state.state, state.producer_id, state.epoch) == ("prepare", producer_id, epoch)
            and any((p.topic_id, p.partition) == place for p in state.partitions)
        )

    def name(self, producer_id: int) -> str:
        """Return a producer's transactional id, or its number if it has none, for messages."""
        known = self.names.get(producer_id)
        return f"{known!r}" if known is not None else f"producer {producer_id}"


def read_transactions(report: CheckReport, log: ScannedPartition | None) -> TransactionFacts:
    """Read the transaction log, and report contradictions in it."""
    facts = TransactionFacts()
    if log is None:
        return facts
    facts.complete = log.contiguous
    for batch in log.committed():
        for record in batch.records():
            record_value = parsed(record)
            if isinstance(record_value, int):
                facts.block_end = max(facts.block_end, record_value)
            elif record_value is not None and record_value.state is None:
                facts.states.pop(record_value.transactional_id, None)
            elif record_value is not None and record_value.state is not None:
                _check_follows(
                    report,
                    log,
                    record.offset,
                    facts,
                    record_value.transactional_id,
                    record_value.state,
                )
                _note(facts, record_value.transactional_id, record_value.state)
    return facts


def check_transactions(
    report: CheckReport, partitions: Partitions, facts: TransactionFacts
) -> None:
    """Compare the partitions with the transaction log and with one another."""
    _check_ids(report, partitions, facts)
    outcomes = _check_outcomes(report, partitions, facts)
    for place, scanned in partitions.items():
        for producer_id in scanned.producers.open_producers:
            _check_open(report, place, scanned, producer_id, facts, outcomes)


def check_reaches(
    report: CheckReport, partitions: Partitions, reaches: Mapping[PartitionKey, PartitionReach]
) -> None:
    """Report each partition that ends before the offset that other files show it had reached."""
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
    """Report a record of a transactional id whose producer id or epoch decreases."""
    before = facts.states.get(name)
    if before is None:
        return
    if (state.producer_id, state.epoch) < (before.producer_id, before.epoch):
        report.add(
            Severity.DAMAGE,
            "epoch",
            log.folder,
            f"{name!r} has producer id {state.producer_id}, epoch {state.epoch} after "
            f"{before.producer_id}, {before.epoch}: an epoch was assigned twice",
            partition=log.topic_partition,
            offsets=(offset, offset + 1),
            way_out="`strandline repair` cannot decide what is right and does not change it",
        )


def _note(facts: TransactionFacts, name: str, state: TransactionRecord) -> None:
    """Update the facts by one record of the transaction log."""
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
    """Report a producer id in use that was never reserved."""
    seen = [max(p.producers.entries, default=-1) for p in partitions.values()]
    highest = max([*seen, *facts.names], default=-1)
    if highest >= facts.block_end:
        report.add(
            Severity.REPAIRABLE,
            "producer ids",
            "",
            f"producer id {highest} is in use, but only ids below {facts.block_end} were reserved: "
            f"the record of the reservation is lost",
        )


def _check_outcomes(
    report: CheckReport, partitions: Partitions, facts: TransactionFacts
) -> dict[tuple[int, int], bool]:
    """Compare the markers of all partitions; report contradictions.

    Returns True for commit and False for abort, by producer id and epoch.
    """
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
                problem = f"was {_word(committed)} in {here}, but not in the transaction log"
            if problem:
                report.add(
                    Severity.DAMAGE,
                    "outcome",
                    scanned.folder,
                    f"the transaction of {facts.name(producer_id)}, epoch {key[1]}, {problem}",
                    partition=here,
                    way_out="`strandline repair` cannot decide what is right and does not change it",
                )
    return outcomes


def _agrees(facts: TransactionFacts, key: tuple[int, int], committed: bool) -> bool:
    """Return True if the transaction log does not contradict the outcome in a marker."""
    producer_id, epoch = key
    if producer_id not in facts.names:
        return True  # an expired transactional id, or none: the transaction log has no record of it
    last = facts.committed.get(producer_id, -1)
    return epoch <= last or not facts.complete if committed else epoch != last


def _check_open(
    report: CheckReport,
    place: PartitionKey,
    scanned: ScannedPartition,
    producer_id: int,
    facts: TransactionFacts,
    outcomes: Mapping[tuple[int, int], bool],
) -> None:
    """Report a transaction that is open at the end of a partition."""
    epoch = scanned.producers.epoch(producer_id)
    first = scanned.producers.open_since(producer_id)
    what = f"the transaction of {facts.name(producer_id)}, epoch {epoch}, since offset {first}"
    severity, way_out = Severity.NOTE, ""
    if facts.is_live(producer_id, epoch, place):
        what, way_out = (
            f"{what} is committed, but its marker is not written here yet",
            "opening the log writes it",
        )
    elif facts.committed.get(producer_id) == epoch or outcomes.get((producer_id, epoch)):
        severity = Severity.REPAIRABLE
        what = f"{what} was committed, but its marker is lost here"
        way_out = "run `strandline repair` before the log is opened, which would abort it here"
        if all(end.producer_id != producer_id for end in scanned.lost_markers):
            scanned.lost_markers.append(LostMarker(producer_id, epoch, first, [], certain=True))
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
