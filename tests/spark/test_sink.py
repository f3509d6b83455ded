"""Spark itself writes to a log: jobs, streams, repeated and failed batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from strandline.changelog.records import TopicPartition
from strandline.framework.spark.writing.sinks import TOPIC
from strandline.framework.spark.writing.staging import PREFIX
from tests.spark.sinks import batches, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSourceStreamWriter
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from strandline.changelog.log import Log

if TYPE_CHECKING:
    from pyspark.errors import PySparkException, StreamingQueryException
else:
    errors = pytest.importorskip("pyspark.errors")
    PySparkException = errors.PySparkException
    StreamingQueryException = errors.StreamingQueryException

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Function that writes a frame to the test's log with the given options."""

    def with_options(frame: DataFrame, mode: str = "append", **options: str) -> None:
        frame.write.format("strandline").options(**options).mode(mode).save(str(tmp_path / "log"))

    return with_options


def numbers(spark: SparkSession, end: int) -> DataFrame:
    """Return a frame of keys and values of a topic of bytes."""
    return spark.range(end).selectExpr("concat('k', id % 5) AS key", "concat('v', id) AS value")


def once(end: int) -> Counter[str]:
    return Counter(f"v{number}" for number in range(end))


# Batches ----------------------------------------------------------------------------------


def test_a_frame_makes_a_typed_topic_and_is_read_back_equal(
    spark: SparkSession, log: Log, write: Write, tmp_path: Path
) -> None:
    frame = spark.sql(
        """SELECT id, CAST(id % 100 AS BYTE) AS small, id / 7 AS ratio, CAST(id / 7 AS DECIMAL(20, 4)) AS price,
           concat('user ', id % 9) AS user, id % 2 = 0 AS even, CAST(concat('b', id) AS BINARY) AS raw,
           timestamp_millis(1700000000000 + id * 1001) AS at, DATE '2024-02-29' AS day,
           CAST(timestamp_millis(id) AS TIMESTAMP_NTZ) AS plain,
           array(id, id + 1) AS list, named_struct('a', id, 'b', array(struct(id AS c))) AS nested,
           map('k', id) AS mapped, IF(id % 3 = 0, NULL, id) AS hole
           FROM range(1000)"""
    )
    settings = {"partitions": "3", "topic.retention.ms": "-1"}
    write(frame, topic="typed", key="user", timestamp="at", **settings)

    info = log.broker.topic("typed")
    assert info.partitions == 3
    assert info.schema is not None
    assert info.schema.names == frame.columns
    back = spark.read.format("strandline").option("subscribe", "typed").load(str(tmp_path / "log"))
    assert back.schema.simpleString() == frame.schema.simpleString()
    ordered = [tuple(row) for row in frame.orderBy("id").collect()]
    assert [tuple(row) for row in back.orderBy("id").collect()] == ordered
    with log.producer() as producer:
        for batch in batches(log.broker, "typed"):
            record = next(batch.records())
            assert record.key == record.value["user"].encode()
            assert record.timestamp == int(record.value["at"].timestamp() * 1000)
            sent = producer.send("typed", record.value, key=record.key).result()
            assert sent.partition == batch.partition
    assert not [topic for topic in log.broker.topics() if topic.name.startswith(PREFIX)]


def test_a_topic_of_bytes_takes_the_columns_of_the_kafka_sink(
    spark: SparkSession, log: Log, write: Write
) -> None:
    for name, partitions in (("one", 2), ("two", 3)):
        log.broker.create_topic(name, partitions, config={"retention.ms": "-1"})
    frame = spark.sql(
        """SELECT IF(id % 2 = 0, 'one', 'two') AS topic, CAST(concat('k', id) AS BINARY) AS key,
           IF(id = 3, NULL, concat('v', id)) AS value, IF(id < 4, 1, NULL) AS partition,
           timestamp_millis(1700000000000 + id) AS timestamp,
           array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))) AS headers
           FROM range(6)"""
    )
    write(frame)
    found = {
        (record.topic, record.partition, record.key, record.value, record.timestamp)
        for name in ("one", "two")
        for batch in batches(log.broker, name)
        for record in batch.records()
        if record.headers == (("h", b"x"),)
    }
    assert len(found) == 6
    explicit = {(t, p, k, v) for t, p, k, v, at in found if at < 1700000000004}
    assert explicit == {
        ("one", 1, b"k0", b"v0"),
        ("two", 1, b"k1", b"v1"),
        ("one", 1, b"k2", b"v2"),
        ("two", 1, b"k3", None),
    }


