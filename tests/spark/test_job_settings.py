"""Decisions about the Spark job of workers: settings, masters, files, logs, errors."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

import strandline as sl
from strandline.changelog.errors import InvalidConfig
from strandline.framework.spark.job_settings import (
    SparkPlace,
    check_log,
    check_place,
    check_running,
    settings_for,
    shipping,
)
from strandline.framework.spark.spark_job import reason_of, short
from strandline.framework.spark.workers import run, target_of


@pytest.mark.parametrize(
    ("given", "cores", "executors"),
    [
        ({}, "5", "5"),
        ({"spark.executor.cores": "2"}, "6", "3"),
        ({"spark.executor.cores": "4", "spark.task.cpus": "2"}, "12", "3"),
        ({"spark.task.cpus": "2"}, "10", "5"),
    ],
)
def test_a_job_takes_as_many_cores_as_its_workers_need(
    given: dict[str, str], cores: str, executors: str
) -> None:
    made = settings_for(SparkPlace("spark://db:7077", 5, given))
    assert (made["spark.cores.max"], made["spark.executor.instances"]) == (cores, executors)


def test_given_settings_precede_defaults_but_workers_are_never_run_twice() -> None:
    given = {"spark.cores.max": "9", "spark.task.maxFailures": "7", "spark.speculation": "false"}
    made = settings_for(SparkPlace("yarn", 2, given))
    assert (made["spark.cores.max"], made["spark.task.maxFailures"]) == ("9", "7")
    assert made["spark.speculation"] == made["spark.dynamicAllocation.enabled"] == "false"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (SparkPlace("yarn", 0), "workers is at least 1, got 0"),
        (SparkPlace("sparc://db", 1), r"master is local\[N\].*got 'sparc://db'"),
        (SparkPlace("yarn", 1, {"spark.speculation": "true"}), "spark.speculation is true, but"),
        (
            SparkPlace("yarn", 1, {"spark.dynamicAllocation.enabled": "True"}),
            "dynamic allocation removes",
        ),
        (SparkPlace("yarn", 1, {"spark.task.cpus": "two"}), "spark.task.cpus is a number"),
        (SparkPlace("yarn", 1, py_files=("no.zip",)), "--py-files: there is no file no.zip"),
        (SparkPlace("yarn", 1, archives=("no.tgz#env",)), "--archives: there is no file no.tgz"),
    ],
)
def test_what_does_not_fit_is_refused_before_spark_starts(place: SparkPlace, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        check_place(place)


def test_files_at_urls_are_left_to_spark() -> None:
    check_place(SparkPlace("yarn", 1, py_files=("hdfs://there/no.zip",)))


def test_a_running_session_must_fit_the_job() -> None:
    place = SparkPlace(None, 2)
    enough = {"spark.task.maxFailures": "1000"}
    assert check_running(enough, "spark://db:7077", place) == ""
    assert check_running({}, "local[2,1000]", place) == ""
    assert "after 1 failures" in check_running({}, "local[2]", place)
    assert "spark.task.maxFailures=1000" in check_running({}, "yarn", place)
    with pytest.raises(InvalidConfig, match=r"spark\.speculation is true.*stop the session"):
        check_running(enough | {"spark.speculation": "true"}, "yarn", place)
    with pytest.raises(InvalidConfig, match="a Spark session runs on 'yarn'"):
        check_running(enough, "yarn", SparkPlace("local[2]", 2))
    assert check_running({}, "local[2,1000]", SparkPlace("local[2]", 2)) == ""


def test_a_folder_is_a_log_only_for_executors_of_this_machine() -> None:
    for master in ("local", "local[*]", "local[2,1000]", "local-cluster[2,1,1024]"):
        check_log("data", master)
    check_log("kafka://db:9092", "yarn")
    check_log("strandline://db:7361", "spark://db:7077")
    with pytest.raises(InvalidConfig, match=r"data is a folder.*strandline serve.*Kafka"):
        check_log("data", "spark://db:7077")


def test_a_file_is_shipped_and_a_package_is_asked_for(tmp_path: Path) -> None:
    module = tmp_path / "shop.py"
    module.touch()
    assert shipping("shop.orders:app", ("a.zip",)) == ("shop.orders:app", ("a.zip",))
    assert shipping(f"{module}:app", ("a.zip",)) == ("shop:app", ("a.zip", str(module)))
    assert shipping(f"{module}", (str(module),)) == ("shop", (str(module),))
    with pytest.raises(InvalidConfig, match="there is no file"):
        shipping(f"{tmp_path}/none.py:app", ())
    (tmp_path / "__init__.py").touch()
    with pytest.raises(InvalidConfig, match="zip the package"):
        shipping(f"{module}:app", ())


def test_an_app_is_found_in_the_module_that_executors_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = sl.App("shop", log=tmp_path / "log")
    with pytest.raises(InvalidConfig, match="not a variable of a module"):
        target_of(app)
    module = types.ModuleType("shop_of_the_test")
    module.__dict__["here"] = app
    monkeypatch.setitem(sys.modules, "__main__", module)
    with pytest.raises(InvalidConfig, match="not a variable of a module"):
        target_of(app)
    monkeypatch.setitem(sys.modules, "shop_of_the_test", module)
    assert target_of(app) == "shop_of_the_test:here"


def test_an_app_with_an_open_log_is_refused(tmp_path: Path) -> None:
    with sl.App("other", log=tmp_path / "log") as other:
        app = sl.App("shop", log=other.broker())
        topic = app.topic("sales", value=int)

        @app.task(topic)
        def take(record: sl.Record[None, int]) -> None:
            del record

        with pytest.raises(InvalidConfig, match="has an open log, which executors cannot use"):
            run(app, workers=1)


FAILED_TASK = (
    "Task 0 failed 4 times, most recent failure: Lost task 0.3 (TID 3) (host executor 1): "
    "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
    '  File "worker.py", line 1, in main\n    raise it\n'
    "strandline.framework.spark.worker_slot.SlotFailed: worker 0: no\n\n\tat org.apache"
)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (FAILED_TASK, "SlotFailed: worker 0: no"),
        ("All masters are unresponsive! Giving up.", "All masters are unresponsive! Giving up."),
        ("", "unknown"),
        ("x" * 700, "x" * 599 + "…"),
    ],
)
def test_an_error_of_spark_is_shown_as_its_cause(said: str, wanted: str) -> None:
    assert short(said) == wanted


def test_a_jvm_that_is_gone_is_named() -> None:
    assert reason_of(ConnectionRefusedError(111, "Connection refused")) == (
        "the JVM of Spark's driver has ended, or does not answer ([Errno 111] Connection refused)"
    )
