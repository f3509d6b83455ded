"""The last committed batch of each sink, in the topic `__strandline_sinks`.

The number of a batch is written in the transaction that writes its rows. So it says whether the
rows are in the log, whatever Spark, which may commit a batch again, remembers of it.
"""

from __future__ import annotations

import threading

import msgspec
import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.client.producer import Producer
from strandline.changelog.clock import Clock
from strandline.changelog.decoding import json_decoder
from strandline.changelog.errors import (
    UNREADABLE,
    CorruptLog,
    FutureFormat,
    InvalidRequest,
    UnknownTopic,
)
from strandline.changelog.records import TopicPartition
from strandline.changelog.sinks import SINKS, TRANSACTIONS
from strandline.framework.spark.writing import staging
from strandline.framework.spark.writing.staging import SinkName
from strandline.statestore.changelogged import Changelogged
from strandline.statestore.compacted_table import CompactedTable, records
from strandline.statestore.restore import READERS_WAIT_S, TRANSACTION_WAIT_S

TOPIC = SINKS
VERSION = 1


class CommittedBatch(msgspec.Struct, frozen=True):
    """Batch that a sink has committed."""

    batch: int
    """Number of the batch."""
    query: str
    """Id of the query; empty for a batch write."""
    at: int
    """Time of the commit, in milliseconds since the epoch."""
    version: int = VERSION


class Sinks:
    """Committed batches of all sinks of a log.

    Args:
        broker: The log.
        path: Path or URL of the log, under which this process remembers what it has read.
        clock: Source of time.
    """

    def __init__(self, broker: Broker, path: str, clock: Clock) -> None:
        self._broker = broker
        with _lock:
            self._table = CompactedTable(broker, TOPIC, clock, _states.get(path))
            _states[path] = self._table.state
        self._clock = clock

    def last(self, sink_id: str) -> CommittedBatch | None:
        """Return the last batch that the sink has committed; None if there is none.

        A transaction of another sink, which a lost driver may have left, is waited for until the
        log aborts it.

        Raises CorruptLog, FutureFormat, and the errors of `CompactedTable.read_on`.
        """
        with _lock:
            found = None
            if self._read_on(TRANSACTION_WAIT_S):
                found = self._table.get(sink_id.encode())
        return None if found is None else _decoded(found, sink_id)

    def all(self) -> dict[str, CommittedBatch]:
        """Return the last batch of each sink. Raises what `last` raises."""
        with _lock:
            found = dict(self._table.entries()) if self._read_on() else {}
        return {key.decode(): _decoded(value, key.decode()) for key, value in found.items()}

    def forget(self, sink_id: str) -> CommittedBatch:
        """Remove the last batch of a sink, and its staging topics; return the batch.

        Raises InvalidRequest if the sink has committed none.
        """
        with Producer(self._broker, transactional_id=transactional_id(sink_id)) as producer:
            last = self.last(sink_id)  # after the sink was fenced
            if last is None:
                raise InvalidRequest(f"no sink {sink_id!r} has committed; `strandline sinks list`")
            keys, values = pa.array([sink_id.encode()], pa.binary()), pa.nulls(1, pa.binary())
            removal = records(keys, values, self._clock.now_ms())
            with producer.transaction():
                producer.append_batches([(self._table.partition, removal, 0)])
        staging.remove(self._broker, staging.names(self._broker, SinkName.of_stream(sink_id)))
        return last

    def _read_on(self, wait: float = READERS_WAIT_S) -> bool:
        """Read what is new; return False if no sink has ever committed."""
        try:
            self._table.read_on(wait)
        except UnknownTopic:
            return False
        return True

    def create(self) -> None:
        """Create the topic unless it exists."""
        self._table.create(internal=True)

    def columns(
        self, sink_id: str, batch: int, query: str
    ) -> tuple[TopicPartition, pa.RecordBatch, int]:
        """Return the record of a committed batch, for the transaction that commits it."""
        now = self._clock.now_ms()
        value = msgspec.json.encode(CommittedBatch(batch, query, now))
        keys, values = pa.array([sink_id.encode()], pa.binary()), pa.array([value], pa.binary())
        return self._table.partition, records(keys, values, now), 0


def transactional_id(sink_id: str) -> str:
    """Return the transactional id with which a sink commits."""
    return TRANSACTIONS + sink_id


def _decoded(data: bytes, sink_id: str) -> CommittedBatch:
    where = f"the last batch of sink {sink_id!r} ({TOPIC})"
    try:
        found = _decode(data)
    except UNREADABLE as error:
        raise CorruptLog(f"{where} is damaged: {error}") from error
    if found.version > VERSION:
        raise FutureFormat(
            f"{where} has version {found.version}, this program knows {VERSION}: use a newer "
            "strandline"
        )
    return found


_decode = json_decoder(CommittedBatch).decode
_states: dict[str, Changelogged] = {}
"""Values read from each log. They are few, and Spark uses a process for many commits."""
_lock = threading.Lock()
