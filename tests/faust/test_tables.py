"""Tables: iteration, deletion, windows that expire, concurrent agents, and views of all workers."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faust.faust_workers import FaustLog, eventually, free_port, worker
from tests.systems import System

NAMES = [f"n{number}" for number in range(12)]
STOCK, RECENT = "tables-stock-changelog", "tables-recent-changelog"


def add(log: FaustLog, rounds: int) -> Counter[str]:
    """Append additions, and return the stock that they make."""
    log.create("additions", 2)
    log.create("commands", 2)
    added = [(name, n + 1) for n in range(rounds) for name in NAMES]
    log.append(
        "additions",
        [{"key": json.dumps(name).encode(), "value": str(count).encode()} for name, count in added],
        key="key",
    )
    stock: Counter[str] = Counter()
    for name, count in added:
        stock[name] += count
    return stock


@pytest.mark.long_on_kafka
def test_tables_are_listed_deleted_from_and_expire(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    stock = add(log, 5)
    with worker("sample_tables", system, tmp_path) as running:
        eventually(lambda: log.latest(STOCK) == stock)
        assert log.rows(RECENT)
        eventually(lambda: log.latest(RECENT) == {})  # after its windows have expired
        for command in ("delete", "add"):
            order = {"key": b'"n0"', "value": json.dumps(command).encode()}
            log.append("commands", [order], key="key")
        answers = eventually(lambda: len(log.rows("listed")) == 2 and log.rows("listed"))
        assert running.stop() == 0
    deleted, added = (value for *_, value in answers)
    assert deleted[0] is False
    assert added[0] is True
    assert added[1] == deleted[1] + 1
    assert dict(added[2])["n0"] == 1000
    del stock["n0"]
    assert dict(deleted[2]).items() <= stock.items()
    assert log.latest(STOCK) == {**stock, "n0": 1000}


def test_a_view_finds_the_worker_that_has_the_key(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        stock = add(log, 2)
        ports = []
        for number in range(2):
            ports.append(free_port())
            folder = {"FAUST_DATADIR": str(tmp_path / f"data-{number}")}
            stack.enter_context(
                worker("sample_tables", system, tmp_path, web=ports[number], **folder)
            )
        eventually(lambda: log.latest(STOCK) == stock)
        eventually(lambda: log.owned("tables", "additions") == [1, 1])
        for port in ports:
            eventually(lambda port=port: all(view(port, n) == stock[n] for n in NAMES), within=30)


def view(port: int, name: str) -> int | None:
    """Return what a worker's view shows; None if it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/stock/{name}/", timeout=10) as page:
            shown: int = json.loads(page.read())[name]
            return shown
    except OSError:
        return None
