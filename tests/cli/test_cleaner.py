"""`strandline cleaner`: what there is to clean, and what there is not."""

from __future__ import annotations

from changelog.log import Log
from tests.cli.conftest import Command


def test_a_topic_that_is_not_compacted_is_no_clean_one(log: Log, strandline: Command) -> None:
    log.create_topic("sales")
    log.append("sales", [{"key": b"a", "value": b"1"}])
    for command in ("cleaner", "clean"):
        outcome = strandline(command, "sales")
        assert outcome.code == 1
        assert "'sales' is not compacted (cleanup.policy=delete)" in outcome.err
        assert "`strandline topics alter sales --config cleanup.policy=compact`" in outcome.err
    assert strandline("topics", "alter", "sales", "--config", "cleanup.policy=compact").code == 0
    assert "sales-0" in strandline("cleaner", "sales").out
