"""`strandline sinks`."""

from __future__ import annotations

from strandline.changelog.log import Log
from strandline.framework.spark.writing.staging import PREFIX
from tests.cli.conftest import Command
from tests.spark.sinks import Sink, values


def test_sinks_are_listed_with_their_last_batch(log: Log, strandline: Command) -> None:
    assert strandline("sinks", "list", "--json").json == []
    log.create_topic("t", 2)
    for number in (0, 1):
        sink = Sink(log.broker, "mine", "a-query")
        sink.commit(number, sink.stage([("k", "v")]))
    job = Sink(log.broker, "nightly", query="")
    job.commit(20240501, [])
    rows = {row.pop("sink"): row for row in strandline("sinks", "list", "--json").json}
    assert {row.pop("at")[:2] for row in rows.values()} == {"20"}
    assert rows == {
        "mine": {"query": "a-query", "batch": 1},
        "nightly": {"query": None, "batch": 20240501},
    }
    assert "a-query" in strandline("sinks", "list").out


def test_a_forgotten_sink_leaves_nothing_and_can_be_used_by_another_query(
    log: Log, strandline: Command
) -> None:
    log.create_topic("t", 2)
    old, new = Sink(log.broker, "mine", "old"), Sink(log.broker, "mine", "new")
    old.commit(7, old.stage([("k", "old")]), fail_on_data_loss=False)
    old.stage([("k", "never")])
    assert strandline("sinks", "forget", "mine", "--json").json["batch"] == 7
    assert strandline("sinks", "list", "--json").json == []
    assert not [topic for topic in log.broker.topics() if topic.name.startswith(PREFIX)]
    assert new.commit(0, new.stage([("k", "new")]))
    assert values(log.broker) == {"old": 1, "new": 1}
    assert "strandline sinks list" in strandline("sinks", "forget", "other").err
