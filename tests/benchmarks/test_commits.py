"""The benchmark of commits during cleaning runs, with a cleaner at work where needed; little
data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import commits
from benchmarks.commits import (
    DIRTY,
    PARTITIONS,
    RECORDS_PER_TRANSACTION,
    TOPIC,
    CommitsPlan,
    CommitsRun,
)
from benchmarks.keyed_records import BATCH_RECORDS
from strandline import changelog


def test_a_run_has_percentiles_and_a_rate() -> None:
    run = CommitsRun([float(n) for n in range(101)], 2.0)
    assert (run.at(50), run.at(99), run.rate) == (50.0, 99.0, 50.5)


def test_a_commit_writes_its_records_to_all_partitions(tmp_path: Path) -> None:
    with changelog.open(tmp_path, role="own") as log:
        log.create_topic(TOPIC, PARTITIONS)
        with log.producer(transactional_id="commits") as producer:
            left = iter(range(2))  # after the first
            times = commits.as_fast_as_it_can(producer, lambda: next(left, None) is not None)
        assert len(times) == 3
        assert log.read(TOPIC).num_rows == 3 * RECORDS_PER_TRANSACTION


def test_a_late_commit_is_timed_from_its_due_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Watch:
        seconds = 0.0

    watch = Watch()
    slow = iter([0.1, 0.0, 0.0])

    def commit(_: object) -> None:
        watch.seconds += next(slow)

    def sleep(seconds: float) -> None:
        watch.seconds += seconds

    monkeypatch.setattr(commits, "Stopwatch", lambda: watch)
    monkeypatch.setattr(commits, "_commit", commit)
    monkeypatch.setattr(commits.time, "sleep", sleep)
    left = iter(range(2))  # after the first
    producer: commits.Producer = object()  # type: ignore[assignment]
    times = commits.steadily(producer, lambda: next(left, None) is not None)
    assert times == [pytest.approx(100.0), pytest.approx(80.0), pytest.approx(60.0)]


@pytest.mark.parametrize("cleaning", [True, False])
def test_the_topic_is_cleaned_only_if_requested(cleaning: bool, tmp_path: Path) -> None:
    with changelog.open(tmp_path, role="own") as log:
        commits._prepare(log, CommitsPlan(dirty=3 * BATCH_RECORDS), cleaning, None)
        assert commits._is_cleaned(log) is None
        if cleaning:
            log.broker.clean([DIRTY])
            assert commits._is_cleaned(log) is not None
        assert log.config().cleaner.enable is cleaning


@pytest.mark.slow
def test_the_benchmark_runs() -> None:
    found = list(commits.figures(CommitsPlan(dirty=3 * BATCH_RECORDS, seconds=0.2, rounds=1)))
    assert len(found) == 2 * 2 * 4
    assert {figure.unit for figure in found} == {"ms", "commits/s"}
    assert all(np.isfinite(figure.ratio) and figure.ours > 0 for figure in found)
