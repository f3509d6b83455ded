"""`strandline offload`: a topic is loaded into files, by name and as an app declares it."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from strandline.changelog.log import Log
from strandline.changelog.records import TopicPartition
from tests.cli.conftest import Command


def test_a_topic_is_loaded_in_several_runs(
    strandline: Command, log: Log, folder: Path, tmp_path: Path
) -> None:
    to = tmp_path / "lake"
    log.create_topic("sales", 2)
    log.append("sales", [{"key": b"k%d" % n, "value": b"v"} for n in range(10)])
    command = ("offload", "sales", "--to", str(to), "--log", str(folder))
    first = strandline(*command, "--json").json
    assert (first["topic"], first["rows"], first["commits"]) == ("sales", 10, 1)
    assert first["gaps"] == []
    again = strandline(*command)
    assert again.code == 0
    added = f"0 records of sales were added to {to} (files: 0, size: 0 B, commits: 0)\n"
    assert again.out == added
    log.append("sales", [{"value": b"w"}] * 4, partition=0)
    log.broker.delete_records(TopicPartition("sales", 0), -1)
    lost = strandline(*command)
    assert lost.code == 1
    assert "partition 0: records from offset" in lost.err
    assert "--on-data-loss continue" in lost.err
    accepted = strandline(*command, "--on-data-loss", "continue")
    assert accepted.code == 0
    assert "left out, because it was removed before it was loaded: partition 0" in accepted.err


def test_a_declared_topic_is_decoded(
    strandline: Command, tmp_path: Path, log: Log, folder: Path
) -> None:
    module = tmp_path / "counted.py"
    module.write_text(
        "import strandline as sl\n"
        "app = sl.App('counted')\n"
        "counts = app.topic('counts', key=str, value=int)\n"
    )
    log.create_topic("counts")
    log.append("counts", [{"key": b"AA", "value": b"\x07"}])
    to = tmp_path / "lake"
    command = ("offload", "counts", "--to", str(to), "--log", str(folder))
    done = strandline(*command, "--app", f"{module}:app", "--partition-by", "day")
    assert done.code == 0, done.err
    (file,) = to.rglob("*.parquet")
    (row,) = pq.ParquetFile(file).read(["key", "value"]).to_pylist()
    assert row == {"key": "AA", "value": 7}
    missing = strandline("offload", "other", "--to", str(to), "--app", f"{module}:app")
    assert missing.code == 1
    assert "declares no topic 'other'; its topics: counts" in missing.err


def test_wrong_calls_are_refused(
    strandline: Command, log: Log, folder: Path, tmp_path: Path
) -> None:
    log.create_topic("sales")
    to = str(tmp_path / "lake")
    command = ("offload", "sales", "--log", str(folder))
    for wrong in (
        (),
        ("--to", to, "--format", "csv"),
        ("--to", to, "--max-file-rows", "0"),
        ("--to", to, "--format", "iceberg", "--catalog-option", "x"),
    ):
        assert strandline(*command, *wrong).code == 2
    refused = strandline(*command, "--to", "s3://bucket/x")
    assert refused.code == 1
    assert "not a local folder" in refused.err
    assert not (tmp_path / "lake").exists()
