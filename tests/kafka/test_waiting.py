"""A group that waits for a dead member: a new member logs the reason for the wait."""

from __future__ import annotations

import subprocess
import sys

import pytest

from strandline import changelog
from strandline.changelog.groups import Subscription
from strandline.changelog.kafka import members
from tests.workers.processes import ROOT

SESSION_MS = 4_000
DYING = """
import os, sys
from strandline import changelog
from strandline.changelog.groups import Subscription
url, name = sys.argv[1:]
log = changelog.open(url)
log.broker.join_group(name, Subscription((name,), together=[[name]], session_timeout_ms={session}))
os._exit(9)
"""


@pytest.mark.long
def test_waiting_for_a_dead_member_is_logged_once(
    kafka: str, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(members, "LOG_WAIT_AFTER_S", 0.0)
    how = Subscription((name,), together=[[name]], session_timeout_ms=SESSION_MS)
    with changelog.open(kafka) as log:
        log.create_topic(name, 2)
        log.broker.leave_group(log.broker.join_group(name, how))
        assert "earlier members" not in caplog.text, "it was the only one"
        subprocess.run(
            [sys.executable, "-c", DYING.format(session=SESSION_MS), kafka, name],
            cwd=ROOT,
            timeout=60,
            check=False,
        )
        log.broker.join_group(name, how)
    told = [record.getMessage() for record in caplog.records if "earlier" in record.getMessage()]
    assert len(told) == 1
    assert f"group {name!r} waits for earlier members (1)" in told[0]
    assert "(session_timeout_ms, 4 s here)" in told[0]
