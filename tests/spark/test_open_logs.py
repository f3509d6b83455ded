"""Logs that a reused process of Spark keeps open for its next task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from strandline.changelog.errors import InvalidConfig
from strandline.framework.spark import open_logs
from strandline.framework.spark.open_logs import REUSED, KeptLogs, opened

if TYPE_CHECKING:
    from strandline.changelog.log import Log


class Closable:
    """A log that only tells if it is closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Periods:
    """Periods that end when the test says so."""

    def __init__(self) -> None:
        self.running: list[Callable[[], None]] = []

    def start(self, end: Callable[[], None]) -> None:
        self.running.append(end)
        assert len(self.running) == 1, "two periods run at a time"

    def end(self) -> None:
        self.running.pop()()


@pytest.fixture
def periods() -> Periods:
    return Periods()


@pytest.fixture
def kept(periods: Periods, monkeypatch: pytest.MonkeyPatch) -> KeptLogs:
    """Make this process one that Spark reuses."""
    kept = KeptLogs(periods.start)
    monkeypatch.setattr(open_logs, "_kept", kept)
    monkeypatch.setattr(open_logs, "open_log", lambda _: Closable())
    monkeypatch.setenv(REUSED, "1")
    return kept


def use(path: Path) -> Closable:
    """Use a log in one task."""
    with opened(str(path)) as log:
        found = cast("Closable", log)
        assert not found.is_closed
    return found


def test_the_next_task_takes_the_log_of_the_last_one(kept: KeptLogs, tmp_path: Path) -> None:
    assert use(tmp_path) is use(tmp_path)


def test_a_process_that_is_not_reused_closes_its_log(
    kept: KeptLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(REUSED)
    assert use(tmp_path).is_closed


def test_a_log_that_no_task_takes_for_a_period_is_closed(
    kept: KeptLogs, periods: Periods, tmp_path: Path
) -> None:
    log = use(tmp_path)
    for _ in range(3):
        periods.end()
        assert use(tmp_path) is log
    periods.end()
    assert not log.is_closed
    periods.end()
    assert log.is_closed
    assert not periods.running
    assert use(tmp_path) is not log
    assert periods.running


def test_tasks_at_the_same_time_have_a_log_each(kept: KeptLogs, tmp_path: Path) -> None:
    with opened(str(tmp_path)) as outer:
        inner = use(tmp_path)
        assert inner is not cast("Closable", outer)
    assert inner.is_closed
    assert use(tmp_path) is cast("Closable", outer)


def test_a_log_whose_task_failed_is_not_used_again(kept: KeptLogs, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig), opened(str(tmp_path)) as log:
        raise InvalidConfig("a task")
    failed = cast("Closable", log)
    assert failed.is_closed
    assert use(tmp_path) is not failed


def test_another_folder_at_the_path_is_opened_again(kept: KeptLogs, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    first = use(folder)
    folder.rename(tmp_path / "moved")
    folder.mkdir()
    assert use(folder) is not first
    assert first.is_closed


def test_all_kept_logs_are_closed_at_the_end(kept: KeptLogs, tmp_path: Path) -> None:
    logs = [use(tmp_path), use(tmp_path / "other")]
    kept.close()
    assert [log.is_closed for log in logs] == [True, True]


def test_a_real_log_is_used_by_two_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from strandline import changelog

    monkeypatch.setenv(REUSED, "1")
    path = tmp_path / "log"
    with changelog.open(path) as owner:
        owner.create_topic("t", 1)
        found: list[Log] = []
        for number in range(2):
            with opened(str(path)) as log:
                log.append("t", [{"value": b"%d" % number}])
                found.append(log)
        assert found[0] is found[1]
        assert owner.read("t")["value"].to_pylist() == [b"0", b"1"]
        open_logs._kept.close()
