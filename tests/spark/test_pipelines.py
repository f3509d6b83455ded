"""A Spark Declarative Pipeline writes to a topic, each row once; the long form runs it twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strandline.framework.spark.java import find_java
from tests.spark.conftest import SMALL
from tests.spark.sinks import values

if TYPE_CHECKING:
    from strandline.changelog.log import Log

pyspark = pytest.importorskip("pyspark")
pytest.importorskip("pyspark.pipelines")
pytest.importorskip("grpc_status")
pytest.importorskip("yaml")

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SPEC = """
name: copy
storage: {storage}
libraries: [{{glob: {{include: flows/**}}}}]
configuration:
  spark.sql.shuffle.partitions: "2"
"""

FLOW = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

dp.create_sink("copy", "strandline", {{"path": {log!r}, "topic": "out"}})


@dp.append_flow(target="copy")
def copied():
    stream = SparkSession.active().readStream.format("strandline")
    stream = stream.options(subscribe="in", startingOffsets="earliest")
    return stream.load({log!r}).select("key", "value")
"""


def run_pipeline(folder: Path) -> None:
    """Run the pipeline of a folder to the end of its input."""
    command = [f"{Path(pyspark.__file__).parent}/bin/spark-pipelines", "run"]
    for name, value in SMALL.items():
        command += ["--conf", f"{name}={value}"]
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=600)


@pytest.mark.long
def test_rows_of_a_pipeline_are_written_once(log: Log, tmp_path: Path) -> None:
    log.create_topic("in", 2)
    log.create_topic("out", 2)
    folder = tmp_path / "pipeline"
    (folder / "flows").mkdir(parents=True)
    (folder / "spark-pipeline.yml").write_text(SPEC.format(storage=(tmp_path / "state").as_uri()))
    (folder / "flows" / "copy.py").write_text(FLOW.format(log=str(tmp_path / "log")))
    for start in (0, 100):
        with log.producer() as producer:
            for number in range(start, start + 100):
                producer.send("in", b"v%d" % number, key=b"k%d" % (number % 5))
        run_pipeline(folder)
        assert values(log.broker, "out") == values(log.broker, "in")
        assert values(log.broker, "out").total() == start + 100
