"""Faust's own transport on a real Kafka: its faults, and apps that come from it.

`test_failures` and `test_exactly_once` hold Strandline's transport to what fails here. If a later
release of Faust mends a fault, its test fails and can go.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faust.faust_workers import FaustLog, FaustProcess, eventually, worker
from tests.systems import System

pytestmark = pytest.mark.parametrize("system", ["kafka"], indirect=True)


@contextmanager
def stock_worker(app: str, system: System, folder: Path, **env: str) -> Iterator[FaustProcess]:
    """Run a worker on Faust's own transport and store during the block."""
    own = {"FAUST_BROKER": system.url, "FAUST_STORE": "memory://", **env}
    with worker(app, system, folder, **own) as running:
        yield running


def test_a_record_whose_agent_raises_is_acknowledged_and_its_changes_are_kept(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    log.create("orders", 1)
    log.create("accepted", 1)
    orders = ["a", "bad", "b"]
    log.append("orders", [{"value": json.dumps(order).encode()} for order in orders])
    with stock_worker("sample_failing", system, tmp_path):
        eventually(lambda: log.committed("failing", "orders") == {0: 3})
        eventually(lambda: log.latest("failing-totals-changelog") == {"orders": 3})


def test_an_app_goes_on_with_the_offsets_and_tables_of_stock_faust(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    def post(*texts: str) -> None:
        log.append("posts", [{"value": json.dumps(text).encode()} for text in texts])

    def are(**counts: int) -> Callable[[], bool]:
        return lambda: log.latest("wordcount-word_counts-changelog") == counts

    log.create("posts", 2)
    # Stock Faust may wait for ever for a topic that its first send creates.
    log.create("running", 2)
    post("a b a", "c a")
    with stock_worker(
        "sample_word_count", system, tmp_path, FAUST_GUARANTEE="at_least_once"
    ) as stock:
        eventually(are(a=3, b=1, c=1))
        with worker("sample_word_count", system, tmp_path) as early:
            assert early.ended(60) != 0
        assert "members of another kind are in the group" in early.text()
        post("b")
        eventually(are(a=3, b=2, c=1))
        assert stock.stop() == 0
    post("a d", "c")
    with worker("sample_word_count", system, tmp_path) as here:
        eventually(are(a=4, b=2, c=2, d=1))
        assert here.stop() == 0


@pytest.mark.slow
@pytest.mark.long_on_kafka
def test_a_changelog_that_ends_with_a_marker_stalls_stock_faust(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    """faust-streaming #176 and #432, and the reason why no app with tables goes back."""
    log.create("posts", 2)
    log.create("running", 2)
    log.append("posts", [{"value": b'"a b"'}])
    with worker("sample_word_count", system, tmp_path) as here:
        eventually(lambda: log.latest("wordcount-word_counts-changelog") == {"a": 1, "b": 1})
        assert here.stop() == 0
    with stock_worker(
        "sample_word_count", system, tmp_path, FAUST_GUARANTEE="at_least_once"
    ) as stock:
        eventually(lambda: "No event received for active tp" in stock.text(), within=90)
        assert "Recovery complete" not in stock.text()
