"""The log's owner dies under a running worker, and another owner takes over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import strandline as sl
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.memory_storage import MemoryStorage
from strandline.framework.container.restore import RestoreProgress
from strandline.statestore.spec import StoreLimits


class TakenOver:
    """A log whose owner can be lost. The next owner opens the same storage."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.owner = Owner(self.storage, background=False)

    def lose_owner(self) -> None:
        self.storage.crash()
        self.owner = Owner(self.storage, background=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.owner, name)


def test_a_store_continues_from_its_checkpoint_after_a_takeover_of_the_log(
    tmp_path: Path,
) -> None:
    log = TakenOver()
    app = sl.App("app", log=log, state_dir=tmp_path)  # type: ignore[arg-type]
    words = app.topic("words", value=int)
    often = StoreLimits(checkpoint_interval_ms=0)
    seen = app.store("seen", value=int, default=0, limits=often)
    taken_over = False

    @app.task(words, stores=[seen])
    def count(record: sl.Record[str, int]) -> None:
        nonlocal taken_over
        seen[record.key] += 1
        if record.value == 7 and not taken_over:
            taken_over = True
            log.lose_owner()

    words.append([("a", 1)])
    app.run(until="idle")
    words.append([("a", 2), ("b", 7)])
    app.run(until="idle")
    assert taken_over
    assert app.query(seen).to_dict() == {"a": 2, "b": 1}

    said: list[RestoreProgress] = []
    app.run(until="idle", progress=said.append)
    assert said[-1].done
    assert said[-1].records == 0
