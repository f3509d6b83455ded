"""The limit for Python on Kafka: consume, count in a dict, produce, commit. Nothing is stored.

    python -m benchmarks.kafka_peers.bare_loop SERVERS NAME RECORDS

One transaction covers the counts, the last count of each user as a changelog would have it, and the
offsets; one is committed every half second. It prints records a second, from the first to the last.
"""

from __future__ import annotations

import struct
import sys
import time
from typing import Any

import msgpack
from confluent_kafka import Consumer, Producer

COMMIT_S = 0.5
MAX_MESSAGES = 20_000


def main(servers: str, name: str, records: int) -> None:
    """Count all records and print the rate."""
    consumer, producer = _clients(servers, name)
    totals: dict[bytes, int] = {}
    changed: dict[bytes, int] = {}
    seen, begun, committed = 0, 0.0, time.perf_counter()
    producer.begin_transaction()
    while seen < records:
        messages = consumer.consume(MAX_MESSAGES, 0.2)
        if messages and not begun:
            begun = time.perf_counter()
        for message in messages:
            key = message.key()
            struct.unpack(">q", message.value())
            total = totals.get(key, 0) + 1
            totals[key] = changed[key] = total
            producer.produce(f"{name}-counts", msgpack.packb(total), key)
        seen += len(messages)
        producer.poll(0)
        if time.perf_counter() - committed > COMMIT_S or seen >= records:
            _commit(consumer, producer, name, changed)
            changed.clear()
            committed = time.perf_counter()
            if seen < records:
                producer.begin_transaction()
    print("rate", records / (time.perf_counter() - begun))
    consumer.close()


def _clients(servers: str, name: str) -> tuple[Consumer, Producer]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.message.max.bytes": 8 << 20,
            "queued.min.messages": 200_000,
            "fetch.wait.max.ms": 50,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": name,
            "linger.ms": 20,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    consumer.subscribe(["views"])
    producer.init_transactions()
    return consumer, producer


def _commit(consumer: Any, producer: Any, name: str, changed: dict[bytes, int]) -> None:
    for key, total in changed.items():
        producer.produce(f"{name}-changelog", msgpack.packb(total), key)
    positions = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
    producer.commit_transaction()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
