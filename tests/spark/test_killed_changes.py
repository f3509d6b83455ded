"""A change feed whose driver is killed delivers each change once, with the value before it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from examples.flights.weather.processes import end
from tests.spark.sinks import batches
from tests.spark.writing import Writer
from tests.workers.running import Eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.changelog.log import Log

pytest.importorskip("pyspark")

from strandline.framework.spark.versions import HAS_ADMISSION_CONTROL
from tests.spark.changes_driver import changes_to_topic

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(
        not HAS_ADMISSION_CONTROL, reason="this Spark does not say where a query stands"
    ),
]

KEYS = 7
FIRST = 60
"""Number of changes that are written before the driver starts."""
LATER = 20
"""Number of changes that are written one by one while it runs; it is killed among them."""


def write(log: Log, start: int, end: int) -> None:
    """Change the values of some keys, in turn."""
    writer = Writer(log.broker)
    for number in range(start, end):
        writer.write([(b"k%d" % (number % KEYS), b"%d" % number)])
        time.sleep(0.02 if end - start == LATER else 0)


def seen(log: Log) -> list[dict[str, Any]]:
    """Return the changes that have arrived, in the order of their offsets."""
    found = [
        json.loads(each.value) for batch in batches(log.broker, "seen") for each in batch.records()
    ]
    return sorted(found, key=lambda change: change["offset"])


def expected(end: int) -> list[dict[str, Any]]:
    """Return the changes that `write` makes."""
    return [
        {"offset": number, "key": f"k{number % KEYS}", "new": str(number)}
        | ({"old": str(number - KEYS)} if number >= KEYS else {})
        for number in range(end)
    ]


def test_each_change_comes_once_although_its_driver_is_killed(
    log: Log, spark: SparkSession, tmp_path: Path, repository: Path, eventually: Eventually
) -> None:
    log.create_topic("t", 1, config={"cleanup.policy": "compact"})
    log.create_topic("seen", 2)
    folder, checkpoint = str(tmp_path / "log"), str(tmp_path / "checkpoint")

    def kill_a_driver_at_work() -> None:
        write(log, 0, FIRST)
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.changes_driver", folder, checkpoint],
            cwd=repository,
            env={**os.environ, "PYTHONPATH": str(repository)},
            start_new_session=True,
        )
        try:
            eventually(lambda: seen(log), timeout=600, what="a batch")
            write(log, FIRST, FIRST + LATER)
        finally:
            end(driver)

    def run_to_the_end() -> None:
        query = changes_to_topic(spark, folder, checkpoint).trigger(availableNow=True).start(folder)
        assert query.awaitTermination(600)

    kill_a_driver_at_work()
    run_to_the_end()
    assert seen(log) == expected(FIRST + LATER)
    commits = sorted(Path(checkpoint, "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    for file in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        file.unlink()  # as if the driver had died just before it wrote this
    write(log, FIRST + LATER, 2 * FIRST)
    run_to_the_end()
    assert seen(log) == expected(2 * FIRST)
