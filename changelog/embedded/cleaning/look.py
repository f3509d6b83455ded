"""Find the last record of every key, before a pass removes anything (Kafka's buildOffsetMap).

1. Read the keys of the dirty section into an offset map.
2. Whenever the map is full, write it to a file as a sorted run and empty it. (Kafka ends the pass.)
3. If there are runs, write the keys of the clean section to runs too.
4. Merge all runs, range by range of the hash, into a bitmap with a bit for each retained record.

A pass reads every key once or twice, however often the map is full. The bitmap takes memory as
well. If there are more records than it may have bits, the pass ends where the map is full.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from strandline.changelog.arrays import as_numpy
from strandline.changelog.embedded.cleaning.bounds import CleanableRange
from strandline.changelog.embedded.cleaning.marks import CleanNumbers, MarkedLatest
from strandline.changelog.embedded.cleaning.offset_map import (
    MAX_OFFSETS,
    PIECE_KEYS,
    OffsetMap,
    Offsets,
    key_memory,
    last_entries,
)
from strandline.changelog.embedded.cleaning.passes import PassPace, PassResult, SegmentLeft
from strandline.changelog.embedded.cleaning.runs import SortedRuns
from strandline.changelog.embedded.cleaning.survivors import LastRecords, content_of
from strandline.changelog.embedded.format import HEADER_SIZE, FrameHeader, FrameKind
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.segment import LocatedFrame, Segment
from strandline.changelog.errors import REPAIR, CorruptLog, DiskFull
from strandline.changelog.layout import KEYS

READ_BYTES = 1 << 20
"""Bytes of a segment read at a time."""
KEY_BYTES = 8 << 20
"""Maximum bytes of keys gathered into one column, because an Arrow column holds less than 2 GiB."""
MAX_BITS_PER_BYTE = 2
"""Maximum bits of the bitmap for each byte of key memory: the bitmap may take a quarter of it."""
MERGE_FACTOR = 4
"""Memory of an entry while runs are merged, as a multiple of its size in the map."""

_Keyed = tuple[pa.BinaryArray, Offsets]
"""Keys and a number for each, ascending."""


class PassFacts(NamedTuple):
    """The last records of all keys, as far as a pass has read."""

    latest: LastRecords
    """Last records of the keys in the dirty section before `end`."""
    end: int
    """Offset at which the pass ends (exclusive)."""
    keyless: int
    """Number of dirty records before `end` without a key."""


def find_latest(
    partition: Partition, bounds: CleanableRange, memory: int, pace: PassPace, result: PassResult
) -> PassFacts:
    """Read the keys of the dirty section, as far as `memory` bytes and the free disk space allow.

    Raises SegmentLeft, CorruptLog, StorageFailed, and any error of `pace`.
    """
    try:
        return _KeyReader(partition, bounds, memory, pace, result).facts(spilling=True)
    except DiskFull:  # do not fail: a pass without spilling frees disk space
        return _KeyReader(partition, bounds, memory, pace, result).facts(spilling=False)


class _KeyReader:
    """Reads the keys of one partition."""

    def __init__(
        self,
        partition: Partition,
        bounds: CleanableRange,
        memory: int,
        pace: PassPace,
        result: PassResult,
    ) -> None:
        self._partition = partition
        self._bounds = bounds
        self._memory = memory
        self._pace = pace
        self._result = result
        self._seed = int(partition.context.clock.new_id(), 16)
        self._map = self._new_map(bounds.first_dirty)
        self._clean = CleanNumbers()
        self._runs: SortedRuns | None = None

    def facts(self, *, spilling: bool) -> PassFacts:
        """Return the last records; without `spilling`, the pass ends where the map is full."""
        try:
            end, keyless = self._read_dirty(spilling=spilling)
            if self._runs is None:
                return PassFacts(self._map.latest(), end, keyless)
            self._spill(self._runs, self._clean.count)
            self._spill_clean(self._runs)
            return PassFacts(self._merge(self._runs, end), end, keyless)
        finally:
            if self._runs is not None:
                self._runs.close()

    # The dirty section ----------------------------------------------------------------

    def _read_dirty(self, *, spilling: bool) -> tuple[int, int]:
        """Read the dirty section; return the offset reached and the number of keyless records."""
        bounds, keyless = self._bounds, 0
        frames = self._keys(bounds.first_dirty, bounds.first_uncleanable)
        for keys, offsets in _pieces((keys, offsets) for _, keys, offsets in frames):
            keyed, without_key = _with_keys(keys, offsets)
            for at in self._put(*keyed):
                if not (spilling and self._make_room(at)):
                    return at, keyless + int(np.searchsorted(without_key, at))
            keyless += len(without_key)
        return bounds.first_uncleanable, keyless

    def _put(self, keys: pa.BinaryArray, numbers: Offsets) -> Iterator[int]:
        """Put keys into the map; yield the number of each key that it has no room for.

        The caller makes room before it resumes the iterator.
        """
        done = self._map.put(keys, numbers)
        while done < len(keys):
            yield int(numbers[done])
            done += self._map.put(keys[done:], numbers[done:])

    def _make_room(self, at: int) -> bool:
        """Write the map to a run and empty it; False if the pass must end at offset `at`."""
        if self._runs is None:
            self._runs = self._begin_runs(at)
        if self._runs is None or at - self._bounds.first_dirty >= self._map.span:
            return False
        self._spill(self._runs, self._clean.count)
        return True

    def _begin_runs(self, at: int) -> SortedRuns | None:
        """Create the file of runs; None if the bitmap is too small to get far past offset `at`."""
        bounds = self._bounds
        max_bits = min(MAX_OFFSETS, MAX_BITS_PER_BYTE * key_memory(self._memory))
        for header in self._clean_headers():
            self._clean.add(header)
            if self._clean.bits > max_bits:
                return None
        # Worth it only if the bitmap reaches the end of the dirty section, or at least twice as far
        # as the map without runs.
        span = max_bits - self._clean.bits
        if span < min(bounds.first_uncleanable - bounds.first_dirty, 2 * (at - bounds.first_dirty)):
            return None
        self._map.span = span
        self._result.to_do += bounds.clean_bytes
        context, folder = self._partition.context, self._partition.folder
        return SortedRuns(
            context.storage,
            f"{folder}/{KEYS}",
            max_entries=max_bits,
            in_memory=self._map.capacity // MERGE_FACTOR,
            pace=self._pace,
        )

    def _spill(self, runs: SortedRuns, shift: int) -> None:
        """Write the map to a run and empty it; `shift` is added to its numbers."""
        nbytes = runs.add(self._map.drain(), shift)
        self._result.spilled_bytes += nbytes
        self._result.to_do += 2 * nbytes

    # The clean section, and the merge -------------------------------------------------

    def _spill_clean(self, runs: SortedRuns) -> None:
        """Write the keys of the clean section to runs."""
        self._map = self._new_map(0)
        frames = self._keys(0, self._bounds.first_dirty)
        numbered = ((keys, self._numbers(header, len(keys))) for header, keys, _ in frames)
        for keys, numbers in _pieces(numbered):
            keyed, _ = _with_keys(keys, numbers)
            for _ in self._put(*keyed):
                self._spill(runs, 0)
        self._spill(runs, 0)

    def _merge(self, runs: SortedRuns, end: int) -> MarkedLatest:
        del self._map  # frees its memory for the bitmap
        latest = MarkedLatest(self._clean, self._bounds.first_dirty, end)
        for entries in runs.ranges():
            latest.add(last_entries(entries).numbers)
            self._pace(0)
        return latest

    # ----------------------------------------------------------------------------------

    def _new_map(self, base: int) -> OffsetMap:
        return OffsetMap(self._memory, base=base, seed=self._seed, pause=partial(self._pace, 0))

    def _numbers(self, header: FrameHeader, count: int) -> Offsets:
        """Return the numbers of the records of a frame of the clean section."""
        return self._clean.first(header.base_offset) + np.arange(count)

    def _keys(self, start: int, end: int) -> Iterator[tuple[FrameHeader, pa.BinaryArray, Offsets]]:
        """Yield the keys of committed records in [`start`, `end`) with their offsets, by frame."""
        for frame in self._frames(start, end):
            content = content_of(frame, self._partition.schemas)
            keys, offsets = content.columns.column(1), content.offsets
            if offsets[0] < start or offsets[-1] >= end:
                first, stop = np.searchsorted(offsets, (start, end))
                keys, offsets = keys[first:stop], offsets[first:stop]
            yield frame.header, keys, offsets

    def _frames(self, start: int, end: int) -> Iterator[LocatedFrame]:
        """Yield the frames with records in [`start`, `end`), except aborted ones."""
        aborted = self._partition.aborted
        for segment in segments_below(self._partition, end):
            if segment.end_offset <= start:
                continue
            position = segment.index.position_of(start)
            for frame in frames_of(self._partition, segment, self._pace, position):
                header = frame.header
                if header.base_offset >= end:
                    return
                if header.last_offset < start or not _has_records(header):
                    continue
                if header.transactional and aborted.covers(header.producer_id, header.base_offset):
                    continue
                yield frame

    def _clean_headers(self) -> Iterator[FrameHeader]:
        """Yield the headers of the frames with records that begin in the clean section."""
        dirty = self._bounds.first_dirty
        for segment in segments_below(self._partition, dirty):
            with _explained(self._partition, segment):
                for header in segment.headers():
                    self._pace(HEADER_SIZE)
                    if header.base_offset < dirty and _has_records(header):
                        yield header


def segments_below(partition: Partition, end: int) -> list[Segment]:
    """Return the closed segments that begin before an offset."""
    return [one for one in partition.segments[:-1] if one.base_offset < end]


def frames_of(
    partition: Partition, segment: Segment, pace: PassPace, position: int = 0
) -> Iterator[LocatedFrame]:
    """Yield the frames of a segment from byte `position` on; `pace` is called with their sizes.

    Raises SegmentLeft, CorruptLog.
    """
    with _explained(partition, segment):
        for frame in segment.frames(position, READ_BYTES):
            pace(frame.header.length)
            yield frame


@contextlib.contextmanager
def _explained(partition: Partition, segment: Segment) -> Iterator[None]:
    """Translate the absence of a segment's file, which is read in the block.

    Retention removes the files of a segment that has left the log, however far a pass has come.
    """
    try:
        yield
    except FileNotFoundError as error:
        if any(one is segment for one in partition.segments):
            raise CorruptLog(f"{segment.path}: the segment is gone; {REPAIR}") from error
        raise SegmentLeft(segment.path) from error


def _has_records(header: FrameHeader) -> bool:
    return header.kind not in (FrameKind.EMPTY, FrameKind.CONTROL)


def _with_keys(keys: pa.BinaryArray, numbers: Offsets) -> tuple[_Keyed, Offsets]:
    """Return the non-null keys with their numbers, and the numbers of records without a key."""
    if not keys.null_count:
        return (keys, numbers), numbers[:0]
    valid = as_numpy(keys.is_valid())
    return (keys.drop_null(), numbers[valid]), numbers[~valid]


def _pieces(frames: Iterable[_Keyed]) -> Iterator[_Keyed]:
    """Yield the same keys and numbers in larger pieces, each of many frames.

    Keys are copied. A frame's columns are views of the megabyte that was read with it, and would
    keep all values of the log in memory although only keys are needed.
    """
    gathered: list[_Keyed] = []
    count = nbytes = 0
    for keys, numbers in frames:
        if gathered and nbytes + keys.nbytes > KEY_BYTES:
            yield _joined(gathered)
            gathered, count, nbytes = [], 0, 0
        gathered.append((pa.concat_arrays([keys]), numbers.copy()))
        count += len(keys)
        nbytes += keys.nbytes
        if count >= PIECE_KEYS or nbytes >= KEY_BYTES:
            yield _joined(gathered)
            gathered, count, nbytes = [], 0, 0
    if gathered:
        yield _joined(gathered)


def _joined(parts: list[_Keyed]) -> _Keyed:
    if len(parts) == 1:
        return parts[0]
    keys, numbers = zip(*parts, strict=True)
    return pa.concat_arrays(keys), np.concatenate(numbers)
