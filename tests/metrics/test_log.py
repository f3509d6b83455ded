"""Metrics of a log's owner match the events of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from strandline import changelog
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import PartitionPoisoned, StorageFailed
from strandline.changelog.flight.serve import serve
from strandline.changelog.log import Log
from strandline.changelog.metrics import exposition, measured
from strandline.changelog.records import TopicPartition
from tests.metrics.scraping import Scrape, parsed

TOKEN = "sixteen-or-more-characters"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with changelog.open(tmp_path / "log") as opened:
        yield opened


def scraped(thing: object) -> Scrape:
    return parsed(exposition(measured(thing)))


def test_appends_are_counted_by_topic(log: Log) -> None:
    log.create_topic("a", 2)
    log.create_topic("b")
    for number in range(3):
        log.append("a", [{"value": b"x" * 100}] * 10, partition=number % 2)
    seen = scraped(log.broker)
    assert seen("strandline_log_appends_total", topic="a") == 3
    assert seen("strandline_log_appended_records_total", topic="a") == 30
    assert seen("strandline_log_appended_bytes_total", topic="a") > 3_000
    assert seen("strandline_log_appends_total", topic="b") == 0
    assert seen("strandline_log_end_offset", topic="a", partition=0) == 20
    assert seen("strandline_log_end_offset", topic="a", partition=1) == 10
    assert seen("strandline_log_fsync_seconds_count") >= 3
    assert seen("strandline_log_fsync_seconds_sum") > 0
    assert seen("strandline_log_owned") == 1


def test_the_size_of_a_topic_is_that_of_its_files(log: Log, tmp_path: Path) -> None:
    log.create_topic("a", config={"segment.bytes": "4096"})
    for _ in range(20):
        log.append("a", [{"value": b"x" * 500}])
    files = (tmp_path / "log" / "topics" / log.topic("a").topic_id).rglob("*.log")
    sizes = [path.stat().st_size for path in files]
    assert len(sizes) > 1
    assert scraped(log.broker)("strandline_log_size_bytes", topic="a") == sum(sizes)
    log.broker.delete_records(TopicPartition("a", 0), 12)
    assert scraped(log.broker)("strandline_log_start_offset", topic="a") == 12


def test_transactions_are_counted_by_how_they_end(log: Log) -> None:
    log.create_topic("a")
    producer = log.producer(transactional_id="p")
    for number, commit in enumerate((True, False, True)):
        producer.begin_transaction()
        producer.send("a", b"x")
        producer.flush()
        seen = scraped(log.broker)
        assert seen("strandline_log_open_transactions") == 1
        assert (
            seen("strandline_log_stable_offset", topic="a") == 2 * number
        )  # a marker takes one offset each
        producer.commit_transaction() if commit else producer.abort_transaction()
    seen = scraped(log.broker)
    assert seen("strandline_log_transactions_total", outcome="committed") == 2
    assert seen("strandline_log_transactions_total", outcome="aborted") == 1
    assert seen("strandline_log_commit_rounds_total") == 2
    assert seen("strandline_log_open_transactions") == 0
    producer.close()


def test_a_partition_whose_disk_failed_is_counted(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("a", 2)
    log.append("a", [{"value": b"x"}], partition=1)
    owner = log.broker._connections.current(1.0)[1].broker  # type: ignore[attr-defined]
    assert isinstance(owner, Owner)
    partition = owner._log.partition(TopicPartition("a", 1))
    file = partition.segments[-1].file

    def refuse() -> None:
        raise StorageFailed("the disk says no")

    with monkeypatch.context() as patched:
        patched.setattr(file, "sync", refuse, raising=True)
        with pytest.raises(StorageFailed):
            log.append("a", [{"value": b"x"}], partition=1)
    with pytest.raises(PartitionPoisoned):
        log.append("a", [{"value": b"x"}], partition=1)
    assert scraped(log.broker)("strandline_log_refusing_partitions", topic="a") == 1


def test_attached_clients_are_counted_and_export_no_metrics_of_the_log(
    tmp_path: Path,
) -> None:
    with closing(serve(tmp_path / "log", listen="127.0.0.1:0", token=TOKEN)) as served:
        far = changelog.open(served.url, token=TOKEN)
        near = changelog.open(tmp_path / "log")
        seen = scraped(served)
        assert seen("strandline_log_clients", over="tcp") == 1
        assert seen("strandline_log_clients", over="socket") == 1
        assert list(scraped(near.broker).families) == [
            "strandline_log_owned",
            "strandline_log_takeovers_total",
        ]
        assert scraped(near.broker)("strandline_log_owned") == 0
        near.close()
        far.close()


def test_a_takeover_is_counted_by_the_new_owner(
    tmp_path: Path, eventually: Callable[..., None]
) -> None:
    first, second = changelog.open(tmp_path / "log"), changelog.open(tmp_path / "log")
    second.create_topic("a")
    assert scraped(second.broker)("strandline_log_takeovers_total") == 0
    first.close()
    eventually(lambda: [t.name for t in second.topics()] == ["a"])
    seen = scraped(second.broker)
    assert (seen("strandline_log_owned"), seen("strandline_log_takeovers_total")) == (1, 1)
    assert scraped(first.broker)("strandline_log_takeovers_total") == 0
    second.close()
