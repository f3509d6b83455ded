"""What commands say is right on every system that may hold the log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from changelog.log import Log
from changelog.records import CommittedOffset, TopicPartition
from tests.cli.conftest import Command, strandline
from tests.systems import System

__all__ = ["strandline"]


@pytest.fixture
def folder(system: System) -> Path | str:
    """The log that commands mean."""
    return system.url


def test_reset_tells_what_it_does_only_if_nobody_is_at_work(
    strandline: Command, log: Log, first: TopicPartition, name: str, eventually: Callable[..., None]
) -> None:
    log.broker.commit_offsets(name, {first: CommittedOffset(0)})
    with log.consumer(group=name) as member:
        member.subscribe(first.topic)
        eventually(lambda: [member.poll(0), member.assignment][1], what="an assignment")
        refused = strandline("reset", name, "--yes")
        assert refused.code == 1
        assert f"app '{name}' is running" in refused.err
        assert "on Kafka, as a static one" in refused.err
        assert "forget" not in refused.err
    eventually(lambda: not log.broker.describe_group(name).members, what="its leaving")
    done = strandline("reset", name, "--yes")
    assert (done.code, f"forget 1 committed offsets in {first.topic}" in done.err) == (0, True)
