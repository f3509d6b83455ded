"""Spark itself reads a log: batches, streams, stores, restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from strandline.changelog.records import TopicPartition
from tests import foreign_tables
from tests.spark.writing import Writer, write_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from strandline.changelog.log import Log

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
else:
    StreamingQueryException = pytest.importorskip("pyspark.errors").StreamingQueryException

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FLIGHT = pa.schema([("carrier", pa.large_string()), ("delay", pa.float64()), ("n", pa.uint32())])
FLIGHTS: list[dict[str, Any]] = [
    {"carrier": "AA", "delay": 1.5, "n": 1},
    {"carrier": "B6", "delay": None, "n": 2},
]


@pytest.fixture
def read(spark: SparkSession, tmp_path: Path) -> Callable[..., DataFrame]:
    """Function that reads the test's log with the given options."""

    def with_options(schema: str | None = None, **options: str) -> DataFrame:
        reader: DataFrameReader = spark.read.format("strandline").options(**options)
        if schema is not None:
            reader = reader.schema(schema)
        return reader.load(str(tmp_path / "log"))

    return with_options


def numbers(start: int, end: int) -> list[tuple[bytes, bytes]]:
    return [(b"k", b"%d" % number) for number in range(start, end)]


Read = Any


# Batches


def test_committed_records_come_once_with_the_columns_of_the_kafka_source(
    log: Log, read: Read
) -> None:
    log.broker.create_topic("t", 2)
    plain, aborted, left_open = (Writer(log.broker, name) for name in (None, "one", "two"))
    plain.write(numbers(0, 3), partition=0)
    aborted.write(numbers(10, 13), partition=0)
    aborted.end(commit=False)
    plain.write([(None, b""), (b"\xff", None)], partition=1)
    left_open.write(numbers(20, 23), partition=1)
    plain.write(numbers(30, 33), partition=1)

    frame = read(subscribe="t")
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp"]
    rows = frame.orderBy("partition", "offset").collect()
    assert [(r.key, r.value, r.topic, r.partition, r.offset) for r in rows] == [
        (bytearray(b"k"), bytearray(b"0"), "t", 0, 0),
        (bytearray(b"k"), bytearray(b"1"), "t", 0, 1),
        (bytearray(b"k"), bytearray(b"2"), "t", 0, 2),
        (None, bytearray(b""), "t", 1, 0),
        (bytearray(b"\xff"), None, "t", 1, 1),
    ]


def test_a_batch_begins_and_ends_at_the_given_offsets(log: Log, read: Read) -> None:
    log.broker.create_topic("t", 2)
    for partition in (0, 1):
        Writer(log.broker).write(numbers(0, 10), partition=partition)
    frame = read(
        subscribe="t",
        startingOffsets='{"t": {"0": 2, "1": -2}}',
        endingOffsets='{"t": {"0": 4, "1": 1}}',
    )
    assert sorted((r.partition, r.offset) for r in frame.collect()) == [(0, 2), (0, 3), (1, 0)]


def test_typed_topics_arrive_as_typed_columns(log: Log, read: Read) -> None:
    log.broker.create_topic("t", 1, schema=FLIGHT)
    Writer(log.broker).write_rows([*FLIGHTS, None], FLIGHT)
    frame = read(subscribe="t")
    assert frame.dtypes == [("carrier", "string"), ("delay", "double"), ("n", "bigint")]
    assert [tuple(r) for r in frame.collect()] == [
        ("AA", 1.5, 1),
        ("B6", None, 2),
        (None, None, None),
    ]
    seen = read(subscribe="t", includeMetadata="true", includeHeaders="true").first()
    assert (seen.carrier, bytes(seen.key), seen.offset, seen.headers) == ("AA", b"k", 0, None)
    assert [tuple(r) for r in read("n int, carrier string", subscribe="t").take(1)] == [(1, "AA")]


