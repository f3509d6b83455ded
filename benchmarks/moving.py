"""Move a topic (copy, record, read back and compare), against the bare copy.

Between folders the peer reads and appends the same batches. To and from Kafka it does only the slow
part: appending to Kafka, or reading from it. Kafka is a broker on a core of its own. Without
confluent-kafka and Java those figures are left out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np
import pyarrow as pa

from benchmarks.harness import Figure, Stopwatch, compare, folder
from benchmarks.kafka_broker import broker
from strandline import changelog
from strandline.changelog.log import Log
from strandline.changelog.moving import MovedLog, move
from strandline.changelog.records import Batch, TopicPartition, columns_schema

PARTITIONS = 4
BATCH_RECORDS = 10_000
VALUE_BYTES = 100
TOPIC = "moved"
KEPT = {"retention.ms": "-1"}


def run(*, quick: bool = False) -> list[Figure]:
    """Measure records per second, of a topic of four partitions with values of 100 bytes."""
    records, rounds = (200_000, 1) if quick else (2_000_000, 5)
    figures = [
        compare(
            "moving a topic from folder to folder",
            partial(_between_folders, records, _moved),
            partial(_between_folders, records, _bare),
            peer_name="fetch and append",
            unit="records/s",
            rounds=rounds,
        )
    ]
    if importlib.util.find_spec("confluent_kafka") is not None:
        figures += _with_kafka(records // 5, rounds)
    return figures


def _with_kafka(records: int, rounds: int) -> list[Figure]:
    with folder() as path, broker(path / "broker", 0, {"num.partitions": "1"}) as started:
        url = f"kafka://{started.address}"
        there = compare(
            "moving a topic from a folder to Kafka",
            partial(_to_kafka, url, records, _moved),
            partial(_to_kafka, url, records, _bare),
            peer_name="append to Kafka",
            unit="records/s",
            rounds=rounds,
        )
        back = compare(
            "moving a topic from Kafka to a folder",
            partial(_from_kafka, url, records, _moved),
            partial(_from_kafka, url, records, _read),
            peer_name="fetch from Kafka",
            unit="records/s",
            rounds=rounds,
        )
    return [there, back]


Way = Callable[[MovedLog, MovedLog], None]


def _between_folders(records: int, way: Way) -> float:
    with ExitStack() as closing:
        path = closing.enter_context(folder())
        here, there = (closing.enter_context(_opened(str(path / name))) for name in "ab")
        _fill(here, records)
        return _timed(records, way, here, there)


def _to_kafka(url: str, records: int, way: Way) -> float:
    with folder() as path, _opened(str(path / "a")) as here, _opened(url) as there:
        _fill(here, records)
        try:
            return _timed(records, way, here, there)
        finally:
            there.broker.delete_topic(TOPIC)


def _from_kafka(url: str, records: int, way: Way) -> float:
    with folder() as path, _opened(url) as here, _opened(str(path / "b")) as there:
        _fill(here, records)
        try:
            return _timed(records, way, here, there)
        finally:
            here.broker.delete_topic(TOPIC)


@contextmanager
def _opened(url: str) -> Iterator[MovedLog]:
    with changelog.open(url) as log:
        yield MovedLog(url, log.broker)


def _timed(records: int, way: Way, here: MovedLog, there: MovedLog) -> float:
    watch = Stopwatch()
    way(here, there)
    return records / watch.seconds


def _moved(here: MovedLog, there: MovedLog) -> None:
    move(here, there)


def _bare(here: MovedLog, there: MovedLog) -> None:
    """Read and append one batch after the other."""
    there.broker.create_topic(TOPIC, PARTITIONS, config=KEPT)
    with Log(there.broker).producer() as producer:
        for batch in _batches(here):
            producer.append_batch(TOPIC, batch.partition, batch.columns)


def _read(here: MovedLog, there: MovedLog) -> None:
    """Read all batches."""
    del there
    for _ in _batches(here):
        pass


def _batches(here: MovedLog) -> Iterator[Batch]:
    at = {TopicPartition(TOPIC, n): 0 for n in range(PARTITIONS)}
    ends = here.broker.offsets(list(at))
    while at := {tp: offset for tp, offset in at.items() if offset < ends[tp].high_watermark}:
        for tp, fetched in here.broker.fetch(at).items():
            at[tp] = fetched.next_offset
            yield from fetched.batches


def _fill(place: MovedLog, records: int) -> None:
    place.broker.create_topic(TOPIC, PARTITIONS, config=KEPT)
    with Log(place.broker).producer() as producer:
        for number in range(records // BATCH_RECORDS):
            producer.append_batch(TOPIC, number % PARTITIONS, _batch(number))


def _batch(number: int) -> pa.RecordBatch:
    numbers = np.arange(number * BATCH_RECORDS, (number + 1) * BATCH_RECORDS)
    value = np.random.default_rng(number).bytes(BATCH_RECORDS * VALUE_BYTES)
    columns = [
        pa.array(1_700_000_000_000 + numbers),
        pa.array([b"%08d" % n for n in numbers], pa.binary()),
        pa.array(
            [value[at : at + VALUE_BYTES] for at in range(0, len(value), VALUE_BYTES)], pa.binary()
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=columns_schema(pa.binary(), headers=False))
