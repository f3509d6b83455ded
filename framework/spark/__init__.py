"""Spark on a log: `format("strandline")` for reading, a session that finds a Java, and workers of an
app in Spark's executors.

    spark = sl.spark.session()
    spark.read.format("strandline").option("subscribe", "flights").load("data").show()
    sl.spark.run(app, master="spark://host:7077", workers=8)

Importing this package needs neither PySpark nor Java. Decisions that do not need Spark have modules
of their own: options, offsets, planning (ranges to read), columns (types), reading and tables
(fetching), tasks (division), progress (lag), open_logs (kept between tasks). `source` implements
Spark's interface; `sessions` and `java` start Spark; `workers` runs apps; `writing` is the sink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strandline.framework.spark.java import find_java
from strandline.framework.spark.progress import lag
from strandline.framework.spark.sessions import session

if TYPE_CHECKING:
    from strandline.framework.spark.workers import run

__all__ = ["find_java", "lag", "run", "session"]


def __getattr__(name: str) -> Any:
    """Import `run` when it is first used, because readers in Spark's tasks do not need it."""
    if name == "run":
        from strandline.framework.spark.workers import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
