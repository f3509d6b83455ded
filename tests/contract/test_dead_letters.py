"""Dead letters are put back where they came from, as they were, and once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.client.partitioner import partition_for
from strandline.changelog.errors import (
    InvalidRequest,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownTopic,
)
from strandline.changelog.log import Log
from strandline.framework import dead_letters
from strandline.framework.dead_letters import retry, waiting
from tests.systems import System

KEYS = [f"k{n}" for n in range(8)]
BASE = 1_700_000_000_000


@dataclass(frozen=True)
class Sale:
    shop: str
    amount: float


class Counting:
    """An app that counts by key, and fails for records until it is repaired."""

    def __init__(self, system: System, log: Log, value: Any, given: list[Any]) -> None:
        self.log, self.is_broken = log, True
        self.app = sl.App(f"{system.prefix}app", log=log, state_dir=system.state)
        self.input = self.app.topic(f"{system.prefix}in", key=str, value=value, partitions=4)
        self.counts = self.app.counter("counts")
        self.letters = f"{system.prefix}app-count-dead-letter"
        self.headers: list[Any] = []

        @self.app.task(self.input, stores=[self.counts], on_error="dead_letter")
        def count(record: sl.Record[str, Any]) -> None:
            if self.is_broken:
                raise ValueError("not yet")
            self.counts.add(record.key, 1)
            self.headers.append((record.key, list(record.headers), record.timestamp))

        self.input.append([(key, item, BASE + n) for n, (key, item) in enumerate(given)])
        self.run()

    def run(self) -> dict[str, int]:
        self.app.run(until="idle", progress=False)
        return dict(self.app.query(self.counts).to_dict())


FORMS: dict[str, tuple[Any, Callable[[int], Any]]] = {
    "plain": (int, lambda n: n),
    "typed": (Sale, lambda n: Sale("york", float(n))),
    "bytes": (bytes, lambda n: bytes([n])),
}


@pytest.mark.long_on_kafka
@pytest.mark.parametrize(("value", "item"), FORMS.values(), ids=FORMS)
def test_records_go_back_into_their_partitions_once(
    system: System, value: Any, item: Callable[[int], Any]
) -> None:
    log = system.open()
    given = [(key, item(n)) for n, key in enumerate(KEYS * 3)]
    counting = Counting(system, log, value, given)
    assert waiting(log.broker, counting.letters) == len(given)
    assert retry(log.broker, counting.letters).records == {counting.input.name: len(given)}
    assert counting.run() == {}  # still broken: they are letters again
    counting.is_broken = False
    assert waiting(log.broker, counting.letters) == len(given)
    done = retry(log.broker, counting.letters)
    assert (done.records, done.left) == ({counting.input.name: len(given)}, 0)
    assert counting.run() == dict.fromkeys(KEYS, 3)
    assert (waiting(log.broker, counting.letters), retry(log.broker, counting.letters).records) == (
        0,
        {},
    )
    assert counting.run() == dict.fromkeys(KEYS, 3)
    assert sorted(counting.headers) == sorted(
        (key, [], BASE + n) for n, (key, _) in enumerate(given)
    )


@pytest.mark.long_on_kafka
def test_headers_of_the_record_itself_are_kept(system: System) -> None:
    log = system.open()
    counting = Counting(system, log, int, [])
    own = [("error.type", b"mine"), ("trace", b"\xff"), ("none", None)]
    with log.producer() as producer:
        producer.send(counting.input.name, b"\x01", "k", headers=own)
    counting.run()
    retry(log.broker, counting.letters)
    counting.run()
    counting.is_broken = False
    retry(log.broker, counting.letters)
    assert counting.run() == {"k": 1}
    assert [headers for _, headers, _ in counting.headers] == [own]


def test_a_letter_of_a_timer_is_left(system: System) -> None:
    log = system.open()
    app = sl.App(f"{system.prefix}app", log=log, state_dir=system.state)
    given = app.topic(f"{system.prefix}in", key=str, value=int)

    @app.task(given, on_error="dead_letter")
    def remind(record: sl.Record[str, int]) -> None:
        sl.set_timer(record.key, record.timestamp + 1)

    @app.on_timer(remind)
    def due(name: Any) -> None:
        raise ValueError("not yet")

    given.append([("a", 1)])
    app.run(until="end", progress=False)
    done = retry(log.broker, f"{system.prefix}app-remind-dead-letter")
    assert (done.records, done.left) == ({}, 1)


def test_another_topic_is_refused(system: System) -> None:
    with pytest.raises(InvalidRequest, match="is no dead-letter topic"):
        retry(system.open().broker, f"{system.prefix}in")


def test_a_record_whose_letter_has_no_value_is_taken_from_its_origin(
    system: System, eventually: Callable[..., None]
) -> None:
    """The log had no room for its value. One that was deleted since, or of another topic, is left."""
    log = system.open()
    name, letters = f"{system.prefix}in", f"{system.prefix}in-dead-letter"
    topic_id = log.create_topic(name).topic_id
    log.create_topic(letters)
    record = {"key": b"a", "value": b"large", "headers": [("own", b"1")], "timestamp": BASE}
    log.append(name, [record])
    #           offset, topic id, time of the letter
    put_back = [(0, topic_id, BASE + 1), (0, None, BASE)]
    left = [(7, topic_id, BASE), (0, "0" * 32, BASE), (0, None, BASE + 1)]
    with log.producer() as producer:
        for offset, known_id, time in (*put_back, *left):
            origin = {"topic": name, "partition": "0", "offset": str(offset)}
            origin |= {} if known_id is None else {"topic_id": known_id}
            headers = [("error.type", b"E"), ("error.left_out", b"traceback, value, headers")]
            headers += [(f"origin.{part}", text.encode()) for part, text in origin.items()]
            producer.send(letters, None, b"a", headers=headers, timestamp=time)
    done = retry(log.broker, letters)
    assert (done.records, done.left) == ({name: len(put_back)}, len(left))
    eventually(lambda: len(log.read(name)) == 1 + len(put_back), what="the records")
    rows = log.read(name).to_pylist()
    assert [(row["key"], row["value"], row["headers"]) for row in rows] == [
        (b"a", b"large", [{"key": "own", "value": b"1"}])
    ] * 3


def test_a_letter_names_the_topic_that_its_record_was_in(system: System) -> None:
    log = system.open()
    counting = Counting(system, log, int, [("a", 1)])
    [row] = log.read(counting.letters).to_pylist()
    headers = {pair["key"]: pair["value"] for pair in row["headers"]}
    assert headers["origin.topic_id"].decode() == log.topic(counting.input.name).topic_id


def test_letters_of_several_partitions_keep_their_order(
    system: System, eventually: Callable[..., None]
) -> None:
    """Some of them are put back from their letters, others from their topic."""
    log = system.open()
    name, letters = f"{system.prefix}in", f"{system.prefix}in-dead-letter"
    topic_id = log.create_topic(name, 3).topic_id
    log.create_topic(letters)
    for n in range(30):
        log.append(name, [{"key": b"k", "value": b"%d" % n}], partition=n % 3)
    with log.producer() as producer:
        for n in range(30):
            origin = {"topic": name, "partition": str(n % 3), "offset": str(n // 3)}
            origin |= {"topic_id": topic_id}
            headers = [("error.type", b"E")]
            if n % 4 == 0:
                headers += [("error.left_out", b"traceback, value, headers")]
            headers += [(f"origin.{part}", text.encode()) for part, text in origin.items()]
            producer.send(letters, None if n % 4 == 0 else b"%d" % n, b"k", headers=headers)
    assert retry(log.broker, letters).records == {name: 30}
    eventually(lambda: len(log.read(name)) == 60, what="the records")
    rows = log.read(name).to_pylist()
    for partition in range(3):
        found = [row["value"] for row in rows if row["partition"] == partition]
        assert found == [b"%d" % n for n in range(partition, 30, 3)] * 2


def test_records_of_a_topic_that_was_created_again_go_to_the_partitions_of_their_keys(
    system: System, eventually: Callable[..., None]
) -> None:
    log = system.open()
    name, letters = f"{system.prefix}in", f"{system.prefix}in-dead-letter"
    log.create_topic(name, 2)
    log.create_topic(letters)
    with log.producer() as producer:
        for n, key in enumerate([*KEYS, None]):
            origin = {
                "topic": name,
                "partition": f"{3 + n % 2}",
                "offset": "0",
                "topic_id": "0" * 32,
            }
            headers = [("error.type", b"E")]
            headers += [(f"origin.{part}", text.encode()) for part, text in origin.items()]
            producer.send(letters, b"v", key and key.encode(), headers=headers)
    assert retry(log.broker, letters).records == {name: len(KEYS) + 1}
    eventually(lambda: len(log.read(name)) == len(KEYS) + 1, what="the records")
    rows = log.read(name).to_pylist()
    found = {row["key"]: row["partition"] for row in rows}
    assert found == {key.encode(): partition_for(key.encode(), 2) for key in KEYS} | {None: 1}


@pytest.mark.long_on_kafka
def test_letters_of_a_topic_that_is_replaced_meanwhile_end_the_retry(
    system: System, monkeypatch: pytest.MonkeyPatch, fresh_shapes: None
) -> None:
    log = system.open()
    counting = Counting(system, log, int, [(key, n) for n, key in enumerate(KEYS)])
    monkeypatch.setattr(dead_letters, "BATCH_RECORDS", 1)
    found = dead_letters.Origins.records_of

    def replaced(self: Any, batch: Any) -> Any:
        yield from found(self, batch)
        if len(log.read(counting.letters)) == len(KEYS):
            log.delete_topic(counting.letters)
            log.create_topic(counting.letters)

    monkeypatch.setattr(dead_letters.Origins, "records_of", replaced)
    try:
        done = retry(log.broker, counting.letters)
    except (OffsetOutOfRange, UnknownTopic, UnknownPartition):
        return
    assert not system.is_kafka
    assert done.records == {counting.input.name: len(KEYS)}
