"""Records sent since the last commit: their memory is bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.framework.container import scheduler
from strandline.framework.container.session import WorkerSession
from strandline.framework.context import TaskContext
from strandline.framework.outbox import RECORD_BYTES, Outbox
from strandline.framework.trial import Trial
from strandline.statestore.memory import MemoryBudget

LIMIT = 400_000
"""Bytes above which a commit comes early, in these tests."""


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("partitions", [1, 8])
def test_a_commit_comes_early_when_much_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_async: bool, partitions: int
) -> None:
    make = MemoryBudget.__init__

    def small(budget: MemoryBudget, *given: Any) -> None:
        make(budget, *given)
        budget.uncommitted_bytes = LIMIT

    monkeypatch.setattr(MemoryBudget, "__init__", small)
    monkeypatch.setattr(scheduler, "FIRST_SLICE_RECORDS", 1)  # for plain handlers
    monkeypatch.setattr(scheduler, "MAX_SLICE_RECORDS", 1)
    monkeypatch.setattr(scheduler, "SLICE_SECONDS", 0.0)  # for async handlers
    commit, sent = WorkerSession.commit, []

    def counting(session: WorkerSession, instances: Any) -> None:
        boxes = (box for instance in instances for box in instance.outboxes.values())
        sent.append(sum(len(value) for box in boxes for value in box.values))
        commit(session, instances)

    monkeypatch.setattr(WorkerSession, "commit", counting)
    app = sl.App("app", log=tmp_path / "log", commit_interval_ms=3_600_000)
    words = app.topic("words", key=str, value=int, partitions=partitions)
    out = app.topic("out", key=str, value=bytes)

    def enlarge(record: sl.Record[str, int]) -> None:
        out.send(record.key, bytes(LIMIT // 4))

    async def enlarge_async(record: sl.Record[str, int]) -> None:
        enlarge(record)

    handler: Any = enlarge_async if is_async else enlarge
    app.task(words, name="t")(handler)
    with app:
        words.append([(str(n), n) for n in range(48)])
        app.run(until="idle", progress=False)
        assert len(out.to_polars()) == 48
    # A slice of each partition may come on top.
    assert max(sent) <= LIMIT + partitions * LIMIT // 4
    assert len(sent) >= 4


def test_an_outbox_estimates_its_memory() -> None:
    box = Outbox(TaskContext("app", "t", 0), Trial(), None)
    for value in (b"x" * 1_000, "y" * 500, 7, None):
        box.put("k", value, 0)
    assert box.measure() == box.measure() == 1_500 + 4 * RECORD_BYTES
    box.put("k", b"z" * 10, 0)
    assert box.measure() == 1_510 + 5 * RECORD_BYTES
    box.clear()
    assert box.measure() == 0
