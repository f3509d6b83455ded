"""The scan of one segment: readable frames, gaps between them, and the torn tail after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from strandline.changelog.embedded import misplaced, offsets, transaction_log
from strandline.changelog.embedded.batches import batch_of
from strandline.changelog.embedded.checking.scanned import RecordGap, ScannedSegment
from strandline.changelog.embedded.format import FrameHeader, FrameKind, unpack_marker
from strandline.changelog.embedded.scanning import BrokenFrame, WholeFrame, durable_end_behind, scan
from strandline.changelog.embedded.segment import LocatedFrame, Segment
from strandline.changelog.errors import REPAIR, CorruptLog, cause
from strandline.changelog.layout import CONSUMER_OFFSETS, TRANSACTION_STATE
from strandline.changelog.records import Batch, ConsumerRecord, TopicPartition
from strandline.changelog.schema import ValueSchemas

Validate = Callable[[LocatedFrame], CorruptLog | None]
"""Returns the error if the records of a frame cannot be read, else None."""


def walk(
    scanned: ScannedSegment, segment: Segment, offset: int, validate: Validate
) -> Iterator[WholeFrame | RecordGap]:
    """Yield readable frames and gaps in order; set `scanned.debris_at` at the end.

    `offset` is the smallest base offset of the first frame. Raises FutureFormat.
    """
    gap: RecordGap | None = None
    end = scanned.entry.size if scanned.closed else scanned.file_size
    for found in scan(segment, end, limit=scanned.limit):
        if isinstance(found, WholeFrame):
            header = found.frame.header
            problem = validate(found.frame)
            if problem is None:
                if gap is not None:
                    yield gap.closed_by(header.base_offset)
                    gap = None
                scanned.add_piece(found.position, found.end)
                yield found
                offset = header.last_offset + 1
                continue
            found = BrokenFrame(found.position, problem, header)
        if gap is None and _is_torn_tail(scanned, segment, found, offset):
            scanned.debris_at = found.position
            return
        gap = gap or RecordGap(segment.path, offset, None, cause(found.reason))
        gap.add(found)
    missing = scanned.expected_size - scanned.file_size
    if missing > 0:
        reason = f"it had {scanned.expected_size} bytes and has {scanned.file_size}"
        gap = gap or RecordGap(segment.path, offset, None, reason)
        gap.missing_bytes += missing
    if gap is not None:
        yield gap.closed_by(scanned.entry.end_offset if scanned.closed else None)


def _is_torn_tail(
    scanned: ScannedSegment, segment: Segment, found: BrokenFrame, offset: int
) -> bool:
    """Return True if a broken frame is the torn tail: nothing shows that it was ever durable.

    Closed segments were durable, and so was everything written before a clean shutdown. A complete
    frame of another partition is no torn write. A later frame may report that this offset was
    durable (see recovery).
    """
    if scanned.closed or found.position < scanned.expected_size:
        return False
    if misplaced.folder_of(segment, found) is not None:
        return False
    return durable_end_behind(segment, found.position) <= offset


def validator_of(partition: TopicPartition, schemas: ValueSchemas) -> Validate:
    """Return a validator for the frames of a topic with these schemas."""
    parse = _SYSTEM_RECORDS.get(partition.topic)

    def validate(frame: LocatedFrame) -> CorruptLog | None:
        try:
            batch = _content(frame, partition, schemas)
            if parse is not None and batch is not None:
                for record in batch.records():
                    parse(record)
        except CorruptLog as error:
            return error
        return None

    return validate


_SYSTEM_RECORDS: dict[str, Callable[[ConsumerRecord], object]] = {
    TRANSACTION_STATE: transaction_log.parsed,
    CONSUMER_OFFSETS: offsets.parsed,
}


def schema_is_missing(header: FrameHeader, schemas: ValueSchemas) -> bool:
    """Return True if the topic lacks the schema of the records, which does not mean damage."""
    return header.schema_id > schemas.latest_id


def _content(frame: LocatedFrame, partition: TopicPartition, schemas: ValueSchemas) -> Batch | None:
    """Decode the records of a frame; None if it has none. Raises CorruptLog."""
    header, where = frame.header, frame.where
    if header.control:
        payload = frame.payload
        if unpack_marker(payload, where).type not in (0, 1):
            raise CorruptLog(f"{where}: a marker of unknown type; {REPAIR}")
        return None
    if header.kind == FrameKind.EMPTY or schema_is_missing(header, schemas):
        return None
    batch = batch_of(frame, partition, schemas)
    try:
        batch.columns.validate(full=True)
    except ValueError as error:
        raise CorruptLog(f"{where}: its columns are invalid: {error}; {REPAIR}") from error
    span = header.last_offset - header.base_offset + 1
    if batch.sparse_offsets is None and span != len(batch):
        raise CorruptLog(f"{where}: {len(batch)} records for {span} offsets; {REPAIR}")
    return batch
