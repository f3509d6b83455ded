"""The standard job: 1,000,000 records of 100,000 users, a count per user, every update written out.

Ours: the app below, exactly once, fsync, RocksDB, 4 partitions. Beside it the limit for a Python
program: a loop over the same batches that decodes every key and value, counts in a dict and
encodes every update, and does nothing else: no log, no store, no transaction.
"""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pyarrow as pa

import changelog
import strandline as sl
from benchmarks.harness import Figure, Stopwatch, compare, folder
from changelog.records import Batch, TopicPartition

PARTITIONS = 4
USERS = 100_000
TIME_MS = 1_700_000_000_000


def run(*, quick: bool = False) -> list[Figure]:
    """Records per second, per record in Python (target: 0.6 of the bare loop)."""
    count = 200_000 if quick else 1_000_000
    with folder() as input_folder:
        fill(input_folder / "input", count)
        batches = _read(input_folder / "input")

        def ours() -> float:
            with folder() as path:
                fill(path / "log", count)
                return _count(path / "log", count)

        return [
            compare(
                f"standard job, {count:,} records",
                ours,
                lambda: _bare_loop(batches, count),
                peer_name="bare Python loop",
                unit="records/s",
                target=0.6,
                rounds=3 if quick else 5,
            )
        ]


def app_on(path: Path) -> sl.App:
    """The job as a user writes it."""
    app = sl.App("standard", log=str(path))
    views = app.topic("views", key=str, value=int, partitions=PARTITIONS)
    updates = app.topic("counts", key=str, value=int, partitions=PARTITIONS)
    counts = app.store("per-user", key=str, value=int)

    @app.task(views, stores=[counts])
    def count(record: sl.Record[str, int]) -> None:
        seen = counts.get(record.key, 0) + 1
        counts[record.key] = seen
        updates.send(record.key, seen)

    return app


def fill(path: Path, count: int) -> None:
    """Produce `views`."""
    chance = random.Random(0)
    keys = [b"user-%05d" % chance.randrange(USERS) for _ in range(count)]
    values = [msgspec.msgpack.encode(n % 1000) for n in range(count)]
    with changelog.open(path) as log:
        log.create_topic("views", PARTITIONS)
        with log.producer() as producer:
            producer.append_columns("views", keys, values, [TIME_MS] * count)


def _count(path: Path, count: int) -> float:
    with app_on(path) as app:
        watch = Stopwatch()
        handled = app.run(until="idle")
        rate = handled / watch.seconds
        assert handled == count, (handled, count)
    with changelog.open(path) as log:
        ends = log.offsets("counts")
        assert sum(end.last_stable_offset for end in ends.values()) >= count
    return rate


def _read(path: Path) -> list[Batch]:
    with changelog.open(path) as log:
        batches: list[Batch] = []
        for partition in range(PARTITIONS):
            at = TopicPartition("views", partition)
            position, end = 0, log.broker.offsets([at])[at].last_stable_offset
            while position < end:
                fetched = log.broker.fetch({at: position})[at]
                batches += fetched.batches
                position = fetched.next_offset
        return batches


def _bare_loop(batches: list[Batch], count: int) -> float:
    decode = msgspec.msgpack.Decoder(int).decode
    encode = msgspec.msgpack.Encoder().encode
    counts: dict[str, int] = {}
    total = 0
    watch = Stopwatch()
    for batch in batches:
        keys: list[bytes] = []
        values: list[bytes] = []
        for key, value in zip(
            batch.columns.column("key").to_pylist(),
            batch.columns.column("value").to_pylist(),
            strict=True,
        ):
            user = key.decode()
            total += decode(value)
            seen = counts.get(user, 0) + 1
            counts[user] = seen
            keys.append(user.encode())
            values.append(encode(seen))
        pa.record_batch(
            {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        )
    rate = count / watch.seconds
    assert sum(counts.values()) == count
    assert total >= 0
    return rate
