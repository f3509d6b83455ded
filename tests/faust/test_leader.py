"""Leader election among workers: one leads at a time, and another one follows a dead leader."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from strandline import changelog
from strandline.changelog.log import Log
from tests.faust.faust_workers import by_key, eventually, in_folder, rows, worker


def greeters(log: Log) -> list[str]:
    """Return the workers that have sent greetings, in the order of the log."""
    return [
        greeting.split()[-1] for _, _, greeting, _ in rows(log, "said") if greeting != "crontab"
    ]


def test_another_worker_leads_after_the_leader_was_killed(tmp_path: Path) -> None:
    with changelog.open(tmp_path / "log") as log, ExitStack() as stack:
        workers = {
            name: stack.enter_context(
                worker("sample_leader", in_folder(tmp_path), tmp_path, FAUST_NAME=name)
            )
            for name in ("one", "two")
        }
        eventually(lambda: len(log.broker.describe_group("leading").members) == 2)
        # Standby copies of the leader's partition lead nothing.
        eventually(lambda: len(greeters(log)) > 10 and len(set(greeters(log)[-10:])) == 1)
        count = len(greeters(log))
        eventually(lambda: len(greeters(log)) > count + 10)
        assert len(set(greeters(log)[count:])) == 1
        listeners = {name for of in by_key(log, "said").values() for name in of}
        assert listeners <= {"one", "two"}
        leader = greeters(log)[-1]
        workers.pop(leader).kill()
        [(left, running)] = workers.items()
        eventually(lambda: greeters(log)[-1] == left)
        count = len(rows(log, "said"))
        eventually(lambda: len(rows(log, "said")) > count + 5)
        assert set(greeters(log)[count:]) == {left}
        assert running.stop() == 0
