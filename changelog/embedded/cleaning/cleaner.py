"""One pass over one partition (Kafka's Cleaner.doClean).

1. Look at the dirty section: which records are the last of their keys.
2. Go through the segments from the log's start and write what stays of them into new ones. One in
   which everything stays is left alone.
3. Make the new ones durable; put them in the place of the old ones by one change of the manifest, a
   group at a time, in order: what replaces a record is never gone before the record.
4. Note durably how far the partition is clean.

A crash between any two steps leaves a log that reads the same; what was done is not done again. New
segments that no manifest lists are removed, here or at the next opening.
"""

from __future__ import annotations

from strandline.changelog.embedded.cleaning.bounds import bounds_of
from strandline.changelog.embedded.cleaning.look import frames_of, look, segments_below
from strandline.changelog.embedded.cleaning.passes import PassPace, PassResult
from strandline.changelog.embedded.cleaning.rewriting import Rewriter, remove_unlisted
from strandline.changelog.embedded.cleaning.survivors import FrameFate, Survivors
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.segment import Segment
from strandline.changelog.errors import UNDONE


def clean(
    partition: Partition,
    *,
    memory: int,
    pace: PassPace,
    now_ms: int,
    done: PassResult | None = None,
) -> PassResult:
    """Clean a partition as far as it can be; the caller holds `partition.cleaning`.

    `memory` bytes hold the keys. `done` is filled in, also by a pass that fails. Raises CorruptLog,
    StorageFailed, what `pace` raises, and if the topic is deleted or the log closed meanwhile
    UnknownTopic or OwnerUnavailable: the partition is as it was, or has some of its segments rewritten.
    """
    return _Cleaning(partition, memory, pace, now_ms, done or PassResult()).run()


class _Cleaning:
    """The state of a pass."""

    def __init__(
        self, partition: Partition, memory: int, pace: PassPace, now_ms: int, done: PassResult
    ) -> None:
        self._partition = partition
        self._memory = memory
        self._pace = pace
        self._now_ms = now_ms
        self._bounds = bounds_of(partition, now_ms)
        self._done = done
        done.start = self._bounds.dirty

    def run(self) -> PassResult:
        partition, bounds, done = self._partition, self._bounds, self._done
        known = look(partition, bounds, self._memory, self._pace, done)
        survivors = Survivors.of(partition, known.latest, bounds.dirty, known.end, self._now_ms)
        survivors.tally.keyless = known.keyless
        done.tally, done.end = survivors.tally, known.end
        done.map_use, done.whole = known.latest.use, known.end == bounds.end
        if self._rewrite(survivors):
            partition.note_cleaned(known.end)
        return done

    # 2. and 3. ------------------------------------------------------------------------

    def _rewrite(self, survivors: Survivors) -> bool:
        """Rewrite what is below the end; False if retention took some of it away meanwhile."""
        writer = Rewriter(self._partition, survivors.end, self._pace)
        group: list[Segment] = []
        try:
            for segment in segments_below(self._partition, survivors.end):
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

    def _judged(self, segment: Segment, survivors: Survivors) -> list[FrameFate] | None:
        """What becomes of a segment's frames, empty if it is dirty: they are judged as they are written.

        None: it is left alone. A small one goes with the dirty ones behind it, if it is the smaller part;
        an empty one always does, because retention never removes it by itself.
        """
        if segment.end_offset > survivors.start:
            return []
        expired = segment.has_expired(self._now_ms)
        if survivors.latest.keys == 0 and not expired and not survivors.reach_back:
            return None
        verdicts, changes = [], False
        for frame in frames_of(segment, self._pace):
            verdict = survivors.judge(frame)
            changes = changes or verdict.changes(frame.header)
            verdicts.append(verdict._replace(content=None))  # or all of the segment is in memory
        config = self._partition.config
        small = segment.size * 2 < config.segment_bytes and not config.delete
        joins = segment.size == 0 or (small and segment.size < self._bounds.dirty_bytes)
        return verdicts if changes or joins else None

    def _write(
        self, segment: Segment, verdicts: list[FrameFate], survivors: Survivors, writer: Rewriter
    ) -> None:
        for number, frame in enumerate(frames_of(segment, self._pace)):
            verdict = verdicts[number] if verdicts else survivors.judge(frame)
            writer.add(frame, verdict)

    def _swap(self, old: list[Segment], writer: Rewriter, survivors: Survivors) -> bool:
        """Put what was written in the place of `old`; False if that is not in the log any more."""
        if not old:
            return True
        if len(old) == 1 and old[0].size == 0:
            writer.leave()
            self._done.left_alone += 1
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
