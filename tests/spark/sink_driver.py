"""A query that copies topic `in` to topic `out`: python sink_driver.py LOG CHECKPOINT MODE.

With the mode `end` it ends at the end of `in`, otherwise it runs until it is killed. Its tasks run in
two executors, which are processes of their own. Some tasks fail and are repeated, and slow ones run
twice at the same time.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import pyarrow as pa

from strandline.framework.spark import session
from tests.spark.conftest import SMALL

MASTER = "local-cluster[2,1,512]"
"""Two executors of one core and 512 MiB each."""

REPEATING = {
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "10ms",
    "spark.python.worker.reuse": "true",
}
"""Settings with which Spark starts a task again if it is slower than others."""


def failing_by_chance(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on, and sometimes fail after some of them, in the first attempt of a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    is_failing = context is not None and not context.attemptNumber() and random.random() < 0.1
    yield from batches
    if is_failing:
        raise RuntimeError("by chance")


def main(log: str, checkpoint: str, mode: str) -> None:
    spark = session("sink", master=MASTER, config=SMALL | REPEATING)
    stream = (
        spark.readStream.format("strandline")
        .options(
            subscribe="in",
            startingOffsets="earliest",
            maxOffsetsPerTrigger="20000",
            minPartitions="2",
        )
        .load(log)
    )
    rows = stream.select("key", "value").mapInArrow(failing_by_chance, "key binary, value binary")
    writer = rows.writeStream.format("strandline").options(
        topic="out", checkpointLocation=checkpoint
    )
    if mode == "end":
        writer.trigger(availableNow=True).start(log).awaitTermination()
    else:
        writer.trigger(processingTime="100 milliseconds").start(log).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
