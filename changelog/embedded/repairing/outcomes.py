"""How transactions ended whose end is lost in some partition.

What is prepared is committed. So the transaction log decides, and where it has lost records, the
markers of the same transaction in other partitions. If neither knows, nothing was prepared as
far as anybody can tell: then it counts as aborted, and is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from strandline.changelog.embedded.checking.folder import CheckedLog
from strandline.changelog.embedded.checking.scanned import LostMarker, RecordGap, ScannedPartition
from strandline.changelog.embedded.format import unpack_marker
from strandline.changelog.embedded.names import TRANSACTION_STATE
from strandline.changelog.embedded.repairing.surgery import RepairMarker, Surgery
from strandline.changelog.embedded.transaction_log import TransactionalIdRecord, parsed
from strandline.changelog.records import ProducerIdentity

Transaction = tuple[int, int]
"""Producer id and epoch."""


@dataclass
class Outcomes:
    """What is known of some transactions."""

    known: dict[Transaction, bool] = field(default_factory=dict)
    """Whether each was committed."""
    sure: bool = False
    """Whether one that is not known was certainly not committed."""


def outcomes_of(checked: CheckedLog) -> Outcomes:
    """The outcomes of all transactions of the log that have lost an end."""
    ends = [end for scanned in checked.partitions.values() for end in scanned.lost_ends]
    wanted = {(end.producer_id, end.epoch) for end in ends}
    found = Outcomes(sure=checked.transactions.complete)
    if wanted:
        found.known = dict.fromkeys(wanted & set(_prepared(checked)), True)
        for transaction, committed in _marked(checked):
            if transaction in wanted:
                found.known.setdefault(transaction, committed)
    return found


def write_ends(checked: CheckedLog, surgery: Surgery, outcomes: Outcomes) -> Iterator[str]:
    """Give a partition the ends that it has lost; yield what cannot be known, in words."""
    scanned = surgery.scanned
    place = (scanned.meta.topic_id, scanned.number)
    for end in sorted(scanned.lost_ends, key=lambda end: -end.first_offset):
        transaction = (end.producer_id, end.epoch)
        committed = outcomes.known.get(transaction)
        name = checked.transactions.name(end.producer_id)
        what = f"{scanned.topic_partition}: how the transaction of {name}, epoch {end.epoch}, ended"
        if committed is None and not outcomes.sure:
            yield f"{what} is not known any more; it counts as aborted"
        if not end.certain and (
            committed is None or checked.transactions.is_live(*transaction, place)
        ):
            continue  # opening the log aborts or completes it
        producer = ProducerIdentity(end.producer_id, end.epoch + 1)
        if not _put(surgery, end, RepairMarker(producer, bool(committed))):
            yield f"{what} cannot be written, for want of a free offset"


def _put(surgery: Surgery, end: LostMarker, marker: RepairMarker) -> bool:
    """Find a place for a marker: in the last gap with room, or behind everything."""
    if not end.gaps and surgery.scanned.producers.open_since(end.producer_id) < 0:
        return False
    inner = [gap for gap in end.gaps if gap.until is not None]
    for gap in reversed(inner):
        if len(surgery.in_gaps.get(gap, ())) < _room(gap):
            surgery.in_gaps.setdefault(gap, []).append(marker)
            return True
    if inner and len(inner) == len(end.gaps) and end.certain:
        return False
    surgery.at_end.append(marker)
    return True


def _room(gap: RecordGap) -> int:
    return 0 if gap.until is None else gap.until - gap.first


def _prepared(checked: CheckedLog) -> Iterator[Transaction]:
    log = checked.named(TRANSACTION_STATE)
    for batch in log.committed() if log is not None else ():
        for record in batch.records():
            said = parsed(record)
            state = said.state if isinstance(said, TransactionalIdRecord) else None
            if state is not None and state.state != "empty":
                yield state.producer_id, state.epoch


def _marked(checked: CheckedLog) -> Iterator[tuple[Transaction, bool]]:
    for scanned in checked.partitions.values():
        yield from _markers(scanned)


def _markers(scanned: ScannedPartition) -> Iterator[tuple[Transaction, bool]]:
    for frame in scanned.frames():
        header = frame.header
        if header.control:
            payload = frame.payload
            committed = unpack_marker(payload, frame.where).type != 0
            yield (header.producer_id, header.producer_epoch - 1), committed
