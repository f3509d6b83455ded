"""Faults of Faust's own transport, shown on a real Kafka by the apps of the other tests.

`test_failures` and `test_exactly_once` hold Strandline's transport to what fails here. If a later
release of Faust mends a fault, its test fails and can go.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faust.faust_workers import FaustLog, FaustProcess, eventually, worker
from tests.systems import System

pytestmark = pytest.mark.parametrize("system", ["kafka"], indirect=True)


@contextmanager
def stock_worker(app: str, system: System, folder: Path) -> Iterator[FaustProcess]:
    """Run a worker on Faust's own transport and store during the block."""
    own = {"FAUST_BROKER": system.url, "FAUST_STORE": "memory://"}
    with worker(app, system, folder, **own) as running:
        yield running


def test_a_record_whose_agent_raises_is_acknowledged_and_its_changes_are_kept(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    log.create("orders", 1)
    orders = ["a", "bad", "b"]
    log.append("orders", [{"value": json.dumps(order).encode()} for order in orders])
    with stock_worker("sample_failing", system, tmp_path):
        eventually(lambda: log.committed("failing", "orders") == {0: 3})
        eventually(lambda: log.latest("failing-totals-changelog") == {"orders": 3})
