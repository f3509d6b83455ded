"""Streams and batch tasks, by columns: each beside the least program that does the same.

- The standard job (`standard_job`), as a stream and as a batch task with a counter, beside a bare
  loop over columns on the same log (`columns_loop`). The stream writes the keys that changed at
  each commit, as the loop does; the batch task writes a record for each record it reads.
- Late flights by hour, origin and carrier, written when their windows close; and five aggregates of
  many keys, whose changes are written at each commit. Their peers are one group-by of Polars, and
  one of DuckDB, over the same rows in memory, which keep and write nothing, and use all cores; and
  a loop that fetches the same log and groups each batch alone by Polars, which is the limit of an
  aggregation that reads this log.
- A task that filters and sends; beside it the same batches, fetched and appended again.
- A stream whose keys do not fit into the app's memory, beside the same with enough memory, and beside
  one of few keys.

Each run begins with a copy of the same log. The time of an app includes its start, its commits with
fsync, and the checkpoint at its end.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

import strandline as sl
from benchmarks.columns_loop import columns_loop
from benchmarks.harness import Figure, Stopwatch, compare, folder, of_pairs
from benchmarks.standard_job import PARTITIONS, fill
from examples.flights.app import Flight
from examples.flights.data import read_flights
from strandline import changelog
from strandline.changelog.client.producer import Producer
from strandline.changelog.log import Log
from strandline.changelog.records import CommittedOffset, TopicPartition
from strandline.changelog.scan import scan_batches

LATE_MINUTES = 15
"""Departure delay in minutes from which a flight is late."""
RECORDS_A_TRANSACTION = 1_000_000
"""Number of records that the loop of the filter's peer copies in one transaction."""
LARGE_MEMORY_BYTES = 6 << 30
"""Memory of the app whose keys all fit into it."""
SMALL_MEMORY_BYTES = 256 << 20
"""Memory of the app whose keys do not fit into it."""
NUMBERS = pa.schema([pa.field("user", pa.int64()), pa.field("x", pa.float64())])

Query = Callable[[pl.DataFrame], pl.DataFrame]
Job = Callable[[sl.App], Any]
"""Declaration of topics and work in an app; returns what the check needs."""


def run(*, quick: bool = False) -> Iterator[Figure]:
    """Measure records a second, and yield each figure when it is there."""
    rounds = 1 if quick else 3
    yield from _standard([1_000_000] if quick else [1_000_000, 10_000_000], rounds)
    yield from _flights(1 if quick else 30, rounds)
    yield from _aggregates(*((500_000, 50_000) if quick else (10_000_000, 1_000_000)), rounds)
    yield from _passing(1 if quick else 10, rounds)
    yield from _large_state(*((500_000, 50_000) if quick else (10_000_000, 100_000)))


# The standard job ----------------------------------------------------------------------------


def _standard(counts: list[int], rounds: int) -> Iterator[Figure]:
    """Yield the standard job, as a stream and as a batch task (target: 0.57 of the loop)."""
    for count in counts:
        with folder() as source:
            fill(source, count)
            for name, job in (("a stream", _count_by_stream), ("a batch task", _count_by_batch)):
                yield compare(
                    f"standard job as {name}, {count:,} records",
                    partial(_rate, source, job, count, check=partial(_check_counts, count)),
                    partial(_loop_rate, source, count),
                    peer_name="a bare loop over columns",
                    unit="records/s",
                    target=0.57,
                    rounds=rounds,
                )


def standard_rate(source: Path, count: int) -> float:
    """Return the records a second of the standard job as a stream, on a log that `fill` made."""
    return _rate(source, _count_by_stream, count, check=partial(_check_counts, count))


def _count_by_stream(app: sl.App) -> sl.Topic[Any, Any]:
    views = app.topic("views", key=str, value=int, partitions=PARTITIONS)
    counts = app.stream(views).group_by("key").agg(n=sl.count(), name="per-user")
    return counts.to("counts", partitions=PARTITIONS)


def _count_by_batch(app: sl.App) -> sl.Topic[Any, Any]:
    views = app.topic("views", key=str, value=int, partitions=PARTITIONS)
    updates = app.topic("counts", key=str, value=int, partitions=PARTITIONS)
    counts: sl.Counter[str] = app.counter("per-user", key=str)

    @app.task(views, stores=[counts], batch=True)
    def count(batch: sl.Batch) -> None:
        seen = counts.add_batch(batch.keys)
        updates.send_batch(pa.table({"key": batch.keys, "value": seen}))

    return updates


