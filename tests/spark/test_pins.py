"""Spark rereads the same records after any change of the log, also when its driver is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from strandline.changelog.embedded.owner import Owner
from strandline.changelog.records import TopicPartition
from tests.cleaning import clean
from tests.spark.driver import rows_of
from tests.spark.writing import Writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.changelog.log import Log

pytest.importorskip("pyspark")

from strandline.framework.spark.versions import HAS_ADMISSION_CONTROL

pytestmark = [pytest.mark.spark, pytest.mark.slow]

T = TopicPartition("t", 0)
SMALL = {
    "cleanup.policy": "compact",
    "segment.bytes": "4096",
    "file.delete.delay.ms": "0",
    "min.cleanable.dirty.ratio": "1",
}
"""Settings of a topic that is cleaned only when the test requests it."""


@pytest.fixture
def owner(log: Log) -> Owner:
    """Owner of topic t: three keys, over and over, in small segments."""
    log.broker.create_topic("t", 1, config=SMALL)
    write(log, 0, 200)
    _, link = log.broker._connections.current(10)  # type: ignore[attr-defined]
    found: Owner = link.broker
    return found


def write(log: Log, start: int, end: int) -> None:
    writer = Writer(log.broker)
    for number in range(start, end):
        writer.write([(b"k%d" % (number % 3), b"%d" % number)])


def numbers(start: int, end: int) -> list[list[Any]]:
    return [[number, f"k{number % 3}", str(number)] for number in range(start, end)]


def kill_jvm_of(group: int) -> None:
    """Kill the Java process of a dead driver, so that it does not work at the same time as the next
    one."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL, reason="needs a Spark that says where a query stands"
)
def test_a_batch_of_a_killed_driver_is_reread_with_the_same_records(
    log: Log, owner: Owner, spark: SparkSession, tmp_path: Path, repository: Path
) -> None:
    folder, checkpoint = str(tmp_path / "log"), str(tmp_path / "checkpoint")
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.driver", folder, checkpoint, str(tmp_path)],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(repository)},
        start_new_session=True,
    )
    try:
        assert driver.wait(180) == -signal.SIGKILL
    finally:
        kill_jvm_of(driver.pid)
    first = msgspec.json.decode((tmp_path / "rows.json").read_bytes())
    assert first == numbers(0, 200)

    assert clean(owner, T).tally.superseded > 100
    write(log, 200, 210)
    batches: list[list[list[Any]]] = []
    stream = spark.readStream.format("strandline").option("subscribe", "t").load(folder)
    writer = stream.writeStream.option("checkpointLocation", checkpoint)
    writer = writer.foreachBatch(lambda frame, _: batches.append(rows_of(frame)))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    assert batches == [first, numbers(200, 210)]
    assert pin_count(tmp_path) <= 1  # the pin of the last batch, whose end Spark does not report


def test_a_running_query_and_table_do_not_see_that_the_log_is_cleaned(
    log: Log, owner: Owner, spark: SparkSession, tmp_path: Path
) -> None:
    folder = str(tmp_path / "log")
    seen: list[tuple[list[Any], list[Any]]] = []
    table = spark.read.format("strandline").option("store", "t").load(folder)
    planned = table.rdd  # its range is fixed from here on
    assert planned.getNumPartitions() == 1

    def take(frame: Any, _: int) -> None:
        before = rows_of(frame)
        write(log, 200, 230)
        assert clean(owner, T).tally.superseded > 100
        seen.append((before, rows_of(frame)))

    stream = spark.readStream.format("strandline").option("subscribe", "t")
    stream = stream.option("startingOffsets", "earliest").load(folder)  # type: ignore[assignment]
    writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))  # type: ignore[attr-defined]
    assert writer.foreachBatch(take).trigger(availableNow=True).start().awaitTermination(120)
    assert seen == [(numbers(0, 200), numbers(0, 200))]
    assert sorted(bytes(row.value) for row in planned.collect()) == [b"197", b"198", b"199"]


def pin_count(tmp_path: Path) -> int:
    """Return the number of pins."""
    return len(list((tmp_path / "log").glob("pins/*/*/pin.meta")))
