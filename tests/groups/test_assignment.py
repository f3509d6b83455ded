"""Consumers of a group: the partitions that each one reads, commits and loses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strandline import changelog
from strandline.changelog.client.consumer import Consumer
from strandline.changelog.errors import InvalidConfig, MemberFenced
from strandline.changelog.log import Log
from strandline.changelog.records import CommittedOffset, TopicPartition

Eventually = Callable[..., None]
RECORDS = 200
PARTITIONS = 4


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with changelog.open(tmp_path / "log", durability="os") as opened:
        opened.create_topic("t", PARTITIONS)
        opened.append("t", [{"key": b"%d" % n, "value": b"%d" % n} for n in range(RECORDS)])
        yield opened


class Reader:
    """A consumer that commits its position when partitions are revoked."""

    def __init__(self, log: Log, **settings: object) -> None:
        self.consumer: Consumer = log.consumer(group="g", **settings)  # type: ignore[arg-type]
        self.read: list[bytes] = []
        self.told: list[tuple[str, list[int]]] = []
        self.consumer.subscribe(
            "t",
            on_assigned=lambda partitions: self.note("assigned", partitions),
            on_revoked=self.revoked,
            on_lost=lambda partitions: self.note("lost", partitions),
        )

    def note(self, what: str, partitions: list[TopicPartition]) -> None:
        self.told.append((what, [tp.partition for tp in partitions]))

    def revoked(self, partitions: list[TopicPartition]) -> None:
        self.note("revoked", partitions)
        self.consumer.commit()

    def poll(self, timeout: float = 0.0, max_records: int | None = None) -> None:
        for batch in self.consumer.poll(timeout, max_records=max_records):
            self.read += batch.columns.column("value").to_pylist()

    @property
    def share(self) -> set[int]:
        return {tp.partition for tp in self.consumer.assignment()}


def shared(*readers: Reader) -> bool:
    for reader in readers:
        reader.poll(max_records=3)
    shares = [reader.share for reader in readers]
    return sorted(n for share in shares for n in share) == list(range(PARTITIONS)) and all(shares)


def test_every_record_is_read_once_while_members_join_and_leave(
    log: Log, eventually: Eventually
) -> None:
    one = Reader(log)
    one.poll(1.0, max_records=20)
    assert one.told == [("assigned", [0, 1, 2, 3])]
    other = Reader(log)
    eventually(lambda: shared(one, other), what="sharing")
    one.consumer.commit()
    one.consumer.close()
    eventually(lambda: shared(other), what="taking over")
    eventually(
        lambda: other.poll(0.05) or len(one.read) + len(other.read) >= RECORDS, what="reading"
    )
    assert sorted(one.read + other.read) == sorted(b"%d" % n for n in range(RECORDS))
    other.consumer.close()
    assert log.broker.describe_group("g").members == []


def test_partitions_that_do_not_move_are_never_revoked(log: Log, eventually: Eventually) -> None:
    one = Reader(log)
    one.poll(1.0)
    other = Reader(log)
    eventually(lambda: shared(one, other), what="sharing")
    [(_, all_of_them), (what, given_up)] = one.told
    assert what == "revoked"
    assert set(all_of_them) - set(given_up) == one.share
    assert other.told == [("assigned", given_up)]
    one.consumer.close()
    other.consumer.close()


def test_later_topics_and_added_partitions_are_assigned(log: Log, eventually: Eventually) -> None:
    with log.consumer(group="g") as consumer:
        consumer.subscribe(["t", "later"])
        consumer.poll(0.1)
        log.create_topic("later", 1)
        log.alter_topic("t", partitions=PARTITIONS + 1)
        eventually(lambda: (consumer.poll(0.05) and False) or len(consumer.assignment()) == 6)


def test_a_consumer_that_does_not_poll_loses_its_partitions(
    log: Log, eventually: Eventually
) -> None:
    slow = Reader(log, max_poll_interval_ms=200)
    slow.poll(1.0)
    other = Reader(log)
    eventually(lambda: shared(other), what="taking over")
    with pytest.raises(MemberFenced):
        slow.consumer.commit()
    slow.poll()
    assert slow.told[-1] == ("lost", [0, 1, 2, 3])
    assert slow.share == set()
    with pytest.raises(MemberFenced):
        slow.consumer.commit({TopicPartition("t", 0): 1})
    eventually(lambda: shared(slow, other), what="sharing again")
    slow.consumer.close()
    other.consumer.close()


def test_offsets_in_a_transaction_are_checked_for_membership(
    log: Log, eventually: Eventually
) -> None:
    log.create_topic("out")
    one = Reader(log)
    one.poll(1.0)
    with log.producer(transactional_id="x") as producer:
        with producer.transaction():
            producer.append("out", [{"value": b"1"}])
            producer.send_offsets_to_transaction({TopicPartition("t", 0): 7}, one.consumer.member)
        # The partition is revoked while its transaction is open, which must not commit.
        producer.begin_transaction()
        producer.append("out", [{"value": b"2"}])
        member = one.consumer.member
        producer.send_offsets_to_transaction({TopicPartition("t", 0): 8}, member)
        one.consumer.close()
        with pytest.raises(MemberFenced):
            producer.commit_transaction()
        producer.abort_transaction()
        # The consumer may not begin another transaction either.
        producer.begin_transaction()
        with pytest.raises(MemberFenced):
            producer.send_offsets_to_transaction({TopicPartition("t", 0): 9}, member)
        producer.abort_transaction()
        with producer.transaction():
            producer.append("out", [{"value": b"3"}])
    committed = log.broker.committed("g")
    assert committed[TopicPartition("t", 0)].offset == 7
    assert log.read("out")["value"].to_pylist() == [b"1", b"3"]


def test_a_client_outside_the_group_cannot_commit_while_it_has_members(log: Log) -> None:
    offsets = {TopicPartition("t", 0): CommittedOffset(1)}
    with log.consumer(group="g") as consumer:
        consumer.subscribe("t")
        consumer.poll(1.0)
        with pytest.raises(MemberFenced, match="has members"):
            log.broker.commit_offsets("g", offsets)
    log.broker.commit_offsets("g", offsets)


def test_consumers_without_a_group_read_everything(log: Log) -> None:
    for _ in range(2):
        with log.consumer() as consumer:
            consumer.subscribe("t")
            assert len(consumer.assignment()) == PARTITIONS


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"session_timeout_ms": 1}, "session.timeout.ms is 100 to"),
        ({"assignor": "best"}, "assignor is cooperative-sticky"),
        ({"instance": "a\0b"}, "a member of a group has 1 to 1000 printable characters"),
    ],
)
def test_invalid_settings_are_refused_when_a_consumer_joins(
    log: Log, settings: dict[str, object], message: str
) -> None:
    with log.consumer(group="g", **settings) as consumer:  # type: ignore[arg-type]
        consumer.subscribe("t")
        with pytest.raises(InvalidConfig, match=message):
            consumer.poll()


def test_a_consumer_that_cannot_join_creates_no_group(log: Log) -> None:
    with log.consumer(group="g", assignor="best") as consumer:  # type: ignore[arg-type]
        consumer.subscribe("t")
        with pytest.raises(InvalidConfig):
            consumer.poll()
    assert log.broker.groups() == []
