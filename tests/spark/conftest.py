"""One Spark session for all tests of this folder that need one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strandline import changelog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.changelog.log import Log

QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that does not live for long: compiling best takes half of its processor time."""
SMALL = {
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
}
"""Settings of a session that starts quickly and logs little."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark with two cores, without any manual registration of the data source."""
    from strandline.framework.spark import session

    folder = tmp_path_factory.mktemp("spark")
    config = SMALL | {"spark.sql.warehouse.dir": str(folder / "warehouse")}
    found = session("tests", master="local[2]", config=config)
    yield found
    found.stop()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A log owned by this process, to which Spark's workers attach."""
    opened = changelog.open(str(tmp_path / "log"))
    yield opened
    opened.close()
