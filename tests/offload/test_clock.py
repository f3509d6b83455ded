"""Loads while the clock of the machine is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

import strandline as sl
from strandline.changelog.clock import SystemClock
from strandline.changelog.log import Log
from tests.offload.kit import append, committed, create, places, sales, stored

SCHEMA = sales(0, 1).schema


def test_no_commit_of_an_iceberg_table_goes_back_in_time(
    log: Log, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other readers refuse a table with a snapshot more than a minute before the last one."""
    create(log, "t", 1, schema=SCHEMA)
    append(log, "t", sales(0, 10), 1)
    sl.offload("t", to, log=log, format="iceberg")
    append(log, "t", sales(10, 10), 1)
    with monkeypatch.context() as patch:
        now_ms = SystemClock.now_ms
        patch.setattr(SystemClock, "now_ms", lambda self: now_ms(self) - 600_000)
        with pytest.raises(sl.InvalidRequest, match="clock of this machine is .* before the last"):
            sl.offload("t", to, log=log, format="iceberg")
    assert len(stored("iceberg", to)) == 10
    assert sl.offload("t", to, log=log, format="iceberg").rows == 10
    assert places(stored("iceberg", to)) == committed(log, "t")
