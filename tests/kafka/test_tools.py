"""Interoperability with Kafka's own tools, in both directions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.kafka_broker import BrokerProcess, kafka_java
from strandline import changelog
from strandline.changelog.client.partitioner import partition_for
from tests.kafka.apps import totals
from tests.kafka.brokers import Running

PARTITIONS = 2
TOOLS = {
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "dump-log": "kafka.tools.DumpLogSegments",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
}
"""Java classes by the names of their scripts."""


class Tool:
    """A running tool. Its output is waited for on request."""

    def __init__(self, name: str, *arguments: str, given: str = "") -> None:
        self._process = subprocess.Popen(
            [*kafka_java(), "-XX:TieredStopAtLevel=1", "-Xmx128m", TOOLS[name], *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._given = given

    def lines(self) -> list[str]:
        said, complaints = self._process.communicate(self._given, 60)
        assert self._process.returncode == 0, said + complaints
        return said.splitlines()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def broker(running: Running) -> BrokerProcess:
    if running.broker is None:
        pytest.skip("the broker is not ours to look into (STRANDLINE_TEST_KAFKA)")
    return running.broker


@pytest.fixture
def tools() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.long
def test_kafkas_tools_and_strandline_read_the_same(
    running: Running, broker: BrokerProcess, name: str, now: int, tmp_path: Path, tools: ExitStack
) -> None:
    made = totals(name, running.url, tmp_path)
    with made.app:
        made.words.append([(f"k{n % 5}", n) for n in range(40)])
        made.app.run(until="idle")
    keys = [f"key-{n}".encode() for n in range(8)]
    topic, theirs = f"{name}-ours", f"{name}-theirs"
    with changelog.open(running.url) as log:
        log.create_topic(topic, PARTITIONS)
        log.create_topic(theirs, PARTITIONS)
        with log.producer(transactional_id=f"{name}-pen") as pen:
            with pen.transaction():
                for key in keys:
                    pen.send(topic, b"v-" + key, key, timestamp=now, headers=[("trace", b"7")])
                pen.send(topic, None, keys[0], timestamp=now)
            pen.begin_transaction()
            pen.append(topic, [{"value": b"never"}])
            pen.abort_transaction()

    def tool(kind: str, *arguments: str, given: str = "") -> Tool:
        started = Tool(kind, *arguments, given=given)
        tools.callback(started.end)
        return started

    at = ("--bootstrap-server", broker.address)
    shown = [
        f"print.{what}=true" for what in ("partition", "offset", "timestamp", "headers", "key")
    ]
    consumer = tool(
        "console-consumer",
        *(*at, "--topic", topic, "--from-beginning", "--isolation-level", "read_committed"),
        *("--max-messages", str(len(keys) + 1)),
        *(word for one in shown for word in ("--property", one)),
    )
    offsets = tool("get-offsets", *at, "--topic", f"{name}-words")
    groups = tool("consumer-groups", *at, "--describe", "--group", name)
    transactions = tool("transactions", *at, "describe", "--transactional-id", f"{name}-0")
    logs = [broker.data / f"{topic}-{n}" / f"{0:020}.log" for n in range(PARTITIONS)]
    dump = tool("dump-log", "--print-data-log", "--files", ",".join(map(str, logs)))
    producer = tool(
        "console-producer",
        *(*at, "--topic", theirs, "--property", "parse.key=true"),
        *("--property", "parse.headers=true", "--property", "null.marker=NULL"),
        given="".join(f"trace:7\t{key.decode()}\tv-{key.decode()}\n" for key in keys)
        + f"trace:7\t{keys[0].decode()}\tNULL\n",
    )

    # Every record once, with its partition, time, header and key, and no aborted ones.
    seen = [line.split("\t") for line in consumer.lines()]
    assert sorted(line[-2:] for line in seen) == sorted(
        [[key.decode(), f"v-{key.decode()}"] for key in keys] + [[keys[0].decode(), "null"]]
    )
    for time, partition, _, headers, key, value in seen:
        assert time == f"CreateTime:{now}"
        assert partition == f"Partition:{partition_for(key.encode(), PARTITIONS)}"
        assert headers == ("NO_HEADERS" if value == "null" else "trace:7")
    # The end of the topic, and the app's committed offset there.
    ends = {int(number): int(end) for _, number, end in (x.split(":") for x in offsets.lines())}
    assert sum(ends.values()) == 40
    told = [line.split() for line in groups.lines() if line.startswith(name)]
    committed = {int(x[2]): (int(x[3]), int(x[5])) for x in told if x[1] == f"{name}-words"}
    assert committed == {number: (end, 0) for number, end in ends.items()}
    assert "CompleteCommit" in "\n".join(transactions.lines())
    # One of our batches is one of Kafka's; transactions end in markers.
    dumped = dump.lines()
    assert any("isTransactional: true" in line for line in dumped)
    markers = [
        word for line in dumped for word in ("COMMIT", "ABORT") if f"endTxnMarker: {word}" in line
    ]
    assert {"COMMIT", "ABORT"} == set(markers)
    # The other direction.
    producer.lines()
    with changelog.open(running.url) as log, log.consumer() as reader:
        reader.subscribe(theirs)
        records = reader.records(timeout=5)
        assert {(r.key, r.value) for r in records} == {
            *((key, b"v-" + key) for key in keys),
            (keys[0], None),
        }
        for record in records:
            assert record.partition == partition_for(record.key, PARTITIONS)
            assert record.headers == (("trace", b"7"),)
