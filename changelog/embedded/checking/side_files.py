"""Indexes, aborted indexes and producer snapshots, compared with the frames.

A side file may be missing, because opening the log recreates it. An existing one must be right,
because opening relies on it: a wrong index hides records, a wrong aborted index exposes aborted
records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from strandline.changelog.embedded import document
from strandline.changelog.embedded.checking.producers import ProducerRules, SegmentAges
from strandline.changelog.embedded.format import FrameHeader
from strandline.changelog.embedded.manifest import Manifest
from strandline.changelog.embedded.segment import INDEX_KIND, SparseIndex
from strandline.changelog.embedded.side_files import ABORTED_KIND, SNAPSHOT_KIND
from strandline.changelog.errors import CorruptLog, cause
from strandline.changelog.layout import SegmentName, producer_snapshot
from strandline.changelog.producer_state import BatchMeta, EndedTransaction, ProducerEntry
from strandline.changelog.storage import Storage

Problem = str | None
"""Description of what is wrong with a file; None if it is right."""


class IndexCheck:
    """Compares the frames of a segment with its index."""

    def __init__(self, index: SparseIndex) -> None:
        self._index = index
        self._next = 0
        self.problem: Problem = None

    def frame(self, position: int, header: FrameHeader, time_before: int) -> None:
        """Compare the next frame with the index entry for its position, if there is one."""
        index, at = self._index, self._next
        if at >= len(index.positions) or index.positions[at] > position:
            return
        self._next += 1
        found = (index.offsets[at], index.positions[at], index.times_before[at])
        right = (header.base_offset, position, time_before)
        if found != right:
            self._note(f"entry {at} is {found}, the frame is {right} (offset, byte, time before)")

    def finish(self) -> None:
        """Finish after the last frame."""
        left = len(self._index.positions) - self._next
        if left:
            self._note(f"its last {left} entries point past the last frame")

    def _note(self, problem: str) -> None:
        self.problem = self.problem or problem


class LostSideFile(Exception):
    """A side file is missing or torn: opening the log recreates it."""


def load_index(storage: Storage, folder: str, name: SegmentName) -> SparseIndex:
    """Load the index of a closed segment. Raises LostSideFile and FutureFormat."""
    path = f"{folder}/{name.index_file}"
    try:
        return SparseIndex.load(document.read(storage, path, INDEX_KIND), path)
    except FileNotFoundError:
        raise LostSideFile("is missing") from None
    except CorruptLog as error:
        raise LostSideFile(f"is torn ({cause(error)})") from error


class SideFile(NamedTuple):
    """A file with a part of a partition's state, to be compared with the frames."""

    path: str
    check: Callable[[], Problem]
    """Loads the file and compares it. Raises FileNotFoundError, CorruptLog, FutureFormat."""


