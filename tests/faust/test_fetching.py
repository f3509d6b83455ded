"""Records on their way from the log to agents: none waits for another partition's agent."""

from __future__ import annotations

from pathlib import Path

from strandline import changelog
from tests.faust.faust_workers import append, by_key, eventually, in_folder, rows, worker


def test_an_agent_without_room_delays_no_other_topic(tmp_path: Path) -> None:
    """100 records are fetched for an agent that has room for 10, and waits for another topic."""
    with changelog.open(tmp_path / "log") as log:
        log.create_topic("many", 2)
        log.create_topic("signals", 2)
        append(log, "many", list(range(100)), [f"k{number}" for number in range(100)])
        with worker("sample_rooms", in_folder(tmp_path), tmp_path) as running:
            eventually(lambda: "waits for the signal" in running.text())
            append(log, "signals", [100], ["k"])
            eventually(lambda: len(rows(log, "handled")) == 101)
            assert running.stop() == 0
        assert sorted(value for *_, value in rows(log, "handled")) == list(range(101))


def test_agents_get_records_only_after_the_recovery(tmp_path: Path) -> None:
    """Faust's recovery lets records flow, seeks, and then empties the queues of the agents."""
    where = in_folder(tmp_path)
    with changelog.open(tmp_path / "log") as log:
        log.create_topic("source", 2)
        with worker("sample_recovery", where, tmp_path) as first:
            with worker("sample_recovery", where, tmp_path) as second:
                eventually(lambda: "Worker ready" in second.text())
                append(log, "source", [1] * 80, [f"k{number % 8}" for number in range(80)])
                eventually(lambda: rows(log, "copies"))
                assert second.stop() == 0
            eventually(lambda: len(rows(log, "copies")) >= 80)
            assert first.stop() == 0
        assert by_key(log, "copies") == {f"k{key}": list(range(1, 11)) for key in range(8)}
