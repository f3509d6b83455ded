"""Spark on a log: `format("strandline")` for reading, and a session that finds a Java.

    spark = sl.spark.session()
    spark.read.format("strandline").option("subscribe", "flights").load("data").show()

Importing this package needs neither PySpark nor Java. What is decided without Spark stands in
modules of its own: options, offsets, planning (what to read), columns (how it looks), reading
and tables (getting it). `source` tells Spark, `sessions` and `java` start it.
"""

from __future__ import annotations

from strandline.framework.spark.java import find_java
from strandline.framework.spark.sessions import session

__all__ = ["find_java", "session"]
