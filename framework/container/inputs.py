"""The input partitions of a task instance, with the records fetched and not yet handled."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from strandline.changelog.errors import OffsetOutOfRange, Retriable
from strandline.changelog.history import Epochs, epochs_within, joined_epochs
from strandline.changelog.records import (
    Batch,
    CommittedOffset,
    Fetched,
    TopicPartition,
    joined,
    named_offset,
)
from strandline.changelog.scan import REPLACED
from strandline.framework.decoding import Chunk, decode
from strandline.framework.topic import Topic

DECODE_RECORDS = 8_192
"""Records decoded at a time: many make decoding by column fast, few stay in the CPU's cache."""


@dataclass(slots=True)
class Input:
    """One input partition of a task instance, with its positions and pending records."""

    topic: Topic[Any, Any]
    partition: TopicPartition
    reached: int
    """Next offset to hand out to a handler."""
    topic_id: str = ""
    """Id of the topic to which the positions belong; empty if it is not known."""
    epochs: Epochs = ()
    """Epochs that name the positions from `committed` to `ahead`. Empty if the log lists none."""
    ahead: int = -1
    """Next offset to fetch."""
    stable: bool | None = None
    """True if the last fetch reached the high watermark: no record is left or in a transaction.

    None if that is not known until the next fetch.
    """
    asked: int = 0
    """Number of the last round of fetches that included this input."""
    read_to_end: bool = False
    """True if the last fetch reached the end of the visible records (last stable offset)."""
    batches: deque[Batch] = field(default_factory=deque)
    """Fetched batches that are not decoded."""
    chunks: deque[Chunk] = field(default_factory=deque)
    """Decoded records; those before each chunk's `at` were handed out."""
    in_flight: deque[int] = field(default_factory=deque)
    """Offsets that were handed out and are not handled."""
    committed: int = -1
    """Position as of the last commit, or the one at which the input started."""

    def __post_init__(self) -> None:
        self.ahead = self.committed = self.reached

    @property
    def position(self) -> int:
        """Next offset to handle, which a commit records: all below it are handled."""
        return self.in_flight[0] if self.in_flight else self.reached

    @property
    def pending(self) -> bool:
        """True if fetched records may be left to handle."""
        return bool(self.chunks or self.batches)

    @property
    def is_answered(self) -> bool:
        """True if the next record of this input is known, or a fetch has found none."""
        return self.read_to_end or self.pending

    def feed(self, fetched: Fetched) -> None:
        """Add the result of a fetch from `ahead`.

        Raises OffsetOutOfRange if it does not continue what was read before.
        """
        if not fetched.continues(self.topic_id, self.epochs, self.ahead):
            raise self._replaced()
        if fetched.epochs != self.epochs:
            self.epochs = joined_epochs(self.epochs, fetched.epochs)
        self.batches.extend(fetched.batches)
        self.ahead = fetched.next_offset
        self.stable = fetched.next_offset >= fetched.high_watermark
        self.read_to_end = fetched.next_offset >= fetched.last_stable_offset
        if not self.pending:
            self.reached = self.ahead

    def check_topic(self, topic_id: str) -> None:
        """Raise OffsetOutOfRange if the topic of this name has another id by now."""
        if "" not in (topic_id, self.topic_id) and topic_id != self.topic_id:
            raise self._replaced()

    def check_present(self, log_start: int) -> None:
        """Raise OffsetOutOfRange if the next records have left the log before they were read."""
        if self.ahead < log_start:
            raise OffsetOutOfRange(
                f"{self.partition}: records from offset {self.ahead} on were deleted before they "
                f"were handled, by retention or by a call; the first one that is left has offset "
                f"{log_start}. Start the app again: it continues there. Records are kept longer "
                "with a larger retention.ms or retention.bytes of the topic"
            )

    def _replaced(self) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"{self.partition}: offset {self.ahead} {REPLACED}. Start the app again: it reads "
            "a new topic from its start"
        )

    def head(self, tombstones: bool) -> Chunk | None:
        """Return the next chunk with a record to handle, decoded; None if there is none."""
        while True:
            if not self.chunks:
                if not self.batches:
                    return None
                self._decode_some(tombstones)
            chunk = self.chunks[0]
            if chunk.at < len(chunk.records):
                return chunk
            self.chunks.popleft()
            self.reached = chunk.end if self.pending else self.ahead

    def skip(self, tombstones: bool) -> None:
        """Move the position past records that need no handling, as far as they can be decoded."""
        with contextlib.suppress(Retriable):  # raised if a schema registry does not answer
            self.head(tombstones)

    def take(self, limit: int) -> Batch | None:
        """Remove and return at most `limit` fetched records, not decoded; None if there are none.

        Small batches with the same columns are joined. Call `done` for what is handled of them, and
        then `end_take`.
        """
        while self.batches and not len(self.batches[0]):
            self.batches.popleft()
        if not self.batches:
            return None
        pieces = [self._take_some(limit)]
        left = limit - len(pieces[0])
        while left and self.batches and self.batches[0].columns.schema == pieces[0].columns.schema:
            pieces.append(self._take_some(left))
            left -= len(pieces[-1])
        return joined(pieces)

    def done(self, batch: Batch) -> None:
        """Move the position past a part of the taken records."""
        self.reached = batch.last_offset + 1

    def end_take(self, rest: Sequence[Batch] = ()) -> None:
        """Put back the parts of the taken records that were not handled, in order."""
        self.batches.extendleft(reversed(rest))
        if not self.pending:
            self.reached = self.ahead

    def to_commit(self) -> CommittedOffset:
        """Return the position, with the topic and the history that it belongs to."""
        return named_offset(self.position, self.topic_id, self.epochs)

    def note_committed(self) -> None:
        """Take the position as committed."""
        self.committed = self.position
        if len(self.epochs) > 1:
            self.epochs = epochs_within(self.epochs, self.committed, self.ahead)

    def rewind(self) -> None:
        """Drop all fetched records and continue at the last committed position."""
        self.batches.clear()
        self.chunks.clear()
        self.in_flight.clear()
        self.reached = self.ahead = self.committed
        self.stable, self.read_to_end = None, False

    def _take_some(self, limit: int) -> Batch:
        batch = self.batches.popleft()
        if len(batch) > limit:
            self.batches.appendleft(batch.slice(limit))
        return batch.slice(0, limit)

    def _decode_some(self, tombstones: bool) -> None:
        batch = self.batches[0]
        rest = batch.slice(DECODE_RECORDS) if len(batch) > DECODE_RECORDS else None
        self.chunks.extend(
            decode(self.topic, batch.slice(0, DECODE_RECORDS) if rest else batch, tombstones)
        )
        # Removed only after decoding: if a schema registry does not answer, `decode` raises and
        # the same records are decoded by the next call.
        self.batches.popleft()
        if rest is not None:
            self.batches.appendleft(rest)


def groups(sources: Sequence[Input]) -> list[dict[TopicPartition, list[Input]]]:
    """Group the inputs that one fetch can serve: in a group, each partition has one position."""
    found: list[dict[TopicPartition, list[Input]]] = []
    for source in sources:
        for group in found:
            same = group.setdefault(source.partition, [])
            if not same or same[0].ahead == source.ahead:
                same.append(source)
                break
        else:
            found.append({source.partition: [source]})
    return found
