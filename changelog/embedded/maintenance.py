"""What an open log does to itself from time to time: retention, and the files that it dooms.

A segment that leaves the log stays on the disk for `file.delete.delay.ms`, for those who read it
still; then its files go. When it is time for all this counts by elapsed time, since clocks are set;
how old records are, by their timestamps.
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
PRODUCER_ID_EXPIRATION_MS = 24 * 60 * 60 * 1000
"""Kafka's `producer.id.expiration.ms`."""


class LogMaintenance:
    """Under the lock of the log's administration, all of it."""

    def __init__(self, environment: LogContext, catalog: TopicCatalog) -> None:
        self._environment = environment
        self._catalog = catalog
        self._next_retention_ms = 0
        self.pending_deletes: list[tuple[int, Segment]] = []
        """Segments out of the log, and when (elapsed ms) their files may go."""

    def schedule_delete(self, topic: OpenTopic, segments: Sequence[Segment]) -> None:
        """These have left the log: their files go in a while."""
        when = self._environment.steady_ms() + topic.config.file_delete_delay_ms
        self.pending_deletes += [(when, segment) for segment in segments]

    def tick(self) -> None:
        """What is due by now."""
        now = self._environment.steady_ms()
        if now >= self._next_retention_ms:
            self._next_retention_ms = now + RETENTION_CHECK_MS
            self._retain(now)
        self._delete_due(now)

    def delete_all(self) -> None:
        """The log is being closed: nobody reads any more. Raises StorageFailed."""
        for _, segment in self.pending_deletes:
            segment.remove()

    def _retain(self, steady: int) -> None:
        now = self._environment.clock.now_ms()
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
    """Whether all of a partition is durable; whatever keeps it from that is for the next opening."""
    try:
        partition.sync()
    except StrandlineError:
        return False
    return True
