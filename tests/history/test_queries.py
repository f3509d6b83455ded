"""A query client that is ahead of a restored log starts over in the log's new history."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from strandline.changelog.errors import OwnerUnavailable, RequestTimedOut
from strandline.changelog.history import HistoryEpoch
from strandline.changelog.records import PartitionOffsets
from strandline.framework.querying.messages import (
    FoundKeys,
    GetKeys,
    KeyValues,
    ReflectedPosition,
    Scanned,
    ScanRange,
)
from strandline.framework.querying.workers import WorkerSource
from strandline.statestore.reader import KeyRange

BACKUP, LATER, RESTORED = (
    HistoryEpoch(0, 0, "one"),
    HistoryEpoch(1, 4, "two"),
    HistoryEpoch(1, 4, "three"),
)
ROUNDS = 3


def changelog(end: int, *epochs: HistoryEpoch) -> PartitionOffsets:
    return PartitionOffsets(0, end, end, "id", epochs[-1].number, epochs)


class Worker:
    """A worker that owns one partition, and its log."""

    def __init__(self, end: int, *epochs: HistoryEpoch) -> None:
        self.is_at(end, *epochs)

    def is_at(self, end: int, *epochs: HistoryEpoch) -> None:
        self.log = changelog(end, *epochs)
        last = self.log.epoch_before(end)
        self.at = ReflectedPosition("id", end, last.number, last.incarnation)

    def changelog_ends(
        self, _store: str, partitions: Collection[int]
    ) -> dict[int, PartitionOffsets]:
        return dict.fromkeys(partitions, self.log)

    def changelog_id(self, _store: str) -> str:
        return "id"

    def gather(
        self,
        _store: str,
        _inputs: Collection[str],
        partitions: Collection[int],
        ask: Callable[[Any, str, list[int]], Collection[int]],
    ) -> None:
        for _ in range(ROUNDS):
            if ask(self.answer, "here", list(partitions)):
                return
        raise RequestTimedOut("nobody had it")

    def answer(self, _url: str, request: Any, _answer: Any) -> Any:
        if isinstance(request, GetKeys):
            asked = request.at_least.get(0)
            behind = asked is not None and self.at.offset < asked.offset
            return FoundKeys([] if behind else [KeyValues(0, [b"v"], self.at)])
        assert isinstance(request, ScanRange)
        behind = request.at_least is not None and self.at.offset < request.at_least.offset
        return Scanned(not behind, [], None, self.at)


def read(store: WorkerSource) -> list[bytes | None]:
    return store.read([0], [b"k"])[0]


def seen(worker: Worker) -> WorkerSource:
    """Return a client that has got an answer from the worker."""
    store = WorkerSource(worker, "totals", ["sales"])  # type: ignore[arg-type]
    assert read(store) == [b"v"]
    return store


def test_a_position_of_another_history_is_not_waited_for() -> None:
    worker = Worker(9, BACKUP, LATER)
    store = seen(worker)
    worker.is_at(5, BACKUP, RESTORED)
    assert read(store) == [b"v"]
    worker.log, worker.at = changelog(9, BACKUP, RESTORED), worker.at._replace(offset=4)
    with pytest.raises(RequestTimedOut):  # it has seen more of this history
        read(store)


def test_a_page_of_another_history_is_not_waited_for() -> None:
    worker = Worker(9, BACKUP, LATER)
    store = seen(worker)
    worker.is_at(5, BACKUP, RESTORED)
    assert store.page(0, KeyRange(), 9) == ([], None)


def test_a_lagging_worker_in_the_same_history_is_waited_for() -> None:
    worker = Worker(9, BACKUP, LATER)
    store = seen(worker)
    worker.log, worker.at = changelog(12, BACKUP, LATER), worker.at._replace(offset=8)
    with pytest.raises(RequestTimedOut):
        read(store)


def test_an_answer_of_another_store_is_not_accepted() -> None:
    """A worker of another app may listen at the address that a client has kept."""
    worker = Worker(9, BACKUP)
    store = seen(worker)
    worker.at = worker.at._replace(topic_id="of another app", offset=20)
    with pytest.raises(OwnerUnavailable, match="another app"):
        read(store)
    with pytest.raises(OwnerUnavailable, match="another app"):
        store.page(0, KeyRange(), 9)
    worker.is_at(10, BACKUP)
    assert read(store) == [b"v"]