NUMBER = pa.schema([("n", pa.int64())])
LATER = pa.schema([*NUMBER, ("key", pa.string()), ("offset", pa.int64())])
"""Columns of a topic to which two were added that are called like metadata."""


@pytest.mark.long
@pytest.mark.parametrize("pin", ["0", "60000"])
def test_columns_called_like_metadata_are_null_in_records_from_before_them(
    log: Log, read: Read, pin: str
) -> None:
    log.create_topic("t", 1, schema=NUMBER)
    log.append("t", [{"n": 0, "id": b"k0"}, {"n": 1, "id": b"k1"}], key="id")
    earlier = read("n long, offset long", subscribe="t", pinTimeoutMs=pin)
    metadata = read(subscribe="t", pinTimeoutMs=pin, includeMetadata="true")
    assert [tuple(r) for r in earlier.collect()] == [(0, 0), (1, 1)]
    log.alter_topic("t", schema=LATER)
    log.append("t", [{"n": 2, "key": "own", "offset": 77, "id": b"k2"}], key="id")

    rows = read(subscribe="t", pinTimeoutMs=pin).collect()
    assert [tuple(r) for r in rows] == [(0, None, None), (1, None, None), (2, "own", 77)]
    expected = [(n, b"k%d" % n, n) for n in range(3)]
    assert [(r.n, bytes(r.key), r.offset) for r in metadata.collect()] == expected
    given = read("n long, key binary", subscribe="t", pinTimeoutMs=pin, includeMetadata="true")
    assert [(r.n, bytes(r.key)) for r in given.collect()] == [row[:2] for row in expected]
    with pytest.raises(Exception, match=r"columns of its own called key, offset.*\.schema"):
        read(subscribe="t", includeMetadata="true")


@pytest.mark.long
def test_many_batches_of_a_large_partition_arrive_whole(log: Log, read: Read) -> None:
    log.broker.create_topic("t", 1)
    writer = Writer(log.broker)
    for start in range(0, 200_000, 20_000):
        writer.write(numbers(start, start + 20_000))
    found = read(subscribe="t").selectExpr(
        "count(*)", "count(distinct offset)", "sum(cast(cast(value as string) as bigint))"
    )
    assert tuple(found.first()) == (200_000, 200_000, sum(range(200_000)))


def test_a_log_without_an_owner_can_be_read(log: Log, read: Read) -> None:
    log.broker.create_topic("t", 1)
    Writer(log.broker).write(numbers(0, 5))
    log.close()
    assert read(subscribe="t").count() == 5


def test_a_missing_folder_is_not_created(read: Read, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="there is no log at"):
        read(subscribe="t")
    assert not (tmp_path / "log").exists()


def test_an_empty_topic_has_no_rows(log: Log, read: Read) -> None:
    log.broker.create_topic("t", 1)
    assert read(subscribe="t").collect() == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "nowhere"}, "nowhere"),
        ({"subscribe": "t", "startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"subscribe": "t", "startingOffsets": '{"t": {"7": 0}}'}, "missing: t-0"),
    ],
)
def test_errors_reach_the_user(log: Log, read: Read, options: dict[str, str], said: str) -> None:
    log.broker.create_topic("t", 1)
    with pytest.raises(Exception, match=said):
        read(**options).collect()


# Stores


def test_a_store_is_read_as_its_latest_state(log: Log, read: Read) -> None:
    topic = "app-totals-changelog"
    log.broker.create_topic(topic, 2, config={"cleanup.policy": "compact"})
    write_store(
        log.broker, topic, str, [("AA", {"n": 1, "mean": 0.5}), ("DL", {"n": 1, "mean": 2})]
    )
    write_store(log.broker, topic, str, [("AA", {"n": 2, "mean": 0.75}), ("DL", None)])
    write_store(log.broker, topic, str, [("B6", {"n": 7, "mean": None})], partition=1)
    frame = read(store="app/totals")
    value = "struct<n:bigint,mean:double>"
    assert frame.dtypes == [("key", "string"), ("value", value), ("partition", "int")]
    rows = frame.select("key", "value.*").orderBy("key").collect()
    assert [tuple(r) for r in rows] == [("AA", 2, 0.75), ("B6", 7, None)]
    told = read("value struct<n: int, mean: float>, partition int", store="app/totals").collect()
    assert sorted(r.value.n for r in told) == [2, 7]


