"""Starting positions of a consumer: the group's committed offset, else `auto_offset_reset`.

The reset policy also applies to a position that is no longer in the log, that belongs to another
history of the log, or that belongs to a topic that was deleted and created again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Literal

from strandline.changelog.broker import Broker
from strandline.changelog.client.cursor import FetchCursor
from strandline.changelog.errors import OffsetOutOfRange
from strandline.changelog.history import epochs_within
from strandline.changelog.records import (
    CommittedOffset,
    Isolation,
    PartitionOffsets,
    TopicPartition,
)

_log = logging.getLogger("strandline")

_OTHER_TOPIC = "a topic that was deleted and created again"
_OTHER_HISTORY = "another history of the log, which was restored from a backup or another copy"
_AFTER_END = "no record of the log: it is after the end, as after a restore from a backup"

OffsetReset = Literal["earliest", "latest", "none"]
Cursors = Mapping[TopicPartition, FetchCursor]


class StartingOffsets:
    """Finds and resets the positions of one consumer."""

    def __init__(
        self, broker: Broker, group: str | None, isolation: Isolation, reset: OffsetReset
    ) -> None:
        self._broker = broker
        self._group = group
        self._isolation = isolation
        self._reset = reset

    def resolve(self, cursors: Cursors, partitions: Sequence[TopicPartition]) -> None:
        """Find the position of partitions that have none yet. Raises CoordinatorLoading."""
        unknown = [tp for tp in partitions if cursors[tp].position < 0]
        if not unknown:
            return
        committed = self._broker.committed(self._group, unknown) if self._group else {}
        named = [tp for tp, at in committed.items() if at.incarnation]
        ends = self._broker.offsets(named) if named else {}
        diverged = [tp for tp in named if _has_diverged(committed[tp], ends[tp])]
        without = []
        for tp in unknown:
            cursor, offset = cursors[tp], committed.get(tp)
            # Ignore an offset of a deleted topic of the same name.
            if offset is None or offset.topic_id not in ("", cursor.topic_id):
                without.append(tp)
            elif tp not in diverged:
                cursor.seek(offset.offset)
                if tp in ends:  # compared with the first fetch, so that nothing changes in between
                    cursor.epochs = epochs_within(ends[tp].epochs, offset.offset, offset.offset)
        self._reset_to_policy(cursors, without, "has no committed offset")
        self.reset_diverged(cursors, [tp for tp in diverged if tp not in without])

    def recover(self, cursors: Cursors, partitions: Sequence[TopicPartition]) -> bool:
        """Apply auto_offset_reset to positions outside the log; return True if there were any."""
        lost = []
        for tp, ends in self._broker.offsets(partitions).items():
            cursor = cursors[tp]
            inside = ends.log_start <= cursor.fetch_position <= ends.high_watermark
            if ends.topic_id != cursor.topic_id:
                self._take_new_topic(tp, cursor, ends)
                lost.append(tp)
            elif not inside:
                if cursor.fetch_position > ends.high_watermark:
                    self._warn(tp, cursor, _AFTER_END)
                lost.append(tp)
        self._reset_to_policy(cursors, lost, "no longer has what this consumer was about to read")
        return bool(lost)

    def reset_diverged(self, cursors: Cursors, partitions: Sequence[TopicPartition]) -> None:
        """Apply auto_offset_reset to positions that belong to another history of the log.

        Raises OffsetOutOfRange with the policy "none".
        """
        for tp, ends in self._broker.offsets(partitions).items() if partitions else ():
            if ends.topic_id != cursors[tp].topic_id:
                self._take_new_topic(tp, cursors[tp], ends)
            else:
                self._warn(tp, cursors[tp], _OTHER_HISTORY)
        self._reset_to_policy(
            cursors, partitions, "has another history than the one that this consumer has read"
        )

    def _take_new_topic(
        self, tp: TopicPartition, cursor: FetchCursor, ends: PartitionOffsets
    ) -> None:
        """Log that a topic was created again, and let the cursor belong to the new one."""
        self._warn(tp, cursor, _OTHER_TOPIC)
        cursor.topic_id = ends.topic_id

    def _warn(self, tp: TopicPartition, cursor: FetchCursor, owner: str) -> None:
        _log.warning(
            "%s: the position belongs to %s; auto_offset_reset=%r applies",
            *(tp, owner, self._reset),
            extra={"partition": str(tp), "offset": cursor.fetch_position},
        )

    def _reset_to_policy(
        self, cursors: Cursors, partitions: Sequence[TopicPartition], why: str
    ) -> None:
        if not partitions:
            return
        for tp, ends in self._broker.offsets(partitions).items():
            cursor = cursors[tp]
            if self._reset == "none":
                raise OffsetOutOfRange(
                    f"{tp} {why}, and auto_offset_reset is 'none'; seek to an offset from "
                    f"{ends.log_start} to {ends.visible_end(self._isolation)}"
                )
            from_start = self._reset == "earliest" or cursor.appeared_later
            cursor.seek(ends.log_start if from_start else ends.visible_end(self._isolation))


def _has_diverged(at: CommittedOffset, ends: PartitionOffsets) -> bool:
    """Return True if a committed offset belongs to another history of its partition.

    An offset after the end does not count: `StartingOffsets.recover` handles it.
    """
    return at.offset <= ends.high_watermark and ends.reading_divergence(at) != ""