def test_new_columns_are_added_on_request(spark: SparkSession, log: Log, write: Write) -> None:
    log.broker.create_topic("t", 1, schema=pa.schema([("a", pa.int32())]))
    frame = spark.sql("SELECT CAST(1 AS INT) AS a, 'x' AS b")
    with pytest.raises(PySparkException, match="no column 'b'.*mergeSchema"):
        write(frame, topic="t")
    write(frame, topic="t", mergeSchema="true")
    write(frame.select("a"), topic="t")
    assert [r.value for b in batches(log.broker, "t") for r in b.records()] == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": None},
    ]


def test_a_column_in_another_case_is_named(spark: SparkSession, log: Log, write: Write) -> None:
    log.broker.create_topic("t", 1, schema=pa.schema([("a", pa.int32())]))
    with pytest.raises(PySparkException, match=r"no column 'A'.*withColumnRenamed\('A', 'a'\)"):
        write(spark.sql("SELECT 1 AS A"), topic="t")


def test_columns_of_a_frame_may_be_null_at_every_level(
    spark: SparkSession, log: Log, write: Write
) -> None:
    """Spark knows of a frame of literals that nothing in it is null; the next frame has others."""
    literals = spark.sql("select 1 id, named_struct('x', 1) s, array(1) l, map('a', array(1)) m")
    nulls = spark.sql(
        "select 2 id, named_struct('x', cast(null as int)) s, array(cast(null as int)) l, "
        "map('a', array(cast(null as int))) m"
    )
    write(literals, topic="new", partitions="1")
    write(literals.select("id"), topic="grown", partitions="1")
    for frame in (literals, nulls):
        write(frame, topic="grown", mergeSchema="true")
    write(nulls, topic="new")
    last = {"id": 2, "s": {"x": None}, "l": [None], "m": [("a", [None])]}
    for topic in ("new", "grown"):
        table = log.read(topic)
        assert "not null" not in str(table.schema.field("value").type).replace(
            "key: string not null", ""
        )
        assert table["value"].to_pylist()[-1] == last


def test_a_null_list_is_written_to_a_column_of_lists_of_a_fixed_size(
    spark: SparkSession, log: Log, write: Write
) -> None:
    """Its cast ended the worker: the batch has no buffer for the items of its lists."""
    log.create_topic("pairs", schema=pa.schema([("l", pa.list_(pa.int64(), 2))]))
    write(spark.sql("select cast(null as array<bigint>) l"), topic="pairs")
    assert log.read("pairs")["value"].to_pylist() == [{"l": None}]


@pytest.mark.long
@pytest.mark.parametrize(
    ("topic", "named"),
    [("small", "'n' and 'N'"), ("large", "'N' and 'n'"), ("new", "'n' and 'N'"), ("both", None)],
)
def test_columns_that_differ_only_in_case_are_not_added(
    spark: SparkSession, log: Log, write: Write, tmp_path: Path, topic: str, named: str | None
) -> None:
    for name, columns in (("small", "n"), ("large", "N"), ("both", "nN")):
        schema = pa.schema([(column, pa.int64()) for column in columns])
        log.broker.create_topic(name, 1, schema=schema)
    before = str(spark.conf.get("spark.sql.caseSensitive"))
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        frame = spark.sql("SELECT 1L AS n, 2L AS N, 3L AS other")
        problem = f"{named} are the same for Spark.*'{topic}'"
        with pytest.raises(PySparkException, match=problem) if named else nullcontext():
            write(frame, topic=topic, mergeSchema="true", partitions="1")
    finally:
        spark.conf.set("spark.sql.caseSensitive", before)
    if topic in ("small", "large"):
        back = spark.read.format("strandline").option("subscribe", topic)
        assert len(back.load(str(tmp_path / "log")).columns) == 1
    assert {found.name for found in log.broker.topics() if not found.internal} == {
        *("small", "large", "both")
    }


