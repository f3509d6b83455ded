"""Latest values of a small compacted topic with one partition, in memory.

Apps record their declarations in such a topic, and sinks the batches that they have committed. Each
read continues where the last one ended, so it costs what was written in between.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from strandline.changelog.arrays import repeated
from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import TopicExists, UnknownTopic
from strandline.changelog.records import TopicPartition, columns_schema
from strandline.statestore.changelogged import Changelogged
from strandline.statestore.engine import Entry
from strandline.statestore.engines.memory import MemoryEngine
from strandline.statestore.restore import READERS_WAIT_S, restore

CONFIG = {"cleanup.policy": "compact"}
"""Settings of the topic."""


class CompactedTable:
    """Reader of one topic. One thread uses it at a time.

    Args:
        broker: The log.
        topic: Name of the topic; it need not exist.
        clock: Source of time.
        state: Values that an earlier table of the same topic has read, to continue from. They are
            dropped if the log is another one by now, or was restored from a backup.
    """

    def __init__(
        self, broker: Broker, topic: str, clock: Clock, state: Changelogged | None = None
    ) -> None:
        self.partition = TopicPartition(topic, 0)
        self._broker = broker
        self._clock = clock
        self.state = state or Changelogged(MemoryEngine())
        """Values that were read, for another table of the same topic."""

    def read_on(self, wait: float = READERS_WAIT_S) -> bool:
        """Read everything that is committed now; return True if there was something new.

        A transaction that is committed before the call is read, because the end is captured in the
        call and open transactions before it are waited for, at most `wait` seconds.

        Raises:
            UnknownTopic: The topic does not exist.
            TransactionOpen: An open transaction of the topic does not end.
        """
        now = self._broker.offsets([self.partition])[self.partition]
        held = self.state.position
        end = max(now.last_stable_offset, now.committed_end)
        is_same = held is not None and held.topic_id == now.topic_id and not now.divergence(held)
        if is_same and held is not None and held.offset >= end:
            return False
        restore(self.state, self._broker, self.partition, clock=self._clock, wait=wait)
        return True

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, as of the last read; None if it has none."""
        return self.state.read([key])[0]

    def entries(self) -> Iterator[Entry]:
        """Yield keys and values, as of the last read, in the order of the keys."""
        return self.state.scan(b"", None, reverse=False)

    def create(self, *, internal: bool = False) -> None:
        """Create the topic unless it exists."""
        name = self.partition.topic
        try:
            self._broker.topic(name)
        except UnknownTopic:
            try:
                self._broker.create_topic(name, 1, config=CONFIG, internal=internal)
            except TopicExists:
                return


def records(keys: pa.Array, values: pa.Array, timestamp: int) -> pa.RecordBatch:
    """Return keys and values as columns of the log, all at `timestamp` (ms)."""
    times = repeated(timestamp, len(keys))
    return pa.RecordBatch.from_arrays(
        [times, keys, values], schema=columns_schema(pa.binary(), headers=False)
    )
