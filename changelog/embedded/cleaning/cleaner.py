"""One pass over one partition (Kafka's Cleaner.doClean).

1. Look at the dirty section: the last offset of every key in it. If the map is full the pass ends there.
2. Go through the segments from the log's start and write what stays of them into new ones. One in
   which everything stays is left alone.
3. Make the new ones durable; put them in the place of the old ones by one change of the manifest, a
   group at a time, in order: what replaces a record is never gone before the record.
4. Note durably how far the partition is clean.

A crash between any two steps leaves a log that reads the same; what was done is not done again. New
segments that no manifest lists are removed, here or at the next opening.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from changelog.embedded.cleaning.bounds import bounds_of
from changelog.embedded.cleaning.offset_map import PIECE, OffsetMap, Offsets
from changelog.embedded.cleaning.rewriting import Rewriter, remove_unlisted
from changelog.embedded.cleaning.survivors import Survivors, Tally, Verdict, content_of
from changelog.embedded.format import Kind
from changelog.embedded.partition import Partition
from changelog.embedded.segment import LocatedFrame, Segment
from changelog.errors import UNDONE

CHUNK = 1 << 20
"""Bytes read at a time."""


class Pace(Protocol):
    """Is told of the bytes that a pass reads and writes, 0 between steps of about a millisecond.

    It may wait, and raise to end the pass.
    """

    def __call__(self, nbytes: int) -> None: ...


@dataclass
class Pass:
    """What a pass did."""

    start: int = 0
    """First dirty offset before it."""
    end: int = 0
    """First dirty offset after it."""
    whole: bool = True
    """Whether it got to the end of what could be cleaned: the map had room for all keys."""
    map_use: float = 0.0
    """The part of the map's room that was taken, 0 to 1."""
    bytes_before: int = 0
    """Of the segments that were rewritten."""
    bytes_after: int = 0
    segments_before: int = 0
    segments_after: int = 0
    left_alone: int = 0
    """Segments in which everything stays."""
    tally: Tally = field(default_factory=Tally)
    replaced: list[Segment] = field(default_factory=list)
    """Out of the log; their files are still there."""


def clean(
    partition: Partition, *, memory: int, pace: Pace, now_ms: int, done: Pass | None = None
) -> Pass:
    """Clean a partition as far as it can be; the caller holds `partition.cleaning`.

    `memory` bytes hold the keys. `done` is filled in, also by a pass that fails. Raises CorruptLog,
    StorageFailed, what `pace` raises, and if the topic is deleted or the log closed meanwhile
    UnknownTopic or OwnerUnavailable: the partition is as it was, or has some of its segments rewritten.
    """
    return _Cleaning(partition, memory, pace, now_ms, done or Pass()).run()


