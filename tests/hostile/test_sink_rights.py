"""A sink over TCP has the rights that it needs beside its topics, and no other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from strandline.changelog.broker import Broker
from strandline.changelog.client.producer import Producer
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidRecord, NotAuthorized
from strandline.changelog.extents import OffsetSpan
from strandline.changelog.flight import tokens
from strandline.changelog.flight.address import connect
from strandline.changelog.flight.rights import Rights
from strandline.changelog.flight.serve import ServedLog, serve
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.records import TopicPartition
from strandline.changelog.sinks import (
    SINKS,
    SINKS_CONFIG,
    STAGING,
    TRANSACTIONS,
    digest_of,
    staging_prefix,
)
from strandline.framework.spark.writing import commit as commits
from strandline.framework.spark.writing.sinks import Sinks
from strandline.framework.spark.writing.staging import SinkName
from strandline.statestore.compacted_table import CONFIG, records
from tests.spark.sinks import Sink, staged_rows, values

ROWS = [("a", "1"), ("b", "2"), (None, "3")]
OF_S = Rights(produce=["t"], transaction=[f"{TRANSACTIONS}s"])
OF_JOBS = Rights(produce=["t"], transaction=[f"{TRANSACTIONS}{STAGING}job*"])
BOTH = Rights(produce=["t"], transaction=[f"{TRANSACTIONS}s*"])
NO_SINKS = {
    "a producer": Rights(["*"], ["*"], ["*"], ["mine", "*"]),
    "a prefix that includes sinks": Rights(["*"], ["*"], ["*"], ["strandline*"]),
    "another target": Rights(produce=["others"], transaction=[f"{TRANSACTIONS}*"]),
    "a reader": Rights(read=["t"], transaction=[f"{TRANSACTIONS}*"]),
}
Connect = Callable[[Rights], Broker]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedLog]:
    served = serve(tmp_path / "log", listen="127.0.0.1:0", token="sixteen-or-more-characters")
    for name in ("t", "others"):
        served.broker.create_topic(name, 2)
    yield served
    served.close()


@pytest.fixture
def client(served: ServedLog, tmp_path: Path) -> Iterator[Connect]:
    with contextlib.ExitStack() as end:

        def connected(rights: Rights) -> Broker:
            made = tokens.create(LocalStorage(tmp_path / "log"), "sink", rights)
            broker = connect(served.url, token=made.token, deadline=30)
            end.callback(broker.close)
            return broker

        yield connected


@pytest.mark.parametrize("rights", [OF_S, BOTH])
def test_a_sink_needs_no_right_of_an_administrator(
    served: ServedLog, client: Connect, rights: Rights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "KEPT_BYTES", 0)  # each commit deletes staged rows
    sink = Sink(client(rights))
    for number in range(3):
        staged = sink.stage(ROWS)
        assert sink.commit(number, staged)
        assert not sink.commit(number, staged)
    served.broker.alter_topic("t", partitions=3)
    assert sink.commit(3, sink.stage(ROWS))
    assert values(served.broker) == {"1": 4, "2": 4, "3": 4}
    assert staged_rows(served.broker) == 0
    assert Sinks(served.broker, "", SystemClock()).all()["s"].batch == 3


def test_a_batch_write_leaves_nothing_and_needs_no_administrator(
    served: ServedLog, client: Connect
) -> None:
    sink = Sink(client(OF_JOBS), query="")
    sink.sink_id = sink.name.prefix
    assert sink.commit(None, sink.stage(ROWS))
    assert values(served.broker) == {"1": 1, "2": 1, "3": 1}
    assert not [t for t in served.broker.topics() if t.name.startswith(STAGING)]


def staging_of(broker: Broker, topic: str, sink_id: str = "s") -> str:
    return SinkName.of_stream(sink_id).topic(broker.topic(topic))


def attempts(served: ServedLog, staging: str) -> dict[str, Callable[[Broker], object]]:
    """Return what a client may do with a topic of sinks only if it is its own."""
    tp = TopicPartition(staging, 0)
    rows = records(pa.array([b"k"], pa.binary()), pa.array([b"v"], pa.binary()), 1)

    def append(broker: Broker) -> None:
        with Producer(broker) as producer:
            producer.append_batches([(tp, rows, 0)])

    return {
        "fetch": lambda b: b.fetch({tp: 0}),
        "describe": lambda b: b.topic(staging),
        "offsets": lambda b: b.offsets([tp]),
        "sizes": lambda b: b.extents({tp: OffsetSpan(0, 1)}, extent_bytes=1 << 20),
        "append": append,
        "alter": lambda b: b.alter_topic(staging, {"retention.ms": "1"}),
        "add partitions": lambda b: b.alter_topic(staging, partitions=9),
        "extend": lambda b: b.alter_topic(staging, schema=pa.schema([("x", pa.int64())])),
        "delete records": lambda b: b.delete_records(tp, 0),
        "delete": lambda b: b.delete_topic(staging),
        "create": lambda b: b.create_topic(staging, 1, internal=True),
    }


def refused_all(served: ServedLog, broker: Broker, topic: str) -> None:
    before = served.broker.topics()
    for name, do in attempts(served, topic).items():
        with pytest.raises(NotAuthorized):
            do(broker)
            pytest.fail(f"{name} was allowed")
    assert served.broker.topics() == before
    assert topic not in {one.name for one in broker.topics()}


def test_the_error_of_another_sink_id_names_the_right_that_is_missing(
    served: ServedLog, client: Connect
) -> None:
    with pytest.raises(NotAuthorized, match="right transaction:strandline-sink-ID for the sink"):
        client(OF_S).topic(staging_of(served.broker, "t", "another"))


@pytest.mark.parametrize("who", NO_SINKS)
def test_another_token_may_not_touch_staged_rows(
    served: ServedLog, client: Connect, who: str
) -> None:
    Sink(served.broker).stage(ROWS)
    refused_all(served, client(NO_SINKS[who]), staging_of(served.broker, "t"))


@pytest.mark.parametrize("who", ["a producer", "a prefix that includes sinks"])
def test_another_token_may_not_touch_committed_batches(
    served: ServedLog, client: Connect, who: str
) -> None:
    Sinks(served.broker, "", SystemClock()).create()
    refused_all(served, client(NO_SINKS[who]), SINKS)


def test_a_sink_may_not_touch_the_rows_of_another_sink_or_topic(
    served: ServedLog, client: Connect
) -> None:
    other = Sink(served.broker, "other")
    other.stage(ROWS)
    other.stage(ROWS, "others")
    broker = client(OF_S)
    for name in (
        staging_of(served.broker, "t", "other"),
        staging_of(served.broker, "others", "other"),
        staging_of(served.broker, "others", "s"),
        f"{staging_prefix('s')}0000000000000000",
        f"{STAGING}job1-x-{digest_of(served.broker.topic('others').topic_id)}",
        f"x{staging_of(served.broker, 't')}",
    ):
        refused_all(served, broker, name)


def test_a_token_for_batch_writes_may_not_touch_the_rows_of_a_stream(
    served: ServedLog, client: Connect
) -> None:
    Sink(served.broker).stage(ROWS)
    refused_all(served, client(OF_JOBS), staging_of(served.broker, "t"))


def test_rows_staged_for_a_deleted_topic_are_not_those_of_its_successor(
    served: ServedLog, client: Connect
) -> None:
    broker = client(OF_S)
    sink = Sink(broker)
    sink.stage(ROWS)
    before = staging_of(served.broker, "t")
    served.broker.delete_topic("t")
    served.broker.create_topic("t")
    refused_all(served, broker, before)
    assert sink.commit(0, sink.stage(ROWS))


def test_a_sink_may_not_change_the_topic_of_committed_batches(
    served: ServedLog, client: Connect
) -> None:
    broker = client(OF_S)
    for changed in (
        lambda: broker.create_topic(SINKS, 2, config=dict(SINKS_CONFIG), internal=True),
        lambda: broker.create_topic(SINKS, 1, internal=True),
        lambda: broker.create_topic(SINKS, 1, config={"retention.ms": "1"}, internal=True),
        lambda: broker.create_topic(
            SINKS, 1, config={**SINKS_CONFIG, "delete.retention.ms": "0"}, internal=True
        ),
        lambda: broker.create_topic(
            SINKS,
            1,
            config=dict(SINKS_CONFIG),
            schema=pa.schema([("x", pa.int64())]),
            internal=True,
        ),
    ):
        with pytest.raises(NotAuthorized):
            changed()
    Sinks(broker, "", SystemClock()).create()
    for name in ("alter", "add partitions", "extend", "delete records", "delete"):
        with pytest.raises(NotAuthorized):
            attempts(served, SINKS)[name](broker)
    assert CONFIG == SINKS_CONFIG


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ([b"other"], NotAuthorized),
        ([b"s", b"other"], NotAuthorized),
        ([b"s1"], NotAuthorized),
        ([b""], NotAuthorized),
        ([None], NotAuthorized),
        ([b"s\xff"], InvalidRecord),
    ],
)
def test_a_sink_writes_only_its_own_batches(
    served: ServedLog, client: Connect, keys: list[bytes | None], error: type[Exception]
) -> None:
    broker = client(OF_S)
    Sinks(broker, "", SystemClock()).create()
    columns = records(pa.array(keys, pa.binary()), pa.array([b"{}"] * len(keys), pa.binary()), 1)
    with pytest.raises(error), Producer(broker) as producer:
        producer.append_batches([(TopicPartition(SINKS, 0), columns, 0)])
    at = TopicPartition(SINKS, 0)
    assert served.broker.offsets([at])[at].high_watermark == 0