@pytest.mark.parametrize(
    ("options", "query", "problem"),
    [
        ({"topic": "none"}, "SELECT 1 AS a", r"option\('partitions'"),
        ({}, "SELECT 1 AS a", "say what to write"),
        ({"topic": "t", "tpoic": "x"}, "SELECT 1 AS a", "did you mean 'topic'"),
        ({"topic": "t"}, "SELECT 'x' AS a", "column 'a': expected int32, got string"),
        ({"topic": "t", "key": "b"}, "SELECT 1 AS a", "key='b' names no column"),
        ({"topic": "t", "batchId": "4"}, "SELECT 1 AS a", "sinkId and batchId together"),
        ({"topic": "t", "topic.retention.ms": "4"}, "SELECT 1 AS a", "partitions"),
    ],
)
def test_a_write_that_cannot_succeed_is_refused_before_any_task_runs(
    spark: SparkSession, log: Log, write: Write, options: dict[str, str], query: str, problem: str
) -> None:
    log.broker.create_topic("t", 1, schema=pa.schema([("a", pa.int32())]))
    with pytest.raises(PySparkException, match=problem):
        write(spark.sql(query), **options)
    assert [topic.name for topic in log.broker.topics() if not topic.internal] == ["t"]


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, log: Log, write: Write) -> None:
    log.broker.create_topic("t", 2)
    frame = numbers(spark, 1000).repartition(4)
    bad = frame.selectExpr("key", "IF(value = 'v999', raise_error('no'), value) AS value")
    with pytest.raises(PySparkException, match="no"):
        write(bad, topic="t")
    assert values(log.broker) == Counter()
    assert not [topic for topic in log.broker.topics() if topic.name.startswith(PREFIX)]
    write(frame, topic="t")
    assert values(log.broker) == once(1000)


def test_a_numbered_write_in_foreach_batch_is_made_once(
    spark: SparkSession, log: Log, write: Write
) -> None:
    log.broker.create_topic("t", 2)
    for _ in range(2):
        write(numbers(spark, 10), topic="t", sinkId="nightly", batchId="20240501")
    assert values(log.broker) == once(10)


def test_overwriting_replaces_the_rows_of_a_compacted_topic(
    spark: SparkSession, log: Log, write: Write, tmp_path: Path
) -> None:
    def table() -> list[tuple[str, int]]:
        reader = spark.read.format("strandline").option("store", "t").load(str(tmp_path / "log"))
        return sorted((bytes(row.key).decode(), row.n) for row in reader.collect())

    settings = {"topic": "t", "partitions": "2", "topic.cleanup.policy": "compact", "key": "k"}
    write(spark.sql("SELECT concat('k', id) AS k, id AS n FROM range(6)"), **settings)
    assert table() == [(f"k{n}", n) for n in range(6)]
    write(
        spark.sql("SELECT concat('k', id) AS k, id * 10 AS n FROM range(4, 8)"),
        "overwrite",
        topic="t",
        key="k",
    )
    assert table() == [(f"k{n}", n * 10) for n in range(4, 8)]
    log.broker.create_topic("events", 1)
    with pytest.raises(PySparkException, match="not compacted"):
        write(numbers(spark, 3), "overwrite", topic="events")


# Streams ----------------------------------------------------------------------------------


Start = Callable[..., "StreamingQuery"]


@pytest.fixture
def start(spark: SparkSession, log: Log, tmp_path: Path) -> Start:
    """Function that copies topic `in` to topic `t` up to the end, by a query with a checkpoint."""
    log.broker.create_topic("in", 2)
    log.broker.create_topic("t", 2)

    def with_options(
        checkpoint: str = "checkpoint", source: str = "strandline", **options: str
    ) -> StreamingQuery:
        stream = (
            spark.readStream.format("strandline")
            .options(subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger="40")
            .load(str(tmp_path / "log"))
        )
        return (
            stream.select("key", "value")
            .writeStream.format(source)
            .options(topic="t", checkpointLocation=str(tmp_path / checkpoint), **options)
            .trigger(availableNow=True)
            .start(str(tmp_path / "log"))
        )

    return with_options


