"""Indexes, aborted transactions and producer snapshots, against what the frames say.

A side file may lack: opening makes it anew. What is there must be right, since opening relies on
it: a wrong index hides records, a wrong aborted index shows what was aborted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from strandline.changelog.embedded import document
from strandline.changelog.embedded.checking.producers import ProducerRules, SegmentAges
from strandline.changelog.embedded.format import FrameHeader
from strandline.changelog.embedded.manifest import Manifest
from strandline.changelog.embedded.names import SegmentName, producer_snapshot
from strandline.changelog.embedded.producer_state import BatchMeta, EndedTransaction, ProducerEntry
from strandline.changelog.embedded.segment import INDEX_KIND, SparseIndex
from strandline.changelog.embedded.side_files import ABORTED_KIND, SNAPSHOT_KIND
from strandline.changelog.errors import CorruptLog, cause
from strandline.changelog.storage import Storage

Problem = str | None
"""What is wrong with a file; None if nothing is."""


class IndexCheck:
    """Follows the frames of a segment beside its index."""

    def __init__(self, index: SparseIndex) -> None:
        self._index = index
        self._next = 0
        self.problem: Problem = None

    def frame(self, position: int, header: FrameHeader, time_before: int) -> None:
        """The next frame."""
        index, at = self._index, self._next
        if at >= len(index.positions) or index.positions[at] > position:
            return
        self._next += 1
        found = (index.offsets[at], index.positions[at], index.times_before[at])
        right = (header.base_offset, position, time_before)
        if found != right:
            self._note(f"entry {at} is {found}, the frame is {right} (offset, byte, time before)")

    def finish(self) -> None:
        """There are no more frames."""
        left = len(self._index.positions) - self._next
        if left:
            self._note(f"its last {left} entries point behind the last frame")

    def _note(self, problem: str) -> None:
        self.problem = self.problem or problem


class LostSideFile(Exception):
    """A side file is missing or torn: opening makes it anew."""


def load_index(storage: Storage, folder: str, name: SegmentName) -> SparseIndex:
    """The index of a closed segment. Raises Lost, and FutureFormat."""
    path = f"{folder}/{name.index_file}"
    try:
        return SparseIndex.load(document.read(storage, path, INDEX_KIND), path)
    except FileNotFoundError:
        raise LostSideFile("is missing") from None
    except CorruptLog as error:
        raise LostSideFile(f"is torn ({cause(error)})") from error


class SideFile(NamedTuple):
    """A file that holds a part of a partition's state."""

    path: str
    check: Callable[[], Problem]


class StateFiles:
    """Aborted indexes and producer snapshots of a partition, as its frames are followed."""

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
        """From where on the frames are whole; what was before is known from these files only."""
        return max(self._begin, self._rules.whole_from)

    def aborted_of(self, name: SegmentName, start: int, end: int) -> SideFile:
        """The aborted transactions that end in a closed segment."""
        path = f"{self._folder}/{name.aborted_file}"
        return SideFile(path, lambda: self._check_aborted(path, start, end))

    def snapshot_at(self, offset: int) -> SideFile:
        """The producers as of `offset`, at which the frames have arrived."""
        path = f"{self._folder}/{producer_snapshot(offset)}"
        return SideFile(path, lambda: self._check_snapshot(path, offset))

    def _check_aborted(self, path: str, start: int, end: int) -> Problem:
        rows = document.load(self._storage, path, ABORTED_KIND, list[tuple[int, int, int]])
        return self._compare_aborted({EndedTransaction(*row) for row in rows}, start, end)

    def _compare_aborted(self, noted: set[EndedTransaction], start: int, end: int) -> Problem:
        found = set(self._rules.aborted.ending_in(start, end))
        if noted == found:
            return None
        markers = {(one.producer_id, one.marker_offset) for one in noted}
        missing = [
            one
            for one in found
            if (one.producer_id, one.marker_offset) not in markers
            and one.marker_offset >= self._log_start  # nobody reads below, so it may be forgotten
        ]
        if missing:
            return f"does not list {missing[0]}, whose records would be shown"
        wrong = [one for one in noted - found if not self._began_before(one, found)]
        return f"lists {wrong[0]}, which the frames do not show" if wrong else None

    def _began_before(self, noted: EndedTransaction, found: set[EndedTransaction]) -> bool:
        """Whether a transaction differs only in frames that retention has taken."""
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
            if self._later_is_gone(noted.get(producer_id), found.get(producer_id), producer_id):
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
            last = self._rules.last_seen[producer_id]
            return None if self._ages.may_be_forgotten(last, offset - 1) else "is not in it"
        if found is None:
            seen = self._whole(noted.batches)
            return f"has batches in it that are not there: {seen}" if seen else None
        return self._compare_both(noted, found, offset)

    def _later_is_gone(
        self, noted: ProducerEntry | None, found: ProducerEntry | None, producer_id: int
    ) -> bool:
        """Whether a snapshot may rightly know a later epoch of a producer than the frames show.

        Cleaning removes the last frames of a producer that is forgotten. Earlier ones can remain, in
        segments in which nothing else was to be removed.
        """
        if noted is None or found is None or noted.epoch <= found.epoch:
            return False
        after = self._rules.last_seen[producer_id] + 1
        shown = self._whole(noted.batches) or noted.open_since >= self._first
        return self._rules.whole_from > after and not shown

    def _compare_both(self, noted: ProducerEntry, found: ProducerEntry, offset: int) -> Problem:
        seen, there = self._whole(noted.batches), self._whole(found.batches)
        if noted.epoch != found.epoch or seen != there[len(there) - len(seen) :]:
            return f"has {noted} in it, the frames say {found}"
        if len(seen) < len(there):
            oldest = there[0].base_offset
            if not self._ages.may_be_forgotten(oldest, offset - 1):
                return f"has only the batches {seen} in it, the frames say {there}"
        if noted.open_since != found.open_since and not 0 <= noted.open_since < self._first:
            return f"has a transaction open since {noted.open_since}, not {found.open_since}"
        return None

    def _whole(self, batches: list[BatchMeta]) -> list[BatchMeta]:
        """Those of which the frames must tell."""
        return [batch for batch in batches if batch.base_offset >= self._first]