def _check_counts(count: int, counts: sl.Topic[Any, Any]) -> None:
    last = counts.to_polars().group_by("key").last()
    total = last["n" if "n" in last.columns else "value"].sum()
    assert total == count, (total, count)


def _loop_rate(source: Path, count: int) -> float:
    with _copied(source) as path:
        return columns_loop(path, count, PARTITIONS)


# Flights -------------------------------------------------------------------------------------


def _flights(times: int, rounds: int) -> Iterator[Figure]:
    """Yield late flights by hour, origin and carrier (target: 0.5 of one group-by)."""
    flights = _repeated(read_flights(), times)
    with folder() as source:
        _append(source, _flight_topic, flights)
        yield from _beside_group_bys(
            f"late flights by hour, origin and carrier, {len(flights):,} flights",
            partial(
                _rate,
                source,
                _late_by_hour,
                len(flights),
                until="end",
                check=partial(_check_late, _late_at_once(flights)),
            ),
            flights,
            (_late_at_once, _late_by_duckdb),
            partial(_by_batch_rate, source, "flights", _late_at_once),
            target=0.5,
            rounds=rounds,
        )


def _flight_topic(app: sl.App) -> sl.Topic[Any, Any]:
    return app.topic(
        "flights", value=Flight, key="carrier", timestamp="time_hour", partitions=PARTITIONS
    )


def _late_by_hour(app: sl.App) -> sl.Topic[Any, Any]:
    return (
        app.stream(_flight_topic(app))
        .filter(sl.col("dep_delay") > LATE_MINUTES)
        .group_by("origin", "carrier")
        .window(sl.tumbling("1h"))
        .agg(
            n=sl.count(),
            mean=sl.mean("dep_delay"),
            worst=sl.max("dep_delay"),
            name="late-by-hour",
        )
        .to("late")
    )


def _late_at_once(flights: pl.DataFrame) -> pl.DataFrame:
    hour = pl.col("time_hour").dt.truncate("1h").alias("window_start")
    delay = pl.col("dep_delay")
    return (
        flights.lazy()
        .filter(delay > LATE_MINUTES)
        .group_by("origin", "carrier", hour)
        .agg(n=pl.len().cast(pl.Int64), mean=delay.mean(), worst=delay.max())
        .collect()
    )


def _late_by_duckdb(flights: pl.DataFrame) -> pl.DataFrame:
    return _queried(
        flights,
        f"""SELECT origin, carrier, date_trunc('hour', time_hour) AS window_start, count(*) AS n,
               avg(dep_delay) AS mean, max(dep_delay) AS worst
            FROM rows WHERE dep_delay > {LATE_MINUTES} GROUP BY ALL""",
    )


def _check_late(expected: pl.DataFrame, late: sl.Topic[Any, Any]) -> None:
    keys = ["origin", "carrier", "window_start"]
    found = late.to_polars().select(expected.columns).cast(expected.schema)
    assert _near(found.sort(keys), expected.sort(keys), [*keys, "n", "worst"])


def _repeated(flights: pl.DataFrame, times: int) -> pl.DataFrame:
    """Return each flight several times, one after the other, so that the order of time stays."""
    return flights[np.repeat(np.arange(len(flights)), times)]


# Aggregates of many keys ---------------------------------------------------------------------


def _aggregates(count: int, keys: int, rounds: int) -> Iterator[Figure]:
    """Yield five aggregates of many keys (target: 0.3 of one group-by)."""
    numbers = _numbers(count, keys)
    with folder() as source:
        _append(source, _number_topic, numbers)
        yield from _beside_group_bys(
            f"count, sum, mean, max and var of {keys:,} keys, {count:,} records",
            partial(
                _rate,
                source,
                _five,
                count,
                check=partial(_check_five, _five_at_once(numbers)),
            ),
            numbers,
            (_five_at_once, _five_by_duckdb),
            partial(_by_batch_rate, source, "numbers", _five_at_once),
            target=0.3,
            rounds=min(rounds, 2),
        )


def _number_topic(app: sl.App) -> sl.Topic[Any, Any]:
    return app.topic("numbers", value=NUMBERS, key="user", partitions=PARTITIONS)


def _numbers(count: int, keys: int) -> pl.DataFrame:
    chance = np.random.default_rng(0)
    return pl.DataFrame({"user": chance.integers(0, keys, count), "x": chance.normal(size=count)})


