"""A query that copies the changes of topic `t` to topic `seen`: python changes_driver.py LOG CHECKPOINT.

It runs until it is killed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from strandline.framework.spark import session
from tests.spark.conftest import SMALL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGE = "to_json(struct(offset, string(key) AS key, string(old) AS old, string(new) AS new))"


def changes_to_topic(spark: SparkSession, log: str, checkpoint: str) -> Any:
    """Return the writer of a query whose rows are the changes, as JSON."""
    options = {"store": "t", "changes": "true", "startingOffsets": "earliest"}
    changes = spark.readStream.format("strandline").options(**options, maxOffsetsPerTrigger="25")
    rows = changes.load(log).selectExpr("key", f"{CHANGE} AS value")
    writer = rows.writeStream.format("strandline")
    return writer.options(topic="seen", checkpointLocation=checkpoint)


def main(log: str, checkpoint: str) -> None:
    spark = session("changes", master="local[2]", config=SMALL)
    changes_to_topic(spark, log, checkpoint).start(log).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
