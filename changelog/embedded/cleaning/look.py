"""What a pass knows before it removes anything: which records are the last of their keys.

It reads the keys of the dirty section into a map. Where that is full, it becomes a run in a file, and is empty again
(Kafka ends the pass there). If there are runs when all is read, the keys of the clean section become runs,
too, and all are put together, range by range of the hash, to a bit for each record that stays. So a pass reads
a key once or twice, and not once for each time that the map was full.

The bits are memory as well: where there would be too many of them, the pass does end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from strandline.changelog.embedded.cleaning.bounds import CleanableRange
from strandline.changelog.embedded.cleaning.marks import CleanNumbers, MarkedLatest
from strandline.changelog.embedded.cleaning.offset_map import (
    PIECE,
    SPAN,
    OffsetMap,
    Offsets,
    last_ones,
    room,
)
from strandline.changelog.embedded.cleaning.passes import PassPace, PassResult
from strandline.changelog.embedded.cleaning.runs import SortedRuns
from strandline.changelog.embedded.cleaning.survivors import LastRecords, content_of
from strandline.changelog.embedded.format import HEADER_SIZE, FrameHeader, FrameKind
from strandline.changelog.embedded.names import KEYS
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.segment import LocatedFrame, Segment
from strandline.changelog.errors import DiskFull

CHUNK = 1 << 20
"""Bytes read at a time."""
KEY_BYTES = 8 << 20
"""Bytes of keys that are gathered at most, however few they are: a column holds less than 2 GiB."""
MARKS = 2
"""Bits, for each byte of the room for keys, that are the most: they may take a quarter of it."""
WORKING = 4
"""Times as much memory as in the map is taken by an entry that is put together."""

_Keyed = tuple[pa.BinaryArray, Offsets]
"""Keys, and a number for each, ascending."""


class PassFacts(NamedTuple):
    """What a pass knows."""

    latest: LastRecords
    """Of the keys in the dirty section up to `end`."""
    end: int
    keyless: int
    """Records below `end` without a key."""


def look(
    partition: Partition, bounds: CleanableRange, memory: int, pace: PassPace, done: PassResult
) -> PassFacts:
    """Look at the dirty section, as far as `memory` bytes, and the room on the disk, allow.

    Raises what reading does, StorageFailed, and what `pace` raises.
    """
    try:
        return _Look(partition, bounds, memory, pace, done).known(spilling=True)
    except DiskFull:  # cleaning is what makes room
        return _Look(partition, bounds, memory, pace, done).known(spilling=False)


class _Look:
    """A look at a partition."""

    def __init__(
        self,
        partition: Partition,
        bounds: CleanableRange,
        memory: int,
        pace: PassPace,
        done: PassResult,
    ) -> None:
        self._partition = partition
        self._bounds = bounds
        self._memory = memory
        self._pace = pace
        self._done = done
        self._seed = int(partition.environment.clock.new_id(), 16)
        self._map = self._new_map(bounds.dirty)
        self._clean = CleanNumbers()
        self._runs: SortedRuns | None = None

    def known(self, *, spilling: bool) -> PassFacts:
        """What there is to know; not `spilling`, the pass ends where the map is full."""
        try:
            end, keyless = self._look(spilling=spilling)
            if self._runs is None:
                return PassFacts(self._map.latest(), end, keyless)
            self._spill(self._runs, self._clean.count)
            self._look_at_clean(self._runs)
            return PassFacts(self._put_together(self._runs, end), end, keyless)
        finally:
            if self._runs is not None:
                self._runs.close()

    # The dirty section ----------------------------------------------------------------

    def _look(self, *, spilling: bool) -> tuple[int, int]:
        """Take in the dirty section; how far that went, and records met without a key."""
        bounds, keyless = self._bounds, 0
        frames = self._keys(bounds.dirty, bounds.end)
        for keys, offsets in _pieces((keys, offsets) for _, keys, offsets in frames):
            named, nameless = _named(keys, offsets)
            for at in self._taken(*named):
                if not (spilling and self._makes_room(at)):
                    return at, keyless + int(np.searchsorted(nameless, at))
            keyless += len(nameless)
        return bounds.end, keyless

    def _taken(self, keys: pa.BinaryArray, numbers: Offsets) -> Iterator[int]:
        """Take in keys; each number that the map has no room for. Goes on once it has."""
        done = self._map.put(keys, numbers)
        while done < len(keys):
            yield int(numbers[done])
            done += self._map.put(keys[done:], numbers[done:])

    def _makes_room(self, at: int) -> bool:
        """Empty the map into a run; False: the pass ends at an offset."""
        if self._runs is None:
            self._runs = self._begin_runs(at)
        if self._runs is None or at - self._bounds.dirty >= self._map.span:
            return False
        self._spill(self._runs, self._clean.count)
        return True

    def _begin_runs(self, at: int) -> SortedRuns | None:
        """The file of runs; None: with it the pass would hardly get further than `at`."""
        bounds = self._bounds
        most = min(SPAN, MARKS * room(self._memory))
        for header in self._clean_headers():
            self._clean.add(header)
            if self._clean.bits > most:
                return None
        span = most - self._clean.bits
        if span < min(bounds.end - bounds.dirty, 2 * (at - bounds.dirty)):
            return None
        self._map.span = span
        self._done.to_do += bounds.clean_bytes
        environment, folder = self._partition.environment, self._partition.folder
        return SortedRuns(
            environment.storage,
            f"{folder}/{KEYS}",
            most=most,
            in_memory=self._map.capacity // WORKING,
            pace=self._pace,
        )

    def _spill(self, runs: SortedRuns, shift: int) -> None:
        nbytes = runs.add(self._map.drain(), shift)
        self._done.spilled_bytes += nbytes
        self._done.to_do += 2 * nbytes

    # The clean section, and all together ----------------------------------------------

    def _look_at_clean(self, runs: SortedRuns) -> None:
        """Make runs of the keys of the clean section."""
        self._map = self._new_map(0)
        frames = self._keys(0, self._bounds.dirty)
        numbered = ((keys, self._numbers(header, len(keys))) for header, keys, _ in frames)
        for keys, numbers in _pieces(numbered):
            named, _ = _named(keys, numbers)
            for _ in self._taken(*named):
                self._spill(runs, 0)
        self._spill(runs, 0)

    def _put_together(self, runs: SortedRuns, end: int) -> MarkedLatest:
        del self._map  # its memory is needed
        latest = MarkedLatest(self._clean, self._bounds.dirty, end)
        for entries in runs.ranges():
            latest.add(last_ones(entries).numbers)
            self._pace(0)
        return latest

    # ----------------------------------------------------------------------------------

    def _new_map(self, base: int) -> OffsetMap:
        return OffsetMap(self._memory, base=base, seed=self._seed, pause=partial(self._pace, 0))

    def _numbers(self, header: FrameHeader, count: int) -> Offsets:
        """Of the records of a frame of the clean section."""
        return self._clean.first(header.base_offset) + np.arange(count)

    def _keys(self, start: int, end: int) -> Iterator[tuple[FrameHeader, pa.BinaryArray, Offsets]]:
        """The keys of committed records in [`start`, `end`), with their offsets, frame by frame."""
        for frame in self._frames(start, end):
            content = content_of(frame, self._partition.schemas)
            keys, offsets = content.columns.column(1), content.offsets
            if offsets[0] < start or offsets[-1] >= end:
                first, behind = np.searchsorted(offsets, (start, end))
                keys, offsets = keys[first:behind], offsets[first:behind]
            yield frame.header, keys, offsets

    def _frames(self, start: int, end: int) -> Iterator[LocatedFrame]:
        """The frames with records that count and offsets in [`start`, `end`)."""
        aborted = self._partition.aborted
        for segment in segments_below(self._partition, end):
            if segment.end_offset <= start:
                continue
            for frame in frames_of(segment, self._pace, segment.index.position_of(start)):
                header = frame.header
                if header.base_offset >= end:
                    return
                if header.last_offset < start or not _has_records(header):
                    continue
                if header.transactional and aborted.covers(header.producer_id, header.base_offset):
                    continue
                yield frame

    def _clean_headers(self) -> Iterator[FrameHeader]:
        """Of the frames with records that begin in the clean section."""
        dirty = self._bounds.dirty
        for segment in segments_below(self._partition, dirty):
            for header in segment.headers():
                self._pace(HEADER_SIZE)
                if header.base_offset < dirty and _has_records(header):
                    yield header


def segments_below(partition: Partition, end: int) -> list[Segment]:
    """The closed segments that begin below an offset."""
    return [one for one in partition.segments[:-1] if one.base_offset < end]


def frames_of(segment: Segment, pace: PassPace, position: int = 0) -> Iterator[LocatedFrame]:
    """The frames of a segment from a position in its file on; `pace` is told of each."""
    for frame in segment.frames(position, CHUNK):
        pace(frame.header.length)
        yield frame


def _has_records(header: FrameHeader) -> bool:
    return header.kind not in (FrameKind.EMPTY, FrameKind.CONTROL)


def _named(keys: pa.BinaryArray, numbers: Offsets) -> tuple[_Keyed, Offsets]:
    """The keys that there are, with their numbers; and the numbers of records without one."""
    if not keys.null_count:
        return (keys, numbers), numbers[:0]
    there = keys.is_valid().to_numpy(zero_copy_only=False)
    return (keys.drop_null(), numbers[there]), numbers[~there]


def _pieces(frames: Iterable[_Keyed]) -> Iterator[_Keyed]:
    """The same keys and numbers, those of many frames at a time.

    What is gathered is copied. A frame's columns are views of the megabyte that was read with it, so
    they would keep all values of the log in memory, though only keys are looked at.
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
        if count >= PIECE or nbytes >= KEY_BYTES:
            yield _joined(gathered)
            gathered, count, nbytes = [], 0, 0
    if gathered:
        yield _joined(gathered)


def _joined(parts: list[_Keyed]) -> _Keyed:
    if len(parts) == 1:
        return parts[0]
    keys, numbers = zip(*parts, strict=True)
    return pa.concat_arrays(keys), np.concatenate(numbers)