def _five(app: sl.App) -> sl.Topic[Any, Any]:
    return (
        app.stream(_number_topic(app))
        .group_by("user")
        .agg(
            n=sl.count(),
            total=sl.sum("x"),
            mean=sl.mean("x"),
            most=sl.max("x"),
            var=sl.var("x"),
            name="figures",
        )
        .to("figures")
    )


def _five_at_once(numbers: pl.DataFrame) -> pl.DataFrame:
    x = pl.col("x")
    return numbers.group_by("user").agg(
        *(pl.len().cast(pl.Int64).alias("n"), x.sum().alias("total"), x.mean().alias("mean")),
        *(x.max().alias("most"), x.var().alias("var")),
    )


def _five_by_duckdb(numbers: pl.DataFrame) -> pl.DataFrame:
    return _queried(
        numbers,
        """SELECT user, count(*) AS n, sum(x) AS total, avg(x) AS mean, max(x) AS most,
               var_samp(x) AS var
            FROM rows GROUP BY ALL""",
    )


def _check_five(expected: pl.DataFrame, figures: sl.Topic[Any, Any]) -> None:
    last = figures.to_polars().group_by("user").last().select(expected.columns)
    assert _near(last.sort("user"), expected.sort("user"), ["user", "n"])


# A task that filters -------------------------------------------------------------------------


def _passing(times: int, rounds: int) -> Iterator[Figure]:
    """Yield a task that leaves out 2 % of the records (target: 0.5 of a copy)."""
    flights = _repeated(read_flights(), times)
    left = flights["dep_delay"].count()
    with folder() as source:
        _append(source, _flight_topic, flights)
        yield compare(
            f"a batch task that filters and sends, {len(flights):,} flights",
            partial(_rate, source, _departed, len(flights), check=partial(_check_number, left)),
            partial(_copy_rate, source, len(flights)),
            peer_name="a copy of the same batches",
            unit="flights/s",
            target=0.5,
            rounds=rounds,
        )


def _departed(app: sl.App) -> sl.Topic[Any, Any]:
    departed = app.topic(
        "departed", value=Flight, key="carrier", timestamp="time_hour", partitions=PARTITIONS
    )

    @app.task(_flight_topic(app), batch=True)
    def forward(batch: sl.Batch) -> None:
        flights = batch.values
        departed.send_batch(_unnested(flights.filter(flights.field("dep_delay").is_valid())))

    return departed


def _unnested(column: pa.StructArray) -> pa.Table:
    return pa.table(column.flatten(), names=[field.name for field in column.type])


def _check_number(count: int, topic: sl.Topic[Any, Any]) -> None:
    assert len(topic.to_polars()) == count


def _copy_rate(source: Path, count: int) -> float:
    """Return the records a second at which a loop fetches all flights and appends them."""
    with _copied(source) as path, changelog.open(path) as log:
        info = log.broker.topic("flights")
        log.create_topic("copy", PARTITIONS, schema=info.schema)
        schema_id = log.broker.topic("copy").schema_id
        ends = _ends(log, "flights")
        positions = dict.fromkeys(ends, 0)
        with Producer(log.broker, transactional_id="copy") as producer:
            watch = Stopwatch()
            while left := {tp: at for tp, at in positions.items() if at < ends[tp]}:
                producer.begin_transaction()
                copied = 0
                while left and copied < RECORDS_A_TRANSACTION:
                    for tp, fetched in log.broker.fetch(left).items():
                        to = TopicPartition("copy", tp.partition)
                        producer.append_batches((to, b.columns, schema_id) for b in fetched.batches)
                        copied += sum(map(len, fetched.batches))
                        positions[tp] = fetched.next_offset
                    left = {tp: at for tp, at in positions.items() if at < ends[tp]}
                offsets = {tp: CommittedOffset(at) for tp, at in positions.items()}
                producer.send_offsets_to_transaction(offsets, "copy")
                producer.commit_transaction()
            rate = count / watch.seconds
        total = sum(each.last_stable_offset for each in log.offsets("copy").values())
        assert total >= count, (total, count)
        return rate


# More keys than memory -----------------------------------------------------------------------


def _large_state(count: int, few: int) -> Iterator[Figure]:
    """Yield distinct keys with little memory (target: 0.25 of the same with enough memory)."""
    with folder() as many_keys, folder() as few_keys:
        distinct = pl.DataFrame({"user": np.random.default_rng(0).permutation(count)})
        _append(many_keys, _number_topic, distinct.with_columns(x=pl.lit(1.0)))
        _append(few_keys, _number_topic, _numbers(count, few))
        rate = partial(_rate, job=_count_users, count=count, check=partial(_check_users, count))
        small = rate(many_keys, memory=SMALL_MEMORY_BYTES)
        for name, peer, target in (
            ("with memory for all", rate(many_keys, memory=LARGE_MEMORY_BYTES), 0.25),
            (f"of {few:,} keys", rate(few_keys), None),
        ):
            yield of_pairs(
                f"counts of {count:,} distinct keys with {SMALL_MEMORY_BYTES >> 20} MiB",
                [(small, peer)],
                peer_name=name,
                unit="records/s",
                target=target,
            )


