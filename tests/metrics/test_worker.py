"""Metrics of a worker match its work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.clock import SystemClock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import DiskFull, TransactionAborted
from strandline.changelog.log import Log
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.metrics import exposition
from strandline.changelog.records import TopicPartition
from strandline.framework.container import gauges, outage, sampling
from strandline.framework.container.running import worker_for
from strandline.statestore import StoreSpec, open_store
from strandline.statestore.store import AnyStore
from tests.metrics.running import Running, running
from tests.metrics.scraping import parsed
from tests.workers.pipeline import PARTITIONS

Eventually = Callable[..., None]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with changelog.open(tmp_path / "log", durability="os") as opened:
        yield opened


def some(count: int, start: int = 0) -> list[tuple[str, int]]:
    return [(f"{'abcdefgh'[n % 8]}{n % 40}", n) for n in range(start, start + count)]


def test_metrics_of_records_commits_and_stores_match_the_work(
    log: Log, tmp_path: Path, eventually: Eventually
) -> None:
    with running(log, tmp_path / "state") as one:
        one.made.words.append(some(2_000))
        handled = "strandline_records_handled_total"
        eventually(lambda: one.exports(2_000, handled, app="pipeline", task="spell"))
        eventually(lambda: one.exports(2_000, handled, app="pipeline", task="tally"))
        eventually(lambda: one.exports(0, "strandline_lag_records", topic="words"))
        seen = one.scraped()
        assert seen("strandline_handler_seconds_count", task="tally") == 2_000
        assert seen("strandline_handler_seconds_sum", task="tally") > 0
        commits = seen("strandline_commits_total")
        assert 0 < commits <= 4_000
        assert seen("strandline_commit_seconds_count") == commits
        assert seen("strandline_commit_recent_seconds", quantile="0.5") > 0
        assert seen("strandline_commits_aborted_total") == seen("strandline_fences_total") == 0
        assert seen("strandline_partitions", state="held") == 2 * PARTITIONS
        assert seen("strandline_rebalances_total", change="assigned") == 1
        assert seen("strandline_waiting_for_disk") == seen("strandline_failed_partitions") == 0
        # 40 words and 8 letters: each was looked up once in the engine, and is in memory now.
        assert seen("strandline_store_cache_misses_total", store="per-word") == 40
        assert seen("strandline_store_cache_misses_total", store="per-letter") == 8
        assert seen("strandline_store_entries", store="per-word") >= 40
        ends = log.offsets("pipeline-per-word-changelog")
        markers = sum(end.last_stable_offset for end in ends.values())
        assert 40 <= seen("strandline_store_changes_total", store="per-word") < markers
        assert seen("strandline_store_pending_bytes", store="per-word") > 0
        assert seen("strandline_store_cache_bytes", store="per-word") > 0
        assert seen("strandline_memory_budget_bytes") == 1 << 30


def test_look_ups_of_sampled_records_are_counted_by_their_result(
    log: Log, tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "SAMPLING_RATIO", 0)
    monkeypatch.setattr(sampling, "MAX_SAMPLE_RECORDS", 10_000)
    with running(log, tmp_path / "state") as one:
        one.made.words.append(some(2_000))
        handled = "strandline_records_handled_total"
        for task, store, keys in (("tally", "per-word", 40), ("spell", "per-letter", 8)):
            eventually(partial(one.exports, 2_000, handled, app="pipeline", task=task))
            seen = one.scraped()
            assert seen("strandline_store_sampled_misses_total", store=store) == keys
            assert seen("strandline_store_sampled_hits_total", store=store) == 2_000 - keys


@pytest.mark.parametrize("slice_size", [1, 7, 60, 1_000, 32_768])
def test_few_records_are_sampled_even_in_long_slices(slice_size: int) -> None:
    store: AnyStore = open_store(StoreSpec("s", engine="memory"))
    made = sampling.Sampling([store])
    assert made.size(slice_size) == 0  # nothing is cached yet
    handled = sampled = 0
    for _ in range(2_000):
        size = made.size(slice_size)
        made.handled(size, slice_size)
        handled, sampled = handled + slice_size, sampled + size
    rare = handled / sampling.SAMPLING_RATIO
    slices = 2_000 * sampling.MAX_SAMPLE_RECORDS
    assert 0.5 * min(rare, slices) < sampled <= rare + sampling.MAX_SAMPLE_RECORDS
    assert sampling.Sampling([]).size(slice_size) == 0


def test_checkpoints_and_restores_are_counted(
    log: Log, tmp_path: Path, eventually: Eventually
) -> None:
    with running(log, tmp_path / "state") as first:
        first.made.words.append(some(500))
        eventually(lambda: first.exports(500, "strandline_records_handled_total", task="spell"))
    with running(log, tmp_path / "elsewhere") as second:
        eventually(lambda: second.exports(2 * PARTITIONS, "strandline_partitions", state="held"))
        seen = second.scraped()
        assert seen("strandline_restore_seconds_count") == 2 * PARTITIONS
        # At least once per key, and a letter's records are not only those of the last commit.
        assert seen("strandline_restore_records_total") >= 48
        assert seen("strandline_restore_remaining_records") == 0
        assert seen("strandline_store_entries", store="per-word") >= 40
        assert seen("strandline_store_disk_bytes", store="per-word") > 0
        assert seen("strandline_store_checkpoint_seconds_count", store="per-word") == 0
        second.made.words.append(some(100))
        eventually(lambda: second.exports(100, "strandline_records_handled_total", task="spell"))
        worker = second.made.app.runner.worker
        assert worker is not None
        counters = worker._tasks._openings._folders.counters
    # The worker has made a checkpoint of each partition at its end.
    assert counters["per-word"].checkpoints.read().count == PARTITIONS


def test_a_fenced_member_and_a_fenced_producer_are_counted(
    log: Log, tmp_path: Path, eventually: Eventually
) -> None:
    with running(log, tmp_path / "state") as one:
        eventually(lambda: one.exports(2 * PARTITIONS, "strandline_partitions", state="held"))
        worker = one.made.app.runner.worker
        assert worker is not None
        place = worker._session.membership
        assert place is not None
        log.broker.leave_group(place.member)
        eventually(lambda: one.exports(1, "strandline_fences_total", kind="member"))
        eventually(lambda: one.exports(2, "strandline_rebalances_total", change="assigned"))
        eventually(lambda: one.exports(2 * PARTITIONS, "strandline_partitions", state="held"))

        place = worker._session.membership
        assert place is not None
        log.broker.init_producer(f"pipeline-{place.member.slot}")
        one.made.words.append(some(50))
        eventually(lambda: one.exports(50, "strandline_records_handled_total", task="spell"))
        seen = one.scraped()
        assert seen("strandline_fences_total", kind="producer") == 1
        assert seen("strandline_fences_total", kind="member") == 1
        assert seen("strandline_commits_aborted_total") == 1


def test_rebalances_and_standby_copies_are_counted(
    log: Log, tmp_path: Path, eventually: Eventually
) -> None:
    with running(log, tmp_path / "state", standby_replicas=1) as one:
        one.made.words.append(some(200))
        eventually(lambda: one.exports(200, "strandline_records_handled_total", task="spell"))
        with running(log, tmp_path / "state", standby_replicas=1) as two:
            for exports in (one.exports, two.exports):
                for state in ("held", "standby"):
                    eventually(partial(exports, PARTITIONS, "strandline_partitions", state=state))
                eventually(partial(exports, 0, "strandline_standby_lag_records"))
            assert one.scraped()("strandline_rebalances_total", change="revoked") == 1
            assert two.scraped()("strandline_rebalances_total", change="assigned") >= 1
            # Each of the two workers has handled its own records only.
            one.made.words.append(some(300))
            eventually(lambda: handled(one) + handled(two) == 500)
            assert 0 < handled(two) < 300
        eventually(lambda: one.exports(0, "strandline_partitions", state="standby"))


def handled(worker: Running) -> float:
    return worker.scraped()("strandline_records_handled_total", task="tally")


class Picky:
    """An app whose handler refuses some records, on a log that refuses the first commit."""

    def __init__(self, on_error: Any) -> None:
        owner = Owner(MemoryStorage(), background=False)
        self.refusals = 0
        self.app = sl.App("picky", log=owner)
        self.numbers = self.app.topic("numbers", value=int)
        self.app.task(self.numbers, name="odd", on_error=on_error)(self.odd)
        self.numbers.append([("k", n) for n in range(10)])

    def odd(self, record: sl.Record[str, int]) -> None:
        if record.value % 5 == 0:
            raise ValueError("even that")


@pytest.mark.parametrize("on_error", ["skip", "dead_letter", "fail"])
def test_skipped_records_count_once_although_a_commit_was_aborted(
    on_error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Picky(on_error)
    commit, seen = made.app.broker().end_transaction, []

    def refuse_once(producer: Any, *, commit: bool, ended: Any = commit) -> Any:
        if commit and not seen:
            seen.append(producer)
            ended(producer, commit=False)
            raise TransactionAborted("not this time")
        return ended(producer, commit=commit)

    worker = worker_for(made.app.session, made.app.declared)
    worker.start()  # records the app's topics by a commit of its own
    monkeypatch.setattr(made.app.broker(), "end_transaction", refuse_once)
    worker.run(until="idle")
    last = parsed(exposition(worker.metrics()))
    worker.close()
    assert seen
    put_aside = {"skip": (10, 2, 0, 0), "dead_letter": (10, 0, 2, 0), "fail": (0, 0, 0, 1)}
    assert put_aside[on_error] == (
        last("strandline_records_handled_total"),
        last("strandline_records_skipped_total"),
        last("strandline_records_dead_lettered_total"),
        last("strandline_failed_partitions"),
    )
    assert last("strandline_commits_aborted_total") == 1


def test_waiting_for_room_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "FIRST_PAUSE_S", 0.0)
    made = Picky("skip")
    end, scraped = made.app.broker().end_transaction, []

    def refuse_twice(producer: Any, *, commit: bool) -> Any:
        if commit:
            scraped.append(parsed(exposition(worker.metrics()))("strandline_waiting_for_disk"))
            if len(scraped) < 3:
                raise DiskFull("no room")
        return end(producer, commit=commit)

    monkeypatch.setattr(made.app.broker(), "end_transaction", refuse_twice)
    worker = worker_for(made.app.session, made.app.declared)
    worker.start()
    worker.run(until="idle")
    last = parsed(exposition(worker.metrics()))
    worker.close()
    assert scraped == [0, 1, 1]
    assert last("strandline_waiting_for_disk") == 0
    assert last("strandline_commits_aborted_total") == 2
    assert last("strandline_records_handled_total") == 10
    assert last("strandline_handler_seconds_count") == 30


def test_a_log_that_does_not_answer_does_not_delay_a_scrape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log's owner is stalled: other metrics are exported, and the lag is left out."""
    monkeypatch.setattr(gauges, "ASK_SECONDS", 0.05)
    let_go = threading.Event()
    asked: list[object] = []

    class Stalled:
        def offsets(self, partitions: Any) -> Any:
            asked.append(partitions)
            let_go.wait(30)
            return {}

    ends = gauges.StableEnds(Stalled(), SystemClock())  # type: ignore[arg-type]
    words = TopicPartition("words", 0)
    assert ends.of([words]) == {}
    assert ends.of([words]) == {}
    assert len(asked) == 1  # it is not asked again before it has answered
    let_go.set()
