"""Short helpers to write records to a log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.clock import SystemClock
from strandline.changelog.records import Append, columns_schema
from strandline.statestore.keys import key_codec
from strandline.statestore.serdes import MessagePack

TRANSACTION_TIMEOUT_MS = 600_000
"""Milliseconds. Longer than a JVM takes to start on a busy machine."""

Pairs = Iterable[tuple[bytes | None, bytes | None]]


class Writer:
    """Appends to partitions of topics; in transactions if it has a name."""

    def __init__(self, broker: Broker, name: str | None = None) -> None:
        self.broker = broker
        self.producer = broker.init_producer(name, timeout_ms=TRANSACTION_TIMEOUT_MS)
        self.transactional = name is not None
        self._sequences: dict[tuple[str, int], int] = {}

    def write(self, pairs: Pairs, topic: str = "t", partition: int = 0) -> None:
        """Append keys and values as bytes."""
        keys, values = zip(*pairs, strict=True)
        self._append(topic, partition, keys, pa.array(values, pa.binary()), 0)

    def write_rows(
        self,
        rows: Sequence[Mapping[str, Any] | None],
        schema: pa.Schema,
        topic: str = "t",
        partition: int = 0,
    ) -> None:
        """Append rows of a typed topic; None is a tombstone."""
        value = pa.array(rows, pa.struct(list(schema)))
        self._append(topic, partition, [b"k"] * len(rows), value, 1)

    def end(self, *, commit: bool) -> None:
        """Commit or abort, and begin the next transaction."""
        self.producer = self.broker.end_transaction(self.producer, commit=commit)
        self._sequences.clear()

    def _append(
        self, topic: str, partition: int, keys: Any, value: pa.Array, schema_id: int
    ) -> None:
        sequence = self._sequences.get((topic, partition), 0)
        self._sequences[topic, partition] = sequence + len(value)
        now = SystemClock().now_ms()  # an old record would be deleted by retention
        batch = pa.record_batch(
            [pa.array([now] * len(value), pa.int64()), pa.array(keys, pa.binary()), value],
            schema=columns_schema(value.type, headers=False),
        )
        self.broker.append(
            [
                Append(
                    topic,
                    partition,
                    batch,
                    self.producer,
                    sequence,
                    self.transactional,
                    schema_id,
                )
            ]
        )


def write_store(
    broker: Broker, topic: str, kind: Any, changes: Iterable[tuple[Any, Any]], partition: int = 0
) -> None:
    """Append changes of a store to its changelog; None deletes."""
    encode, dumps = key_codec(kind).encode, MessagePack().dumps
    pairs = [(encode(key), None if value is None else dumps(value)) for key, value in changes]
    Writer(broker).write(pairs, topic, partition)