def _count_users(app: sl.App) -> sl.Topic[Any, Any]:
    users = app.stream(_number_topic(app)).group_by("user").agg(n=sl.count(), name="per-user")
    return users.to("users")


def _check_users(count: int, users: sl.Topic[Any, Any]) -> None:
    total = users.to_polars().group_by("user").last()["n"].sum()
    assert total == count, (total, count)


# Shared by the jobs --------------------------------------------------------------------------


def _rate(
    source: Path,
    job: Job,
    count: int,
    *,
    check: Callable[[Any], None],
    until: Any = "idle",
    **settings: Any,
) -> float:
    """Return the records a second of an app on a copy of a log, after checking its results."""
    with _copied(source) as path, sl.App("job", log=path, **settings) as app:
        output = job(app)
        watch = Stopwatch()
        handled = app.run(until=until)
        rate = count / watch.seconds
        assert handled >= count, (handled, count)
        check(output)
    return rate


def _beside_group_bys(
    name: str,
    ours: Callable[[], float],
    frame: pl.DataFrame,
    queries: tuple[Query, Query],
    by_batch: Callable[[], float],
    *,
    target: float,
    rounds: int,
) -> Iterator[Figure]:
    """Yield a job beside one group-by of Polars, which has the target, one of DuckDB, and a loop
    over the log."""
    by_polars, by_duckdb = queries
    peers: dict[str, Callable[[], float]] = {
        "one group-by of Polars in memory": partial(_query_rate, frame, by_polars),
        "one group-by of DuckDB in memory": partial(_query_rate, frame, by_duckdb),
        "a loop that fetches and groups each batch": by_batch,
    }
    rates = [(ours(), *(peer() for peer in peers.values())) for _ in range(rounds)]
    for place, peer in enumerate(peers, start=1):
        yield of_pairs(
            name,
            [(rate[0], rate[place]) for rate in rates],
            peer_name=peer,
            unit="records/s",
            target=target if place == 1 else None,
        )


def _by_batch_rate(source: Path, topic: str, query: Query) -> float:
    """Return the records a second at which a loop fetches a topic and groups each batch alone.

    The groups of a batch are neither merged with those of others nor written.
    """
    with changelog.open(source) as log:
        ends = _ends(log, topic)
        watch = Stopwatch()
        count = 0
        for batch in scan_batches(log.broker, dict.fromkeys(ends, 0), ends):
            query(pl.DataFrame(_unnested(batch.columns.column("value"))))
            count += len(batch)
        return count / watch.seconds


def _ends(log: Log, topic: str) -> dict[TopicPartition, int]:
    """Return the end of what is visible of each partition of a topic."""
    offsets = log.broker.offsets(log.broker.topic(topic).topic_partitions)
    return {tp: each.last_stable_offset for tp, each in offsets.items()}


def _queried(rows: pl.DataFrame, query: str) -> pl.DataFrame:
    """Return the result of a query of DuckDB over the table `rows`."""
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        found: pl.DataFrame = connection.sql(query).pl()
        return found


def _query_rate(frame: pl.DataFrame, query: Query) -> float:
    watch = Stopwatch()
    query(frame)
    return len(frame) / watch.seconds


def _append(path: Path, topic: Job, frame: pl.DataFrame) -> None:
    with sl.App("producer", log=path) as app:
        topic(app).append(frame)


@contextmanager
def _copied(source: Path) -> Iterator[Path]:
    """Copy a log to a folder of its own, and open it once, because a copy gets a new id."""
    with folder() as place:
        path = place / "log"
        shutil.copytree(source, path)
        with changelog.open(path):
            pass
        yield path


def _near(found: pl.DataFrame, expected: pl.DataFrame, exact: list[str]) -> bool:
    """Return True if columns are equal, and those that are not `exact` to the last digits."""
    rest = [name for name in expected.columns if name not in exact]
    return found.select(exact).equals(expected.select(exact)) and all(
        np.allclose(found[name].cast(float), expected[name].cast(float), equal_nan=True)
        for name in rest
    )