class StateFiles:
    """Compares aborted indexes and producer snapshots with the frames replayed so far."""

    def __init__(
        self,
        storage: Storage,
        folder: str,
        manifest: Manifest,
        first: int,
        rules: ProducerRules,
        ages: SegmentAges,
    ) -> None:
        self._storage = storage
        self._folder = folder
        self._log_start = manifest.log_start
        self._begin = first
        self._rules = rules
        self._ages = ages

    @property
    def _first(self) -> int:
        """First offset from which all frames are there; older state is in the side files only."""
        return max(self._begin, self._rules.complete_from)

    def aborted_of(self, name: SegmentName, start: int, end: int) -> SideFile:
        """Return the file of the aborted transactions that end in a closed segment."""
        path = f"{self._folder}/{name.aborted_file}"
        return SideFile(path, lambda: self._check_aborted(path, start, end))

    def snapshot_at(self, offset: int) -> SideFile:
        """Return the producer snapshot as of `offset`; the frames before it were replayed."""
        path = f"{self._folder}/{producer_snapshot(offset)}"
        return SideFile(path, lambda: self._check_snapshot(path, offset))

    def _check_aborted(self, path: str, start: int, end: int) -> Problem:
        rows = document.load(self._storage, path, ABORTED_KIND, list[tuple[int, int, int]])
        return self._compare_aborted({EndedTransaction(*row) for row in rows}, start, end)

    def _compare_aborted(self, noted: set[EndedTransaction], start: int, end: int) -> Problem:
        """Compare the aborted transactions of the file (`noted`) with those of the frames."""
        found = set(self._rules.aborted.ending_in(start, end))
        if noted == found:
            return None
        markers = {(one.producer_id, one.marker_offset) for one in noted}
        missing = [
            one
            for one in found
            if (one.producer_id, one.marker_offset) not in markers
            and one.marker_offset >= self._log_start  # needed only by reads after the log's start
        ]
        if missing:
            return f"does not list {missing[0]}, whose records would be returned to readers"
        wrong = [one for one in noted - found if not self._began_before(one, found)]
        return f"lists {wrong[0]}, which the frames do not have" if wrong else None

    def _began_before(self, noted: EndedTransaction, found: set[EndedTransaction]) -> bool:
        """Return True if a transaction differs only in frames that retention has removed."""
        if noted.first_offset >= self._first:
            return False
        return all(
            one.first_offset >= noted.first_offset
            for one in found
            if (one.producer_id, one.marker_offset) == (noted.producer_id, noted.marker_offset)
        )

    def _check_snapshot(self, path: str, offset: int) -> Problem:
        rows = document.load(self._storage, path, SNAPSHOT_KIND, list[tuple[int, ProducerEntry]])
        noted, found = dict(rows), self._rules.producers.entries
        for producer_id in noted.keys() | found.keys():
            if self._later_removed(noted.get(producer_id), found.get(producer_id), producer_id):
                continue
            problem = self._compare(
                noted.get(producer_id), found.get(producer_id), producer_id, offset
            )
            if problem:
                return f"producer {producer_id} {problem}"
        return None

    def _compare(
        self,
        noted: ProducerEntry | None,
        found: ProducerEntry | None,
        producer_id: int,
        offset: int,
    ) -> Problem:
        if noted is None:
            last = self._rules.last_offsets[producer_id]
            return None if self._ages.may_be_forgotten(last, offset - 1) else "is missing"
        if found is None:
            seen = self._whole(noted.batches)
            return f"has batches that the frames do not have: {seen}" if seen else None
        return self._compare_both(noted, found, offset)

    def _later_removed(
        self, noted: ProducerEntry | None, found: ProducerEntry | None, producer_id: int
    ) -> bool:
        """Return True if a snapshot may have a later epoch of a producer than the frames.

        Cleaning removes the last frames of an expired producer. Earlier ones can remain in segments
        that cleaning skipped.
        """
        if noted is None or found is None or noted.epoch <= found.epoch:
            return False
        after = self._rules.last_offsets[producer_id] + 1
        shown = self._whole(noted.batches) or noted.open_since >= self._first
        return self._rules.complete_from > after and not shown

    def _compare_both(self, noted: ProducerEntry, found: ProducerEntry, offset: int) -> Problem:
        seen, there = self._whole(noted.batches), self._whole(found.batches)
        if noted.epoch != found.epoch or seen != there[len(there) - len(seen) :]:
            return f"has {noted}, the frames have {found}"
        if len(seen) < len(there):
            oldest = there[0].base_offset
            if not self._ages.may_be_forgotten(oldest, offset - 1):
                return f"has only the batches {seen}, the frames have {there}"
        if noted.open_since != found.open_since and not 0 <= noted.open_since < self._first:
            return f"has a transaction open since {noted.open_since}, not {found.open_since}"
        return None

    def _whole(self, batches: list[BatchMeta]) -> list[BatchMeta]:
        """Return the batches that must be in the frames."""
        return [batch for batch in batches if batch.base_offset >= self._first]
