"""The standard job: 1,000,000 records of 100,000 users, a count per user, every update written out.

Ours is the app below: exactly once, fsync, RocksDB, 4 partitions. The peers are bare Python loops
over the same records in memory. They decode every key and value, count in a dict, encode every update,
and do nothing else: no log, no store, no transaction.

- Over frames: bytes in, bytes out, a record at a time (`struct` for lengths and time, the msgpack
  package for values). A plain program does this, so this one has the target.
- Over the columns of our own batches, in which records are already split into columns: with msgpack,
  and with a typed encoder and decoder of msgspec, which Strandline uses itself. Little more than the
  dict is left, so these are the harder limits, without a target.

Records have the present time, because a topic keeps them for seven days.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pyarrow as pa

import strandline as sl
from benchmarks.harness import Figure, Stopwatch, compare, folder
from strandline import changelog
from strandline.changelog.clock import SystemClock
from strandline.changelog.records import Batch, TopicPartition

PARTITIONS = 4
USERS = 100_000
CHUNK_RECORDS = 1_000_000
"""Number of records that `fill` creates and appends at a time."""


def run(*, quick: bool = False) -> list[Figure]:
    """Measure records per second, record by record in Python (target: 0.6 of the loop over
    frames)."""
    count = 200_000 if quick else 1_000_000
    rounds = 3 if quick else 5
    with folder() as input_folder:
        fill(input_folder / "input", count)
        batches = _read(input_folder / "input")
        frames = [_framed(batch) for batch in batches]

        def ours() -> float:
            with folder() as path:
                fill(path / "log", count)
                return _count(path / "log", count)

        peers: list[tuple[str, Callable[[], float], float | None]] = [
            ("over frames", lambda: _over_frames(frames, count), 0.6),
            (
                "over columns with msgpack",
                lambda: _over_columns(batches, count, msgpack.unpackb, msgpack.packb),
                None,
            ),
            (
                "over columns with msgspec",
                lambda: _over_columns(batches, count, _decode, _encode),
                None,
            ),
        ]
        return [
            compare(
                f"standard job, {count:,} records",
                ours,
                peer,
                peer_name=f"a bare loop {kind}",
                unit="records/s",
                target=target,
                rounds=rounds,
            )
            for kind, peer, target in peers
        ]


def app_on(path: Path) -> sl.App:
    """Return the job as a user writes it."""
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


def fill(path: Path, count: int, *, at_once: int = CHUNK_RECORDS) -> None:
    """Produce `count` records to `views`."""
    chance = random.Random(0)
    now = SystemClock().now_ms()
    with changelog.open(path) as log:
        log.create_topic("views", PARTITIONS)
        with log.producer() as producer:
            for start in range(0, count, at_once):
                numbers = range(start, min(start + at_once, count))
                keys = [b"user-%05d" % chance.randrange(USERS) for _ in numbers]
                values = [_encode(n % 1000) for n in numbers]
                producer.append_columns("views", keys, values, [now] * len(numbers))


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


_HEAD = struct.Struct(">HIq")
"""Header of a frame: the lengths of key and value, and the timestamp."""


def _framed(batch: Batch) -> bytes:
    columns = [batch.columns.column(name) for name in ("key", "value", "timestamp")]
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return b"".join(_HEAD.pack(len(k), len(v), at) + k + v for k, v, at in rows)


def _over_frames(frames: list[bytes], count: int) -> float:
    counts: dict[str, int] = {}
    total = 0
    watch = Stopwatch()
    for data in frames:
        at, out = 0, []
        while at < len(data):
            key_size, value_size, timestamp = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            user = data[at : at + key_size].decode()
            at += key_size
            total += msgpack.unpackb(data[at : at + value_size])
            at += value_size
            seen = counts.get(user, 0) + 1
            counts[user] = seen
            key, value = user.encode(), msgpack.packb(seen)
            out.append(_HEAD.pack(len(key), len(value), timestamp) + key + value)
        b"".join(out)
    rate = count / watch.seconds
    assert sum(counts.values()) == count
    assert total >= 0
    return rate


def _over_columns(
    batches: list[Batch],
    count: int,
    decode: Callable[[bytes], Any],
    encode: Callable[[int], Any],
) -> float:
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


_decode = msgspec.msgpack.Decoder(int).decode
_encode = msgspec.msgpack.Encoder().encode
