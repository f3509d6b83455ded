"""Tables that get a window, lose it, or get another one, while they have data."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from strandline import changelog
from strandline.changelog.log import Log
from strandline.statestore.recorded import declarations_topic
from tests.faust.faust_workers import FaustProcess, append, eventually, in_folder, latest, worker

APP = """
import os
import faust
from sample_settings import BROKER

app = faust.App(
    "changing", broker=BROKER, store="strandline://", processing_guarantee="exactly_once",
    topic_partitions=1, broker_commit_interval=0.1,
)
source = app.topic("source", key_type=str, value_type=int)
sums = app.Table("sums", default=int)
sums = {
    "": lambda: sums,
    "tumbling": lambda: sums.tumbling(10),
    "expiring": lambda: sums.tumbling(10, expires=3600),
    "hopping": lambda: sums.hopping(10, 5),
}[os.environ["WINDOW"]]()

@app.agent(source)
async def add(stream):
    async for key, value in stream.items():
        sums[key] += value
"""
TABLE = "changing-sums-changelog"
DECLARATIONS = declarations_topic("changing")


def add(log: Log, folder: Path, window: str) -> None:
    """Run a worker with this window of the table until it has added 1 for one key."""
    before = changes(log)
    append(log, "source", [1], ["k"])
    with started(folder, window) as running:
        eventually(lambda: changes(log) > before)
        assert running.stop() == 0


def changes(log: Log) -> int:
    """Return the end of the table's changelog; 0 if it does not exist."""
    is_there = TABLE in {topic.name for topic in log.topics()}
    return log.offsets(TABLE)[0].last_stable_offset if is_there else 0


def started(folder: Path, window: str) -> AbstractContextManager[FaustProcess]:
    """Run a worker with this window of the table."""
    (folder / "changing.py").write_text(APP)
    return worker("changing", in_folder(folder), folder, WINDOW=window)


def refusal(log: Log, folder: Path, window: str) -> str:
    """Run a worker that must not start, and must leave the table; return its output in one line."""
    before = latest(log, TABLE)
    append(log, "source", [1], ["k"])
    with started(folder, window) as running:
        assert running.ended() != 0
        assert latest(log, TABLE) == before
        return " ".join(running.text().split())


def test_another_window_is_refused_and_another_expiry_is_not(tmp_path: Path) -> None:
    with changelog.open(tmp_path / "log") as log:
        log.create_topic("source", partitions=1)
        add(log, tmp_path, "tumbling")
        for other, change in [
            ("", 'window: {"size":10.0,"step":10.0} before, null now'),
            ("hopping", "window.step: 10.0 before, 5.0 now"),
        ]:
            output = refusal(log, tmp_path, other)
            assert "store 'sums' is declared otherwise" in output
            assert change in output
            assert "strandline reset changing" in output
        add(log, tmp_path, "expiring")
        assert sum(latest(log, TABLE).values()) == 4  # with the two that were not handled


def test_keys_without_a_window_end_the_worker_of_a_table_that_expires(tmp_path: Path) -> None:
    """An earlier version did not record windows, so it let a table become windowed."""
    with changelog.open(tmp_path / "log") as log:
        log.create_topic("source", partitions=1)
        add(log, tmp_path, "")
        assert forget_window(log) == '{"window":null}'
        output = refusal(log, tmp_path, "expiring")
        assert f"{TABLE}-0 has the key 'k' without a window" in output
        assert "strandline reset changing" in output


def forget_window(log: Log) -> str | None:
    """Record the table as earlier versions did; return the definition that it had."""
    found = definition(log)
    [row] = declared(log)
    document = json.loads(row["value"])
    del document["definition"]
    log.append(DECLARATIONS, [{"key": row["key"], "value": json.dumps(document).encode()}])
    assert definition(log) is None
    return found


def definition(log: Log) -> str | None:
    """Return the recorded definition of the table."""
    [row] = declared(log)
    found: str | None = json.loads(row["value"]).get("definition")
    return found


def declared(log: Log) -> list[dict[str, Any]]:
    """Return the newest recorded declaration of each table."""
    rows = {row["key"]: row for row in log.read(DECLARATIONS).to_pylist()}
    return list(rows.values())