def feed(log: Log, begin: int, end: int) -> None:
    with log.producer() as producer:
        for number in range(begin, end):
            producer.send("in", f"v{number}".encode(), key=f"k{number % 5}")


def test_a_stream_writes_each_row_once_and_goes_on_after_a_restart(start: Start, log: Log) -> None:
    for end in (100, 150):
        feed(log, max(0, end - 100) and 100, end)
        start().awaitTermination()
        assert values(log.broker) == once(end)


@pytest.mark.long
def test_a_batch_whose_commit_spark_has_forgotten_is_not_written_again(
    start: Start, log: Log, tmp_path: Path
) -> None:
    feed(log, 0, 100)
    start().awaitTermination()
    commits = sorted(
        (tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name)
    )
    for file in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        file.unlink()
    feed(log, 100, 120)
    start().awaitTermination()
    assert values(log.broker) == once(120)


def test_a_driver_that_fails_after_the_durable_commit_does_not_repeat_it(
    spark: SparkSession, start: Start, log: Log, tmp_path: Path
) -> None:
    from strandline.framework.spark.source import StrandlineSource

    marker = str(tmp_path / "failed")

    class FailingAfterCommit(StrandlineSource):
        """Sink whose first commit raises once it is durable, and whose abort is called then."""

        @classmethod
        def name(cls) -> str:
            return "failing"

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            writer = super().streamWriter(schema, overwrite)
            commit = writer.commit

            def failing(messages: Any, batchId: int) -> None:  # noqa: N803
                commit(messages, batchId)
                if not Path(marker).exists():
                    Path(marker).touch()
                    raise RuntimeError("after the commit")

            writer.commit = failing  # type: ignore[method-assign]
            return writer

    spark.dataSource.register(FailingAfterCommit)
    feed(log, 0, 100)
    with pytest.raises(StreamingQueryException, match="after the commit"):
        start(source="failing").awaitTermination()
    assert 0 < sum(values(log.broker).values()) < 100
    start().awaitTermination()
    assert values(log.broker) == once(100)


@pytest.mark.long
def test_two_queries_with_one_sink_id_do_not_mix(start: Start, log: Log) -> None:
    feed(log, 0, 50)
    start(sinkId="mine").awaitTermination()
    with pytest.raises(StreamingQueryException, match="sink 'mine' is of query"):
        start("other", sinkId="mine").awaitTermination()
    assert values(log.broker) == once(50)
    feed(log, 50, 60)
    start(sinkId="mine").awaitTermination()
    assert values(log.broker) == once(60)


@pytest.mark.long
def test_a_complete_aggregation_replaces_a_table(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.broker.create_topic("in", 2)
    log.broker.create_topic("t", 2, config={"cleanup.policy": "compact"})

    def run() -> None:
        stream = spark.readStream.format("strandline").options(
            subscribe="in", startingOffsets="earliest"
        )
        counts = stream.load(str(tmp_path / "log")).groupBy("key").count()
        rows = counts.selectExpr("key", "CAST(count AS STRING) AS value")
        writer = rows.writeStream.format("strandline").outputMode("complete")
        writer = writer.options(topic="t", checkpointLocation=str(tmp_path / "c"))
        writer.trigger(availableNow=True).start(str(tmp_path / "log")).awaitTermination()

    for end in (50, 60):
        feed(log, end - (50 if end == 50 else 10), end)
        run()
        reader = spark.read.format("strandline").option("store", "t").load(str(tmp_path / "log"))
        found = {bytes(r.key).decode(): bytes(r.value).decode() for r in reader.collect()}
        assert found == {f"k{n}": str(end // 5) for n in range(5)}


def test_the_last_batch_of_each_sink_is_in_one_small_topic(start: Start, log: Log) -> None:
    feed(log, 0, 100)
    query = start()
    query.awaitTermination()
    [tp] = [TopicPartition(TOPIC, 0)]
    assert log.broker.topic(TOPIC).effective.compact
    keys = {r.key.decode() for b in batches(log.broker, tp.topic) for r in b.records()}
    assert keys == {str(query.id)}