class _Cleaning:
    """The state of a pass."""

    def __init__(
        self, partition: Partition, memory: int, pace: Pace, now_ms: int, done: Pass
    ) -> None:
        self._partition = partition
        self._memory = memory
        self._pace = pace
        self._now_ms = now_ms
        self._bounds = bounds_of(partition, now_ms)
        self._done = done
        done.start = self._bounds.dirty

    def run(self) -> Pass:
        known = OffsetMap(
            self._memory,
            base=self._bounds.dirty,
            seed=int(self._partition.environment.clock.new_id(), 16),
            pause=partial(self._pace, 0),
        )
        end, keyless = self._look(known)
        latest = known.latest()
        survivors = Survivors.of(self._partition, latest, self._bounds.dirty, end, self._now_ms)
        survivors.tally.keyless = keyless
        self._done.tally, self._done.end = survivors.tally, end
        self._done.map_use, self._done.whole = latest.use, end == self._bounds.end
        if self._rewrite(survivors):
            self._partition.note_cleaned(end)
        return self._done

    # 1. -------------------------------------------------------------------------------

    def _look(self, known: OffsetMap) -> tuple[int, int]:
        """Fill a map from the dirty section; how far that went, and records met without a key."""
        keyless = 0
        for keys, offsets in self._dirty_keys():
            nameless = offsets[:0]
            if keys.null_count:
                there = keys.is_valid().to_numpy(zero_copy_only=False)
                nameless = offsets[~there]
                keys, offsets = keys.drop_null(), offsets[there]
            taken = known.put(keys, offsets)
            if taken < len(keys):
                end = int(offsets[taken])
                return end, keyless + int(np.searchsorted(nameless, end))
            keyless += len(nameless)
        return self._bounds.end, keyless

    def _dirty_keys(self) -> Iterator[tuple[pa.BinaryArray, Offsets]]:
        """The keys of committed records in the dirty section, with their offsets, many at a time."""
        bounds = self._bounds
        gathered: list[tuple[pa.BinaryArray, Offsets]] = []
        count = 0
        for frame in self._dirty_frames():
            content = content_of(frame, self._partition.schemas)
            keys, offsets = content.columns.column(1), content.offsets
            if offsets[0] < bounds.dirty or offsets[-1] >= bounds.end:
                first, behind = np.searchsorted(offsets, (bounds.dirty, bounds.end))
                keys, offsets = keys[first:behind], offsets[first:behind]
            gathered.append((keys, offsets))
            count += len(keys)
            if count >= PIECE:
                yield _joined(gathered)
                gathered, count = [], 0
        if gathered:
            yield _joined(gathered)

    def _dirty_frames(self) -> Iterator[LocatedFrame]:
        """The frames of the dirty section with records that count."""
        bounds, aborted = self._bounds, self._partition.aborted
        for segment in self._segments_below(bounds.end):
            if segment.end_offset <= bounds.dirty:
                continue
            for frame in self._frames(segment, segment.index.position_of(bounds.dirty)):
                header = frame.header
                if header.base_offset >= bounds.end:
                    return
                if header.last_offset < bounds.dirty or header.kind in (Kind.EMPTY, Kind.CONTROL):
                    continue
                if header.transactional and aborted.covers(header.producer_id, header.base_offset):
                    continue
                yield frame

    # 2. and 3. ------------------------------------------------------------------------

    def _rewrite(self, survivors: Survivors) -> bool:
        """Rewrite what is below the end; False if retention took some of it away meanwhile."""
        writer = Rewriter(self._partition, survivors.end, self._pace)
        group: list[Segment] = []
        try:
            for segment in self._segments_below(survivors.end):
                verdicts = self._judged(segment, survivors)
                if verdicts is None:
                    self._done.left_alone += 1
                else:
                    writer.begin(segment)
                    group.append(segment)
                    self._write(segment, verdicts, survivors, writer)
                if verdicts is None or writer.bytes * 2 >= self._partition.config.segment_bytes:
                    if not self._swap(group, writer, survivors):
                        return False
                    group = []
            return self._swap(group, writer, survivors)
        except BaseException:
            writer.discard()
            raise

    def _judged(self, segment: Segment, survivors: Survivors) -> list[Verdict] | None:
        """What becomes of a segment's frames, empty if it is dirty: they are judged as they are written.

        None: it is left alone. A small one goes with the dirty ones behind it, if it is the smaller part.
        """
        if segment.end_offset > survivors.start:
            return []
        expired = segment.has_expired(self._now_ms)
        if survivors.latest.keys == 0 and not expired and not survivors.reach_back:
            return None
        verdicts, changes = [], False
        for frame in self._frames(segment):
            verdict = survivors.judge(frame)
            changes = changes or verdict.changes(frame.header)
            verdicts.append(verdict._replace(content=None))  # or all of the segment is in memory
        config = self._partition.config
        small = segment.size * 2 < config.segment_bytes and not config.delete
        joins = small and segment.size < self._bounds.dirty_bytes
        return verdicts if changes or joins else None

    def _write(
        self, segment: Segment, verdicts: list[Verdict], survivors: Survivors, writer: Rewriter
    ) -> None:
        for number, frame in enumerate(self._frames(segment)):
            verdict = verdicts[number] if verdicts else survivors.judge(frame)
            writer.add(frame, verdict)

    def _swap(self, old: list[Segment], writer: Rewriter, survivors: Survivors) -> bool:
        """Put what was written in the place of `old`; False if that is not in the log any more."""
        if not old:
            return True
        new = writer.finish()
        try:
            swapped = self._partition.replace_segments(
                old,
                new,
                superseding_end=survivors.end,
                purged_end=survivors.tally.purged_end,
            )
        except UNDONE:
            remove_unlisted(new)
            raise
        if not swapped:
            remove_unlisted(new)
            return False
        done = self._done
        done.replaced += old
        done.segments_before += len(old)
        done.segments_after += len(new)
        done.bytes_before += sum(segment.size for segment in old)
        done.bytes_after += sum(segment.size for segment in new)
        return True

    # ----------------------------------------------------------------------------------

    def _segments_below(self, end: int) -> list[Segment]:
        """The closed segments that begin below an offset."""
        return [one for one in self._partition.segments[:-1] if one.base_offset < end]

    def _frames(self, segment: Segment, position: int = 0) -> Iterator[LocatedFrame]:
        for frame in segment.frames(position, CHUNK):
            self._pace(frame.header.length)
            yield frame


def _joined(parts: list[tuple[pa.BinaryArray, Offsets]]) -> tuple[pa.BinaryArray, Offsets]:
    if len(parts) == 1:
        return parts[0]
    keys, offsets = zip(*parts, strict=True)
    return pa.concat_arrays(keys), np.concatenate(offsets)
