"""Restoring partitions one by one: the work of a worker meanwhile, and progress reports."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.errors import DiskFull, RequestTimedOut, UnknownTopic
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.records import TopicPartition
from strandline.framework.container.folders import StoreFolders
from strandline.framework.container.restore import RestoreProgress
from strandline.framework.container.running import worker_on
from strandline.framework.container.worker import Worker
from strandline.framework.testing import TestDriver
from strandline.statestore.engines.folders import lock_folder

LETTERS = [(letter, 1) for letter in "abcdefgh"]
Handler = Callable[[sl.Record[str, int]], None]


def counting(path: Path, partitions: int = 2, on_record: Handler | None = None) -> sl.App:
    """Return an app that has counted each letter once, and must count each again with an empty
    disk."""
    app = sl.App("app", log=changelog.open(path / "log"), state_dir=path / "state")
    words = app.topic("words", value=int, partitions=partitions)
    seen = app.store("seen", value=int, default=0)
    again = False

    @app.task(words, stores=[seen])
    def count(record: sl.Record[str, int]) -> None:
        if again and on_record is not None:
            on_record(record)
        seen[record.key] += 1

    words.append(LETTERS)
    app.run(until="idle", timeout=60, progress=False)
    shutil.rmtree(path / "state")
    words.append(LETTERS)
    again = True
    return app


@contextmanager
def held_up(
    path: Path, partitions: int = 2, on_record: Handler | None = None, **options: Any
) -> Iterator[tuple[sl.App, Callable[[], None]]]:
    """Yield such an app, and a function that releases partition 1, which a dead worker's
    transaction blocks."""
    with changelog.open(path / "log") as log, log.producer(transactional_id="dead") as dead:
        log.create_topic("app-seen-changelog", partitions, config={"cleanup.policy": "compact"})
        dead.begin_transaction()
        dead.append("app-seen-changelog", [{"key": b"Qdead", "value": b"x"}], partition=1)
        app = counting(path, partitions, on_record)
        app.session.options = replace(app.session.options, **options)
        yield app, dead.abort_transaction
        app.log.close()  # type: ignore[union-attr]


def test_a_failed_partition_does_not_end_the_run_while_another_is_restored(
    tmp_path: Path,
) -> None:
    handled: set[int] = set()
    let_go: Callable[[], None]

    def poison(record: sl.Record[str, int]) -> None:
        handled.add(record.partition)
        if record.partition == 0:
            threading.Timer(0.1, let_go).start()
            raise ValueError("poison")

    with held_up(tmp_path, on_record=poison) as (app, let_go):
        with pytest.raises(sl.TaskFailed):
            app.run(until="idle", timeout=60, progress=False)
        assert handled == {0, 1}


def test_a_bounded_run_waits_for_restores_without_spinning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cycles, cycle = 0, Worker.cycle

    def counted(self: Worker, **named: Any) -> int:
        nonlocal cycles
        cycles += 1
        return cycle(self, **named)

    with held_up(tmp_path) as (app, let_go):
        monkeypatch.setattr(Worker, "cycle", counted)
        threading.Timer(1.0, let_go).start()
        app.run(until="idle", timeout=60, progress=False)
        assert cycles < 200


def test_partitions_that_wait_for_a_transaction_hold_no_thread(
    tmp_path: Path, eventually: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[int] = []
    said: list[RestoreProgress] = []

    def note(record: sl.Record[str, int]) -> None:
        handled.append(record.partition)

    with held_up(tmp_path, 4, note, restore_threads=1) as (app, let_go):
        others = {at for at in range(4) if at != 1}
        running = threading.Thread(target=app.run, kwargs={"progress": said.append}, daemon=True)
        running.start()
        eventually(lambda: set(handled) == others, what="the partitions that wait for nothing")
        eventually(lambda: "waits for a transaction" in caplog.text, what="the warning")
        assert caplog.text.count("waits for a transaction") == 1
        assert set(handled) == others
        let_go()
        eventually(lambda: len(handled) == len(LETTERS), what="the partition that waited")
        app.stop()
        running.join(60)
        assert not running.is_alive()
        assert said[-1].done
        assert app.query(app.declared.stores["seen"]).to_dict() == dict.fromkeys("abcdefgh", 2)


@pytest.mark.parametrize("error", [RequestTimedOut, DiskFull])
def test_partitions_that_fail_together_are_one_failure_and_restored_ones_begin(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = sl.App("app")
    app.task(app.topic("words", value=int, partitions=12), name="count")(lambda record: None)
    with TestDriver(app) as driver:
        tasks = driver.worker._tasks
        driver.worker._committer._drop()
        bring_back = tasks._openings._run

        def refused(opening: Any) -> Any:
            if opening.partitions == {("words", 7)}:
                return bring_back(opening)
            raise error("for a moment")

        with monkeypatch.context() as refusing:
            refusing.setattr(tasks._openings, "_run", refused)
            tasks.open([TopicPartition("words", number) for number in range(12)])
        before = tasks.instances
        with pytest.raises(error):
            tasks.ready()
        assert [instance.partition for instance in tasks.instances] == [7]
        assert before == []  # the caller's list has not changed
        assert not tasks.is_opening
        driver.settle()
        assert [instance.partition for instance in tasks.instances] == list(range(12))


def test_a_progress_function_that_raises_leaves_no_member_in_the_group(tmp_path: Path) -> None:
    def broken(_: RestoreProgress) -> None:
        raise BrokenPipeError("nobody reads it")

    with held_up(tmp_path, partitions=3, restore_threads=1) as (app, _):
        with pytest.raises(BrokenPipeError) as raised:
            app.run(timeout=60, progress=broken)
        assert raised.value  # the exception keeps the worker alive
        assert not app.broker().describe_group("app").members


def test_a_progress_function_that_raises_at_the_end_does_not_keep_stores_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(progress: RestoreProgress) -> None:
        if progress.done:
            raise BrokenPipeError("nobody reads it")

    with held_up(tmp_path, partitions=3, restore_threads=1) as (app, _):
        # 0 is at work, 1 is blocked, and 2 waits for the thread until it is no longer needed.
        app.run(timeout=2, progress=broken)
        lock_folder(LocalStorage(tmp_path / "state/app/seen"), "0").release()
        assert "a progress function raised: nobody reads it" in caplog.text


def test_a_progress_function_is_called_by_one_thread_at_a_time(tmp_path: Path) -> None:
    """A worker may get more partitions while it still restores."""
    within = most = 0
    told: list[bool] = []

    def progress(restored: RestoreProgress) -> None:
        nonlocal within, most
        within += 1
        most = max(most, within)
        time.sleep(0.05)
        told.append(restored.done)
        within -= 1

    app = counting(tmp_path)
    worker = worker_on(
        *(
            app.broker(),
            app.declared,
            app.session.clock,
            app.session.options,
            StoreFolders(None, app.session.clock),
        ),
        on_restore=progress,
    )
    for number in range(2):
        worker._tasks.open([TopicPartition("words", number)])
    worker._tasks.wait(60)
    worker.close()
    app.log.close()  # type: ignore[union-attr]
    assert most == 1
    assert told[-1]


def test_metrics_are_available_while_a_progress_function_runs(tmp_path: Path) -> None:
    """Metrics are read from within it, and from outside while it blocks, like a stopped
    terminal."""
    stuck: list[bool] = []

    def progress(_: RestoreProgress) -> None:
        asking = threading.Thread(target=app.runner.metrics, daemon=True)
        asking.start()
        asking.join(30)
        stuck.append(asking.is_alive())

    app = counting(tmp_path, partitions=1)
    app.run(until="idle", timeout=60, progress=progress)
    app.log.close()  # type: ignore[union-attr]
    assert stuck
    assert not any(stuck)


def test_a_deleted_changelog_ends_the_wait_for_its_transaction(tmp_path: Path) -> None:
    with held_up(tmp_path) as (app, _):
        deleted = threading.Event()

        def delete() -> None:
            while not (app.runner.worker and app.runner.worker._tasks.is_opening):
                time.sleep(0.01)
            time.sleep(0.3)
            app.broker().delete_topic("app-seen-changelog")
            deleted.set()

        deleting = threading.Thread(target=delete, daemon=True)
        deleting.start()
        with pytest.raises(UnknownTopic, match="app-seen-changelog"):
            app.run(timeout=30, progress=False)
        deleting.join()
        assert deleted.is_set()
