"""One partition of a Faust table: committed state in our engine, uncommitted values above it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from strandline.changelog.arrays import of_items
from strandline.changelog.broker import Broker
from strandline.changelog.client.producer import BatchMetadata
from strandline.changelog.clock import Clock
from strandline.changelog.errors import CorruptLog, InvalidRecord, InvalidRequest
from strandline.changelog.records import TopicPartition
from strandline.framework.faust.overlay import MISSING, Overlay, Writer
from strandline.framework.faust.table_backup import PartitionBackups
from strandline.statestore.changelogged import ChangelogBatch, Changelogged, later
from strandline.statestore.engine import StorePosition
from strandline.statestore.engines.folders import open_beside, open_when_free
from strandline.statestore.layers import Above
from strandline.statestore.ordered import FIRST_KEY
from strandline.statestore.restore import Restored, restore

LOCK_TIMEOUT_S = 10.0
"""Seconds to wait until the previous worker closes the partition's folder."""
CHECKPOINT_BYTES = 16 << 20
"""Bytes of committed changes in memory above which they are written to the engine."""
CHECKPOINT_S = 10.0
"""Seconds after which committed changes are written to the engine."""


class TableNotOwned(InvalidRequest):
    """A table was changed outside of a record of a partition that this worker owns."""


class TablePartition:
    """State of one partition. Reads and writes run on the thread of the event loop."""

    def __init__(
        self, changelog: TopicPartition, folder: Path, clock: Clock, *, standby: bool
    ) -> None:
        """Open the engine of a partition.

        Args:
            changelog: Partition of the table's changelog topic.
            folder: Folder of the partition; a standby copy is opened beside it.
            clock: Source of time.
            standby: True for a copy of a partition that another worker owns.
        """
        self.changelog = changelog
        self.is_standby = standby
        self.overlay = Overlay()
        self._clock = clock
        engine = (
            open_beside(folder, clock)
            if standby
            else open_when_free(folder, timeout=LOCK_TIMEOUT_S, clock=clock)
        )
        self._engine = engine
        self._state = Changelogged(engine)
        self._closing = threading.Lock()
        self._closed = False
        self._checkpointed_at = clock.monotonic()
        self._last_read: tuple[StorePosition | None, bytes, bytes | None] = (None, b"", None)
        """The last committed value that was read, with its position and key."""

    @property
    def position(self) -> StorePosition | None:
        """Changelog position that the committed state has reached; None before a restore."""
        return self._state.position

    @property
    def end(self) -> int:
        """Changelog offset (exclusive) that the committed state reaches; 0 if it is empty."""
        return 0 if self.position is None else self.position.offset

    def restore(self, broker: Broker, *, wait: bool = True) -> Restored | None:
        """Replay the changelog from the engine's position to its end; None after `close`.

        Args:
            broker: The log.
            wait: True: wait for open transactions. False: stop before them, for a standby copy.
        """
        with self._closing:
            if self._closed:
                return None
            if wait:
                return restore(self._state, broker, self.changelog, clock=self._clock)
            return restore(self._state, broker, self.changelog, clock=self._clock, wait=None)

    # Reading and writing --------------------------------------------------------------

    def get(self, key: bytes, reader: Writer | None) -> bytes | None:
        """Return the newest value of a key for a handler, committed or not."""
        value = self.overlay.read(key, reader)
        return self.committed(key) if value is MISSING else value  # type: ignore[return-value]

    def committed(self, key: bytes) -> bytes | None:
        """Return the committed value of a key. Faust reads a value twice: `in`, then `[]`."""
        if self._closed:
            return None
        position = self._state.position  # before the value, so that a newer value is not kept
        read_at, known, value = self._last_read
        if position is None or read_at is not position or known != key:
            value = self._state.read([key])[0]
            self._last_read = (position, key, value)
        return value

    def put(self, key: bytes, value: bytes | None, writer: Writer) -> None:
        """Set a key, or delete it with None. Raises InvalidRecord."""
        if key < FIRST_KEY:
            raise InvalidRecord(
                f"table of {self.changelog.topic!r}: the key {key!r} begins with a byte below 02, "
                "which the engine keeps for itself; use another key_serializer= than raw"
            )
        self.overlay.write(key, value, writer)

    def items(
        self, reader: Writer | None, *, committed: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries as of now, committed ones only if asked; sorted by key."""
        if self._closed:
            return iter(())
        changes = {} if committed else self.overlay.changed(reader)
        above = Above(sorted(changes.items()))
        return iter(list(self._state.scan(FIRST_KEY, None, reverse=False, above=above)))

    # Committing -----------------------------------------------------------------------

    def committing(self, changes: Mapping[bytes, bytes | None]) -> ChangelogBatch:
        """Return changed keys as a batch for the changelog."""
        return ChangelogBatch(
            of_items(list(changes), pa.binary()), of_items(list(changes.values()), pa.binary())
        )

    def apply(self, batch: ChangelogBatch, appended: BatchMetadata) -> None:
        """Add a committed batch to the state, which the changelog has after this call's commit."""
        if self._closed:
            return  # the changelog has it
        position = self._state.position
        if position is None:
            raise CorruptLog(f"{self.changelog} was committed to before it was restored")
        end = appended.last_offset + 1
        self._state.apply(batch, later(position, end, appended.leader_epoch, appended.incarnation))

    def checkpoint_if_due(self) -> None:
        """Write committed changes to the engine if they are many, or old."""
        with self._closing:
            waited = self._clock.monotonic() - self._checkpointed_at
            size = 0 if self._closed else self._state.pending_bytes
            if size > CHECKPOINT_BYTES or (size and waited > CHECKPOINT_S):
                self._state.checkpoint()
                self._checkpointed_at = self._clock.monotonic()

    def back_up(self, backups: PartitionBackups, *, flush: bool) -> int:
        """Add a backup of the committed state; return its number.

        Args:
            backups: Backups of this partition.
            flush: True to include the newest commits; False for the state as it is on disk.

        Raises:
            InvalidRequest: The partition is closed, or there is no state on disk.
        """
        with self._closing:
            if self._closed:
                raise InvalidRequest(f"the state of {self.changelog} is not open on this worker")
            if flush:
                self._state.checkpoint()
            return backups.add(self._engine)

    def close(self) -> None:
        """Write committed changes to the engine and close it. Repeated calls have no effect."""
        with self._closing:
            if not self._closed:
                self._closed = True
                try:
                    self._state.checkpoint()
                finally:
                    self._state.close()
