"""Decide how transactions ended whose marker is lost in a partition.

A prepared transaction is committed. The transaction log therefore decides. If it has lost records,
the markers of the same transaction in other partitions decide. If neither has the transaction, it
is aborted, and reported as a loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from strandline.changelog.embedded.checking.folder import CheckedLog
from strandline.changelog.embedded.checking.scanned import LostMarker, RecordGap, ScannedPartition
from strandline.changelog.embedded.format import unpack_marker
from strandline.changelog.embedded.repairing.surgery import RepairMarker, Surgery
from strandline.changelog.embedded.transaction_log import TransactionalIdRecord, parsed
from strandline.changelog.layout import TRANSACTION_STATE
from strandline.changelog.records import ProducerIdentity

Transaction = tuple[int, int]
"""Producer id and epoch."""


@dataclass
class Outcomes:
    """Outcomes of transactions whose marker is lost."""

    known: dict[Transaction, bool] = field(default_factory=dict)
    """True for each transaction that committed, False for each that aborted."""
    complete: bool = False
    """True if a transaction without known outcome was certainly not committed."""


def outcomes_of(checked: CheckedLog) -> Outcomes:
    """Return the outcomes of all transactions of the log that have lost a marker."""
    ends = [end for scanned in checked.partitions.values() for end in scanned.lost_markers]
    wanted = {(end.producer_id, end.epoch) for end in ends}
    found = Outcomes(complete=checked.transactions.complete)
    if wanted:
        found.known = dict.fromkeys(wanted & set(_prepared(checked)), True)
        for transaction, committed in _marked(checked):
            if transaction in wanted:
                found.known.setdefault(transaction, committed)
    return found


def write_ends(checked: CheckedLog, surgery: Surgery, outcomes: Outcomes) -> Iterator[str]:
    """Plan the markers that a partition has lost; yield a description of each unknown outcome."""
    scanned = surgery.scanned
    place = (scanned.meta.topic_id, scanned.number)
    for end in sorted(scanned.lost_markers, key=lambda end: -end.first_offset):
        transaction = (end.producer_id, end.epoch)
        committed = outcomes.known.get(transaction)
        name = checked.transactions.name(end.producer_id)
        what = f"{scanned.topic_partition}: how the transaction of {name}, epoch {end.epoch}, ended"
        if committed is None and not outcomes.complete:
            yield f"{what} is unknown; it is aborted"
        if not end.certain and (
            committed is None or checked.transactions.is_live(*transaction, place)
        ):
            continue  # opening the log aborts or completes it
        producer = ProducerIdentity(end.producer_id, end.epoch + 1)
        if not _place_marker(surgery, end, RepairMarker(producer, bool(committed))):
            yield f"{what} cannot be written, because no offset is free"


def _place_marker(surgery: Surgery, end: LostMarker, marker: RepairMarker) -> bool:
    """Assign a marker to the last gap with room, or to the end of the log; False if impossible."""
    if not end.gaps and surgery.scanned.producers.open_since(end.producer_id) < 0:
        return False
    inner = [gap for gap in end.gaps if gap.until is not None]
    for gap in reversed(inner):
        if len(surgery.in_gaps.get(gap, ())) < _free_offsets(gap):
            surgery.in_gaps.setdefault(gap, []).append(marker)
            return True
    if inner and len(inner) == len(end.gaps) and end.certain:
        return False
    surgery.at_end.append(marker)
    return True


def _free_offsets(gap: RecordGap) -> int:
    """Return the number of offsets in a gap; 0 for the gap at the end of the log."""
    return 0 if gap.until is None else gap.until - gap.first


def _prepared(checked: CheckedLog) -> Iterator[Transaction]:
    """Yield the transactions that the transaction log shows as prepared."""
    log = checked.named(TRANSACTION_STATE)
    for batch in log.committed() if log is not None else ():
        for record in batch.records():
            record_value = parsed(record)
            state = record_value.state if isinstance(record_value, TransactionalIdRecord) else None
            if state is not None and state.state != "empty":
                yield state.producer_id, state.epoch


def _marked(checked: CheckedLog) -> Iterator[tuple[Transaction, bool]]:
    """Yield each marker in any partition: its transaction, and True if it commits."""
    for scanned in checked.partitions.values():
        yield from _markers(scanned)


def _markers(scanned: ScannedPartition) -> Iterator[tuple[Transaction, bool]]:
    for frame in scanned.frames():
        header = frame.header
        if header.control:
            payload = frame.payload
            committed = unpack_marker(payload, frame.where).type != 0
            yield (header.producer_id, header.producer_epoch - 1), committed
