"""Workers in Spark's executors: whatever is killed, each record counts once and no process stays."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import strandline as sl
from tests.spark.conftest import QUICK_JVM, SMALL
from tests.spark.processes import parent_of
from tests.systems import System
from tests.workers.pipeline import judge
from tests.workers.processes import Process, ending, is_alive
from tests.workers.running import TARGET, Eventually, RunningPipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.spark, pytest.mark.slow]
on_a_folder = pytest.mark.parametrize("system", ["embedded"], indirect=True)

CONF = [
    part
    for pair in (SMALL | {"spark.executor.memory": "512m"}).items()
    for part in ("--conf", "=".join(pair))
]


class OnSpark(RunningPipeline):
    """The pipeline in executors, its log, and the processes that run it."""

    def start(self, master: str, *options: str, target: str = TARGET) -> Process:
        """Start the driver, and wait until it owns the log."""
        return self.run(target, "--spark", master, *options, *CONF)


@pytest.fixture
def on_spark(
    system: System, tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OnSpark]:
    monkeypatch.setenv("SPARK_WORKER_DIR", str(tmp_path / "work"))
    monkeypatch.setenv("JDK_JAVA_OPTIONS", QUICK_JVM)
    made = OnSpark(system, tmp_path, eventually, patience_s=90)
    with ending(made.processes):
        yield made
        made.close()


def jvm_of(pid: int) -> int:
    """Return the executor's JVM of a worker process."""
    while pid > 1:
        pid = parent_of(pid)
        if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]:
            return pid
    raise AssertionError("the worker has no JVM")


@pytest.mark.long
@on_a_folder
def test_killed_workers_and_tasks_lose_nothing_and_a_signal_ends_all(
    on_spark: OnSpark, eventually: Eventually
) -> None:
    driver = on_spark.start("local[2]", "--workers", "2", "--metrics", "127.0.0.1:0")
    first, second = on_spark.at_work(2)
    on_spark.write(400)
    eventually(lambda: _metric(on_spark.text(), 'state="running"') == 2, what="metrics")
    os.kill(first, signal.SIGKILL)  # the worker itself: its slot starts it again
    on_spark.write(400)
    on_spark.at_work(2, but=first)
    eventually(lambda: f"(pid {first}) was killed by SIGKILL" in on_spark.text(), what="a line")

    task = parent_of(second)
    os.kill(task, signal.SIGKILL)  # Spark's task: the worker leaves, and Spark tries again
    on_spark.write(400)
    eventually(lambda: ", attempt 1" in on_spark.text(), what="a second attempt")
    pids = on_spark.at_work(2, but=second)
    on_spark.write(400)
    eventually(on_spark.all_right, what="each record, once")
    assert not is_alive(second)

    assert driver.end() == 0
    assert [pid for pid in pids if is_alive(pid)] == []
    assert re.search(r"[1-9][\d,]* records handled in [\d.]+ s by 2 workers", on_spark.text())


@pytest.mark.long
@on_a_folder
def test_lost_executors_lose_nothing_and_a_killed_driver_leaves_no_worker(
    on_spark: OnSpark, eventually: Eventually
) -> None:
    driver = on_spark.start("local-cluster[2,1,512]", "--workers", "2")
    first, _ = on_spark.at_work(2)
    on_spark.write(400)
    executor = jvm_of(first)
    os.kill(executor, signal.SIGKILL)
    on_spark.write(400)
    pids = on_spark.at_work(2, but=first)
    eventually(on_spark.all_right, what="each record, once")

    on_spark.write(400)
    driver.kill()
    eventually(lambda: not any(map(is_alive, pids)), timeout=60, what="the end of all workers")
    on_spark.close()
    on_spark.made.app.run(until="idle")
    assert judge(on_spark.made, on_spark.given) == []


def _metric(text: str, labels: str) -> float | None:
    """Return a reading of `strandline_workers` from the endpoint that the driver has printed."""
    found = re.search(r"metrics are at (\S+)", text)
    assert found is not None
    with urllib.request.urlopen(found[1], timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    [reading] = [
        line for line in lines if line.startswith("strandline_workers{") and labels in line
    ]
    return float(reading.rpartition(" ")[2])


# From Python ---------------------------------------------------------------------------------

SHOP = """
import os
import strandline as sl

app = sl.App("spark-shop", log=os.environ["STRANDLINE_SHOP"], durability="os", commit_interval_ms=20)
sales = app.topic("sales", key=str, value=int, partitions=2)
totals = app.store("totals", key=str, value=int, default=0)


@app.task(sales, stores=[totals])
def add(record):
    print("sold", record.value)
    totals[record.key] += record.value
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module with an app that only this process can import."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "spark_shop.py").write_text(SHOP)
    monkeypatch.setenv("STRANDLINE_SHOP", str(tmp_path / "log"))
    monkeypatch.syspath_prepend(str(folder))
    module = importlib.import_module("spark_shop")
    yield module
    module.app.close()
    del sys.modules["spark_shop"]


def test_a_running_session_runs_an_app_with_shipped_code(
    spark: SparkSession,
    shop: Any,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The module reads a variable that only the driver passes on, and comes as a shipped file."""
    shop.sales.append([("york", 3), ("leeds", 2), ("york", 1)])
    code = str(Path(shop.__file__).resolve())
    assert sl.spark.run(shop.app, workers=2, py_files=[code], until="idle") == 3
    assert shop.app.query(shop.totals).to_dict() == {"york": 4, "leeds": 2}
    said = capfd.readouterr().err
    assert "Spark ends this job after 1 failures" in said
    assert re.search(r"^\[[01]\] sold 3$", said, re.MULTILINE)
    assert spark.range(3).count() == 3  # the session is still there


@pytest.mark.long
def test_a_cancelled_job_is_an_error_and_leaves_no_worker(
    spark: SparkSession, shop: Any, eventually: Eventually
) -> None:
    code = str(Path(shop.__file__).resolve())
    shop.app.prepare()
    errors: list[Exception] = []

    def run() -> None:
        try:
            sl.spark.run(shop.app, workers=1, py_files=[code])
        except Exception as error:
            errors.append(error)

    def members() -> int:
        return len(shop.app.broker().describe_group(shop.app.name).members)

    running = threading.Thread(target=run)
    running.start()
    eventually(lambda: members() == 1, timeout=90, what="a worker")
    spark.sparkContext.cancelAllJobs()
    running.join(60)
    assert [type(error) for error in errors] == [sl.TaskFailed]
    assert "cancelled" in str(errors[0])
    eventually(lambda: members() == 0, what="the end of the worker")
