"""Spark on a log: `format("strandline")` for reading, and a session that finds a Java.

    spark = sl.spark.session()
    spark.read.format("strandline").option("subscribe", "flights").load("data").show()

Importing this package needs neither PySpark nor Java. Decisions that do not need Spark have modules
of their own: options, offsets, planning (ranges to read), columns (types), reading and tables
(fetching), tasks (division), progress (lag). `source` implements Spark's interface; `sessions` and `java` start Spark.
"""

from __future__ import annotations

from strandline.framework.spark.java import find_java
from strandline.framework.spark.progress import lag
from strandline.framework.spark.sessions import session

__all__ = ["find_java", "lag", "session"]