def test_a_table_of_faust_is_read_in_typed_columns(log: Log, read: Read) -> None:
    orders = foreign_tables.record(log, "shop", foreign_tables.table("orders"))
    model = b'{"item":"tea","count":3,"__faust":{"ns":"shop.Order"}}'
    foreign_tables.write(log, orders, [('"Zürich"'.encode(), model)])
    frame = read(store="shop/orders")
    value = "struct<item:string,count:bigint>"
    assert frame.dtypes == [("key", "string"), ("value", value), ("partition", "int")]
    assert [tuple(row) for row in frame.select("key", "value.*").collect()] == [
        ("Zürich", "tea", 3)
    ]

    hours = foreign_tables.record(log, "shop", foreign_tables.table("hours"))
    foreign_tables.write(log, hours, [(b'["york",[0.0,3599.9]]', b"5")], partition=1)
    frame = read(store="shop/hours")
    columns = frame.selectExpr("key._1", "key._2._1 start", "key._2._2 end", "value", "partition")
    assert [tuple(row) for row in columns.collect()] == [("york", 0.0, 3599.9, 5, 1)]
    raw = read(store="shop/hours", decode="false").select("value").collect()
    assert [bytes(row.value) for row in raw] == [b"5"]


# Streams


class Stream:
    """A query over topic t that is run repeatedly until it has read all records."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.batches: list[tuple[int, list[int]]] = []
        self.fail_in: int | None = None

    def run(self, **options: str) -> StreamingQuery:
        reader = self.spark.readStream.format("strandline").option("subscribe", "t")
        reader = reader.options(**{"startingOffsets": "earliest"} | options)
        writer = reader.load(str(self.folder / "log")).writeStream
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        query = writer.foreachBatch(self._take).trigger(availableNow=True).start()
        query.awaitTermination(120)
        return query

    def _take(self, frame: DataFrame, batch: int) -> None:
        self.batches.append((batch, sorted(int(r.value) for r in frame.select("value").collect())))
        if batch == self.fail_in:
            raise RuntimeError("the sink failed")

    def seen(self) -> list[int]:
        return sorted(number for _, batch in self.batches for number in batch)


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path)


def admission_control(spark: SparkSession) -> bool:
    return tuple(map(int, spark.version.split(".")[:2])) >= (4, 2)


def test_a_stream_continues_at_its_checkpoint(log: Log, stream: Stream) -> None:
    log.broker.create_topic("t", 2)
    writer = Writer(log.broker)
    writer.write(numbers(0, 10), partition=0)
    stream.run()
    writer.write(numbers(10, 15), partition=1)
    stream.run()
    stream.run()
    assert [batch for _, batch in stream.batches] == [list(range(10)), list(range(10, 15))]


@pytest.mark.long
def test_a_column_that_is_added_during_a_query_does_not_replace_metadata(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.create_topic("t", 1, schema=NUMBER)
    log.append("t", [{"n": 0, "id": b"k0"}], key="id")
    queries = {}
    for name, asked in (("asked", "true"), ("given", "false")):
        reader = spark.readStream.format("strandline").schema("n long, key binary, offset long")
        reader = reader.options(subscribe="t", startingOffsets="earliest", includeMetadata=asked)
        writer = reader.load(str(tmp_path / "log")).writeStream.format("memory").queryName(name)
        queries[name] = writer.start()
    for query in queries.values():
        query.processAllAvailable()
    log.alter_topic("t", schema=LATER)
    log.append("t", [{"n": 1, "key": "own", "offset": -5, "id": b"k1"}], key="id")
    for name, query in queries.items():
        query.processAllAvailable()
        query.stop()
        found = [(r.n, bytes(r.key), r.offset) for r in spark.table(name).orderBy("n").collect()]
        assert found == [(0, b"k0", 0), (1, b"k1", 1)]


@pytest.mark.long
def test_a_limit_gives_more_and_smaller_batches_of_the_same_records(
    log: Log, stream: Stream
) -> None:
    log.broker.create_topic("t", 2)
    writer = Writer(log.broker)
    writer.write(numbers(0, 70), partition=0)
    writer.write(numbers(100, 130), partition=1)
    stream.run(maxOffsetsPerTrigger="40")
    assert stream.seen() == [*range(70), *range(100, 130)]
    if admission_control(stream.spark):
        assert [len(batch) for _, batch in stream.batches] == [40, 40, 20]
        assert all(any(n >= 100 for n in batch) for _, batch in stream.batches)


@pytest.mark.long
def test_a_retried_batch_covers_the_same_offsets(log: Log, stream: Stream) -> None:
    log.broker.create_topic("t", 1)
    writer = Writer(log.broker)
    writer.write(numbers(0, 5))
    stream.fail_in = 0
    with pytest.raises(StreamingQueryException):
        stream.run()
    writer.write(numbers(5, 9))
    stream.fail_in = None
    stream.run()
    stream.run()  # Spark 4.1 ends after the batch that it retried
    assert stream.batches == [
        (0, [0, 1, 2, 3, 4]),
        (0, [0, 1, 2, 3, 4]),
        (1, [5, 6, 7, 8]),
    ]


def test_a_stream_stops_at_an_open_transaction_and_skips_an_aborted_one(
    log: Log, stream: Stream
) -> None:
    log.broker.create_topic("t", 1)
    first, second = Writer(log.broker, "one"), Writer(log.broker, "two")
    first.write(numbers(0, 3))
    second.write(numbers(10, 13))
    first.end(commit=True)
    stream.run()
    assert stream.seen() == [0, 1, 2]
    second.end(commit=False)
    first.write(numbers(3, 5))
    first.end(commit=True)
    stream.run()
    assert Counter(stream.seen()) == Counter(range(5))


@pytest.mark.long
def test_a_recreated_topic_stops_the_query_or_is_read_from_its_beginning(
    log: Log, stream: Stream
) -> None:
    log.broker.create_topic("t", 1)
    Writer(log.broker).write(numbers(0, 5))
    stream.run()
    log.broker.delete_topic("t")
    log.broker.create_topic("t", 1)
    Writer(log.broker).write(numbers(50, 58))
    with pytest.raises(Exception, match="deleted and created again"):
        stream.run()
    stream.run(failOnDataLoss="false")
    assert stream.seen() == [*range(5), *range(50, 58)]


@pytest.mark.long
def test_records_deleted_before_they_were_read_stop_the_query(log: Log, stream: Stream) -> None:
    log.broker.create_topic("t", 1)
    writer = Writer(log.broker)
    writer.write(numbers(0, 5))
    stream.run()
    writer.write(numbers(5, 9))
    log.broker.delete_records(TopicPartition("t", 0), 7)
    with pytest.raises(Exception, match="records from 5 on were deleted"):
        stream.run()
    stream.run(failOnDataLoss="false")
    assert stream.seen() == [0, 1, 2, 3, 4, 7, 8]


def test_a_query_reports_the_end_of_the_log(log: Log, stream: Stream) -> None:
    log.broker.create_topic("t", 1)
    Writer(log.broker).write(numbers(0, 5))
    progress = stream.run().lastProgress
    assert progress is not None
    assert '"offset": 5' in str(progress["sources"][0]["endOffset"]).replace("'", '"')
