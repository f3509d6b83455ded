"""The standard job in Spark Structured Streaming: spark_count.py SERVERS NAME RECORDS JARS.

State is in RocksDB, updates go to Kafka at least once, because Spark's sink has no transactions.
Prints records a second of the batches, without the start of the session.
"""

import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col

PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def main(servers: str, name: str, records: int, jars: str) -> None:
    """Count all records and print the rate."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, Path(jars).glob("*.jar"))))
        .config("spark.sql.streaming.stateStore.providerClass", PROVIDER)
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    kafka = {"kafka.bootstrap.servers": servers}
    views = spark.readStream.format("kafka").options(
        **kafka, subscribe="views", startingOffsets="earliest"
    )
    counts = views.load().groupBy("key").count()
    updates = counts.select("key", col("count").cast("string").alias("value"))
    with tempfile.TemporaryDirectory(prefix="strandline-spark-") as checkpoint:
        writer = updates.writeStream.outputMode("update").format("kafka").options(**kafka)
        writer = writer.option("topic", f"{name}-counts").option("checkpointLocation", checkpoint)
        begun = time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        seconds = time.perf_counter() - begun
        assert sum(batch["numInputRows"] for batch in query.recentProgress) == records
    spark.stop()
    print("rate", records / seconds, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
