"""Requests that wait for replies: from a task, from a view, and from an agent."""

from __future__ import annotations

from pathlib import Path

from strandline import changelog
from strandline.changelog.log import Log
from tests.faust.faust_workers import by_key, eventually, free_port, in_folder, page, rows, worker

TABLE = "requests-asked-changelog"


def asked(log: Log) -> int:
    """Return the number of requests that the table has, over all partitions."""
    return sum({partition: n for partition, _, _, n in rows(log, TABLE)}.values())


def test_ask_join_and_map_from_a_task_a_view_and_an_agent(tmp_path: Path) -> None:
    port = free_port()
    with (
        changelog.open(tmp_path / "log") as log,
        worker("sample_requests", in_folder(tmp_path), tmp_path, web=port) as running,
    ):
        eventually(lambda: len(by_key(log, "answers")) == 4)
        assert by_key(log, "answers") == {
            "ask": [[900.0]],
            "join": [[300.0, 100.0, 200.0]],
            "kvjoin": [[100.0, 200.0]],
            "map": [[100.0, 400.0]],
        }
        assert page(port, "/times/4/") == {"answer": 400.0}
        eventually(lambda: asked(log) >= 9)  # more if a record was handled again
        assert running.stop() == 0
