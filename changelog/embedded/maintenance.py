"""Periodic maintenance of an open log: retention, and the deletion of replaced segment files.

A segment that has left the log stays on the disk for `file.delete.delay.ms`, because readers may
still be reading it. Then its files are deleted.

Delays and intervals count elapsed time, because the wall clock may be changed. The age of records
counts by their timestamps.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from strandline.changelog.embedded import retention
from strandline.changelog.embedded.context import LogContext
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.segment import Segment
from strandline.changelog.embedded.topic import OpenTopic, TopicCatalog
from strandline.changelog.errors import StorageFailed, StrandlineError

_log = logging.getLogger("strandline")

RETENTION_CHECK_MS = 10_000
"""Milliseconds between two retention checks."""
PRODUCER_ID_EXPIRATION_MS = 24 * 60 * 60 * 1000
"""Milliseconds of idleness after which a partition forgets a producer id.

The value is the default of Kafka's `producer.id.expiration.ms`."""


class LogMaintenance:
    """Runs retention and deletes files. The caller holds the owner's administration lock."""

    def __init__(self, context: LogContext, catalog: TopicCatalog) -> None:
        self._context = context
        self._catalog = catalog
        self._next_retention_ms = 0
        self.pending_deletes: list[tuple[int, Segment]] = []
        """Segments that have left the log, each with the steady time (ms) of its deletion."""

    def schedule_delete(self, topic: OpenTopic, segments: Sequence[Segment]) -> None:
        """Delete the files of segments that have left the log, after `file.delete.delay.ms`."""
        when = self._context.steady_ms() + topic.config.file_delete_delay_ms
        self.pending_deletes += [(when, segment) for segment in segments]

    def tick(self) -> None:
        """Apply retention and delete files, as far as they are due."""
        now = self._context.steady_ms()
        if now >= self._next_retention_ms:
            self._next_retention_ms = now + RETENTION_CHECK_MS
            self._retain(now)
        self._delete_due(now)

    def delete_all(self) -> None:
        """Delete all pending files, because the log is being closed. Raises StorageFailed."""
        for _, segment in self.pending_deletes:
            segment.remove()

    def _retain(self, steady: int) -> None:
        now = self._context.clock.now_ms()
        for topic in self._catalog:
            for partition in topic.partitions:
                try:
                    self.schedule_delete(topic, retention.retain(partition, now))
                except StrandlineError as error:
                    fields = {"partition": str(partition.topic_partition), "error": error}
                    _log.warning("retention of %s: %s", *fields.values(), extra=fields)
                with partition.lock:
                    partition.producers.expire(steady - PRODUCER_ID_EXPIRATION_MS)

    def _delete_due(self, now: int) -> None:
        kept = []
        for when, segment in self.pending_deletes:
            if when > now:
                kept.append((when, segment))
                continue
            try:
                segment.remove()
            except StorageFailed as error:
                fields = {"file": segment.path, "error": error}
                _log.warning("removing %s: %s", *fields.values(), extra=fields)
                kept.append((when + RETENTION_CHECK_MS, segment))
        self.pending_deletes = kept


def sync_quietly(partition: Partition) -> bool:
    """Return True if all of the partition is durable, False if its sync failed.

    An error is not raised, because the next opening recovers the partition.
    """
    try:
        partition.sync()
    except StrandlineError:
        return False
    return True
