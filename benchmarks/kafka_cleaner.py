"""Measure a pass of Kafka's own cleaner over a topic, by its own figures.

The topic is filled while cleaning is held off, its active segment is closed, and everything is
written to the disk. Then cleaning is allowed: the cleaner, one thread, makes one pass. The figures
count as Kafka does in its log: bytes and records of the cleaned log, each once although they are
read twice (for the offset map, and for the copy), divided by the seconds of the whole pass, fsync
and swap included. A megabyte is 1,048,576 bytes there.

Needs confluent-kafka, which is imported only here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from benchmarks import kafka_broker
from benchmarks.keyed_records import BATCH_RECORDS, SEGMENT_BYTES, SEGMENT_MS, KeyedRecords

if TYPE_CHECKING:
    from confluent_kafka import Producer

DEDUPE_BUFFER_BYTES = 128 << 20
"""Bytes. Kafka's default."""

FILL_SECONDS = 1800.0
CLEAN_SECONDS = 1800.0
ADMIN_SECONDS = 30.0

_THREAD = "kafka-log-cleaner-thread"
_ERRORS = 2
"""Log level of syslog. A lower severity would log every broker that is stopped."""

_SETTINGS = {
    "log.cleaner.threads": "1",
    "log.cleaner.backoff.ms": "200",  # pause between looks for work, not part of the measurement
    "log.segment.delete.delay.ms": "0",
}
_NOT_YET, _NOW = "1.0", "0.01"
"""Dirty ratios that hold off and allow cleaning: the ratio never exceeds 1."""


class KafkaPass(NamedTuple):
    """One pass of Kafka's cleaner."""

    records_per_second: float
    mib_per_second: float
    records_per_processor_second: float
    """Records per processor second of the cleaner's thread, without the garbage collector's."""


class KafkaCleaner:
    """A broker whose cleaner is measured."""

    def __init__(self, broker: kafka_broker.BrokerProcess) -> None:
        from confluent_kafka.admin import AdminClient

        self._broker = broker
        self._admin = AdminClient(_client(broker))
        self._topics = 0

    def clean(self, records: KeyedRecords) -> KafkaPass:
        """Fill a topic with `records`, have it cleaned, and delete it."""
        self._topics += 1
        topic = f"compacted{self._topics}"
        self._create(topic)
        self._fill(topic, records)
        os.sync()
        before = self._broker.processor_seconds(_THREAD)
        self._allow(topic)
        said = self._broker.wait_for_output(pass_over(topic), CLEAN_SECONDS)
        taken = self._broker.processor_seconds(_THREAD) - before
        self._finish(self._admin.delete_topics([topic]))
        return KafkaPass(*rates(said, records), records.count / taken)

    def _create(self, topic: str) -> None:
        from confluent_kafka.admin import NewTopic

        config = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": _NOT_YET,
            "segment.bytes": str(SEGMENT_BYTES),
            "segment.ms": str(SEGMENT_MS),
            "compression.type": "uncompressed",
        }
        self._finish(self._admin.create_topics([NewTopic(topic, 1, 1, config=config)]))

    def _fill(self, topic: str, records: KeyedRecords) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                **_client(self._broker),
                "enable.idempotence": True,  # idempotence also keeps the order
                "linger.ms": 200,  # a batch is sent once it has as many records as ours
                "batch.num.messages": BATCH_RECORDS,
                "batch.size": 1 << 20,
                "message.max.bytes": 1 << 20,
                "queue.buffering.max.messages": 100 * BATCH_RECORDS,
            }
        )
        for batch in records.batches():
            _produce(producer, topic, batch)
        _flush(producer)
        _produce(producer, topic, records.closing)
        _flush(producer)

    def _allow(self, topic: str) -> None:
        from confluent_kafka.admin import (
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
            ResourceType,
        )

        to_set = AlterConfigOpType.SET
        entry = ConfigEntry("min.cleanable.dirty.ratio", _NOW, incremental_operation=to_set)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self._finish(self._admin.incremental_alter_configs([resource]))

    @staticmethod
    def _finish(futures: Mapping[Any, Future[Any]]) -> None:
        for future in futures.values():
            future.result(ADMIN_SECONDS)


@contextmanager
def kafka_cleaner(folder: Path, core: int, buffer: int) -> Iterator[KafkaCleaner]:
    """Start a broker in `folder`, all of it on `core`, with `buffer` bytes for the keys."""
    settings = {**_SETTINGS, "log.cleaner.dedupe.buffer.size": str(buffer)}
    with kafka_broker.broker(folder, core, settings) as broker:
        yield KafkaCleaner(broker)


def _client(broker: kafka_broker.BrokerProcess) -> dict[str, Any]:
    return {"bootstrap.servers": broker.address, "log_level": _ERRORS}


def _produce(producer: Producer, topic: str, batch: pa.RecordBatch) -> None:
    timestamp = batch["timestamp"][0].as_py()
    keys, values = batch["key"].to_pylist(), batch["value"].to_pylist()
    for key, value in zip(keys, values, strict=True):
        while True:
            try:
                producer.produce(topic, value, key, 0, timestamp=timestamp)
                break
            except BufferError:
                producer.poll(0.1)  # until there is room
    producer.poll(0)


def _flush(producer: Producer) -> None:
    left = producer.flush(FILL_SECONDS)
    if left:
        raise TimeoutError(f"{left} records were not acknowledged within {FILL_SECONDS:.0f} s")


# The cleaner's log -------------------------------------------------------------------


def pass_over(topic: str) -> str:
    """Return a pattern for the text that Kafka's LogCleaner.recordStats logs."""
    return (
        rf"cleaned log {topic}-0 \(dirty section = \[0, (?P<end>\d+)\]\)"
        r"\s+(?P<mib>[\d,.]+) MB of log processed in [\d,.]+ seconds \((?P<rate>[\d,.]+) MB/sec\)\."
        r"(?:.*\n)+?\s+Start size: .*\((?P<before>[\d,]+) messages\)"
        r"\s+End size: .*\((?P<after>[\d,]+) messages\)"
    )


def rates(said: re.Match[str], records: KeyedRecords) -> tuple[float, float]:
    """Return records and MiB a second of a pass, after checking that it did exactly the work."""
    mib, rate = _number(said["mib"]), _number(said["rate"])
    before, after = _number(said["before"]), _number(said["after"])
    assert (before, after) == (records.count, len(records.survivors)), said.group()
    return before * rate / mib, rate  # the printed seconds have one decimal only


def _number(text: str) -> float:
    return float(text.replace(",", ""))
