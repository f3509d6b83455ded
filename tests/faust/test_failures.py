"""Records whose agent raises: neither their table changes nor their sends remain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.changelog.records import CommittedOffset, TopicPartition
from tests.faust.faust_workers import FaustLog, eventually, worker
from tests.systems import System

ORDERS = ["a", "bad", "b"]
CHANGELOG = "failing-totals-changelog"


def fill(log: FaustLog) -> None:
    """Append the orders to one partition."""
    log.create("orders", 1)
    log.append("orders", [{"value": json.dumps(order).encode()} for order in ORDERS])


def accepted(log: FaustLog) -> list[str]:
    """Return the outputs."""
    return [value for _, _, _, value in log.rows("accepted")]


def test_a_skipped_record_leaves_no_trace(system: System, log: FaustLog, tmp_path: Path) -> None:
    fill(log)
    with worker("sample_failing", system, tmp_path, FAUST_OPTIONS="?on_error=skip") as running:
        eventually(lambda: len(accepted(log)) == 2)
        assert running.stop() == 0
    assert accepted(log) == ["a 1", "b 2"]
    assert log.latest(CHANGELOG) == {"orders": 2}
    assert log.committed("failing", "orders") == {0: 3}


@pytest.mark.long_on_kafka
def test_many_records_in_a_row_may_fail(system: System, log: FaustLog, tmp_path: Path) -> None:
    """Faust's own supervisor of agents waits for 5 s at almost each of them, or ends the worker."""
    log.create("orders", 1)
    orders = [*["bad"] * 100, "a", *["bad"] * 100, "b"]
    log.append("orders", [{"value": json.dumps(order).encode()} for order in orders])
    with worker("sample_failing", system, tmp_path, FAUST_OPTIONS="?on_error=skip") as running:
        eventually(lambda: len(accepted(log)) == 2)
        assert running.stop() == 0
    assert accepted(log) == ["a 1", "b 2"]


def test_a_dead_letter_is_kept_with_its_error(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    fill(log)
    with worker(
        "sample_failing", system, tmp_path, FAUST_OPTIONS="?on_error=dead_letter"
    ) as running:
        eventually(lambda: len(accepted(log)) == 2)
        assert running.stop() == 0
    assert accepted(log) == ["a 1", "b 2"]
    assert log.latest(CHANGELOG) == {"orders": 2}
    letters = log.read("orders.dead-letter")
    assert [letter["value"] for letter in letters] == [b'"bad"']
    headers = {one["key"]: one["value"] for one in letters[0]["headers"]}
    assert headers["strandline.error"] == b"ValueError: bad"
    assert headers["strandline.offset"] == b"1"


@pytest.mark.long_on_kafka
def test_by_default_the_worker_stops_before_the_record(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    fill(log)
    for _ in range(2):  # it stops there again, and nothing is counted twice
        with worker("sample_failing", system, tmp_path) as running:
            assert running.ended(60) != 0
        assert accepted(log) == ["a 1"]
        assert log.latest(CHANGELOG) == {"orders": 1}
    with worker("sample_failing", system, tmp_path, FAUST_OPTIONS="?on_error=skip") as running:
        eventually(lambda: len(accepted(log)) == 2)
        assert running.stop() == 0
    assert accepted(log) == ["a 1", "b 2"]


@pytest.mark.long_on_kafka
def test_a_record_that_cannot_be_decoded_follows_the_policy(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    log.create("orders", 1)
    log.append("orders", [{"value": value} for value in (b'"a"', b"{no json", b'"b"')])
    with worker("sample_failing", system, tmp_path) as running:
        assert running.ended(60) != 0
    assert accepted(log) == ["a 1"]
    with worker(
        "sample_failing", system, tmp_path, FAUST_OPTIONS="?on_error=dead_letter"
    ) as running:
        eventually(lambda: len(accepted(log)) == 2)
        assert running.stop() == 0
    assert accepted(log) == ["a 1", "b 2"]
    letters = log.read("orders.dead-letter")
    assert [letter["value"] for letter in letters] == [b"{no json"]


def test_effects_that_the_log_refuses_are_failures_of_their_record(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    """The log refuses a whole commit for one record in it, also when it is tried again."""
    refused = ["too large", "no key", "before 1970", "table"]
    log.create("orders", 1)
    log.create("compacted", 1, config={"cleanup.policy": "compact"})
    log.create("accepted", 1, config={"max.message.bytes": "1000000"})
    orders = ["a", *refused, "b"]
    log.append("orders", [{"value": json.dumps(order).encode()} for order in orders])
    with worker(
        "sample_refused", system, tmp_path, FAUST_OPTIONS="?on_error=dead_letter"
    ) as running:
        eventually(lambda: accepted(log)[-1:] == ["b 2"])
        assert running.stop() == 0
    assert accepted(log) == ["a 1", "b 2"]
    assert log.latest("refused-totals-changelog") == {"orders": 2}
    assert log.latest("refused-notes-changelog") == {}
    letters = log.read("orders.dead-letter")
    assert [json.loads(letter["value"]) for letter in letters] == refused
    errors = [
        next(one["value"] for one in letter["headers"] if one["key"] == "strandline.error")
        for letter in letters
    ]
    kinds = [error.decode().split(":")[0] for error in errors]
    assert kinds == ["RecordTooLarge", "InvalidRecord", "InvalidRecord", "RecordTooLarge"]


@pytest.mark.damages
def test_a_log_that_has_lost_records_stops_the_worker(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    """Going on at its end would skip records that come next; beginning again would double them."""
    fill(log)
    tp = TopicPartition(f"{system.prefix}orders", 0)
    log.log.broker.commit_offsets(f"{system.prefix}failing", {tp: CommittedOffset(1000)})
    with worker("sample_failing", system, tmp_path) as running:
        assert running.ended(60) != 0
        assert "goes on at offset 1000, but the log ends at" in running.text()
    assert accepted(log) == []


def test_partitions_added_to_the_topic_of_a_table_stop_the_worker(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    """Keys would move to partitions in which the table lacks their values."""
    fill(log)
    with worker("sample_failing", system, tmp_path, FAUST_OPTIONS="?on_error=skip") as running:
        eventually(lambda: len(accepted(log)) == 2)
        log.log.broker.alter_topic(f"{log.prefix}orders", partitions=2)
        eventually(lambda: log.owned("failing", "orders") == [2])
        log.append("orders", [{"value": b'"c"'}], partition=1)
        assert running.ended(60) != 0
    assert "PartitionsMismatch" in running.text()
    assert "TableNotOwned" not in running.text()
    assert log.committed("failing", "orders") == {0: 3}
