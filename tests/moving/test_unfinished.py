"""An app or a query on the target of a move that is not finished is refused, and counts nothing."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import MoveUnfinished
from strandline.changelog.moving import MovedLog, Selection, groups, journal, move
from strandline.changelog.moving.journal import unfinished


class Killed(BaseException):
    """Death of the process: nothing after it is done."""


class Shop:
    """An app that counts sales, with a log of its own."""

    def __init__(self, log: Path) -> None:
        self.app = sl.App("shop", log=str(log))
        self.sales = self.app.topic("sales", key=str, value=int)
        self.totals = self.app.counter("totals")

        @self.app.task(self.sales, stores=[self.totals])
        def add(record: sl.Record[str, int]) -> None:
            self.totals.add(record.key, record.value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.app.close()

    def sell(self, count: int) -> None:
        self.sales.append([("york", 1)] * count)
        self.app.run(until="idle")

    def total(self) -> int:
        self.app.run(until="idle")
        return self.app.query(self.totals)["york"]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The folder of a log in which 10 sales were counted."""
    with Shop(tmp_path / "here") as shop:
        shop.sell(10)
    return tmp_path / "here"


def moved(here: Path, there: Path, selection: Selection | None = None) -> None:
    with changelog.open(here) as source, changelog.open(there) as target:
        move(MovedLog("here", source.broker), MovedLog("there", target.broker), selection)


def killed_before_offsets(here: Path, there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(groups, "commit", die)
        moved(here, there)


def test_an_app_on_a_copy_without_offsets_is_refused(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    killed_before_offsets(here, there, monkeypatch)
    with (
        Shop(there) as shop,
        pytest.raises(MoveUnfinished, match=r"topic 'sales' .* Run `strandline move` again"),
    ):
        shop.total()
    moved(here, there)
    with Shop(there) as shop:
        assert shop.total() == 10


def test_an_app_on_a_copy_with_the_offsets_of_an_earlier_run_is_refused(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    moved(here, there)
    with Shop(here) as shop:
        shop.sell(5)
    killed_before_offsets(here, there, monkeypatch)
    with Shop(there) as shop, pytest.raises(MoveUnfinished):
        shop.total()
    moved(here, there)
    with Shop(there) as shop:
        assert shop.total() == 15


def test_a_query_on_a_part_of_a_changelog_is_refused(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    killed_before_offsets(here, there, monkeypatch)
    with sl.connect(there) as log, pytest.raises(MoveUnfinished, match="shop-totals-changelog"):
        log.store("shop/totals")
    moved(here, there)
    with sl.connect(there) as log:
        assert log.store("shop/totals")["york"] == 10


def test_topics_of_another_selection_are_not_refused(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    with changelog.open(here) as log:
        log.create_topic("other")
        log.append("other", [{"value": b"1"}])
    killed_before_offsets(here, there, monkeypatch)
    moved(here, there, Selection(["other"]))
    with changelog.open(there) as log:
        names = unfinished(log.broker, SystemClock())
    assert set(names) == {"sales", "shop-declarations", "shop-totals-changelog"}
    with Shop(there) as shop, pytest.raises(MoveUnfinished):
        shop.total()


def test_a_topic_that_replaces_a_deleted_copy_is_not_refused(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    killed_before_offsets(here, there, monkeypatch)
    with changelog.open(there) as log:
        for info in log.topics():
            log.delete_topic(info.name)
    with Shop(there) as shop:
        shop.sell(3)
        assert shop.total() == 3


def test_a_copy_by_an_earlier_version_is_finished(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    written = journal.Journal.write

    def as_before(self: journal.Journal, producer: Any, entries: Any) -> Any:
        kept = [one for one in entries if not isinstance(one, journal.MoveFinished)]
        for at, one in enumerate(kept):
            if isinstance(one, journal.TopicVerified):
                kept[at] = journal.TopicVerified(one.source_id)
        return written(self, producer, kept)

    with monkeypatch.context() as patch:
        patch.setattr(journal.Journal, "write", as_before)
        moved(here, there)
    with changelog.open(there) as log:
        keys = log.read("__strandline_moves")["key"].to_pylist()
    assert keys[-1] == b"positions"
    with Shop(there) as shop:
        assert shop.total() == 10
