"""Records on their way from the log to agents: none waits for another partition's agent."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faust.app import App
from faust.types import TP

from strandline import changelog
from strandline.changelog.records import TopicPartition
from strandline.framework.faust import fetching_consumer
from tests.faust.faust_workers import append, by_key, eventually, in_folder, rows, worker


def test_an_agent_without_room_delays_no_other_topic(tmp_path: Path) -> None:
    """100 records are fetched for an agent that has room for 10, and waits for another topic."""
    with changelog.open(tmp_path / "log") as log:
        log.create_topic("many", 2)
        log.create_topic("signals", 2)
        append(log, "many", list(range(100)), [f"k{number}" for number in range(100)])
        with worker("sample_rooms", in_folder(tmp_path), tmp_path) as running:
            eventually(lambda: "waits for the signal" in running.text())
            append(log, "signals", [100], ["k"])
            eventually(lambda: len(rows(log, "handled")) == 101)
            assert running.stop() == 0
        assert sorted(value for *_, value in rows(log, "handled")) == list(range(101))


def test_agents_get_records_only_after_the_recovery(tmp_path: Path) -> None:
    """Faust's recovery lets records flow, seeks, and then empties the queues of the agents."""
    where = in_folder(tmp_path)
    with changelog.open(tmp_path / "log") as log:
        log.create_topic("source", 2)
        with worker("sample_recovery", where, tmp_path) as first:
            with worker("sample_recovery", where, tmp_path) as second:
                eventually(lambda: "Worker ready" in second.text())
                append(log, "source", [1] * 80, [f"k{number % 8}" for number in range(80)])
                eventually(lambda: rows(log, "copies"))
                assert second.stop() == 0
            eventually(lambda: len(rows(log, "copies")) >= 80)
            assert first.stop() == 0
        assert by_key(log, "copies") == {f"k{key}": list(range(1, 11)) for key in range(8)}


async def test_a_partition_whose_first_record_is_not_finished_is_not_read_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fetching_consumer, "MAX_UNCOMMITTED_RECORDS", 25)
    app: Any = App("app", broker=f"strandline://{tmp_path}/log", stream_buffer_maxsize=10)
    consumer, link = app.consumer, app.consumer.link
    await link.acquire()
    link.broker.create_topic("source", 2)
    append(link.log, "source", list(range(120)), [f"k{number}" for number in range(120)])
    stuck, free = TP("source", 0), TP("source", 1)
    app.consumer_generation_id = consumer._taken = 1
    consumer._owned = frozenset({stuck, free})
    await consumer.seek_to_committed()
    consumer.resume_flow()
    read = {stuck: 0, free: 0}
    for _ in range(40):
        found = await consumer._getmany(set(read), 0.0)
        for tp, records in found.items():
            read[tp] += len(records)
            for record in records:
                is_done = tp == free or record.offset > 0
                message = SimpleNamespace(tp=tp, offset=record.offset, acked=is_done, tracked=True)
                link.ledger.deliver(message)
        link.ledger.settle(link.ledger.plan())
    bounds = link.broker.offsets([TopicPartition(*tp) for tp in read])
    assert read == {stuck: 25, free: bounds[TopicPartition(*free)].high_watermark}
    assert "source-0 is not read on: 25 of its records are not committed" in caplog.text
    link.ledger.discard()
    await link.release()
