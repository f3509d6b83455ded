"""One pass over one partition (Kafka's Cleaner.doClean).

1. Read the keys of the dirty section and find the last record of each.
2. Go through the segments from the log's start and write the retained records into new segments.
   A clean segment in which every record is retained is skipped.
3. Make the new segments durable, then swap them for the old ones by one change of the manifest.
   Groups of segments are swapped in ascending order, because the record that supersedes another
   must not be removed first.
4. Record durably the new first dirty offset.

A crash between any two steps leaves a log that reads the same. Segments that were swapped are not
rewritten again. New segments that no manifest lists are removed, here or at the next opening.
"""

from __future__ import annotations

from strandline.changelog.embedded.cleaning.bounds import bounds_of
from strandline.changelog.embedded.cleaning.look import find_latest, frames_of, segments_below
from strandline.changelog.embedded.cleaning.passes import PassPace, PassResult, SegmentLeft
from strandline.changelog.embedded.cleaning.rewriting import Rewriter, remove_unlisted
from strandline.changelog.embedded.cleaning.survivors import FrameFate, Survivors
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.segment import Segment
from strandline.changelog.errors import NO_EFFECT_ERRORS


def clean(
    partition: Partition,
    *,
    memory: int,
    pace: PassPace,
    now_ms: int,
    result: PassResult | None = None,
) -> PassResult:
    """Clean a partition up to its first uncleanable offset; the caller holds `partition.cleaning`.

    After an error the partition is unchanged or has some of its segments rewritten; both are valid.

    Args:
        partition: The partition, of a compacted topic.
        memory: Bytes for the offset map.
        pace: Called with the bytes read and written; it may wait, or raise to end the pass.
        now_ms: Milliseconds since the epoch; tombstones with an earlier delete horizon are removed.
        result: Filled in during the pass, so that the caller sees what a failed pass did, too.

    Raises:
        CorruptLog: A frame cannot be read.
        StorageFailed: The disk failed.
        UnknownTopic: The topic was deleted during the pass.
        OwnerUnavailable: The log was closed during the pass.
    """
    return _Cleaning(partition, memory, pace, now_ms, result or PassResult()).run()


class _Cleaning:
    """One pass over one partition."""

    def __init__(
        self, partition: Partition, memory: int, pace: PassPace, now_ms: int, result: PassResult
    ) -> None:
        self._partition = partition
        self._memory = memory
        self._pace = pace
        self._now_ms = now_ms
        self._bounds = bounds_of(partition, now_ms)
        self._result = result
        result.start = self._bounds.first_dirty

    def run(self) -> PassResult:
        result = self._result
        try:
            cleaned = self._clean()
        except SegmentLeft:
            cleaned = False
        if not cleaned:
            # The next pass begins with the segments that retention has left.
            result.end, result.whole = result.start, False
        return result

    def _clean(self) -> bool:
        """Do all steps; False if a segment left the log in between."""
        partition, bounds, result = self._partition, self._bounds, self._result
        facts = find_latest(partition, bounds, self._memory, self._pace, result)
        survivors = Survivors.of(
            partition, facts.latest, bounds.first_dirty, facts.end, self._now_ms
        )
        survivors.tally.keyless = facts.keyless
        result.tally, result.end = survivors.tally, facts.end
        result.map_use, result.whole = facts.latest.use, facts.end == bounds.first_uncleanable
        if not self._rewrite(survivors):
            return False
        partition.note_cleaned(facts.end)
        return True

    # 2. and 3. ------------------------------------------------------------------------

    def _rewrite(self, survivors: Survivors) -> bool:
        """Rewrite the segments before the end of the pass; False if one left the log."""
        writer = Rewriter(self._partition, survivors.end, self._pace)
        group: list[Segment] = []
        try:
            for segment in segments_below(self._partition, survivors.end):
                fates = self._fates(segment, survivors)
                if fates is None:
                    self._result.left_alone += 1
                else:
                    writer.begin(segment)
                    group.append(segment)
                    self._write(segment, fates, survivors, writer)
                if fates is None or writer.bytes * 2 >= self._partition.config.segment_bytes:
                    if not self._swap(group, writer, survivors):
                        return False
                    group = []
            return self._swap(group, writer, survivors)
        except BaseException:
            writer.discard()
            raise

    def _fates(self, segment: Segment, survivors: Survivors) -> list[FrameFate] | None:
        """Return the fate of each frame of a segment; None if the segment is skipped.

        The list is empty for a dirty segment: its frames are decided while they are written. A
        small clean segment is merged with the dirty ones after it if these are larger. An empty
        one always is, because retention never removes it.
        """
        if segment.end_offset > survivors.start:
            return []
        expired = segment.has_expired(self._now_ms)
        if survivors.latest.keys == 0 and not expired and not survivors.has_aborted_clean:
            return None
        fates, changes = [], False
        for frame in frames_of(self._partition, segment, self._pace):
            fate = survivors.fate_of(frame)
            changes = changes or fate.changes(frame.header)
            # Without the content, because all records of the segment would stay in memory with it.
            fates.append(fate._replace(content=None))
        config = self._partition.config
        small = segment.size * 2 < config.segment_bytes and not config.delete
        joins = segment.size == 0 or (small and segment.size < self._bounds.dirty_bytes)
        return fates if changes or joins else None

    def _write(
        self, segment: Segment, fates: list[FrameFate], survivors: Survivors, writer: Rewriter
    ) -> None:
        """Write the retained records of a segment."""
        for number, frame in enumerate(frames_of(self._partition, segment, self._pace)):
            fate = fates[number] if fates else survivors.fate_of(frame)
            writer.add(frame, fate)

    def _swap(self, old: list[Segment], writer: Rewriter, survivors: Survivors) -> bool:
        """Swap the written segments for `old`; False if a segment of `old` left the log."""
        if not old:
            return True
        if len(old) == 1 and old[0].size == 0:  # the new one would be empty as well
            writer.keep_old()
            self._result.left_alone += 1
            return True
        new = writer.finish()
        try:
            swapped = self._partition.replace_segments(
                old,
                new,
                superseding_end=survivors.end,
                purged_end=survivors.tally.purged_end,
            )
        except NO_EFFECT_ERRORS:
            remove_unlisted(new)
            raise
        if not swapped:
            remove_unlisted(new)
            return False
        result = self._result
        result.replaced += old
        result.segments_before += len(old)
        result.segments_after += len(new)
        result.bytes_before += sum(segment.size for segment in old)
        result.bytes_after += sum(segment.size for segment in new)
        return True
