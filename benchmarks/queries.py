"""Measure `get` from another process, against a bare RocksDB that serves the same kind of socket.

There are three processes. This one queries. A worker holds 100,000 counters in 4 partitions of a
store. A bare server answers a framed key on a Unix socket with the result of one rocksdict `get`,
and does nothing else. Each gets one uniformly random key after another over one connection. Ours
also encodes the key, chooses the partition, uses MessagePack both ways, waits for commits, and
checks membership and position.

The first run has an idle worker. In the second the worker handles records as fast as it can, so an
answer has to wait for the interpreter. The bare server then has a thread that counts in a loop.
"""

from __future__ import annotations

import random
import socket
import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import rocksdict

import strandline as sl
from benchmarks.harness import Figure, Stopwatch, compare, folder
from strandline import changelog
from strandline.framework.querying.messages import read_frame

KEYS = 100_000
PARTITIONS = 4
START_SECONDS = 60.0
BUSY_RECORDS = 400_000


def run(*, quick: bool = False) -> list[Figure]:
    """Measure microseconds of a get: median and 99th percentile, idle and busy."""
    keys, gets, rounds = (2_000, 500, 2) if quick else (KEYS, 5_000, 5)
    with folder() as path, changelog.open(path / "log") as log:
        _fill(log, keys)
        with (
            _process(_work, path),
            _process(_serve_bare, path, keys, busy=False) as bare,
            sl.connect(log) as connection,
        ):
            store = connection.store("bench/counts")
            ours, peer = partial(_ours, store, keys), partial(_bare, path / bare, keys)
            figures = _figures(
                "idle", partial(_times, ours, gets), partial(_times, peer, gets), rounds
            )
        with (
            _process(_work, path),
            _process(_serve_bare, path, keys, busy=True) as bare,
            sl.connect(log) as connection,
        ):
            store = connection.store("bench/counts")
            ours, peer = partial(_ours, store, keys), partial(_bare, path / bare, keys)
            busy = 20 if quick else 200
            figures += _figures(
                "busy",
                lambda: _times(ours, busy, before=partial(_feed, log, keys)),
                partial(_times, peer, busy),
                1 if quick else 3,
            )
        return figures


def _figures(
    name: str, ours: Callable[[], list[float]], peer: Callable[[], list[float]], rounds: int
) -> list[Figure]:
    """Return the figures of both percentiles, from the same rounds."""
    kept: dict[str, list[list[float]]] = {"ours": [], "peer": []}

    def measured(who: str, times: Callable[[], list[float]]) -> float:
        kept[who].append(times())
        return statistics.median(kept[who][-1])

    median = compare(
        f"query: get, worker {name}, median",
        partial(measured, "ours", ours),
        partial(measured, "peer", peer),
        peer_name="a bare RocksDB get over a socket",
        unit="µs",
        at_most=True,
        rounds=rounds,
    )
    later = {who: iter([_percentile(times) for times in rest]) for who, rest in kept.items()}
    high = compare(
        f"query: get, worker {name}, 99th percentile",
        lambda: next(later["ours"]),
        lambda: next(later["peer"]),
        peer_name="the same of the bare get",
        unit="µs",
        at_most=True,
        rounds=rounds,
    )
    return [median, high]


def _percentile(times: list[float]) -> float:
    return sorted(times)[int(0.99 * len(times))]


def _times(
    get: Callable[[float], None], count: int, *, before: Callable[[], None] | None = None
) -> list[float]:
    """Return the microseconds of each of `count` gets."""
    if before is not None:
        before()
    seeded = random.Random(1)
    found: list[float] = []
    for _ in range(count):
        at = seeded.random()
        watch = Stopwatch()
        get(at)
        found.append(watch.seconds * 1e6)
    return found


def _ours(store: sl.ReadOnlyStore[str, int], keys: int, at: float) -> None:
    assert store[f"user-{int(at * keys)}"] > 0


def _bare(path: Path, keys: int, at: float) -> None:
    connection = _Bare.connections.get(path)
    if connection is None:
        connection = _Bare.connections[path] = socket.socket(socket.AF_UNIX)
        connection.connect(str(path))
    key = f"user-{int(at * keys)}".encode()
    connection.sendall(len(key).to_bytes(4, "big") + key)
    assert read_frame(connection, 1 << 20)


class _Bare:
    connections: dict[Path, socket.socket] = {}


# The worker --------------------------------------------------------------------------


def _app(path: Any) -> tuple[sl.App, sl.Topic[str, int]]:
    app = sl.App("bench", log=path)
    users = app.topic("users", key=str, value=int, partitions=PARTITIONS)
    counts = app.store("counts", key=str, value=int, default=0)

    @app.task(users, stores=[counts])
    def count(record: sl.Record[str, int]) -> None:
        counts[record.key] += 1

    return app, users


def _fill(log: changelog.log.Log, keys: int) -> None:
    app, users = _app(log)
    users.append([(f"user-{n}", 1) for n in range(keys)])
    app.close()


def _feed(log: changelog.log.Log, keys: int) -> None:
    app, users = _app(log)
    users.append([(f"user-{n % keys}", 1) for n in range(BUSY_RECORDS)])
    app.close()


def _work(path: Path, ready: Any, stop: Any) -> None:
    app, _ = _app(str(path / "log"))
    app.run(until="idle", progress=False)
    running = threading.Thread(target=app.run, kwargs={"progress": False})
    running.start()
    ready.put("")
    stop.wait()
    app.stop()
    running.join()


# The peer ----------------------------------------------------------------------------


def _serve_bare(path: Path, ready: Any, stop: Any, keys: int, busy: bool) -> None:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(create_if_missing=True)
    name = "busy" if busy else "idle"
    database = rocksdict.Rdict(str(path / f"{name}.db"), options)
    for n in range(keys):
        database[f"user-{n}".encode()] = n.to_bytes(4, "big")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path / f"{name}.sock"))
    listening.listen()
    threading.Thread(target=_answer, args=(listening, database), daemon=True).start()
    ready.put(f"{name}.sock")
    n = 0
    while busy and (n % 10_000 or not stop.is_set()):
        n += 1
    stop.wait()


def _answer(listening: socket.socket, database: rocksdict.Rdict) -> None:
    while True:
        connection, _ = listening.accept()
        while (key := read_frame(connection, 1 << 20)) is not None:
            value: bytes = database[bytes(key)] or b""
            connection.sendall(len(value).to_bytes(4, "big") + value)


@contextmanager
def _process(
    target: Callable[..., None], path: Path, *arguments: Any, **more: Any
) -> Iterator[str]:
    """Run a process until the end of the block. Yield the message that it sends when it is
    ready."""
    context = get_context("spawn")
    ready, stop = context.Queue(), context.Event()
    process = context.Process(target=target, args=(path, ready, stop, *arguments), kwargs=more)
    process.start()
    try:
        yield ready.get(timeout=START_SECONDS)
    finally:
        stop.set()
        process.join(START_SECONDS)
        if process.is_alive():
            process.kill()
